"""Forgetting on request: what was deleted plays no part in any later round."""

import numpy as np
import pytest
import torch

from chronofed import (
    Classification,
    CoreSet,
    Forget,
    Generative,
    Linear,
    Method,
    Subsets,
    Train,
    run,
)
from chronofed.clients.deletion import Deletion, apply_deletions, without
from chronofed.clients.state import ClientState
from chronofed.engines import SerialEngine
from chronofed.methods.memories import MemoryItem
from chronofed.runs.checkpoint import decode, encode
from chronofed.scenarios import Plan, Visit
from tests.helpers.world import blobs

ROUND, ROUNDS = 3, 8
SELECTIONS = ["uniform", "herding", "reservoir", "balanced"]


class Recorder(SerialEngine):
    """Remembers which samples clients were given."""

    def map(self, method, orders, plan):
        self.plans.append(plan)
        return super().map(method, orders, plan)


@pytest.fixture(scope="module")
def world(data):
    """Two data sets a client: what is deleted would come back soon."""
    return Subsets(clients=4, subsets=2, client_alpha=1.0).on(data, seed=0)


@pytest.fixture(scope="module")
def snapshots(world, task):
    """All snapshots of a run, and the plans that its clients were given."""

    def snapshots(method, deletions=(), start=None, scenario=world):
        engine = Recorder(task)
        engine.plans = []
        settings = Train(lr=0.1, batch_size=16, steps=2)
        done = run(
            method,
            scenario,
            task,
            rounds=ROUNDS,
            train=settings,
            engine=engine,
            start=start,
            deletions=deletions,
        )
        return list(done), engine.plans

    return snapshots


def rows_kept(snapshot) -> set[int]:
    return {
        row
        for client_state in snapshot.client_states.values()
        for k in client_state.items
        if k.record
        for row in k.record["rows"].tolist()
    }


def rows_given(plan) -> set[int]:
    return {row for visit in plan.visits.values() for row in visit.indices.tolist()}


@pytest.mark.parametrize("select", SELECTIONS)
def test_deleted_samples_are_in_no_later_client_state_and_plan(select, snapshots):
    method = Method(memory=CoreSet(10, select))
    before, plans = snapshots(method)
    doomed = sorted(rows_kept(before[ROUND - 1]))[
        ::3
    ]  # of all clients, kept when the request comes
    assert all(set(doomed) & rows_given(plan) for plan in plans[ROUND:])

    after, plans = snapshots(method, [Deletion(ROUND, rows=tuple(doomed))])
    assert set(doomed) <= rows_kept(after[ROUND - 1])
    assert not any(set(doomed) & rows_kept(snapshot) for snapshot in after[ROUND:])
    assert not any(set(doomed) & rows_given(plan) for plan in plans[ROUND:])
    others = rows_kept(before[ROUND - 1]) - set(doomed)
    if select != "reservoir":  # where new samples may take the place of old ones
        assert others & rows_kept(after[ROUND])


@pytest.mark.parametrize("memory", [CoreSet(10), CoreSet(10, "reservoir"), Generative(5, 3)])
def test_a_deleted_client_is_in_no_later_client_state_and_plan(memory, snapshots):
    after, plans = snapshots(Method(memory=memory), [Deletion(ROUND, clients=(1, 2))])
    assert all(set(snapshot.client_states) == {0, 1, 2, 3} for snapshot in after[:ROUND])
    assert all(set(snapshot.client_states) == {0, 3} for snapshot in after[ROUND:])
    assert all(set(plan.visits) == {0, 1, 2, 3} for plan in plans[:ROUND])
    assert all(set(plan.visits) == {0, 3} for plan in plans[ROUND:])


def test_what_happened_before_the_deletion_stays_and_what_comes_after_does_not(snapshots, world):
    method = Method(memory=CoreSet(10))
    doomed = tuple(world.at(0).visits[0].indices[:20].tolist())
    plain, _ = snapshots(method)
    deleted, _ = snapshots(method, [Deletion(ROUND, rows=doomed)])
    same = [encode(a) == encode(b) for a, b in zip(plain, deleted, strict=True)]
    assert same[:ROUND] == [True] * ROUND
    assert not torch.equal(plain[-1].params, deleted[-1].params)


@pytest.mark.some(4)
@pytest.mark.parametrize("memory", [CoreSet(10), CoreSet(10, "reservoir"), Generative(5, 3)])
@pytest.mark.parametrize("stop", [ROUND - 1, ROUND, ROUND + 1])
def test_resuming_across_a_deletion_equals_the_straight_run(memory, stop, snapshots, world):
    visit = world.at(0).visits[0]
    deletions = [
        Deletion(ROUND, rows=tuple(visit.indices[::2].tolist())),
        Deletion(ROUND, clients=(2,)),
        Deletion(ROUND + 2, rows=(int(visit.indices[1]),)),
    ]
    method = Method(memory=memory)
    straight, _ = snapshots(method, deletions)
    resumed, _ = snapshots(method, deletions, start=decode(encode(straight[stop - 1])))
    assert encode(resumed[-1]) == encode(straight[-1])


