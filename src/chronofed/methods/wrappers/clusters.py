"""Clusters."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, ClassVar

import msgspec
import torch
from torch import Tensor

from chronofed.core.config import Count
from chronofed.core.errors import DivergedError, SpecError
from chronofed.core.types import Objective, Record, Vector
from chronofed.methods.backbones.base import Bench, Upload, Uploads
from chronofed.methods.clusters import Assignment, Scores
from chronofed.methods.clusters.table import TABLE, Table, model_state
from chronofed.methods.local import Local
from chronofed.methods.wrappers.base import Computed, Wrapper

NUMBER = "cluster_number"
"""Number of the model that a client is sent, and of the one that its state belongs to."""
ALL = ("*",)
Layers = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Clusters(Wrapper, tag="clusters"):
    r"""Several global models around any backbone, each trained by the clients that follow it.

    .. math:: w_m \gets \text{backbone}\big(w_m,\; \{\Delta_i : a_t(i) = m\}\big), \qquad m = 1, \dots, M

    The assignment :math:`a_t` says who follows which model: ``scores`` is FedDrift and FedDrift-Eager,
    ``centres`` FedTKM, ``block`` semi-cyclic SGD. Every model has a state of the inner backbone of its own,
    which is told the number of all clients: one that divides by it (scaffold, mifa) takes shorter steps. With
    ``layers``, models differ in these parameters only; all others are the mean over all clients.

    The model of the run, which the measures of the test set evaluate, is the one with most followers. The
    measure ``cluster_accuracy`` evaluates the models that clients follow, and ``clusters.jsonl`` says who
    followed which model when. ``chronofed predict --personal`` uses the model of the row's client.

    A client's state of the inner backbone starts anew when the client changes the model. The table of clients
    is on the server, so clients must come back and their names must be known: it is refused in ``private``,
    except with ``block``. Clients that join follow a model as soon as they come, and deleted ones leave the
    table. A backbone with an exchange of its own at the start of a round (mime, fedlin) goes with ``block``
    only. The buffers of BatchNorm are not kept by model but shared by all.

    A client is sent its own model. In the extra exchange of ``scores`` and ``centres`` it is sent that too, and
    with ``scores`` all others in turn. The server keeps :math:`M` states.

    Attributes:
        backbone: The inner backbone.
        models: Most models :math:`M` at a time.
        assign: The assignment of clients to models.
        layers: Patterns of the parameters that differ between models, such as ``fc.*``; by default all.
        server_lr: Unused: set that of the inner backbone.
    """

    reference: ClassVar[str] = (
        "Jothimurugesan et al. (2023), Federated Learning under Distributed Concept Drift"
    )
    stateful = True
    several_models = True
    two_phase = Computed(lambda own: own.assign.asks or own.backbone.two_phase)
    upload_keys = Computed(lambda own: (*own.backbone.upload_keys, *own.assign.upload_keys))
    nonnegative = Computed(lambda own: (*own.backbone.nonnegative, *own.assign.upload_keys))
    refines = Computed(lambda own: own.layers != ALL or own.backbone.refines)
    names_clients = Computed(lambda own: own.assign.asks or own.backbone.names_clients)

    models: Count = 4
    assign: Assignment = Scores()
    layers: Layers = ALL

    def __post_init__(self) -> None:
        super().__post_init__()
        inner, kind = type(self.backbone).__name__, type(self.assign).__name__
        if self.backbone.several_models:
            raise ValueError(
                "Clusters.backbone: it has several models already; remove one of the two"
            )
        if self.server_lr != 1.0:
            raise ValueError("Clusters.server_lr: set server_lr of the inner backbone instead")
        if self.assign.asks and self.backbone.two_phase:
            raise ValueError(
                f"Clusters.backbone: {inner} has an exchange of its own at the start of a round, in which "
                f"{kind} assigns clients; use another backbone, or assign = {{ kind = 'block' }}"
            )
        if self.assign.asks and self.backbone.private:
            raise ValueError(
                f"Clusters.backbone: {inner} hides which client sent an upload, which {kind} must know; use "
                "another backbone, or assign = { kind = 'block' }"
            )

    # The server's state

    def init_server(self, params: Vector, clients: int) -> Record:
        """Return a table with one model."""
        state = self.backbone.init_server(params, clients)
        own = self.assign.init(self.models, clients)
        return Table.first(state, self.models, clients, own).pack()

    def init_layers(self, server: Record, objective: Objective) -> Record:
        """As the inner backbone, for every model."""
        table = Table.unpack(server)
        table.models = [self.backbone.init_layers(state, objective) for state in table.models]
        return table.pack()

    def enrol(self, server: Record, clients: int) -> Record:
        """Add clients that follow no model yet."""
        table = Table.unpack(server)
        table.enrol(clients, lambda state: self.backbone.enrol(state, clients))
        self.assign.enrol(table.own, clients)
        return table.pack()

    def forget(self, server: Record, clients: Sequence[int]) -> Record:
        """Take deleted clients out of the table."""
        table = Table.unpack(server)
        for client in (client for client in clients if client < len(table.following)):
            table.following[client] = -1
            self.assign.forget(table.own, client)
        table.models = [self.backbone.forget(state, clients) for state in table.models]
        return table.pack()

    def draw(self, server: Record, seed: int, round_: int) -> Record:
        """Begin a round; every model's state has the same randomness."""
        table = Table.unpack(server)
        table.round, table.asked = round_, False
        table.models = [self.backbone.draw(state, seed, round_) for state in table.models]
        self.assign.draw(table.own, seed)
        return table.pack()

    # What travels

    def broadcast(self, server: Record) -> Record:
        """Return all: every client is sent its part."""
        return server

    def address(self, sent: Record, client: int) -> Record:
        """Return the client's model; in the exchange that assigns clients, with the assignment's question."""
        place = self.assign.place(sent, client)
        state = model_state(sent, place)
        if self.assign.asks and not int(sent[f"{TABLE}asked"]):
            return {"params": state["params"], **self.assign.question(sent, client)}
        inner = self.backbone.address(self.backbone.broadcast(state), client)
        number = sent[f"{TABLE}number"][place]
        return {**inner, NUMBER: number, **self.assign.told(sent, client)}

    def receive(self, sent: Record, objective: Objective) -> Record:
        """As the inner backbone; with the assignment's question comes a whole model."""
        if NUMBER not in sent:
            return sent
        own = {name: tensor for name, tensor in sent.items() if name.startswith(TABLE)}
        inner = {name: tensor for name, tensor in sent.items() if name not in own}
        return {**self.backbone.receive(inner, objective), **own}

    def prepare(self, server: Record, local: Local) -> Record:
        """Answer the assignment's question; otherwise as the inner backbone."""
        if self.assign.asks:
            return self.assign.answer(server, local, self.models)
        return self.backbone.prepare(server, local)

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """Assign the clients."""
        table = Table.unpack(server)
        if self.assign.asks:
            self.assign.decide(table, uploads, partial(self._renewed, len(table.following)))
        else:
            for place, some in self._grouped(server, uploads).items():
                table.store(place, self.backbone.begin(table.models[place], some))
        table.asked = True
        return table.pack()

    # On the client

    def init_client(self, params: Vector) -> Record:
        """Return the inner backbone's first state, of no model."""
        state = self.backbone.init_client(params)
        return {**state, NUMBER: torch.tensor(-1)} if state else {}

    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """As the inner backbone."""
        return self.backbone.start(server, self._state(server, client), local)

    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        """As the inner backbone."""
        return self.backbone.direction(grad, params, server, self._state(server, client))

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """As the inner backbone, with the assignment's report; the state belongs to this model."""
        state = self._state(server, client)
        upload, state = self.backbone.finish(params, server, state, local)
        upload = {**upload, **self.assign.report(params, server, local)}
        return upload, {**state, NUMBER: server[NUMBER]} if state else state

    # On the server

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Let the inner backbone aggregate every model's uploads."""
        table = Table.unpack(server)
        for place, some in self._grouped(server, uploads).items():
            table.store(place, self.backbone.aggregate(table.models[place], some))
            table.last[place] = table.round
            if not math.isfinite(table.models[place]["params"].sum(dtype=torch.float64)):
                msg = "one of the models is no longer finite; try a smaller train.lr"
                raise DivergedError(f"round {table.round}: {msg}")
        self.assign.learn(table, uploads)
        return table.pack()

    def refine(self, server: Record, uploads: Uploads, bench: Bench) -> Record:
        """Let the inner backbone refine every model, and average the parameters that all have in common."""
        table, groups = Table.unpack(server), self._grouped(bench.before, uploads)
        if self.backbone.refines:
            for place, some in groups.items():
                chosen = {id(upload) for upload in some}
                inside = [k for k, upload in enumerate(uploads) if id(upload) in chosen]
                own = replace(
                    bench,
                    before=model_state(bench.before, place),
                    buffers=[bench.buffers[k] for k in inside],
                )
                table.store(place, self.backbone.refine(table.models[place], some, own))
        if self.layers != ALL:
            self._share(table, groups, self._own(bench.objective))
        return table.pack()

    def _renewed(self, clients: int, state: Record) -> Record:
        """Return the state of a new model: a copy of the parameters, and what was drawn for this round."""
        return {**state, **self.backbone.init_server(state["params"], clients)}

    def _grouped(self, server: Record, uploads: Uploads) -> dict[int, list[Upload]]:
        """Group uploads by the place of the model that their clients trained."""
        groups: dict[int, list[Upload]] = {}
        for upload in uploads:
            name = upload.client if self.assign.asks else upload.sender
            groups.setdefault(self.assign.place(server, name), []).append(upload)
        return dict(sorted(groups.items()))

    def _state(self, server: Record, client: Record) -> Record:
        """Return the client's state of the inner backbone; a new one if it belongs to another model."""
        if NUMBER not in client or torch.equal(client[NUMBER], server[NUMBER]):
            return client
        return self.backbone.init_client(server["params"])

    def _own(self, objective: Objective) -> Tensor:
        """Return a mask of the parameters that differ between models."""
        names = {n: any(fnmatchcase(n, p) for p in self.layers) for n in objective.names}
        if not any(names.values()):
            raise SpecError(
                f"method.backbone.layers: no parameter of the model matches {', '.join(self.layers)}; "
                f"its parameters are {', '.join(names)}"
            )
        size = max(span.stop for span in objective.names.values())
        mask = torch.zeros(size, dtype=torch.bool)
        for name, span in objective.names.items():
            mask[span] = names[name]
        return mask

    def _share(self, table: Table, groups: dict[int, list[Upload]], own: Tensor) -> None:
        """Replace the common parameters of all models by their mean, weighted by the clients of each."""
        weights = {place: sum(w for w, _ in some) for place, some in groups.items()}
        total = sum(weights.values())
        common = torch.zeros_like(table.models[0]["params"])
        for place, weight in weights.items():
            common.add_(table.models[place]["params"], alpha=weight / total)
        table.models = [
            {**state, "params": torch.where(own, state["params"], common)} for state in table.models
        ]
