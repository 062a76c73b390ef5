"""The engine for clients on other machines, with a post office in memory: no Flower, no processes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from methods import EVERY
from post_office import PostOffice, Time

from chronofed import CoreSet, Experiment, FedAvg, Method, Scaffold, Train
from chronofed.engines import SerialEngine
from chronofed.errors import RunError
from chronofed.flower import wire
from chronofed.flower.engine import FlowerEngine
from chronofed.flower.settings import Federation
from chronofed.flower.station import Data, Station
from chronofed.flower.wire import Letter, fingerprint
from chronofed.records.checkpoint import encode
from chronofed.screening import Screen

RUN = "00c0ffee"
STATEFUL = Method(Scaffold(), CoreSet(size=20))


@dataclass
class World:
    office: PostOffice
    engine: FlowerEngine
    events: list[dict]

    def kinds(self):
        return [event["event"] for event in self.events]


@pytest.fixture
def world(task, scenario, tmp_path):
    """A server and four clients, of which ``clients`` are there from the beginning."""

    def build(method, *, tamper=None, clients=(0, 1, 2, 3), supply=None, **settings) -> World:
        def share(experiment, order, vault):
            visit = scenario.at(order.round).visits[order.client]
            return Data(task.samples(visit.indices), visit.key, task.objective())

        known = {fingerprint(Experiment(method=method)): Experiment(method=method)}
        stations = {
            100 + i: Station(i, known, tmp_path / "vaults", supply or share) for i in clients
        }
        time, events = Time(), []
        office = PostOffice(time, stations, tamper)
        engine = FlowerEngine(
            task,
            office,
            RUN,
            *known,
            Screen.on(task, method),
            Federation(**settings),
            events.append,
            now=lambda: time.now,
            sleep=time.sleep,
        )
        return World(office, engine, events)

    return build


def same(one, other) -> bool:
    """Bit for bit, but for lockers, which a server on Flower does not see, and what it knows of its clients."""
    one, other = (replace(each, lockers={}, engine={}) for each in (one, other))
    return encode(one) == encode(other)


@pytest.mark.parametrize("method", EVERY)
def test_every_method_ends_with_the_bits_of_the_serial_engine(method, world, train_for):
    there = world(method)
    here = train_for(method, 3)
    assert same(train_for(method, 3, engine=there.engine), here)
    assert set(there.kinds()) == {"joined"}
    assert not there.engine.lockers


def test_lockers_are_those_of_the_serial_engine(world, task, train_for, tmp_path):
    serial = SerialEngine(task)
    train_for(STATEFUL, 3, engine=serial)
    there = world(STATEFUL)
    train_for(STATEFUL, 3, engine=there.engine)
    from chronofed.vault import Vault

    for node, station in there.office.stations.items():
        with Vault(station.vault(RUN)) as vault:
            kept, right = vault.locker(), serial.lockers[node - 100]
        assert torch.equal(kept.state["control"], right.state["control"])
        assert [(k.round, k.key) for k in kept.kept] == [(k.round, k.key) for k in right.kept]


def test_a_client_that_fails_once_is_asked_again_and_nothing_is_lost(world, train_for):
    """Its training was done and its answer lost: it must not train, or remember, a second time."""
    lost = set()

    def tamper(question, answer, again):
        if question.client == 2 and question.name not in lost:
            lost.add(question.name)
            return "error 8: the client app crashed", 0.0
        return answer, 0.0

    there = world(STATEFUL, tamper=tamper)
    assert same(train_for(STATEFUL, 3, engine=there.engine), train_for(STATEFUL, 3))
    assert there.engine.counts == {"joined": 4, "failed": 3}


def test_a_client_that_always_fails_is_skipped(world, train_for):
    def tamper(question, answer, again):
        return ("error 2", 0.0) if question.client == 2 else (answer, 0.0)

    there = world(Method(), tamper=tamper)
    last = train_for(Method(), 2, engine=there.engine)
    assert last.round == 2
    assert there.engine.counts == {"joined": 4, "failed": 2, "skipped": 2}


def test_an_exception_in_a_client_is_a_failure_with_its_reason(world, train_for):
    def supply(experiment, order, vault):
        raise ZeroDivisionError("no data today")

    there = world(Method(), supply=supply, patience=20.0)
    with pytest.raises(RunError, match="round 0: only 0 of 4 clients gave an answer that counts"):
        train_for(Method(), 1, engine=there.engine)
    assert {e["reason"] for e in there.events if "reason" in e} == {"error 2: no data today"}


def test_stragglers_are_left_behind_and_their_late_answers_are_dropped_and_counted(
    world, train_for
):
    def tamper(question, answer, again):
        return answer, 50.0 if question.client == 3 and question.round == 0 else 0.0

    there = world(Method(), tamper=tamper, deadline=30.0, poll=1.0)
    train_for(Method(), 1, engine=there.engine)
    assert there.kinds()[4:] == ["missing"]
    there.office.time.now = 60.0
    last = train_for(Method(), 2, engine=there.engine)
    assert there.kinds().count("late") == 1
    assert last.round == 2


def test_below_the_quorum_a_round_waits_beyond_its_deadline(world, train_for):
    def tamper(question, answer, again):
        return answer, 45.0 if question.client > 0 else 0.0

    there = world(Method(), tamper=tamper, deadline=30.0, quorum=2, poll=1.0)
    last = train_for(Method(), 1, engine=there.engine)
    assert same(last, train_for(Method(), 1))
    assert there.office.time.now >= 45.0


def test_without_a_quorum_the_run_stops_with_one_line(world, train_for):
    there = world(Method(), clients=(0,), quorum=3, patience=100.0, poll=1.0)
    with pytest.raises(
        RunError, match=r"only 1 of 4 clients .* 3 are needed; see events.jsonl"
    ) as error:
        train_for(Method(), 1, engine=there.engine)
    assert "\n" not in str(error.value)


def spoiled(change):
    """Tamper with the result of client 1."""

    def tamper(question, answer, again):
        if question.client != 1 or isinstance(answer, str):
            return answer, 0.0
        reply = wire.read_reply(answer)
        return change(question, reply, wire.read_result(reply, answer.body)), 0.0

    return tamper


def nan(question, reply, result):
    delta = result.upload["delta"].clone()
    delta[3] = float("nan")
    return wire.write_reply(question, replace(result, upload={"delta": delta}))


def other_name(question, reply, result):
    return wire.write_reply(wire.msgspec.structs.replace(question, round=7), result)


def other_method(question, reply, result):
    return wire.write_reply(wire.msgspec.structs.replace(question, method="abc"), result)


def other_client(question, reply, result):
    return wire.write_reply(question, replace(result, client=0))


def cut(question, reply, result):
    letter = wire.write_reply(question, result)
    return Letter(letter.header, letter.body[:-5])


def not_json(question, reply, result):
    return Letter("{", b"")


def other_protocol(question, reply, result):
    letter = wire.write_reply(question, result)
    return Letter(letter.header.replace('"protocol": 1', '"protocol": 99'), letter.body)


BAD = {
    nan: "finite",
    other_name: "the reply is about '00c0ffee/7",
    other_method: "the reply is about 'abc'",
    other_client: "the reply is about 0, not 1",
    cut: "cannot be read",
    not_json: "cannot be read",
    other_protocol: "protocol 99, but this side speaks 1",
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
    there = world(Method(), clients=(0, 1, 2), muster=5.0, poll=1.0)
    first = train_for(Method(), 1, engine=there.engine)
    assert there.kinds() == ["joined"] * 3 + ["missing"]
    stations = there.office.stations
    stations[900] = replace(stations[102], client=3)
    stations[901] = stations.pop(101)
    there.office.time.now += 5.0
    train_for(Method(), 2, start=first, engine=there.engine)
    train_for(Method(), 3, start=first, engine=there.engine)
    assert {e["client"]: e["node"] for e in there.events if "node" in e} == {
        0: 100,
        1: 901,
        2: 102,
        3: 900,
    }
    assert "left" in there.kinds()


def test_a_client_that_reappears_takes_its_order_over(world, train_for):
    """Its first node is dead, but counts as there until its heartbeats are missed."""
    there = world(STATEFUL, poll=1.0)

    def tamper(question, answer, again):
        if question.client == 1 and 900 not in there.office.stations:
            there.office.stations[900] = there.office.stations[101]
            return None, 0.0  # done, but the answer never leaves
        return answer, 0.0

    there.office.tamper = tamper
    assert same(train_for(STATEFUL, 2, engine=there.engine), train_for(STATEFUL, 2))
    assert "moved" in there.kinds()


def test_a_server_that_comes_back_gets_the_same_answers(world, train_for):
    """It asks again what was answered before it could write a checkpoint."""
    there = world(STATEFUL)
    first = train_for(STATEFUL, 1, engine=there.engine)
    train_for(STATEFUL, 2, start=first, engine=there.engine)
    again = train_for(STATEFUL, 3, start=first, engine=world(STATEFUL).engine)
    assert same(again, train_for(STATEFUL, 3))


def test_a_node_that_cannot_say_who_it_is_is_ignored(world, train_for):
    there = world(Method())

    class Mute:
        def answer(self, letter):
            return wire.write_refusal("", -1, "start it with --node-config 'client=0'")

    there.office.stations[500] = Mute()
    last = train_for(Method(), 3, engine=there.engine)
    assert same(last, train_for(Method(), 3))
    reasons = {e["reason"] for e in there.events if e["event"] == "unknown"}
    assert reasons == {"start it with --node-config 'client=0'"}


def test_an_order_for_another_client_or_method_is_refused_by_the_station(world, train_for):
    there = world(Method())
    other = world(Method(FedAvg(server_lr=0.5))).engine
    other.mail, other.settings = there.office, Federation(patience=12.0)
    with pytest.raises(RunError):
        train_for(Method(FedAvg(server_lr=0.5)), 1, engine=other)
    station = there.office.stations[100]
    params, buffers = torch.zeros(3), torch.zeros(0)
    order = wire.Order(0, 2, {"params": params}, buffers, Method().weights, None, Train(), 0)
    _, letter = wire.Desk(RUN, next(iter(station.experiments))).write(order, "train")
    assert wire.read_reply(station.answer(letter)).error == "an order for client 2 came to client 0"
    assert np.all([v.suffix != ".sqlite" for v in station.folder.glob("client-2*")])
