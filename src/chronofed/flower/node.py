"""A client on its own machine: answers messages with its own data and its client store."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import torch

from chronofed.clients.client import Client
from chronofed.clients.deletion import apply_deletions, without
from chronofed.clients.messages import Exchange, Order, Result
from chronofed.clients.order_check import OrderCheck, OrderLimits, with_time_limit
from chronofed.clients.state import ClientState, join_records
from chronofed.clients.store import ClientStore
from chronofed.core.errors import ChronofedError, DataError, SpecError
from chronofed.core.paths import expand
from chronofed.core.types import Record, Samples
from chronofed.data.client_source import ClientData, Source
from chronofed.data.client_source.load import load_source
from chronofed.data.dataset import Dataset
from chronofed.engines.base import one_thread
from chronofed.flower.codec import MAX_BODY_BYTES, read_order, write_result
from chronofed.flower.messages import (
    Message,
    MessageError,
    Request,
    read_request,
    request_digest,
    write_error,
    write_identity,
)
from chronofed.methods.method import Method
from chronofed.models.objective import TorchObjective
from chronofed.runs.built import BuiltRun, build
from chronofed.runs.spec import Experiment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundData:
    """The data of a client in one round.

    Attributes:
        samples: The present samples.
        key: Identifies the data set.
        objective: The model and its loss.
        source_data: The same data with time stamps, if they come from the client's own source.
    """

    samples: Samples
    key: int
    objective: TorchObjective
    source_data: ClientData | None = None


DataProvider: TypeAlias = Callable[[Experiment, Order, ClientStore], RoundData]
"""Returns the data of a client for an order."""


@dataclass(frozen=True, slots=True)
class ScenarioData:
    """Provides the client's part of the specification's data, as in a simulation.

    Attributes:
        folder: Folder of data files.
        spec_folder: Folder of the specification.
    """

    folder: Path | None = None
    spec_folder: Path = Path()

    def __call__(
        self, experiment: Experiment, order: Order, client_store: ClientStore
    ) -> RoundData:
        """Return the data that the scenario gives this client in this round."""
        if experiment.scenario.remote:
            raise SpecError(
                f"client {order.client} has no source, but clients of this scenario bring their own data: "
                f"start its node with --node-config 'client={order.client} source=\"/path/source.toml\" ...'"
            )
        # Several threads of a worker may share them.
        with _BUILDING:
            built = _build(experiment.resolved(), experiment, self.folder, self.spec_folder)
            plan = without(built.scenario.at(order.round), experiment.deletions)
            visit = plan.visits.get(order.client)
            if visit is None:
                msg = f"client {order.client} has no data in round {order.round} of this scenario"
                raise DataError(msg)
            task = built.task
            return RoundData(task.samples(visit.indices), visit.key, task.objective())


_BUILDING = Lock()
_BUILT: dict[tuple[str, Path | None, Path], BuiltRun] = {}
"""The last experiment that was built, by its settings and folders: a worker answers many messages about one."""


def _build(
    settings: str, experiment: Experiment, folder: Path | None, spec_folder: Path
) -> BuiltRun:
    key = (settings, folder, spec_folder)
    if key not in _BUILT:
        _BUILT.clear()
        _BUILT[key] = build(experiment, folder, spec_folder, on_client=True)
    return _BUILT[key]


@dataclass(frozen=True, slots=True)
class SourceData:
    """Provides the client's own data as they are now, without rows that were forgotten on request.

    Attributes:
        source: The client's own rows.
    """

    source: Source

    def __call__(
        self, experiment: Experiment, order: Order, client_store: ClientStore
    ) -> RoundData:
        """Return the current data.

        Raises:
            DataError: If there are none, or they cannot be read. The message does not quote any row, because
                the server sees it; the cause does.
        """
        try:
            data = self.source.read(order.round)
        except DataError as error:
            raise DataError(
                f"client {order.client} cannot read its own data in round {order.round}: see its node's log"
            ) from error
        data = data.without(client_store.forgotten, client_store.forgotten_before)
        if not len(data):
            reason = "; ".join(data.notes) or "no current rows"
            raise DataError(f"client {order.client} has no data in round {order.round}: {reason}")
        nothing = data.samples[torch.zeros(0, dtype=torch.int64)]
        # Without classes it is a regression.
        dataset = Dataset("own", data.samples, nothing, self.source.classes)
        objective = experiment.task(dataset).objective()
        _check_size(objective, experiment.method.composed.receive(order.server, objective), order)
        return RoundData(data.samples, client_store.alias(data.key), objective, data)


def own_source(client: int, file: str) -> Source:
    """Read the description of a client's own data.

    Raises:
        DataError: If it cannot be read. The message does not say why, because the server sees it.
    """
    try:
        return load_source(expand(file))
    except ChronofedError as error:
        raise DataError(
            f"client {client} cannot use the description of its own data: see its node's log"
        ) from error


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Provides the own data of several clients of a machine.

    Attributes:
        pattern: Path of the file that describes a client's data; ``{client}`` stands for its number.
    """

    pattern: str

    def __call__(
        self, experiment: Experiment, order: Order, client_store: ClientStore
    ) -> RoundData:
        """Return the current data of the order's client."""
        file = self.pattern.replace("{client}", str(order.client))
        return SourceData(own_source(order.client, file))(experiment, order, client_store)


