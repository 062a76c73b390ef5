"""A server and clients whose messages stay in memory: no Flower, no processes."""

from collections.abc import Iterable
from dataclasses import dataclass

from chronofed import Experiment
from chronofed.clients.screening import Screen
from chronofed.flower.engine import FlowerEngine
from chronofed.flower.messages import method_fingerprint
from chronofed.flower.node import ClientNode, RoundData
from chronofed.flower.settings import Federation
from tests.helpers.fake_transport import FakeClock, FakeTransport

RUN = "00c0ffee"


@dataclass
class World:
    transport: FakeTransport
    engine: FlowerEngine
    events: list[dict]

    def kinds(self):
        return [event["event"] for event in self.events]


def shared_by(task, scenario):
    """Return a provider of the data that a scenario gives each client."""

    def share(experiment, order, client_store):
        visit = scenario.at(order.round).visits[order.client]
        return RoundData(task.samples(visit.indices), visit.key, task.objective())

    return share


def fake_federation(
    task,
    scenario,
    method,
    folder,
    clients: Iterable[int],
    *,
    tamper=None,
    provider=None,
    **settings,
) -> World:
    """Make a server with screening, and clients with stores of their own; a client's node is 100 more."""
    experiment = Experiment(method=method)
    known = {method_fingerprint(experiment): experiment}
    provider = provider or shared_by(task, scenario)
    client_nodes = {100 + i: ClientNode(i, known, folder, provider) for i in clients}
    clock, events = FakeClock(), []
    limits = Federation(**settings)
    transport = FakeTransport(clock, client_nodes, tamper)
    engine = FlowerEngine(
        task,
        transport,
        RUN,
        *known,
        Screen.on(task, method, limits),
        limits,
        events.append,
        now=lambda: clock.now,
        sleep=clock.sleep,
    )
    return World(transport, engine, events)
