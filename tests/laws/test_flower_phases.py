"""A client's new state becomes valid when the server has accepted its reply; restored backups are reported."""

import logging
import shutil
from dataclasses import replace

import pytest
import torch

from chronofed import CoreSet, Method, Scaffold, Train
from chronofed.clients.messages import Order
from chronofed.clients.state import ClientState
from chronofed.clients.store import ClientStore
from chronofed.engines import SerialEngine
from chronofed.flower.codec import OrderWriter, read_result, write_result
from chronofed.flower.messages import read_reply, read_request
from chronofed.methods.memories import MemoryItem
from chronofed.methods.weighting import Merged
from chronofed.runs.checkpoint import encode
from tests.helpers.fake_federation import RUN, fake_federation, shared_by

METHOD = Method(Scaffold(), CoreSet(size=10))


# The client store


def kept(value: float, rounds: tuple[int, ...]) -> ClientState:
    items = tuple(MemoryItem(r, 0, r, 1, {"x": torch.full((3,), float(r))}) for r in rounds)
    return ClientState({"control": torch.full((2,), value)}, items)


def seen(path, accepted: int) -> tuple[int, float | None, list[int]]:
    """Return the round, control and items of the state that an order would work from; nothing changes."""
    with ClientStore(path) as store:
        held = store.settle(accepted)
        state = store.client_state()
    if state is None:
        return held, None, []
    return held, float(state.backbone_state["control"][0]), [item.round for item in state.items]


def commit(path, round_: int, accepted: int, value: float, rounds: tuple[int, ...]) -> None:
    with ClientStore(path) as store:
        store.settle(accepted)
        store.commit(f"run/{round_}/train/0", b"reply", kept(value, rounds), round_=round_)


@pytest.fixture
def path(tmp_path):
    """A client store whose reply of round 3 was accepted, and whose reply of round 5 waits."""
    path = tmp_path / "store.sqlite"
    commit(path, 3, -1, 3.0, (3,))
    commit(path, 5, 3, 5.0, (3, 5))
    return path


@pytest.mark.parametrize(
    ("accepted", "state"),
    [
        (5, (5, 5.0, [3, 5])),
        (3, (3, 3.0, [3])),
        (9, (5, 5.0, [3, 5])),  # behind: this store is an old copy
        (4, (3, 3.0, [3])),  # behind, and what waits was never accepted
        (1, (3, 3.0, [3])),  # ahead: the server is an old copy
        (-1, (3, 3.0, [3])),
    ],
)
def test_the_server_says_which_state_is_valid(accepted, state, path):
    assert seen(path, accepted) == state
    assert seen(path, accepted) == state


def test_a_first_reply_that_was_not_accepted_leaves_nothing(tmp_path):
    commit(tmp_path / "s", 2, -1, 2.0, (2,))
    assert seen(tmp_path / "s", -1) == (-1, None, [])
    assert seen(tmp_path / "s", 2) == (2, 2.0, [2])


@pytest.mark.parametrize(("accepted", "rounds"), [(5, (3, 5, 6)), (3, (3, 6))])
def test_what_was_dropped_is_gone_after_the_next_commit(accepted, rounds, path):
    commit(path, 6, accepted, 6.0, rounds)
    assert seen(path, 6) == (6, 6.0, list(rounds))
    before = {5: (5, 5.0, [3, 5]), 3: (3, 3.0, [3])}[accepted]
    assert seen(path, accepted) == before


def test_a_reply_is_repeated_for_the_same_order_only(tmp_path):
    with ClientStore(tmp_path / "s") as store:
        store.commit("run/0/train/0", b"reply", None, round_=0, request=b"one")
        assert store.reply("run/0/train/0", b"one") == b"reply"
        assert store.reply("run/0/train/0", b"other") is None
        assert store.reply("run/1/train/0", b"one") is None


