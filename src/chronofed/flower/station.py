"""A client at its place: answers letters, with its own data and what it kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chronofed.deletion import apply_deletions, without
from chronofed.engines.base import one_thread
from chronofed.errors import ChronofedError, DataError
from chronofed.experiments.spec import Experiment
from chronofed.flower import wire
from chronofed.flower.wire import Letter, Question, WireError
from chronofed.protocol import Client, Locker, Order
from chronofed.types import Objective, Samples
from chronofed.vault import Vault


@dataclass(frozen=True, slots=True)
class Data:
    """What a client has to learn from in one round.

    Attributes:
        samples: The present samples.
        key: Which of its data sets they are.
        objective: The model.
    """

    samples: Samples
    key: int
    objective: Objective


Supply = Callable[[Experiment, Order], Data]
"""Where a client's data of a round come from."""


@dataclass(frozen=True, slots=True)
class Share:
    """The client's share of the specification's own data and scenario, as a simulation would give it.

    Attributes:
        folder: Folder of data files.
    """

    folder: Path | None = None

    def __call__(self, experiment: Experiment, order: Order) -> Data:
        """What this client holds in this round."""
        task, scenario, _ = experiment.build(self.folder)
        plan = without(scenario.at(order.round), experiment.deletions)
        visit = plan.visits.get(order.client)
        if visit is None:
            msg = f"client {order.client} has no data in round {order.round} of this scenario"
            raise DataError(msg)
        return Data(task.samples(visit.indices), visit.key, task.objective())


@dataclass(frozen=True, slots=True)
class Station:
    """Answers letters for one client.

    Attributes:
        client: Which client this is.
        experiments: What it is ready to take part in, by fingerprint of the method.
        folder: Where it keeps its memory: one file for every run.
        supply: Where its data come from.
        largest: Most bytes of a letter.
    """

    client: int
    experiments: Mapping[str, Experiment]
    folder: Path
    supply: Supply
    largest: int = wire.LARGEST

    def answer(self, letter: Letter) -> Letter:
        """Answer a letter; what is wrong with it, or cannot be done, is told in one line.

        Whatever else goes wrong is raised, for Flower to report.
        """
        name = ""
        try:
            question = wire.read_question(letter)
            name = question.name
            if question.ask == "hello":
                return wire.write_identity(question, self.client)
            return self._serve(question, letter.body)
        except ChronofedError as error:
            return wire.write_refusal(name, self.client, str(error))

    def vault(self, run: str) -> Path:
        """Where the client's memory of a run lies."""
        return self.folder / f"client-{self.client}-{run}.sqlite"

    def _serve(self, question: Question, body: bytes) -> Letter:
        if question.client != self.client:
            raise WireError(f"an order for client {question.client} came to client {self.client}")
        experiment = self.experiments.get(question.method)
        if experiment is None:
            msg = (
                f"the server's method {question.method} is not this client's "
                f"({', '.join(self.experiments)}): give both the same specification"
            )
            raise WireError(msg)
        order = wire.read_order(question, body, experiment.method, self.largest)
        self.folder.mkdir(parents=True, exist_ok=True)
        with Vault(self.vault(question.run)) as vault, one_thread():
            done = vault.reply(question.name)
            if done is not None:
                return Letter.unpack(done)
            client = self._client(experiment, order, vault.locker())
            if question.ask == "prepare":
                return wire.write_reply(question, client.prepare())
            result, locker = client.serve()
            reply = wire.write_reply(question, result)
            vault.commit(
                question.name, reply.pack(), locker if experiment.method.stateful else None
            )
            return reply

    def _client(self, experiment: Experiment, order: Order, locker: Locker | None) -> Client:
        data = self.supply(experiment, order)
        lockers = {} if locker is None else {order.client: locker}
        apply_deletions(lockers, [d for d in experiment.deletions if d.round <= order.round])
        kept = lockers.get(order.client)
        return Client(experiment.method, order, kept, data.objective, data.samples, data.key)