def test_a_data_set_that_is_deleted_whole_is_gone(snapshots, world):
    visit = world.at(0).visits[0]
    deletion = Deletion(ROUND, rows=tuple(visit.indices.tolist()))
    after, plans = snapshots(Method(memory=CoreSet(10)), [deletion])
    assert visit.key in {k.key for k in after[ROUND - 1].client_states[0].items}
    for snapshot in after[ROUND:]:
        assert visit.key not in {k.key for k in snapshot.client_states[0].items}
    absent = [t for t in range(ROUND, ROUNDS) if world.at(t).visits[0].key == visit.key]
    assert absent
    assert all(0 not in plans[t].visits for t in absent)


def test_a_run_without_a_memory_deletes_too(snapshots, world):
    row = int(world.at(0).visits[0].indices[0])
    _, plans = snapshots(Method(memory=Forget()), [Deletion(0, rows=(row,))])
    assert not any(row in rows_given(plan) for plan in plans)


def test_nobody_left_is_a_round_in_which_nothing_happens(snapshots):
    deletion = Deletion(ROUND, clients=(0, 1, 2, 3))
    after, plans = snapshots(Method(memory=CoreSet(10)), [deletion])
    assert len(plans) == ROUND
    assert after[-1].round == ROUNDS
    assert torch.equal(after[-1].params, after[ROUND - 1].params)
    assert after[-1].client_states == {}


# --- the two halves by themselves --------------------------------------------------------------------


def test_a_plan_loses_rows_and_clients_from_the_round_on():
    plan = Plan(5, {0: Visit(np.array([4, 2, 9]), 7), 1: Visit(np.array([1]), 8)})
    assert without(plan, [Deletion(6, rows=(2,))]) is plan
    left = without(plan, [Deletion(5, rows=(2,)), Deletion(0, rows=(1, 4))])
    assert [(i, v.indices.tolist(), v.key) for i, v in left.visits.items()] == [(0, [9], 7)]
    assert list(without(plan, [Deletion(5, clients=(0,))]).visits) == [1]


def test_a_client_state_keeps_what_was_not_deleted():
    record = {
        "x": torch.arange(6).view(3, 2),
        "y": torch.tensor([0, 1, 2]),
        "rows": torch.tensor([5, 6, 7]),
    }
    whole, nameless = MemoryItem(0, 0, 0, 9, record), MemoryItem(1, 0, 1, 9, {"x": record["x"]})
    state = {"control": torch.ones(2)}
    client_states = {0: ClientState(state, (whole, nameless)), 1: ClientState()}
    apply_deletions(client_states, [Deletion(rows=(6, 99)), Deletion(clients=(1, 8))])
    assert set(client_states) == {0}
    first, second = client_states[0].items
    assert {name: t.tolist() for name, t in first.record.items()} == {
        "x": [[0, 1], [4, 5]],
        "y": [0, 2],
        "rows": [5, 7],
    }
    assert (first.size, second, client_states[0].backbone_state) == (9, nameless, state)
    apply_deletions(client_states, [Deletion(rows=(5, 7))])
    assert client_states[0].items == (nameless,)


def test_a_reservoir_counts_a_data_set_after_all_its_samples_are_deleted(task, scenario):
    """Otherwise later samples would have better chances than earlier ones."""
    memory, source = CoreSet(4, "reservoir"), torch.Generator().manual_seed(0)
    kept = ()
    for t in range(3):
        visit = scenario.at(t).visits[0]
        samples = task.samples(visit.indices)
        record = memory.observe(task.objective(), task.initial(0)[0], samples, source)
        kept = memory.retain(kept, [MemoryItem(t, 0, t, len(samples), record)], source)
    first = next(k for k in kept if k.record)
    client_states = {0: ClientState(items=kept)}
    apply_deletions(client_states, [Deletion(rows=tuple(first.record["rows"].tolist()))])
    left = client_states[0].items
    assert [(k.key, k.size) for k in left] == [(k.key, k.size) for k in kept]
    assert next(k for k in left if k.key == first.key).record == {}
    assert sum(len(k.record.get("y", ())) for k in left) == 4 - len(first.record["y"])


def test_what_was_made_of_a_deleted_sample_goes_with_it():
    made = {"x": torch.zeros(2, 1), "y": torch.tensor([0, 1]), "sources": torch.tensor([3, 4, 5])}
    client_states = {0: ClientState(items=(MemoryItem(0, 0, 0, 3, made),))}
    apply_deletions(client_states, [Deletion(rows=(9,))])
    assert len(client_states[0].items) == 1
    apply_deletions(client_states, [Deletion(rows=(4,))])
    assert client_states[0].items == ()


def test_a_late_request_takes_effect_when_the_run_resumes(train_for, world):
    """A run that was stopped at round 3, and a deletion that names an earlier round."""
    method = Method(memory=CoreSet(10**6))
    half = train_for(method, 3, scenario=world)
    row = int(half.client_states[0].items[0].record["rows"][0])
    snapshots = run(
        method,
        world,
        Classification(blobs(), Linear()),
        rounds=5,
        start=half,
        deletions=[Deletion(0, rows=(row,), clients=(1,))],
    )
    for snapshot in snapshots:
        assert 1 not in snapshot.client_states
        for client_state in snapshot.client_states.values():
            assert not any(row in item.record["rows"] for item in client_state.items)
