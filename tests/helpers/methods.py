"""Every backbone x memory, found in the registry: a new file is under the laws at once."""

import itertools

import pytest

from chronofed import Backbone, Generative, Memory, Method, Optimal, Private
from chronofed.core.spec_io import alternatives

# The project's own parts; tests define others.
SHIPPED = "chronofed."
# Settings that keep the laws quick: the work of Generative grows with its steps, its code does not.
QUICK = {Generative: {"steps": 5}}

BACKBONES = [
    cls()
    for cls in alternatives(Backbone).values()
    if cls.__module__.startswith(SHIPPED) and not getattr(cls, "private", False)
]
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


def name(part) -> str:
    return type(part).__name__


EVERY = [
    pytest.param(method(b, m), id=f"{name(b)}-{name(m)}")
    for b, m in itertools.product([*BACKBONES, PRIVATE], MEMORIES)
    if not (b.private and m.location == "server")
]
