"""The engine for clients on other machines, with a transport in memory: no Flower, no processes."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from chronofed import CoreSet, Ditto, FedAvg, Method, PostLocal, Scaffold, Step, Train
from chronofed.clients.messages import Order
from chronofed.clients.store import ClientStore
from chronofed.core.errors import RunError
from chronofed.engines import SerialEngine
from chronofed.flower.codec import OrderWriter, read_result, write_result
from chronofed.flower.messages import Message, read_reply, write_error
from chronofed.flower.settings import Federation
from chronofed.runs.checkpoint import encode
from tests.helpers.fake_federation import RUN, World, fake_federation
from tests.helpers.methods import every_method

STATEFUL = Method(Scaffold(), CoreSet(size=20))


@pytest.fixture
def world(task, scenario, tmp_path):
    """A server and four clients, of which ``clients`` are there from the beginning."""

    def build(method, *, clients=(0, 1, 2, 3), **others) -> World:
        return fake_federation(task, scenario, method, tmp_path / "state", clients, **others)

    return build


def same(one, other) -> bool:
    """Compare bit for bit, but for client states and the engine's state, which only one of them has."""
    one, other = (replace(each, client_states={}, engine={}) for each in (one, other))
    return encode(one) == encode(other)


@pytest.mark.parametrize("method", every_method(1))
def test_every_method_ends_with_the_bits_of_the_serial_engine(method, world, train_for, straight):
    there = world(method)
    here = straight(method, 3)
    assert same(train_for(method, 3, engine=there.engine), here)
    assert set(there.kinds()) == {"joined"}
    assert not there.engine.client_states


def test_client_states_are_those_of_the_serial_engine(world, task, train_for, tmp_path):
    serial = SerialEngine(task)
    train_for(STATEFUL, 3, engine=serial)
    there = world(STATEFUL)
    train_for(STATEFUL, 3, engine=there.engine)
    for node, client_node in there.transport.client_nodes.items():
        with ClientStore(client_node.store_path(RUN)) as client_store:
            kept, right = client_store.client_state(), serial.client_states[node - 100]
        assert torch.equal(kept.backbone_state["control"], right.backbone_state["control"])
        assert [(k.round, k.key) for k in kept.items] == [(k.round, k.key) for k in right.items]


@pytest.mark.parametrize("backbone", [FedAvg(), Ditto()], ids=lambda b: type(b).__name__)
def test_optimisers_and_rates_are_those_of_the_serial_engine(backbone, world, task, train_for):
    """Orders carry the rate and the steps of their round; what is kept of AdamW stays in the client store."""
    settings = Train(
        lr=0.05,
        batch_size=16,
        steps=4,
        optimizer="adamw",
        optimizer_state="keep",
        clip_norm=1.0,
        schedule=Step(every=1, factor=0.5),
        steps_schedule=PostLocal(rounds=1),
    )
    serial, there = SerialEngine(task), world(Method(backbone))
    here = train_for(Method(backbone), 3, engine=serial, settings=settings)
    assert same(train_for(Method(backbone), 3, engine=there.engine, settings=settings), here)
    for node, client_node in there.transport.client_nodes.items():
        with ClientStore(client_node.store_path(RUN)) as client_store:
            kept, right = client_store.client_state(), serial.client_states[node - 100]
        assert kept.backbone_state.keys() == right.backbone_state.keys()
        assert kept.optimizer_state.keys() == right.optimizer_state.keys()
        for name, tensor in right.optimizer_state.items():
            assert torch.equal(kept.optimizer_state[name], tensor)


def test_a_client_that_fails_once_is_asked_again_and_nothing_is_lost(world, train_for):
    """Its training was done and its answer lost: it must not train, or remember, a second time."""
    lost = set()

    def tamper(request, answer, again):
        if request.client == 2 and request.name not in lost:
            lost.add(request.name)
            return "error 8: the client app crashed", 0.0
        return answer, 0.0

    there = world(STATEFUL, tamper=tamper)
    assert same(train_for(STATEFUL, 3, engine=there.engine), train_for(STATEFUL, 3))
    assert there.engine.counts == {"joined": 4, "failed": 3}


def test_a_client_that_always_fails_is_skipped(world, train_for):
    def tamper(request, answer, again):
        return ("error 2", 0.0) if request.client == 2 else (answer, 0.0)

    there = world(Method(), tamper=tamper)
    last = train_for(Method(), 2, engine=there.engine)
    assert last.round == 2
    assert there.engine.counts == {"joined": 4, "failed": 2, "skipped": 2}


