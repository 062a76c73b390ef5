"""Several global models obey the laws, with every assignment, on every engine."""

import pytest
import torch

from chronofed import (
    Block,
    Centres,
    Classification,
    Clipped,
    Clusters,
    CoreSet,
    Deletion,
    FedOpt,
    LossJump,
    Method,
    Mime,
    Mlp,
    PageHinkley,
    Private,
    Scaffold,
    Scores,
    Stateless,
    Train,
    run,
)
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.engines import BatchedEngine, ProcessEngine, ThreadEngine
from chronofed.engines.batched.support import unsupported
from chronofed.methods.clusters.detection import detector_states
from chronofed.methods.clusters.table import Table
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.world import same
from tests.laws.test_every_engine import with_batch_norm
from tests.laws.test_flower import same as same_but_clients
from tests.laws.test_flower import world

__all__ = ["with_batch_norm", "world"]

OFTEN = LossJump(0.01)
FEDDRIFT = Scores(detector=OFTEN, eager=False, merge=0.02)
EAGER = Scores(score="error", detector=PageHinkley(least=1, threshold=0.001), every=2)
CASES = {
    "eager": Method(Clusters(models=3, assign=EAGER)),
    "feddrift": Method(Clusters(Scaffold(), models=6, assign=FEDDRIFT), CoreSet(size=5)),
    "fedtkm": Method(
        Clusters(FedOpt(), models=2, assign=Centres(period=4, rate=0.1), layers=("fc.*",))
    ),
    "centres": Method(Clusters(models=2, assign=Centres()), average="clients"),
    "block": Method(Clusters(Mime(), models=2, assign=Block(length=2))),
    "private": Method(Private(Clusters(models=2, assign=Block()), noise=0.1), average="clients"),
    "clipped": Method(Clipped(Clusters(assign=FEDDRIFT), 9.0, {"scores": 9.0, "baseline": 9.0})),
}
every = pytest.mark.parametrize("case", CASES)
TRAIN = Train(lr=0.1, batch_size=16, steps=4)


@pytest.fixture(scope="module")
def task(data):
    return Classification(data, Mlp((6,)))


@pytest.fixture(scope="module")
def after(task, scenario):
    def after(method, rounds=6, engine=None, **others):
        others = {"scenario": scenario, "task": task, "train": TRAIN} | others
        *_, last = run(method, engine=engine, rounds=rounds, **others)
        return last

    return after


@pytest.fixture(scope="module")
def straight(after):
    known = {}

    def straight(case):
        if case not in known:
            known[case] = after(CASES[case])
        return known[case]

    return straight


@pytest.fixture(scope="module")
def processes(task):
    with ProcessEngine(task, 2) as engine:
        yield engine


@every
@pytest.mark.some(2)
def test_same_bits_again_resumed_and_in_any_order(case, after, straight, task):
    whole, method = straight(case), CASES[case]
    half = decode(encode(after(method, 3)))
    assert same(after(method, start=half), whole)
    assert same(after(method, engine=ShuffledWorkers(task)), whole)
    assert sum(n >= 0 for n in Table.unpack(whole.server).number) > 1


@every
@pytest.mark.some(1)
def test_threads_agree(case, after, straight, task):
    with ThreadEngine(task, 2) as threads:
        assert same(after(CASES[case], engine=threads), straight(case))


@every
@pytest.mark.product
def test_processes_agree(case, after, straight, processes):
    assert same(after(CASES[case], engine=processes), straight(case))


@every
@pytest.mark.some(1)
def test_flower_ends_with_the_same_bits(case, world, after, straight):
    """Other models have come and gone, so that the length of what travels changes."""
    there = world(CASES[case])
    assert same_but_clients(after(CASES[case], engine=there.engine), straight(case))
    assert set(there.kinds()) == {"joined"}


def test_batched_refuses(task, after):
    for method in CASES.values():
        assert "is not declared" in unsupported(method, task)
    with BatchedEngine(task) as engine, pytest.raises(IncompatibleError, match=r"Clusters\.start"):
        after(CASES["eager"], 1, engine=engine)


def test_stateless_clients_are_refused(after, data):
    stateless = Stateless(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    for method in CASES.values():
        with pytest.raises(IncompatibleError, match="keeps its state on the client"):
            after(method, 1, scenario=stateless)


def test_buffers_are_shared_by_all_models(after, data):
    normed = Classification(data, Custom(f"{with_batch_norm.__module__}:with_batch_norm"))
    method = CASES["feddrift"]
    whole = after(method, 4, task=normed)
    assert same(after(method, 4, task=normed, start=after(method, 2, task=normed)), whole)
    assert whole.buffers.any()


def test_layers_alone_differ_between_models(straight, task):
    """And what they share is the mean over all clients."""
    one, other = straight("fedtkm").server["model_params"]
    names = task.objective().names
    differ = {name: not torch.equal(one[span], other[span]) for name, span in names.items()}
    assert differ == {name: name.startswith("fc.") for name in names}


def test_without_shared_layers_all_differ_and_unknown_ones_are_refused(straight, after):
    one, other = straight("centres").server["model_params"]
    assert not torch.equal(one[:3], other[:3])
    wrong = Method(Clusters(models=2, assign=Centres(), layers=("head.*",)))
    with pytest.raises(SpecError, match=r"no parameter of the model matches head\.\*; its param"):
        after(wrong, 1)


def test_a_deleted_client_leaves_the_table_and_is_not_missed(after):
    gone = Deletion(round=3, clients=(1,))
    for case in ("eager", "feddrift", "centres"):
        last = Table.unpack(after(CASES[case], deletions=[gone]).server)
        assert last.following[1] == -1
        assert all(last.following[i] >= 0 for i in (0, 2, 3))
        if case != "centres":
            assert last.own["key"][1] == -1
            assert not any(t.any() for t in detector_states(last.own)[1].values())
    # In the middle of a run, and after it was resumed.
    method = CASES["feddrift"]
    half = after(method, 2)
    assert same(after(method, start=half, deletions=[gone]), after(method, deletions=[gone]))


def test_private_blocks_know_no_names(straight):
    assert set(Table.unpack(straight("private").server).following) == {-1}
    assert set(Table.unpack(straight("block").server).following) == {0}


def test_traffic_counts_what_every_client_is_sent(after, task):
    """One model in the first exchange, and what is asked; then one for training. No models in between."""
    d = len(task.initial(0)[0])
    quiet = Method(Clusters(models=2, assign=Scores(detector=LossJump(1e9), every=100)))
    down, up = ([0], [0])
    for rounds in (1, 2):
        traffic = after(quiet, rounds).traffic
        down.append(traffic.down_bytes)
        up.append(traffic.up_bytes)
    # float32 parameters; key and due; number and fresh
    assert down[2] - down[1] == down[1] == 4 * ((4 * d + 8 + 1) + (4 * d + 8 + 1))
    # key, two scores; the update and the score after training
    assert up[1] == 4 * (8 + 16 + 4 * d + 8)
