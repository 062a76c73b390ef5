"""Every backbone x memory, found in the registry: a new file is under the laws at once."""

import itertools

import pytest

from chronofed import (
    Auto,
    Averaged,
    Backbone,
    ClassWeighted,
    CoreSet,
    FedDF,
    FedOpt,
    FedProx,
    FedRep,
    FedRs,
    Frozen,
    Gaussian,
    Generative,
    Generator,
    HeteroFL,
    Memory,
    Method,
    Mime,
    MimeLite,
    NotTrueDistillation,
    Optimal,
    PriorCorrection,
    Private,
    Ridge,
    Scaffold,
    Taylor,
)
from chronofed.core.spec_io import alternatives

# The project's own parts; tests define others.
SHIPPED = "chronofed."
# Settings that keep the laws quick: the work of these grows with their steps, their code does not.
QUICK = {Generative: {"steps": 5}, Generator: {"steps": 6, "hidden": 16, "lr": 0.03}}
# The model of the laws is a single layer, which would be all head; quadratic worlds have other names.
# The work of FedDF on the server grows with its steps, its code does not.
FITTING = {FedRep: {"layers": ("*bias", "w", "w1")}, FedDF: {"steps": 5, "batch_size": 16}}

BACKBONES = [
    cls(**FITTING.get(cls, {}))
    for cls in alternatives(Backbone).values()
    # A body that never trains learns with a head only, which is among the others.
    if cls.__module__.startswith(SHIPPED)
    and not getattr(cls, "private", False)
    and cls is not Frozen
]
# HeteroFL refuses BatchNorm in a network that it cuts.
NORMALISED = [HeteroFL(rates=(1.0,)) if isinstance(b, HeteroFL) else b for b in BACKBONES]
# Private does not go with everything; with little noise it learns.
PRIVATE = Private(noise=0.02)
MEMORIES = [
    cls(**QUICK.get(cls, {}))
    for cls in alternatives(Memory).values()
    if cls.__module__.startswith(SHIPPED)
]


def method(backbone: Backbone, memory: Memory) -> Method:
    average = "clients" if backbone.private else "samples"
    return Method(backbone, memory, Optimal(time_drift_sq=1.0, information_loss_sq=0.5), average)


# Heads go with every backbone and memory; these are some of the products.
WITH_PARTS = {
    "head": Method(head=Gaussian()),
    "head-averaged": Method(Averaged(Scaffold()), CoreSet(size=5), head=Ridge(decay=0.9)),
    "head-by-client": Method(Frozen(), head=Gaussian(decay=1.0, prior="seen", by_client=True)),
    "head-written-back": Method(MimeLite(), Taylor(), head=Gaussian(write_back=True)),
    "head-auto": Method(Averaged(), CoreSet(size=5), head=Auto()),
    "kept-logits": Method(FedProx(), CoreSet(size=5, keep_logits=0.3)),
    "loss-scale": Method(FedProx(), CoreSet(size=5), loss=FedRs()),
    "loss-offset": Method(Averaged(), loss=PriorCorrection(), head=Gaussian()),
    "loss-teacher": Method(FedOpt(), Taylor(), loss=NotTrueDistillation(weight=0.3)),
    "loss-factors": Method(Mime(), loss=ClassWeighted()),
    "head-private": Method(
        Averaged(PRIVATE), average="clients", head=Gaussian(bound=10.0, shrinkage=0.1)
    ),
}


def server_samples(method: Method, task):
    """Return unlabelled samples for a method that refines the model on the server; others have none."""
    return task.data.test.x[:40] if method.backbone.needs_samples else None


def name(part) -> str:
    return type(part).__name__


MOST_PAIRS = 100
"""Pairs that a law tries, about: there are too many for all laws to try all."""


def quick_pairs(first, second, offset=0):
    """Yield pairs of two lists; quick are as many as it takes to meet every other part once.

    The others are marked ``product``. Two laws whose offsets follow each other meet every part between them. Of
    a long product a law yields a part, as :data:`MOST_PAIRS` says, and the next law the next part.
    """
    parts = -(-len(first) * len(second) // MOST_PAIRS)
    for (i, one), (j, other) in itertools.product(enumerate(first), enumerate(second)):
        quick = (
            (i + offset) % len(second) == j
            if len(first) >= len(second)
            else ((j + offset) % len(first) == i)
        )
        quick &= (max(i, j) + offset) % 2 == 0
        if quick or (i + j + offset) % parts == 0:
            yield one, other, () if quick else (pytest.mark.product,)


def every_method(offset=None):
    """Pairs of backbone and memory; with an offset only as many are quick as it takes to meet every part."""
    backbones = [*BACKBONES, PRIVATE]
    products = [
        pytest.param(method(b, m), id=f"{name(b)}-{name(m)}", marks=() if offset is None else marks)
        for b, m, marks in quick_pairs(backbones, MEMORIES, offset or 0)
        if not (b.private and m.location == "server")
    ]
    others = [
        pytest.param(chosen, id=part, marks=pytest.mark.product if (k + (offset or 0)) % 3 else ())
        for k, (part, chosen) in enumerate(WITH_PARTS.items())
    ]
    return products + others


EVERY = every_method()