def test_an_order_that_changes_nothing_keeps_the_state(path):
    with ClientStore(path) as store:
        store.settle(5)
        store.commit("run/6/train/0", b"reply", None, round_=6)
    assert seen(path, 6) == (6, 5.0, [3, 5])
    commit(path, 7, 6, 7.0, (7,))
    assert seen(path, 6) == (6, 5.0, [3, 5])


def test_forgetting_reaches_both_phases(tmp_path):
    path = tmp_path / "s"
    with ClientStore(path) as store:
        for round_ in (0, 1):
            record = {
                "x": torch.ones(2, 1),
                "y": torch.zeros(2),
                "rows": torch.tensor([7, 8 + round_]),
            }
            item = MemoryItem(round_, 0, round_, 2, record)
            store.settle(round_ - 1)
            store.commit("run", b"", ClientState({}, (item,)), round_=round_)
        store.forget(rows=[7])
    for accepted in (0, 1):
        with ClientStore(path) as store:
            store.settle(accepted)
            (item,) = store.client_state().items
            assert item.record["rows"].tolist() == [8 + accepted]


# Server and clients


@pytest.fixture
def world(task, scenario, tmp_path):
    def build(method=METHOD, **others):
        world = fake_federation(task, scenario, method, tmp_path / "state", range(4), **others)
        return world.engine, world.events

    return build


def control(engine, client, accepted):
    with ClientStore(engine.transport.client_nodes[100 + client].store_path(RUN)) as store:
        store.settle(accepted)
        return store.client_state().backbone_state["control"]


class Without(SerialEngine):
    """The serial engine, in which client 2 does not take part in round 1."""

    def map(self, method, orders, plan):
        return super().map(method, [o for o in orders if (o.client, o.round) != (2, 1)], plan)


@pytest.mark.parametrize("how", ["late", "refused"])
def test_a_reply_that_was_not_accepted_might_never_have_been(how, world, task, train_for):
    """The state of SCAFFOLD and the memory of client 2 are those of a run in which it was away."""

    def tamper(request, answer, again):
        if (request.client, request.round, request.kind) != (2, 1, "train"):
            return answer, 0.0
        if how == "late":
            return answer, 50.0
        return replace(answer, body=answer.body[:-3]), 0.0

    engine, _ = world(tamper=tamper, round_timeout_s=30.0, poll_s=1.0)
    there, serial = train_for(METHOD, 4, engine=engine), Without(task)
    here = train_for(METHOD, 4, engine=serial)
    assert torch.equal(there.params, here.params)
    assert torch.equal(control(engine, 2, 3), serial.client_states[2].backbone_state["control"])
    assert {"behind", "ahead"}.isdisjoint(engine.counts)
    assert {"late": "missing", "refused": "refused"}[how] in engine.counts


def test_a_client_store_restored_from_a_backup_is_reported(world, train_for, tmp_path, caplog):
    engine, events = world()
    first = train_for(METHOD, 1, engine=engine)
    path = engine.transport.client_nodes[102].store_path(RUN)
    shutil.copy(path, tmp_path / "backup")
    second = train_for(METHOD, 3, engine=engine, start=first)
    shutil.copy(tmp_path / "backup", path)
    with caplog.at_level(logging.WARNING):
        last = train_for(METHOD, 5, engine=engine, start=second)
    (event,) = [e for e in events if e["event"] == "behind"]
    assert (event["client"], event["round"]) == (2, 3)
    assert "its state of round 0, the server has accepted round 2" in event["reason"]
    assert "behind the server" in caplog.text
    assert last.round == 5


def test_a_lost_client_store_is_reported(world, train_for):
    engine, events = world()
    first = train_for(METHOD, 2, engine=engine)
    engine.transport.client_nodes[101].store_path(RUN).unlink()
    train_for(METHOD, 3, engine=engine, start=first)
    (event,) = [e for e in events if e["event"] == "behind"]
    assert "its state of round -1, the server has accepted round 1" in event["reason"]


