"""The Ray engine without Ray: queues, placement, what travels, and deaths, on actors in this process."""

import os
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chronofed import Cluster, CoreSet, Experiment, FedAvg, Method, Mime, Scaffold, Taylor
from chronofed.clients.cache import StateCache
from chronofed.clients.state import ClientState
from chronofed.core.errors import ChronofedError, IncompatibleError, MissingExtraError
from chronofed.engines.auto import choose
from chronofed.engines.ray import connect as connecting
from chronofed.engines.ray import engine as ray_engine
from chronofed.engines.ray.placement import Placement
from chronofed.engines.ray.queues import PartQueues, Queues, home
from chronofed.engines.ray.states import Change, own
from chronofed.engines.ray.worker import KeptStates
from chronofed.engines.shared_memory import (
    LEAST_PAGES_BYTES,
    BlockPool,
    Parcel,
    dumps,
    fresh_block,
)
from chronofed.methods.memories import MemoryItem
from chronofed.runs.spec import on_engine
from tests.helpers.fake_ray import FakeRay
from tests.helpers.world import same

STATEFUL = Method(Scaffold(), CoreSet(5))


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    """Actors in this process must not change it."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def engine_on(monkeypatch, task):
    def engine_on(ray, workers=2, **settings):
        monkeypatch.setattr(ray_engine, "connect", lambda cluster, workers: ray)
        return ray_engine.RayEngine(task, workers, cluster=Cluster(**settings))

    return engine_on


def orders(*clients):
    return [SimpleNamespace(client=client) for client in clients]


def numbers(batch):
    return [order.client for order in batch]


def state(seed, items=()):
    return ClientState({"control": torch.full((3,), float(seed))}, tuple(items))


def item(round_):
    return MemoryItem(round_, 0, round_, 4, {"x": torch.full((2,), float(round_))})


def test_batches_become_small_and_idle_workers_help():
    queues = Queues(orders(*range(20)), 2, sticky=False)
    batches = [numbers(queues.take(0))]
    assert batches == [[0, 2, 4, 6, 8]]
    while len(queues):
        batches.append(numbers(queues.take(0)))
    assert list(map(len, batches)) == [5, 2, 1, 1, 1, 5, 2, 1, 1, 1]
    assert sorted(chain(*batches)) == list(range(20))
    assert queues.take(1) == []


def test_a_client_with_a_state_has_a_worker_of_its_own():
    queues = Queues(orders(*range(50)), 3, sticky=True, most=1)
    found = {
        worker: [home(queues.take(worker)[0].client, 3) for _ in range(5)] for worker in range(3)
    }
    assert found == {worker: [worker] * 5 for worker in range(3)}
    assert {home(client, 7) for client in range(0, 7000, 7)} == set(range(7))


def test_clients_of_a_dead_worker_come_back_one_by_one():
    queues = Queues(orders(*range(8)), 1, sticky=False)
    queues.put_back(orders(8, 9), apart=True)
    queues.put_back(orders(1, 11), apart=False)
    assert len(queues) == 12
    assert [numbers(queues.take(0)) for _ in range(4)] == [[8], [9], [1, 11], [0, 1, 2, 3]]
    queues.put_back(orders(1, 11), apart=False)
    queues.drop_above(6)
    assert numbers(queues.take(0) + queues.take(0) + queues.take(0)) == [1, 4, 5]
    assert not len(queues)


def test_a_part_is_one_batch():
    parts = {0: orders(0, 2), 1: orders(1, 3)}
    queues = PartQueues(parts, 2)
    first = queues.take(0)
    queues.put_back(first, apart=True)
    assert sorted(numbers(queues.take(0) + queues.take(0))) == [0, 1, 2, 3]
    assert queues.take(0) == []
    queues = PartQueues(parts, 2)
    queues.drop_above(2)
    assert sorted(numbers(queues.take(0) + queues.take(1))) == [0, 1]


def test_only_new_items_travel():
    old = state(1, [item(0), item(1)])
    after = ClientState(state(2).backbone_state, (old.items[1], item(2)))
    change = Change.between(old, after)
    assert [kept.round for kept in change.state.items] == [2]
    assert change.applied(old.items).items == after.items
    assert Change.between(None, after).applied(()).items == after.items


def test_a_worker_keeps_the_states_used_last():
    size = len(dumps(state(0), "state"))
    kept = KeptStates(2 * size + size // 2)
    for client in (0, 1):
        kept.put_all({client: state(client)})
    assert torch.equal(kept.get(0).backbone_state["control"], state(0).backbone_state["control"])
    kept.put_all({2: state(2)})
    assert kept.clients() == [0, 2]
    assert kept.get(1) is None
    kept.put_all({2: state(3), 0: state(4), 5: state(5)})
    assert kept.clients() == [0, 5]
    assert kept.get(0).backbone_state["control"].tolist() == [4.0] * 3
    kept.forget(0)
    kept.forget(0)
    assert kept.clients() == [5]
    KeptStates(0).put_all({0: state(0)})


@pytest.mark.parametrize("size", [3, 2**15])
def test_a_kept_state_has_its_own_bits(size):
    whole, few = torch.arange(4.0 * size), item(3)
    kept = KeptStates(2**20)
    kept.put_all(
        {k: ClientState({"c": whole[k * size : (k + 1) * size]}, (few,)) for k in range(4)}
    )
    for k in range(4):
        found = kept.get(k)
        assert torch.equal(found.backbone_state["c"], whole[k * size : (k + 1) * size])
        assert torch.equal(found.items[0].record["x"], few.record["x"])
        found.backbone_state["c"].zero_()
        assert torch.equal(kept.get(k).backbone_state["c"], whole[k * size : (k + 1) * size])


def test_what_the_driver_keeps_of_a_parcel_keeps_nothing_else_in_memory():
    parcel = Parcel.of({"small": torch.ones(2), "large": torch.ones(1000)}, "test").load()
    copy = own(ClientState({"small": parcel["small"]}, (item(1),)))
    assert copy.backbone_state["small"].data_ptr() != parcel["small"].data_ptr()
    assert torch.equal(copy.items[0].record["x"], item(1).record["x"])


def test_a_state_is_placed_until_the_driver_has_another():
    states = StateCache()
    placement = Placement(states)
    states[4] = state(0)
    placement.propose(4, 7)
    assert placement.at(4) is None
    placement.settle(4)
    assert placement.at(4) == 7
    states[4] = state(1)
    assert placement.at(4) is None
    assert placement.stale() == {7: [4]}
    placement.propose(4, 7)
    placement.settle(4)
    placement.propose(4, 8)
    placement.settle(4)
    assert placement.stale() == {7: [4]}
    del states[4]
    assert placement.stale() == {8: [4]}


def test_a_parcel_brings_the_same_bits():
    content = {"a": torch.arange(5.0), "b": np.arange(3), "c": "text"}
    parcel = Parcel.of(content, "test")
    for copy in (parcel.load(), parcel.view()):
        assert torch.equal(copy["a"], content["a"])
        assert copy["b"].tolist() == [0, 1, 2]
    copy = parcel.load()
    copy["a"].zero_()
    assert torch.equal(parcel.load()["a"], content["a"])


@pytest.mark.parametrize("size", [1, LEAST_PAGES_BYTES])
def test_a_block_is_aligned_and_empty(size):
    block = fresh_block(size)
    assert block.ctypes.data % 64 == 0
    assert block.shape == (size,)
    assert not block.any()
    block[:] = 1


def test_a_block_is_lent_again_when_nobody_has_a_part_of_it():
    pool, size = BlockPool(2**30), 2 * LEAST_PAGES_BYTES
    block = pool.take(size)
    assert block.ctypes.data % 64 == 0
    assert block.shape == (size,)
    place, part = block.ctypes.data, torch.from_numpy(block[size // 2 :][::2].view(np.int8))
    part.fill_(7)
    del block
    other = pool.take(size)
    assert other.ctypes.data != place
    other[:] = 1
    assert part.eq(7).all()
    del part
    # A little larger fits, too; far smaller would waste it.
    assert pool.take(LEAST_PAGES_BYTES - 1).ctypes.data != place
    assert pool.take(LEAST_PAGES_BYTES // 2 * 3).ctypes.data == place


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_large_blocks_go_back_to_the_system_although_small_ones_stay():
    """Uploads that come and go between states that stay must not make the heap grow."""
    page, small, size = os.sysconf("SC_PAGE_SIZE"), [], 2**24
    pool = BlockPool(2 * size)

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    def filled():
        block = pool.take(size)
        block[:] = 1
        return block

    before = resident()
    for _ in range(8):
        uploads = [filled() for _ in range(4)]
        small.append(torch.ones(1000))
    assert resident() - before > 3 * size
    del uploads
    last = pool.take(size)
    assert resident() - before < 2 * size
    last[:] = 0


def test_what_the_script_defines_is_refused(monkeypatch, engine_on, task):
    def of_script(*_):
        """Seems to be a function of the script."""

    class Task(type(task)):
        """Seems to be a class of the script."""

    monkeypatch.setattr(of_script, "__module__", "__main__")
    monkeypatch.setattr(Task, "__module__", "__main__")
    explained = "is defined in the script that is run, which workers on Ray cannot import; move it to a module"
    for content in (of_script, {"deep": [of_script]}):
        with pytest.raises(IncompatibleError, match=f"^method: .*of_script {explained}"):
            Parcel.of(content, "method")
    with pytest.raises(IncompatibleError, match=f"^task: .*Task {explained}"):
        Parcel.of(Task(task.data), "task")
    Parcel.of(task, "task")


@pytest.mark.parametrize("method", [Method(), STATEFUL, Method(Mime(), Taylor())], ids=repr)
def test_actors_give_the_bits_of_serial(method, engine_on, train_for):
    for settings in ({}, {"cache_mb": 0.0}):
        engine = engine_on(FakeRay(), **settings)
        assert same(train_for(method, 3, engine=engine), train_for(method, 3))


@pytest.mark.parametrize("parts", [None, 2])
def test_whoever_dies_the_bits_are_the_same(parts, engine_on, train_for):
    method = Method(FedAvg(), CoreSet(5))
    ray = FakeRay(deaths=[0, 3, 5, 9])
    engine = engine_on(ray)
    assert same(
        train_for(method, 4, engine=engine, partial_sums=parts),
        train_for(method, 4, partial_sums=parts),
    )
    assert len(ray.calls) > 10


def test_a_client_that_brings_down_all_workers_ends_the_round(engine_on, train_for):
    with pytest.raises(ChronofedError, match=r"^round 0, client \d: 3 workers died on it"):
        train_for(Method(), 1, engine=engine_on(FakeRay(deaths=range(100))))


def test_workers_that_never_start_end_the_round(engine_on, train_for):
    with pytest.raises(ChronofedError, match="3 workers died while they started"):
        train_for(Method(), 1, engine=engine_on(FakeRay(unborn=range(100))))


def test_what_travels_is_counted(engine_on, train_for, task):
    engine = engine_on(FakeRay())
    train_for(Method(), 1, engine=engine)
    model = task.initial(0)[0].nbytes
    assert engine.traffic.up_bytes > 4 * model
    assert engine.traffic.down_bytes > model
    assert str(engine.traffic).startswith("sent 0.0")


def test_without_ray_there_is_one_line(monkeypatch, task):
    monkeypatch.setitem(sys.modules, "ray", None)
    choice = choose("ray", 2, task, Method(), 4)
    with pytest.raises(
        MissingExtraError, match=r"engine ray needs ray: pip install 'chronofed\[ray\]'"
    ):
        choice.build(task)


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch):
    def init(*_, **__):
        raise ConnectionError("nobody\nanswers")

    gone = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", gone)
    with pytest.raises(
        ChronofedError, match=r"^engine ray: no cluster at 'auto' \(ConnectionError: nobody"
    ):
        connecting.connect(Cluster("auto"))
    with pytest.raises(ChronofedError, match=r"cannot start Ray here .*use --engine processes"):
        connecting.connect(Cluster())


def test_auto_never_takes_it_and_others_refuse_a_cluster(task):
    assert choose("auto", 3, task, Method(), 9).engine != "ray"
    for name in ("auto", "threads"):
        with pytest.raises(IncompatibleError, match=f"engine {name}: runs on this machine alone"):
            choose(name, 2, task, Method(), 4, cluster=Cluster())


def test_an_address_is_no_part_of_the_result():
    plain = Experiment()
    there = on_engine(plain, "ray", None, "10.0.0.1:6379")
    assert there.cluster == Cluster("10.0.0.1:6379")
    assert there.fingerprint() == plain.fingerprint()
    assert on_engine(there, None, 3).cluster == there.cluster
