"""The Ray engine gives the bits of the serial one, on three nodes and for any number of workers."""

import os
from pathlib import Path

import pytest
from torch import nn

from chronofed import (
    Classification,
    CoreSet,
    Deletion,
    FedNova,
    Method,
    Mime,
    Scaffold,
    Taylor,
    run,
)
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.methods import BACKBONES, MEMORIES, every_method, method, name
from tests.helpers.world import same

ROUNDS = 3
# Every fourth backbone with some memory: 12 methods with every kind of state.
TWELVE = [
    method(b, MEMORIES[k % len(MEMORIES)]) for k, b in enumerate(BACKBONES[:: len(BACKBONES) // 12])
][:12]


def look(engine, inside) -> list:
    """Call a function on every worker, where it is."""
    import ray

    members = engine._pool._members
    return ray.get([member.actor.__ray_call__.remote(inside) for member in members])


def with_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    layers = nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, classes)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("method", every_method())
def test_every_method_agrees_with_serial(method, train_for, straight, engines):
    assert same(train_for(method, ROUNDS, engine=engines()), straight(method, ROUNDS))


@pytest.mark.parametrize("method", TWELVE, ids=lambda m: f"{name(m.backbone)}-{name(m.memory)}")
@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_matter(method, workers, train_for, straight, engines):
    assert same(train_for(method, ROUNDS, engine=engines(workers)), straight(method, ROUNDS))


def test_a_model_that_draws_random_numbers_agrees(data, train_for, engines):
    task = Classification(data, Custom(f"{__name__}:with_dropout"))
    for chosen in (Method(Scaffold(), CoreSet(5)), Method(Mime())):
        result = train_for(chosen, ROUNDS, engine=engines(task=task), task=task)
        assert same(result, train_for(chosen, ROUNDS, task=task))
        assert result.buffers.any()


def test_workers_that_keep_no_state_are_sent_it_again(train_for, straight, engines):
    chosen = Method(Scaffold(), CoreSet(5))
    engine = engines(cache_mb=0.0001)
    assert same(train_for(chosen, ROUNDS, engine=engine), straight(chosen, ROUNDS))


def test_a_state_travels_down_only_if_its_worker_does_not_have_it(train_for, engines):
    chosen, sizes = Method(Scaffold(), CoreSet(50)), {}
    for cache in (64.0, 0.0):
        engine = engines(1, cache_mb=cache)
        train_for(chosen, 5, engine=engine)
        sizes[cache] = engine.traffic.down_bytes
        up = engine.traffic.up_bytes
    # Four clients with five core sets of 50 samples in 5 dimensions.
    assert sizes[0.0] - sizes[64.0] > 4 * 4 * 50 * 5 * 4
    assert up < 2 * 4 * 50 * (5 * 4 + 8) + 2**14


def test_a_run_may_go_on_with_another_engine(train_for, engines):
    chosen = Method(Scaffold(), CoreSet(5))
    first = decode(encode(train_for(chosen, 2, engine=engines())))
    second = decode(encode(train_for(chosen, 4, start=first)))
    third = train_for(chosen, 6, start=second, engine=engines())
    assert same(third, train_for(chosen, 6))


def test_what_is_deleted_leaves_the_workers(task, scenario, engines):
    chosen, gone = (
        Method(Scaffold(), CoreSet(5)),
        [Deletion(2, clients=(1,)), Deletion(3, rows=(7,))],
    )
    engine = engines(2)

    def after(rounds, engine=None):
        return list(run(chosen, scenario, task, rounds=rounds, engine=engine, deletions=gone))[-1]

    assert same(after(5, engine), after(5))
    engine._start_workers(2)
    held = look(engine, lambda worker: worker._states.clients())
    assert sorted(client for some in held for client in some) == [0, 2, 3]


@pytest.mark.parametrize("workers", [1, 3])
def test_partial_sums_of_workers_are_those_of_serial(workers, task, train_for, engines):
    for chosen in (Method(), Method(Mime(), CoreSet(5)), Method(FedNova(), Taylor())):
        engine = engines(workers)
        summed = train_for(chosen, ROUNDS, engine=engine, partial_sums=2)
        assert same(summed, train_for(chosen, ROUNDS, partial_sums=2))
        assert engine.traffic.batches == 2


def test_workers_may_share_gpus(train_for, straight, engines):
    """The GPUs are not real, so models stay on the CPU."""
    chosen = Method(Scaffold(), CoreSet(5))
    engine = engines(3, gpus=0.5)
    assert same(train_for(chosen, ROUNDS, engine=engine), straight(chosen, ROUNDS))
    visible = look(engine, lambda worker: os.environ["CUDA_VISIBLE_DEVICES"])
    assert len(visible) == 3
    # Each node has one, with the number 0.
    assert set(visible) == {"0"}


def test_partial_sums_of_buffers_agree(data, train_for, engines):
    task = Classification(data, Custom(f"{__name__}:with_dropout"))
    result = train_for(Method(), ROUNDS, engine=engines(task=task), task=task, partial_sums=2)
    assert same(result, train_for(Method(), ROUNDS, task=task, partial_sums=2))


def test_nothing_listens_beyond_loopback(cluster, engines, train_for):
    train_for(Method(), 1, engine=engines())
    mine = {os.getpid(), *cluster.processes()}
    inodes = {
        name.removeprefix("socket:[").removesuffix("]")
        for pid in mine
        for name in map(read_link, Path(f"/proc/{pid}/fd").glob("*"))
        if name.startswith("socket:")
    }
    heard = [line.split() for kind in ("tcp", "tcp6") for line in sockets(kind)]
    listening = {
        words[1].partition(":")[0] for words in heard if words[3] == "0A" and words[9] in inodes
    }
    assert listening
    assert listening <= {
        "0100007F",
        "0000000000000000FFFF00000100007F",
        "00000000000000000000000001000000",
    }


def read_link(link) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def sockets(kind: str) -> list[str]:
    return Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
