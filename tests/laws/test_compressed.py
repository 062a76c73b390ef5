"""Compressed around every backbone: what it must not change, and what must hold all the same."""

import pytest
import torch

from chronofed import (
    Clipped,
    Compressed,
    CoreSet,
    Deletion,
    FedOpt,
    L2gd,
    Method,
    Mime,
    Private,
    Scaffold,
    Stateless,
    run,
)
from chronofed.core.errors import IncompatibleError
from chronofed.engines import ThreadEngine
from chronofed.engines.batched.support import unsupported
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.methods import method, name
from tests.helpers.world import same
from tests.laws.test_batched import TASKS, check, refusal
from tests.laws.test_wrappers import INNER, NAMELESS


def some(backbones, quick):
    """All backbones, of which one kind is quick."""
    return [
        b if isinstance(b, quick) else pytest.param(b, marks=pytest.mark.product) for b in backbones
    ]


def bounds(inner, bound):
    return {entry: bound for entry in inner.upload_keys if entry != "delta"}


@pytest.mark.parametrize("inner", some(INNER, Mime), ids=name)
def test_everything_kept_is_the_inner_backbone(inner, train_for):
    """Bit for bit, client states and traffic included."""
    whole = Compressed(inner, form="top", ratio=1.0)
    one, other = (train_for(method(b, CoreSet(size=5)), 4) for b in (whole, inner))
    assert same(one, other)


@pytest.mark.parametrize("inner", some(INNER, Scaffold), ids=name)
def test_runs_obey_the_laws(inner, train_for, task):
    """Same seed, same bits; resumed or not; whoever answers first; on every engine."""
    chosen = method(Compressed(inner, bits=4, feedback=True), CoreSet(size=5))
    straight = train_for(chosen, 4)
    assert same(straight, train_for(chosen, 4, start=decode(encode(train_for(chosen, 2)))))
    assert same(straight, train_for(chosen, 4, engine=ShuffledWorkers(task)))
    with ThreadEngine(task, 2) as threads:
        assert same(straight, train_for(chosen, 4, engine=threads))
    assert not torch.equal(straight.params, train_for(method(inner, CoreSet(size=5)), 4).params)


@pytest.mark.parametrize("inner", some(INNER, L2gd), ids=name)
def test_the_batched_engine_agrees_or_refuses(inner):
    chosen = method(Compressed(inner, form="top", ratio=0.3, feedback=True), CoreSet(size=5))
    if refusal(name(inner)):
        assert unsupported(chosen, TASKS[torch.float64]) == refusal(name(inner))
    else:
        check(chosen)


@pytest.mark.parametrize("inner", some(NAMELESS, Scaffold), ids=name)
def test_it_may_stand_inside_or_around_what_bounds_uploads(inner, train_for):
    """Both bound what arrived."""
    for kind, others in ((Clipped, {}), (Private, {"noise": 0.05})):
        inside = kind(Compressed(inner, bits=4), 0.2, bounds(inner, 0.5), **others)
        around = Compressed(kind(inner, 0.2, bounds(inner, 0.5), **others), bits=4)
        assert inside.private == around.private == (kind is Private)
        one, other = (
            train_for(Method(b, CoreSet(size=5), average="clients"), 3) for b in (inside, around)
        )
        assert same(one, other)


def test_an_optimiser_may_stand_around_it(train_for):
    one = train_for(Method(FedOpt(Compressed(form="top", ratio=1.0))), 3)
    assert same(one, train_for(Method(FedOpt()), 3))


def test_feedback_needs_returning_clients(train_for, data):
    stateless = Stateless(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    train_for(Method(Compressed()), 2, scenario=stateless)
    with pytest.raises(IncompatibleError, match="Compressed keeps its state on the client"):
        train_for(Method(Compressed(feedback=True)), 1, scenario=stateless)


def test_what_a_deleted_client_has_not_sent_is_deleted(scenario, task):
    chosen = Method(Compressed(feedback=True))
    gone = [Deletion(round=2, clients=(1,))]
    *_, before, after = run(chosen, scenario, task, rounds=3, deletions=gone)
    assert 1 in before.client_states
    assert 1 not in after.client_states