def test_a_server_restored_from_a_backup_is_reported_once(world, train_for, caplog):
    engine, events = world()
    first = train_for(METHOD, 1, engine=engine)
    train_for(METHOD, 4, engine=engine, start=first)
    with caplog.at_level(logging.WARNING):
        last = train_for(METHOD, 4, engine=engine, start=first)
    ahead = [(e["client"], e["round"]) for e in events if e["event"] == "ahead"]
    assert ahead == [(i, 1) for i in range(4)]
    assert "ahead of the server" in caplog.text
    assert last.round == 4


def test_a_server_one_round_back_gets_the_same_bits(world, train_for):
    engine, _ = world()
    first = train_for(METHOD, 2, engine=engine)
    train_for(METHOD, 3, engine=engine, start=first)
    again = train_for(METHOD, 4, engine=engine, start=first)
    right = train_for(METHOD, 4)
    assert torch.equal(again.params, right.params)
    assert "ahead" not in engine.counts


def test_accepted_rounds_are_in_the_checkpoint(world, train_for):
    engine, _ = world()
    saved = train_for(METHOD, 2, engine=engine).engine["accepted"]
    assert saved.tolist() == [[i, 1] for i in range(4)]


def test_numbers_that_are_not_finite_are_neither_sent_nor_kept(world, task, scenario, train_for):
    """One absurd row in round 1: the client is left out in this round, and is back in the next."""
    engine, events = world(retries=0)

    usual = shared_by(task, scenario)

    def share(experiment, order, client_store):
        data = usual(experiment, order, client_store)
        if (order.client, order.round) != (2, 1):
            return data
        return replace(data, samples=replace(data.samples, x=data.samples.x * 1e38))

    nodes = engine.transport.client_nodes
    nodes[102] = replace(nodes[102], provider=share)
    before = train_for(METHOD, 1, engine=engine)
    state = control(engine, 2, 0)
    after = train_for(METHOD, 2, engine=engine, start=before)
    (event,) = [e for e in events if e["event"] == "skipped"]
    assert (event["client"], event["round"]) == (2, 1)
    assert "gave numbers that are not finite" in event["reason"]
    assert torch.equal(control(engine, 2, 0), state)
    train_for(METHOD, 3, engine=engine, start=after)
    assert control(engine, 2, 2).isfinite().all()
    assert engine.counts.keys() == {"joined", "skipped"}


def test_a_client_works_anew_when_its_reply_was_refused(world, train_for):
    method = Method(memory=CoreSet(size=10))
    engine, _ = world(method)
    train_for(method, 1, engine=engine)
    node = engine.transport.client_nodes[100]
    server, train = {"params": torch.zeros(18)}, Train(steps=2, batch_size=16)
    order = Order(1, 0, server, torch.zeros(0), Merged(), None, train, 0)
    writer = OrderWriter(RUN, next(iter(node.experiments)))
    first, same, anew = (
        node.answer(writer.write(order, "train", 0, again)[1]) for again in (False, False, True)
    )
    assert first == same == anew  # the same bits, although it trained again
    spoiled = replace(read_result(read_reply(first), first.body), size=7)
    with ClientStore(node.store_path(RUN)) as store:
        name = f"{RUN}/1/train/0"
        (digest,) = store._database.execute("SELECT request FROM answer").fetchone()
        request = writer.write(order, "train", 0)
        store.settle(0)
        packed = write_result(read_request(request[1]), spoiled).pack()
        store.commit(name, packed, None, round_=1, request=digest)
    assert read_reply(node.answer(writer.write(order, "train", 0, False)[1])).size == 7
    assert node.answer(writer.write(order, "train", 0, True)[1]) == first


def test_the_bits_are_those_of_one_machine(world, task, train_for):
    engine, _ = world()
    there = train_for(METHOD, 3, engine=engine)
    here = train_for(METHOD, 3)
    one, other = (encode(replace(s, client_states={}, engine={})) for s in (there, here))
    assert one == other
