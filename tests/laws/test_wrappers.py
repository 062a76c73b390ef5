"""Clipped and Private around every backbone: what they must not change, and what must hold all the same."""

import msgspec
import pytest
import torch

from chronofed import (
    Afl,
    Classification,
    Clipped,
    CoreSet,
    FedOpt,
    Method,
    Mime,
    MimeLite,
    Private,
    QFfl,
    Scaffold,
    Stateless,
    Taylor,
)
from chronofed.core.errors import IncompatibleError
from chronofed.engines import ThreadEngine
from chronofed.engines.batched.support import unsupported
from chronofed.methods.wrappers import Wrapper
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.methods import BACKBONES, method, name
from tests.helpers.world import same
from tests.laws.test_batched import TASKS, check, refusal

UNBOUNDED = 1e30
PLAIN = [b for b in BACKBONES if not isinstance(b, Wrapper)]
INNER = [*PLAIN, FedOpt(Scaffold())]
# Private has only a mean of the uploads, and does not say who sent them.
NAMELESS = [b for b in INNER if not b.names_clients and not b.needs_each]
# Quick are a backbone that has a state, one with two phases, and one inside another.
SOME = [
    b if isinstance(b, Scaffold | Mime | FedOpt) else pytest.param(b, marks=pytest.mark.product)
    for b in INNER
]
SOME_NAMELESS = [b for b in SOME if b in NAMELESS or getattr(b, "values", [None])[0] in NAMELESS]
MEMORIES = [CoreSet(size=5), Taylor()]  # one on the client, one on the server


def clipped(inner, bound=UNBOUNDED) -> Clipped:
    return Clipped(inner, bound, {entry: bound for entry in inner.upload_keys if entry != "delta"})


def private(inner, bound=1.0, **others) -> Private:
    bounds = {entry: 4 * bound for entry in inner.upload_keys if entry != "delta"}
    return Private(inner, bound, bounds, **others)


@pytest.mark.parametrize("memory", MEMORIES, ids=name)
@pytest.mark.parametrize("inner", SOME, ids=name)
def test_without_a_bound_it_is_the_inner_backbone(inner, memory, train_for):
    """Bit for bit, client states and traffic included."""
    assert same(train_for(method(clipped(inner), memory), 4), train_for(method(inner, memory), 4))


@pytest.mark.parametrize("inner", SOME, ids=name)
def test_a_bound_matters(inner, train_for):
    loose, tight = (train_for(Method(clipped(inner, b)), 3).params for b in (UNBOUNDED, 0.05))
    assert not torch.equal(loose, tight)


def test_every_entry_has_a_bound_that_matters(train_for):
    for inner in PLAIN:
        free = train_for(Method(clipped(inner)), 3).params
        for entry in set(inner.upload_keys) - {"delta"}:
            bounds = {e: UNBOUNDED for e in inner.upload_keys if e != "delta"} | {entry: 0.01}
            assert not torch.equal(
                train_for(Method(Clipped(inner, UNBOUNDED, bounds)), 3).params, free
            )


@pytest.mark.parametrize("inner", SOME_NAMELESS, ids=name)
def test_private_without_noise_is_clipped(inner, train_for):
    """Up to rounding: the mean is taken once more."""
    silent = private(inner, 0.3, noise=0.0)
    loud = Clipped(inner, 0.3, silent.bounds)
    one, other = (
        train_for(msgspec.structs.replace(method(b, CoreSet()), average="clients"), 4)
        for b in (silent, loud)
    )
    assert one.server.keys() == other.server.keys()
    torch.testing.assert_close(dict(one.server), dict(other.server), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inner", SOME_NAMELESS, ids=name)
def test_private_runs_obey_the_laws(inner, train_for, task):
    """Same seed, same bits; resumed or not; whoever answers first; and noise that follows the seed."""
    chosen = method(private(inner, noise=0.05), CoreSet())
    straight = train_for(chosen, 4)
    assert same(straight, train_for(chosen, 4, start=decode(encode(train_for(chosen, 2)))))
    assert same(straight, train_for(chosen, 4, engine=ShuffledWorkers(task)))
    silent = method(private(inner, noise=0.0), CoreSet())
    assert not torch.equal(straight.params, train_for(silent, 4).params)


@pytest.mark.parametrize("inner", SOME_NAMELESS, ids=name)
def test_other_engines_agree(inner, train_for, task):
    with ThreadEngine(task, 2) as threads:
        for backbone in (clipped(inner, 0.2), private(inner, noise=0.05)):
            chosen = method(backbone, CoreSet(size=5))
            assert same(train_for(chosen, 3, engine=threads), train_for(chosen, 3))
            if refusal(name(inner)):
                assert unsupported(chosen, TASKS[torch.float64]) == refusal(name(inner))
            else:
                check(chosen)  # batched


@pytest.mark.parametrize("inner", SOME_NAMELESS, ids=name)
def test_the_seed_of_the_noise_neither_travels_nor_stays(inner, train_for, task):
    class Spy(ThreadEngine):
        def map(self, method, orders, plan):
            orders = list(orders)
            seen.update(*(order.server for order in orders))
            yield from super().map(method, orders, plan)

    seen: set[str] = set()
    with Spy(task, 1) as spy:
        last = train_for(method(private(inner), CoreSet()), 2, engine=spy)
    assert "params" in seen
    assert not any(entry.startswith("private") for entry in (*seen, *last.server))


def test_private_refuses_what_asks_who_sent_an_upload():
    for inner in (Afl(), FedOpt(Afl())):
        reason = r"^Private\.backbone: Afl must know which client sent an upload"
        with pytest.raises(ValueError, match=reason):
            private(inner)


def test_private_refuses_what_needs_more_than_a_mean():
    for inner in (QFfl(), FedOpt(QFfl())):
        with pytest.raises(ValueError, match=r"^Private\.backbone: QFfl needs the upload of every"):
            private(inner)


def test_noise_from_the_system_is_never_the_same(train_for):
    chosen = method(private(Scaffold(), randomness="system"), CoreSet())
    assert not torch.equal(train_for(chosen, 1).params, train_for(chosen, 1).params)


def test_state_on_the_client_needs_returning_clients(train_for, data):
    stateless = Stateless(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    for wrap in (clipped, private):
        with pytest.raises(IncompatibleError, match="keeps its state on the client"):
            train_for(Method(wrap(Scaffold()), average="clients"), 1, scenario=stateless)
        train_for(Method(wrap(MimeLite()), average="clients"), 1, scenario=stateless)


def test_buffers_are_not_covered(train_for, data):
    task = Classification(data, Custom("tests.laws.test_every_method:with_dropout"))
    train_for(Method(clipped(MimeLite())), 1, task=task)
    with pytest.raises(IncompatibleError, match=r"^model: its buffers .* are not covered"):
        train_for(Method(private(MimeLite()), average="clients"), 1, task=task)


@pytest.mark.parametrize("outer", [lambda b: b, lambda b: FedOpt(b)], ids=["bare", "FedOpt"])
def test_what_private_does_not_cover_is_refused(outer):
    backbone = outer(private(MimeLite()))
    with pytest.raises(ValueError, match=r"^average: Private needs clients of equal weight"):
        Method(backbone)
    with pytest.raises(ValueError, match=r"^memory: records of Taylor go to the server"):
        Method(backbone, Taylor(), average="clients")
    assert Method(backbone, CoreSet(), average="clients").backbone.private
