"""A client's work on one order: recall the past, train, remember, report."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from torch import Generator

from chronofed.clients.messages import Order, Result
from chronofed.clients.state import ClientState
from chronofed.core.errors import DivergedError, RunError
from chronofed.core.seeds import global_torch_seed, torch_generator
from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Objective, Record, Samples, Vector
from chronofed.methods.backbones.base import Backbone
from chronofed.methods.heads import Head
from chronofed.methods.heads.base import ASKED, JUDGED, SUMS
from chronofed.methods.local import ClientLocal
from chronofed.methods.memories import MemoryItem, Moment
from chronofed.methods.method import Method
from chronofed.methods.probe import probe
from chronofed.methods.surrogate import Surrogate


@dataclass(frozen=True, slots=True)
class Trained:
    """Outcome of local training.

    Attributes:
        upload: Tensors that the backbone sends.
        state: Tensors that the backbone keeps on the client.
        params: The trained model.
        optimizer_state: The state of its optimisers that the client keeps.
    """

    upload: Record
    state: Record
    params: Vector
    optimizer_state: Record = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """A memory's record of the present.

    Attributes:
        record: The record; empty if there is nothing to remember.
        generator: The generator that observed; the memory uses_global_rng from it again when it retains items.
    """

    record: Record
    generator: Generator


@dataclass(frozen=True, slots=True)
class Client:
    """A client with one order to work on.

    Attributes:
        method: Backbone, memory and round weights.
        order: The server's order.
        client_state: State from earlier rounds; ``None`` in the first.
        objective: The model and its loss.
        samples: The present data.
        key: Identifies the present data set.
        timer: Measures the time of every phase.
        uses_global_rng: The model may draw from torch's global generator, which is then seeded. Threads share
            that generator, so they serve only models that do not draw.
    """

    method: Method
    order: Order
    client_state: ClientState | None
    objective: Objective
    samples: Samples
    key: int
    timer: PhaseTimer = field(default_factory=PhaseTimer)
    uses_global_rng: bool = True
    _backbone: Backbone = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_backbone", self.method.composed)
        server = self._backbone.receive(self.order.server, self.objective)
        if server is not self.order.server:
            object.__setattr__(self, "order", replace(self.order, server=server))

    def prepare(self) -> Result:
        """Answer the exchange that begins a round; the client state does not change."""
        self.objective.buffers = self.order.buffers
        with self._seeded("prepare"):
            local = self.local(self.starting_state())
            upload = self._backbone.prepare(self.order.server, local)
        return Result(self.order.client, self.key, len(self.samples), upload, self.order.buffers)

    def serve(self) -> tuple[Result, ClientState]:
        """Train (``CFL Algorithm Framework``, the inner loop); return the result and the next client state."""
        client_state = self.starting_state()
        local = self.local(client_state)
        with self.timer("train"), self._seeded("layers"):
            trained = self._train(local, client_state)
        return self.conclude(client_state, trained)

    def starting_state(self) -> ClientState:
        """Return the state from earlier rounds; the backbone's initial one in the first round.

        A deletion may have taken the backbone's state and left memory items; then it starts anew, too.
        """
        kept = self.client_state
        if kept is not None and kept.backbone_state:
            return kept
        first = self._backbone.init_client(self.order.server["params"])
        return ClientState(first) if kept is None else replace(kept, backbone_state=first)

    def local(self, client_state: ClientState) -> ClientLocal:
        """Recall the past, and return everything that training needs."""
        with self.timer("memory"):
            return self._local(client_state)

    def conclude(
        self, client_state: ClientState, trained: Trained, observed: Observed | None = None
    ) -> tuple[Result, ClientState]:
        """Finish after training: remember the present, probe, and build the result.

        Args:
            client_state: State before training.
            trained: Outcome of training.
            observed: The memory's record, if several clients were observed together; by default observe now.
        """
        order, buffers = self.order, self.objective.buffers
        with self.timer("memory"):
            after = ClientState(trained.state, client_state.items, trained.optimizer_state)
            client_state, kept = self._remember(after, trained.params, observed)
        with self.timer("probe"):
            report = self._probe(kept)
        if self.method.memory.location != "server":
            kept = {}
        size, upload = len(self.samples), trained.upload
        if self.method.head is not None and ASKED in order.server:
            with self.timer("head"):
                upload = {**upload, **self._for_head(self.method.head)}
        return Result(order.client, self.key, size, upload, buffers, kept, report), client_state

    def _for_head(self, head: Head) -> Record:
        """Return what the server needs for a head, at the model that arrived."""
        order, equal = self.order, self.method.average == "clients"
        generator = torch_generator(order.seed, "head", *self._place)
        some = head.drawn(self.samples, order.train, generator)
        given = self.objective, order.server, order.buffers
        sums = {SUMS: head.observe(*given, some, equal, len(self.samples))}
        return {**sums, JUDGED: head.judge(*given, self.samples)} if head.judges else sums

    @property
    def _place(self) -> tuple[int, int]:
        return self.order.round, self.order.client

    def _seeded(self, purpose: str) -> AbstractContextManager[None]:
        if not self.uses_global_rng:
            return nullcontext()
        return global_torch_seed(self.order.seed, purpose, *self._place)

    def _local(self, client_state: ClientState) -> ClientLocal:
        order = self.order
        past = order.past
        if past is None:
            past = self._recall(client_state)
        generator = torch_generator(order.seed, "train", *self._place)
        pace = 1.0
        if order.train.slow:
            pace = order.train.pace(torch_generator(order.seed, "pace", *self._place))
        terms = None
        if self.method.loss is not None:
            self.objective.buffers = order.buffers
            terms = self.method.loss.on(self.objective, order.server["params"], self.samples, past)
            past = replace(past, teachers=(*past.teachers, *terms.teachers))
        past = past.taught_by(order.server["params"], order.buffers)
        parts = (self.objective, self.samples, past, order.train, generator, pace)
        kept = client_state.optimizer_state if order.train.keeps_state else {}
        return ClientLocal(*parts, kept, key=self.key, buffers=order.buffers, terms=terms)

    def _recall(self, client_state: ClientState) -> Surrogate:
        order = self.order
        moment = Moment(order.round, self.key, len(self.samples))
        try:
            past = self.method.memory.recall(client_state.items, order.weights, moment)
        except (ValueError, ArithmeticError) as error:
            # An order may be for a round that is over, or have constants that make no weights.
            msg = f"client {order.client}, round {order.round}: no round weights: {error}"
            raise RunError(msg) from error
        if not math.isfinite(past.present):
            raise DivergedError(f"round {order.round}: round weights that are not finite")
        return past

    def _train(self, local: ClientLocal, client_state: ClientState) -> Trained:
        backbone, server = self._backbone, self.order.server

        def direction(params: Vector) -> Vector:
            gradient = backbone.gradient(params, server, local)
            return backbone.direction(gradient, params, server, client_state.backbone_state)

        self.objective.buffers = self.order.buffers
        start = backbone.start(server, client_state.backbone_state, local)
        params = local.descend(start, direction)
        if self.method.memory.synthetic and local.past.replay is not None:
            self.objective.refresh(params, self.samples)
        upload, state = backbone.finish(params, server, client_state.backbone_state, local)
        return Trained(upload, state, params, local.kept_state())

    def observe_generator(self) -> Generator:
        """Return the generator with which the memory observes the present."""
        return torch_generator(self.order.seed, "observe", *self._place)

    def _observe(self, params: Vector) -> Observed:
        generator = self.observe_generator()
        record = self.method.memory.observe(self.objective, params, self.samples, generator)
        return Observed(record, generator)

    def _remember(
        self, client_state: ClientState, params: Vector, observed: Observed | None
    ) -> tuple[ClientState, Record]:
        """Observe the present: a memory on the client keeps the record, one on the server sends it."""
        memory, order = self.method.memory, self.order
        if memory.location == "none":
            return client_state, {}
        observed = observed or self._observe(params)
        record = {**observed.record, **self._preview()}
        if memory.location != "client" or not record:
            return client_state, record
        new = MemoryItem(order.round, order.client, self.key, len(self.samples), record)
        items = memory.retain(client_state.items, [new], observed.generator)
        return replace(client_state, items=items), record

    def _preview(self) -> Record:
        """Let the memory note something of the present with the model that arrived."""
        memory, order, trained = self.method.memory, self.order, self.objective.buffers
        if not memory.previews:
            return {}
        self.objective.buffers = order.buffers
        noted = memory.preview(self.objective, order.server["params"], self.samples)
        self.objective.buffers = trained
        return noted

    def _probe(self, record: Record) -> Record:
        """Return what round weights need to learn their constants: the gradient at the server's model."""
        method, order = self.method, self.order
        if not method.weights.probes:
            return {}
        self.objective.buffers = order.buffers
        new = MemoryItem(order.round, order.client, self.key, len(self.samples), record)
        return probe(method.memory, self.objective, order.server["params"], self.samples, new)
