"""Clients whose data change, over a transport in memory: nobody honest is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from chronofed import CoreSet, FedAvg, Method, Scaffold, Train, Visit
from chronofed.core.errors import RunError
from chronofed.engines import SerialEngine
from chronofed.flower.codec import read_result, write_result
from chronofed.flower.messages import read_reply
from chronofed.runs.checkpoint import encode
from chronofed.scenarios import Scenario
from chronofed.scenarios.membership import Everyone
from tests.helpers.fake_federation import fake_federation

DRIFTING = Method(Scaffold(), CoreSet(size=10))
TRAIN = Train(lr=0.1, batch_size=16, steps=4)


class ChangingLabels:
    """Clients that hold one class each; each one's class changes at rounds of its own."""

    rounds, persistent = None, True

    def __init__(self, labels, clients):
        self.by_class = [np.flatnonzero(labels == c) for c in range(3)]
        self.clients = clients

    def candidates(self, round_):
        return np.arange(self.clients)

    def visit(self, client, round_):
        phase = (round_ + 5 * client) // (13 + 4 * client)
        rows = self.by_class[(client + phase) % 3]
        return Visit(rows[20 * (client % 3) : 20 * (client % 3) + 20], key=10 * client + phase)


@pytest.fixture
def drift(task, data, tmp_path):
    """A scenario of drifting clients, and an engine on Flower's messages with screening for it."""

    def build(method, clients=7, **others):
        scenario = Scenario(ChangingLabels(data.train.y.numpy(), clients), Everyone())
        world = fake_federation(task, scenario, method, tmp_path, range(clients), **others)
        return scenario, world.engine, world.events

    return build


def plain(snapshot):
    return encode(replace(snapshot, client_states={}, engine={}))


@pytest.mark.parametrize("rounds", [15, pytest.param(200, marks=pytest.mark.product)])
def test_honest_clients_that_drift_are_never_refused(rounds, drift, train_for, task):
    scenario, engine, events = drift(DRIFTING)
    world = {"scenario": scenario, "settings": TRAIN}
    there = train_for(DRIFTING, rounds, engine=engine, **world)
    assert {event["event"] for event in events} == {"joined"}
    assert plain(there) == plain(train_for(DRIFTING, rounds, engine=SerialEngine(task), **world))


def hostile(factor):
    """Client 0 sends its update many times larger, in any direction."""

    def tamper(request, answer, again):
        if request.client != 0 or request.kind != "train":
            return answer, 0.0
        reply = read_reply(answer)
        result = read_result(reply, answer.body)
        upload = {**result.upload, "delta": -factor * result.upload["delta"]}
        return write_result(request, replace(result, upload=upload), reply.held), 0.0

    return tamper


@pytest.mark.parametrize("factor", [1e2, 1e4])
def test_the_influence_of_a_hostile_client_is_bounded(factor, drift, train_for):
    """However loud it is: the model of a round moves by no more than the limit, divided by the clients."""
    method = Method(FedAvg(), average="clients")
    scenario, engine, events = drift(method, tamper=hostile(factor))
    world = {"scenario": scenario, "settings": TRAIN}
    with_it = train_for(method, 1, engine=engine, **world)
    assert [event["client"] for event in events if event["event"] == "clipped"] == [0]
    (peaks,) = [t for name, t in engine.state_dict().items() if name == "train upload.delta"]
    usual = peaks[1:, 1].median()
    assert peaks[0, 1] == pytest.approx(10 * sorted(peaks[1:, 1].tolist())[3])
    honest = train_for(method, 1, engine=drift(method)[1], **world)
    moved = float((with_it.params - honest.params).norm())
    assert moved <= (float(peaks[0, 1]) + float(peaks[:, 1].max())) / 7 * 1.001
    assert usual > 0


def test_a_client_that_sends_nonsense_does_not_stop_the_other(drift, train_for):
    """With two clients, more than half is both; it is asked again, then goes without."""

    def nonsense(request, answer, again):
        return (answer, 0.0) if request.client else (replace(answer, body=b"x"), 0.0)

    method = Method()
    scenario, engine, _ = drift(method, clients=2, tamper=nonsense)
    last = train_for(method, 3, engine=engine, scenario=scenario, settings=TRAIN)
    assert last.round == 3
    assert engine.counts["refused"] == 6  # twice in every round
    assert engine.counts.keys() == {"joined", "refused"}
    assert not torch.equal(last.params, train_for(method, 1, scenario=scenario).params)


def test_a_round_without_a_quorum_is_skipped_and_the_run_goes_on(drift, train_for):
    """Client 1 is gone in round 1; its quorum is two."""

    def gone(request, answer, again):
        return ("error 3", 0.0) if (request.client, request.round) == (1, 1) else (answer, 0.0)

    scenario, engine, events = drift(
        DRIFTING, clients=2, tamper=gone, quorum=2, quorum_timeout_s=100.0
    )
    world = {"scenario": scenario, "settings": TRAIN}
    models = [s.params for s in map_rounds(train_for, 3, engine, world)]
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[1], models[2])
    (event,) = [event for event in events if event["event"] == "no_quorum"]
    assert event["round"] == 1
    assert event["reason"].endswith("but 2 are needed; the round is skipped")
    assert engine.counts["failed"] >= 1
    assert "behind" not in engine.counts
    assert "ahead" not in engine.counts


def map_rounds(train_for, rounds, engine, world):
    """Train round by round, each from the snapshot before."""
    last, found = None, []
    for round_ in range(1, rounds + 1):
        last = train_for(DRIFTING, round_, engine=engine, start=last, **world)
        found.append(last)
    return found


def test_too_many_rounds_without_a_quorum_stop_the_run(drift, train_for):
    def gone(request, answer, again):
        return "error 3", 0.0

    scenario, engine, _ = drift(
        Method(), clients=2, tamper=gone, quorum_timeout_s=20.0, max_skips=2
    )
    with pytest.raises(RunError, match="round 2: only 0 of 2 clients"):
        train_for(Method(), 5, engine=engine, scenario=scenario, settings=TRAIN)
    assert engine.counts["no_quorum"] == 2