def test_an_exception_in_a_client_is_a_failure_with_its_reason(world, train_for):
    def provider(experiment, order, client_store):
        raise ZeroDivisionError("no data today")

    there = world(Method(), provider=provider, quorum_timeout_s=20.0, max_skips=0)
    with pytest.raises(RunError, match="round 0: only 0 of 4 clients gave a usable answer"):
        train_for(Method(), 1, engine=there.engine)
    assert {e["reason"] for e in there.events if "reason" in e} == {"error 2: no data today"}


def test_stragglers_are_left_behind_and_their_late_answers_are_dropped_and_counted(
    world, train_for
):
    def tamper(request, answer, again):
        return answer, 50.0 if request.client == 3 and request.round == 0 else 0.0

    there = world(Method(), tamper=tamper, round_timeout_s=30.0, poll_s=1.0)
    train_for(Method(), 1, engine=there.engine)
    assert there.kinds()[4:] == ["missing"]
    there.transport.clock.now = 60.0
    last = train_for(Method(), 2, engine=there.engine)
    assert there.kinds().count("late") == 1
    assert last.round == 2


def test_below_the_quorum_a_round_waits_beyond_its_timeout(world, train_for):
    def tamper(request, answer, again):
        return answer, 45.0 if request.client > 0 else 0.0

    there = world(Method(), tamper=tamper, round_timeout_s=30.0, quorum=2, poll_s=1.0)
    last = train_for(Method(), 1, engine=there.engine)
    assert same(last, train_for(Method(), 1))
    assert there.transport.clock.now >= 45.0


def test_without_a_quorum_the_run_stops_with_one_line(world, train_for):
    there = world(Method(), clients=(0,), quorum=3, quorum_timeout_s=100.0, max_skips=0, poll_s=1.0)
    with pytest.raises(
        RunError, match=r"only 1 of 4 clients .* 3 are needed; see events.jsonl"
    ) as error:
        train_for(Method(), 1, engine=there.engine)
    assert "\n" not in str(error.value)


def spoiled(change):
    """Tamper with the result of client 1."""

    def tamper(request, answer, again):
        if request.client != 1 or isinstance(answer, str):
            return answer, 0.0
        reply = read_reply(answer)
        return change(request, reply, read_result(reply, answer.body)), 0.0

    return tamper


def nan(request, reply, result):
    delta = result.upload["delta"].clone()
    delta[3] = float("nan")
    return write_result(request, replace(result, upload={"delta": delta}))


def other_name(request, reply, result):
    return write_result(msgspec.structs.replace(request, round=7), result)


def other_method(request, reply, result):
    return write_result(msgspec.structs.replace(request, fingerprint="abc"), result)


def other_client(request, reply, result):
    return write_result(request, replace(result, client=0))


def cut(request, reply, result):
    message = write_result(request, result)
    return Message(message.header, message.body[:-5])


def not_json(request, reply, result):
    return Message("{", b"")


def other_protocol(request, reply, result):
    message = write_result(request, result)
    return Message(message.header.replace('"protocol": 4', '"protocol": 99'), message.body)


BAD = {
    nan: "finite",
    other_name: "the reply is for '00c0ffee/7",
    other_method: "the reply is for 'abc'",
    other_client: "the reply is for 0, expected 1",
    cut: "malformed body",
    not_json: "malformed header",
    other_protocol: "protocol 99, but this side uses 4",
}


@pytest.mark.parametrize("change", BAD, ids=lambda c: c.__name__)
def test_bad_answers_are_refused_once_logged_and_never_aggregated(change, world, train_for):
    there = world(Method(), tamper=spoiled(change))
    last = train_for(Method(), 1, engine=there.engine)
    (event,) = [e for e in there.events if e["event"] == "refused"]
    assert event["client"] == 1
    assert BAD[change] in event["reason"]
    without = world(Method(), tamper=lambda q, a, _: ("x", 0.0) if q.client == 1 else (a, 0.0))
    assert torch.equal(last.params, train_for(Method(), 1, engine=without.engine).params)