@dataclass(frozen=True, slots=True)
class ClientNode:
    """Answers messages for the clients of a machine, by default one.

    Attributes:
        client: Number of the client.
        experiments: Experiments that it takes part in, by fingerprint.
        folder: Folder of its client stores, one file for every run.
        provider: Provides its data.
        make_store: Makes a client store with the client's own limits.
        max_message_bytes: Maximum size of a message.
        limits: Limits beyond which it refuses to work on an order.
        others: Numbers of further clients; each has a client store of its own.
    """

    client: int
    experiments: Mapping[str, Experiment]
    folder: Path
    provider: DataProvider
    make_store: Callable[[Path], ClientStore] = ClientStore
    max_message_bytes: int = MAX_BODY_BYTES
    limits: OrderLimits = field(default_factory=OrderLimits)
    others: tuple[int, ...] = ()

    def answer(self, message: Message) -> Message:
        """Answer a message.

        A :class:`ChronofedError` becomes a reply of one line. Its cause, which may quote a row of the client's
        data, is logged on this machine only. Other exceptions are raised, and Flower reports them.
        """
        name, client = "", self.client
        try:
            request = read_request(message)
            name = request.name
            if request.client in self.others:
                client = request.client
            if request.kind == "hello":
                return write_identity(request, self.client, *self.others)
            return self._serve(request, message.body)
        except ChronofedError as error:
            cause = f" ({error.__cause__})" if isinstance(error.__cause__, DataError) else ""
            logger.warning("%s%s", error, cause)
            # The server learns what is wrong, and not where this machine keeps its files.
            return write_error(name, client, str(error).replace(f"{self.folder}/", ""))

    def store_path(self, run: str, client: int | None = None) -> Path:
        """Return the file of the client store for a run."""
        number = self.client if client is None else client
        return self.folder / f"client-{number}-{run}.sqlite"

    def _serve(self, request: Request, body: bytes) -> Message:
        if request.client not in (self.client, *self.others):
            raise MessageError(
                f"client {self.client} received an order for client {request.client}"
            )
        experiment = self.experiments.get(request.fingerprint)
        if experiment is None:
            raise MessageError(
                f"the server's method {request.fingerprint} is not this client's "
                f"({', '.join(self.experiments)}): use the same specification on both"
            )
        order = read_order(request, body, experiment.method, self.max_message_bytes)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (
            self.make_store(self.store_path(request.run, request.client)) as client_store,
            one_thread(),
        ):
            digest = request_digest(request, body)
            packed = None if request.anew else client_store.reply(request.name, digest)
            if packed is not None:
                return Message.unpack(packed)
            held = client_store.settle(request.accepted)
            _report_restored(held, request)
            data = self.provider(experiment, order, client_store)
            state = _after_deletions(experiment, order, client_store.client_state())
            check = OrderCheck(
                experiment.method, experiment.train, data.objective, data.samples, self.limits
            )
            exchange: Exchange = "prepare" if request.kind == "prepare" else "train"
            problem = check.problem(order, exchange, state)
            if problem is not None:
                raise MessageError(f"order {request.name}: {problem}")
            client = self._client(experiment.method, order, state, data)
            if exchange == "prepare":
                result = client.prepare()
                _check_finite(request, result, None)
                return write_result(request, result, held)
            result, client_state = client.serve()
            _check_finite(request, result, client_state)
            reply = write_result(request, result, held)
            keeps = experiment.method.stateful or bool(client_state.optimizer_state)
            new_state = client_state if keeps else None
            # It is valid when the next order says that the server has accepted this reply.
            client_store.commit(
                request.name,
                reply.pack(),
                new_state,
                data.source_data,
                round_=request.round,
                request=digest,
            )
            return reply

    def _client(
        self, method: Method, order: Order, state: ClientState | None, data: RoundData
    ) -> Client:
        objective = with_time_limit(data.objective, self.limits.max_round_s)
        return Client(method, order, state, objective, data.samples, data.key)


def _check_size(objective: TorchObjective, server: Record, order: Order) -> None:
    """Refuse to train if the model has another size than the server's."""
    here, there = objective.flat.size, len(server["params"])
    if here != there:
        raise DataError(
            f"client {order.client}: the features and classes of its source make a model of {here} parameters, "
            f"but the server's has {there}: use the same features and classes on both"
        )


def _report_restored(held: int, request: Request) -> None:
    """Warn if server and client store do not fit: one of them was restored from a backup, or lost."""
    if held != request.accepted:
        logger.warning(
            "client %d, round %d: its state is %s the server (of round %d; the server has accepted round %d)",
            request.client,
            request.round,
            "behind" if held < request.accepted else "ahead of",
            held,
            request.accepted,
        )


def _check_finite(request: Request, result: Result, client_state: ClientState | None) -> None:
    """Refuse to send, or to keep, numbers that are not finite."""
    records = [result.upload, result.record, result.probe, {"buffers": result.buffers}]
    if client_state is not None:
        records += [join_records(client_state), *(item.record for item in client_state.items)]
    for name, tensor in chain.from_iterable(record.items() for record in records):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise DataError(
                f"client {request.client}: training in round {request.round} gave numbers that are not finite "
                f"({name}); nothing was kept; check the values of its data, or use a smaller train.lr"
            )


def _after_deletions(
    experiment: Experiment, order: Order, client_state: ClientState | None
) -> ClientState | None:
    client_states = {} if client_state is None else {order.client: client_state}
    apply_deletions(client_states, [d for d in experiment.deletions if d.round <= order.round])
    return client_states.get(order.client)
