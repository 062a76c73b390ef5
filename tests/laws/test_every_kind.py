"""No part is without laws: every kind in the registry is in a law of every engine."""

import functools
from collections.abc import Iterator

import msgspec
import pytest

from chronofed import (
    Backbone,
    Detector,
    Memory,
    Method,
    RoundWeights,
)
from chronofed.core.config import Kind, kind_of
from chronofed.core.spec_io import alternatives
from chronofed.methods.clusters import Assignment
from chronofed.scenarios import Membership
from tests.helpers.methods import SHIPPED
from tests.laws import (
    test_batched,
    test_clusters,
    test_distil,
    test_every_engine,
    test_every_membership,
    test_every_method,
    test_extensions,
    test_flower,
    test_parts_of_models,
)

FAMILIES = (Backbone, Memory, Membership, Detector, Assignment)
# The law of an engine: a run ends with the same bits, or the engine refuses the method in one line.
LAWS = {
    "serial, resumed": (
        test_every_method.test_resuming_equals_the_straight_run,
        test_clusters.test_same_bits_again_resumed_and_in_any_order,
        test_extensions.test_same_bits_again_resumed_and_in_any_order,
        test_parts_of_models.test_same_bits_again_resumed_in_any_order_and_on_threads,
        test_every_membership.test_same_bits_on_every_engine_and_resumed,
    ),
    "threads": (
        test_every_engine.test_engines_agree,
        test_clusters.test_threads_agree,
        test_extensions.test_threads_and_processes_agree,
        test_parts_of_models.test_same_bits_again_resumed_in_any_order_and_on_threads,
        test_every_membership.test_same_bits_on_every_engine_and_resumed,
    ),
    "processes": (
        test_every_engine.test_engines_agree,
        test_clusters.test_processes_agree,
        test_extensions.test_threads_and_processes_agree,
        test_parts_of_models.test_processes_agree,
        test_every_membership.test_processes_agree,
    ),
    "batched": (
        test_batched.test_every_method_agrees_with_the_serial_engine_or_is_refused,
        test_clusters.test_batched_refuses,
        test_extensions.test_batched_serves_or_refuses_in_one_line,
        test_parts_of_models.test_the_batched_engine_refuses,
        test_every_membership.test_same_bits_on_every_engine_and_resumed,
    ),
    "flower": (
        test_flower.test_every_method_ends_with_the_bits_of_the_serial_engine,
        test_clusters.test_flower_ends_with_the_same_bits,
        test_extensions.test_flower_ends_with_the_same_bits,
        test_parts_of_models.test_flower_ends_with_the_same_bits,
        test_distil.test_flower_ends_with_the_same_bits,
        test_every_membership.test_flower_ends_with_the_same_bits,
    ),
    "stateless": (
        test_every_method.test_stateless_clients_are_refused_or_served,
        test_clusters.test_stateless_clients_are_refused,
        test_extensions.test_stateless_clients_are_refused_or_served,
        test_every_membership.test_same_bits_on_every_engine_and_resumed,
    ),
}


def kinds_of(part: object) -> Iterator[type[Kind]]:
    """Yield the kinds of a part and of all that it holds."""
    if isinstance(part, Kind):
        yield type(part)
    if isinstance(part, msgspec.Struct):
        for name in part.__struct_fields__:
            yield from kinds_of(getattr(part, name))
    if isinstance(part, tuple | list):
        for each in part:
            yield from kinds_of(each)


def cases(law) -> Iterator[object]:
    """Yield the values that a law is tried with; a name among them is that of a case of clusters."""
    marks = [mark for mark in law.pytestmark if mark.name == "parametrize"]
    for mark in marks:
        for value in mark.args[1]:
            for each in getattr(value, "values", [value]):
                yield test_clusters.CASES.get(each, each) if isinstance(each, str) else each


@functools.cache
def tried(engine: str) -> frozenset[type[Kind]]:
    found = set()
    for law in LAWS[engine]:
        # Two laws about clusters try all cases in a loop.
        values = cases(law) if hasattr(law, "pytestmark") else test_clusters.CASES.values()
        for value in values:
            found |= set(kinds_of(value))
    return frozenset(found)


@pytest.mark.parametrize("engine", LAWS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_kind_is_in_a_law(family, engine):
    ours = {c for c in alternatives(family).values() if c.__module__.startswith(SHIPPED)}
    assert len(ours) >= 3
    assert {kind_of(cls) for cls in ours - tried(engine)} == set()


def test_every_kind_of_weights_is_in_a_law():
    """They are computed on the server, whatever the engine."""
    ours = {c for c in alternatives(RoundWeights).values() if c.__module__.startswith(SHIPPED)}
    assert {kind_of(c) for c in ours - {type(w) for w in test_every_method.WEIGHTS}} == set()


def test_a_kind_without_a_law_is_found():
    """This one is of the tests, and in none."""

    class Unheard(Memory, tag="test-unheard"):
        """Nobody tries it."""

    assert alternatives(Memory)["test-unheard"] is Unheard
    assert all(Unheard not in tried(engine) for engine in LAWS)
    nested = Method(test_clusters.CASES["eager"].backbone)
    names = {kind_of(cls) for cls in kinds_of(nested)}
    assert {"clusters", "scores", "page-hinkley", "fedavg", "forget"} <= names
