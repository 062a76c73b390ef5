"""A client at its place: answers letters, with its own data and what it kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from chronofed.deletion import apply_deletions, without
from chronofed.engines.base import one_thread
from chronofed.errors import ChronofedError, DataError, SpecError
from chronofed.experiments.spec import Experiment, with_path
from chronofed.flower import wire
from chronofed.flower.wire import Letter, Question, WireError
from chronofed.protocol import Client, Locker, Order
from chronofed.sources import Held, Source
from chronofed.tasks.dataset import Dataset
from chronofed.tasks.objective import TorchObjective
from chronofed.types import Objective, Samples
from chronofed.vault import Vault


@dataclass(frozen=True, slots=True)
class Data:
    """What a client has to learn from in one round.

    Attributes:
        samples: The present samples.
        key: Which of its data sets they are.
        objective: The model.
        held: The same with time stamps, where the client has some.
    """

    samples: Samples
    key: int
    objective: Objective
    held: Held | None = None


Supply = Callable[[Experiment, Order, Vault], Data]
"""Where a client's data of a round come from."""


@dataclass(frozen=True, slots=True)
class Share:
    """The client's share of the specification's own data and scenario, as a simulation would give it.

    Attributes:
        folder: Folder of data files.
        beside: Folder of the specification.
    """

    folder: Path | None = None
    beside: Path = Path()

    def __call__(self, experiment: Experiment, order: Order, vault: Vault) -> Data:
        """What this client holds in this round."""
        del vault  # a simulation's data are forgotten by the specification's deletions
        if experiment.scenario.elsewhere:
            msg = (
                f"client {order.client} has no source, but this scenario's clients bring their own data: "
                f"start it with --node-config 'client={order.client} source=\"/path/source.toml\" ...'"
            )
            raise SpecError(msg)
        found = with_path(experiment, self.beside, self.folder)
        task, scenario, _ = found.build(self.folder)
        plan = without(scenario.at(order.round), experiment.deletions)
        visit = plan.visits.get(order.client)
        if visit is None:
            msg = f"client {order.client} has no data in round {order.round} of this scenario"
            raise DataError(msg)
        return Data(task.samples(visit.indices), visit.key, task.objective())


@dataclass(frozen=True, slots=True)
class Own:
    """The client's own data as they are now; rows that it was told to forget are never used again.

    Attributes:
        source: Where they are.
    """

    source: Source

    def __call__(self, experiment: Experiment, order: Order, vault: Vault) -> Data:
        """What is current in this round.

        Raises:
            DataError: If there is nothing, or it cannot be read: what is wrong with a row is only its cause.
        """
        try:
            held = self.source.now(order.round).without(vault.forgotten, vault.horizon)
        except DataError as error:
            msg = f"client {order.client} cannot read its own data in round {order.round}: see its node's log"
            raise DataError(msg) from error
        if not len(held):
            why = "; ".join(held.notes) or "nothing is current"
            raise DataError(f"client {order.client} has no data in round {order.round}: {why}")
        nothing = held.samples[torch.zeros(0, dtype=torch.int64)]
        dataset = Dataset("own", held.samples, nothing, self.source.classes)
        objective = experiment.task(dataset).objective()
        _check_agreed(objective, order)
        return Data(held.samples, vault.alias(held.key), objective, held)


@dataclass(frozen=True, slots=True)
class Station:
    """Answers letters for one client.

    Attributes:
        client: Which client this is.
        experiments: What it is ready to take part in, by fingerprint of the method.
        folder: Where it keeps its memory: one file for every run.
        supply: Where its data come from.
        memory: Makes the memory in a file, with the client's own limits.
        say: Told, where the client is, why there was no answer; that may name what is in a row.
        largest: Most bytes of a letter.
    """

    client: int
    experiments: Mapping[str, Experiment]
    folder: Path
    supply: Supply
    memory: Callable[[Path], Vault] = Vault
    say: Callable[[str], None] = lambda line: None  # noqa: ARG005
    largest: int = wire.LARGEST

    def answer(self, letter: Letter) -> Letter:
        """Answer a letter; what is wrong with it, or cannot be done, is told in one line, without its cause.

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
            cause = f" ({error.__cause__})" if isinstance(error.__cause__, DataError) else ""
            self.say(f"{error}{cause}")
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
        with self.memory(self.vault(question.run)) as vault, one_thread():
            done = vault.reply(question.name)
            if done is not None:
                return Letter.unpack(done)
            data = self.supply(experiment, order, vault)
            client = _client(experiment, order, vault.locker(), data)
            if question.ask == "prepare":
                return wire.write_reply(question, client.prepare())
            result, locker = client.serve()
            reply = wire.write_reply(question, result)
            kept = locker if experiment.method.stateful else None
            vault.commit(question.name, reply.pack(), kept, data.held)
            return reply


def _check_agreed(objective: TorchObjective, order: Order) -> None:
    """Refuse to train a model of another shape than the server's."""
    here, there = objective.flat.size, len(order.server["params"])
    if here != there:
        msg = (
            f"client {order.client}: the features and classes of its source make a model of {here} parameters, "
            f"but the server's has {there}: set them as was agreed"
        )
        raise DataError(msg)


def _client(experiment: Experiment, order: Order, locker: Locker | None, data: Data) -> Client:
    lockers = {} if locker is None else {order.client: locker}
    apply_deletions(lockers, [d for d in experiment.deletions if d.round <= order.round])
    kept = lockers.get(order.client)
    return Client(experiment.method, order, kept, data.objective, data.samples, data.key)