def test_clients_join_in_mid_run_and_come_back_under_another_number(world, train_for):
    there = world(Method(), clients=(0, 1, 2), join_timeout_s=5.0, poll_s=1.0)
    first = train_for(Method(), 1, engine=there.engine)
    assert there.kinds() == ["joined"] * 3 + ["missing"]
    client_nodes = there.transport.client_nodes
    client_nodes[900] = replace(client_nodes[102], client=3)
    client_nodes[901] = client_nodes.pop(101)
    there.transport.clock.now += 5.0
    train_for(Method(), 2, start=first, engine=there.engine)
    train_for(Method(), 3, start=first, engine=there.engine)
    assert {e["client"]: e["node"] for e in there.events if "node" in e} == {
        0: 100,
        1: 901,
        2: 102,
        3: 900,
    }
    assert "left" in there.kinds()


def test_a_client_on_a_new_node_gets_its_order_again(world, train_for):
    """Its first node is dead, but counts as there until its heartbeats are missed."""
    there = world(STATEFUL, poll_s=1.0)

    def tamper(request, answer, again):
        if request.client == 1 and 900 not in there.transport.client_nodes:
            there.transport.client_nodes[900] = there.transport.client_nodes[101]
            return None, 0.0  # done, but the answer never leaves
        return answer, 0.0

    there.transport.tamper = tamper
    assert same(train_for(STATEFUL, 2, engine=there.engine), train_for(STATEFUL, 2))
    assert "moved" in there.kinds()


def test_a_server_that_comes_back_gets_the_same_answers(world, train_for):
    """It asks again what was answered before it could write a checkpoint."""
    there = world(STATEFUL)
    first = train_for(STATEFUL, 1, engine=there.engine)
    train_for(STATEFUL, 2, start=first, engine=there.engine)
    again = train_for(STATEFUL, 3, start=first, engine=world(STATEFUL).engine)
    assert same(again, train_for(STATEFUL, 3))


def test_several_clients_behind_one_node_are_clients_like_others(world, train_for, tmp_path):
    """Each has a client store of its own."""
    there = world(STATEFUL)
    machines = there.transport.client_nodes
    machines[100] = replace(machines.pop(100), others=(2, 3))
    del machines[102], machines[103]
    assert same(train_for(STATEFUL, 3, engine=there.engine), train_for(STATEFUL, 3))
    assert len(list((tmp_path / "state").glob("client-?-*.sqlite"))) == 4
    assert there.engine.counts == {"joined": 4}
    asked = [(node, int(name.rpartition("/")[2])) for node, name in there.transport.sent]
    assert {client for node, client in asked if node == 100} == {-1, 0, 2, 3}


def test_a_node_that_fails_before_it_says_who_it_is_is_asked_again(world, train_for):
    there = world(STATEFUL)
    whole, failures = there.transport.client_nodes[101], []

    class Killed:
        def answer(self, message):
            failures.append(message)
            if len(failures) <= 4:
                raise ZeroDivisionError("its process was killed")
            return whole.answer(message)

    there.transport.client_nodes[101] = Killed()
    assert same(train_for(STATEFUL, 3, engine=there.engine), train_for(STATEFUL, 3))
    assert there.engine.counts == {"joined": 4, "failed": 4}
    assert all("killed" in e["reason"] for e in there.events if e["event"] == "failed")


def test_a_node_that_cannot_say_who_it_is_is_ignored(world, train_for):
    there = world(Method())

    class Mute:
        def answer(self, message):
            return write_error("", -1, "start it with --node-config 'client=0'")

    there.transport.client_nodes[500] = Mute()
    last = train_for(Method(), 3, engine=there.engine)
    assert same(last, train_for(Method(), 3))
    reasons = {e["reason"] for e in there.events if e["event"] == "unknown"}
    assert reasons == {"start it with --node-config 'client=0'"}


def test_an_order_for_another_client_or_method_is_refused_by_the_node(world, train_for):
    there = world(Method())
    other = world(Method(FedAvg(server_lr=0.5))).engine
    settings = Federation(quorum_timeout_s=12.0, max_skips=0)
    other = replace(other, transport=there.transport, settings=settings)
    with pytest.raises(RunError):
        train_for(Method(FedAvg(server_lr=0.5)), 1, engine=other)
    client_node = there.transport.client_nodes[100]
    params, buffers = torch.zeros(3), torch.zeros(0)
    order = Order(0, 2, {"params": params}, buffers, Method().weights, None, Train(), 0)
    _, message = OrderWriter(RUN, next(iter(client_node.experiments))).write(order, "train")
    assert (
        read_reply(client_node.answer(message)).error == "client 0 received an order for client 2"
    )
    assert np.all([v.suffix != ".sqlite" for v in client_node.folder.glob("client-2*")])
