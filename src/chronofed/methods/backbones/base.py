"""The contract of a backbone; its defaults are the steps of the paper's algorithm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Generator, Tensor

from chronofed.core.config import Kind, Positive
from chronofed.core.errors import IncompatibleError
from chronofed.core.stacking import stacked
from chronofed.core.types import Objective, Record, Vector
from chronofed.methods.local import Local, Train


class Upload(tuple[float, Record]):
    """Weight and upload of one client; unpacks as a pair.

    Args:
        weight: Weight of the client.
        record: Tensors that it sent.
        client: The client, by the server's own record of the reply; ``None`` if nobody may know it.
    """

    sender: int | None

    def __new__(cls, weight: float, record: Record, client: int | None = None) -> Self:
        """Make the pair."""
        upload = super().__new__(cls, (weight, record))
        upload.sender = client
        return upload

    @property
    def client(self) -> int:
        """The client that sent it.

        Raises:
            IncompatibleError: If a private backbone hides it: its guarantee does not cover who took part.
        """
        if self.sender is None:
            raise IncompatibleError(
                "method.backbone: a part asks which client sent an upload, which Private hides; "
                "choose another part, or none that is private"
            )
        return self.sender


SERVED = "served"
"""The entry of the server's state with the model that is evaluated and saved, if it is not the trained one."""

# Of every client, in the order of clients.
Uploads = Sequence[Upload]

_Step = TypeVar("_Step", bound=Callable[..., Any])


def plain_gradient(step: _Step) -> _Step:
    """Declare that a ``gradient`` or ``direction`` leaves the stochastic gradient as it is.

    An engine may then fuse whole steps instead of calling the method. The declaration belongs to this one
    function: an override that does not repeat it is called.
    """
    step.__dict__["plain_gradient"] = True
    return step


def from_means(step: _Step) -> _Step:
    """Declare that an ``aggregate`` reads uploads through :func:`weighted_mean` alone, by their own weights.

    Then means of some clients each, with the sums of their weights, may take the place of single uploads. The
    declaration belongs to this one function: an override that does not repeat it gets single uploads.
    """
    step.__dict__["from_means"] = True
    return step


def weighted_mean(uploads: Sequence[tuple[float, Record]], key: str) -> Vector:
    """Compute the weighted mean of one entry of the uploads."""
    total = sum(weight for weight, _ in uploads)
    mean = torch.zeros_like(uploads[0][1][key])
    for weight, upload in uploads:
        mean.add_(upload[key], alpha=weight / total)
    return mean


def total(uploads: Uploads, key: str) -> Vector:
    """Add up one entry of the uploads; all clients count equally."""
    found = torch.zeros_like(uploads[0][1][key])
    for _, upload in uploads:
        found.add_(upload[key])
    return found


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that the server may use to refine its model after a round.

    Attributes:
        objective: A model of the server's own, with the buffers of the new model.
        samples: Unlabelled samples of the server, ``(n, ...)``, from ``server_data``; empty if there are none.
            They are neither the clients' nor those that the model is evaluated on.
        before: The server state from which the clients trained.
        buffers: The model's buffers of every client after training, in the order of the uploads.
        generator: Random generator of this round.
    """

    objective: Objective
    samples: Tensor
    before: Record
    buffers: Sequence[Vector]
    generator: Generator


class Backbone(Kind, kw_only=True):
    r"""A federated optimiser: settings and pure functions, without a loop or state of its own.

    Server and client states are records (``str -> Tensor``), so every engine can send, store and checkpoint
    them without knowing the algorithm. The defaults are ``CFL Algorithm Framework``: a client returns
    :math:`\Delta_i = w_{i,K} - w`, and the server computes :math:`w \gets w + \eta_g \sum_i a_i \Delta_i`.

    Attributes:
        server_lr: Global step size :math:`\eta_g`.
    """

    stateful: ClassVar[bool] = False
    """True if clients keep state, and so must come back."""
    reference: ClassVar[str] = ""
    """The paper that introduced the method."""

    two_phase: ClassVar[bool] = False
    """True if every round starts with an extra exchange (:meth:`prepare`, :meth:`begin`)."""
    fixed_data: ClassVar[bool] = False
    """True if it assumes that a client's data do not change; if they do, its state becomes stale."""
    upload_keys: ClassVar[tuple[str, ...]] = ("delta",)
    """All entries of a client's uploads in a round; an entry that is not named here cannot be clipped."""
    nonnegative: ClassVar[tuple[str, ...]] = ()
    """The entries of uploads that are never negative."""
    curvatures: ClassVar[tuple[str, ...]] = ()
    """The entries of uploads that are curvatures, or products of them; they differ widely between clients."""
    private: ClassVar[bool] = False
    """True if it guarantees differential privacy, so that nothing else may leave a client."""
    refines: ClassVar[bool] = False
    """True if the server goes on with the model after every round (:meth:`refine`)."""
    needs_samples: ClassVar[bool] = False
    """True if :meth:`refine` needs unlabelled samples on the server (``server_data``)."""
    names_clients: ClassVar[bool] = False
    """True if it must know which client sent an upload, so that a private backbone cannot hide it."""
    needs_each: ClassVar[bool] = False
    """True if it needs every upload and not only their mean, which is all that a private one has."""
    sends_model: ClassVar[bool] = True
    """True if the ``params`` that a client was sent plus its ``delta`` are its model after training."""
    needs_models: ClassVar[bool] = False
    """True if :meth:`refine` needs the model of every client, so that uploads must be as above."""
    several_models: ClassVar[bool] = False
    """True if clients follow different models, of which ``params`` is only one."""

    server_lr: Positive = 1.0

    def unsuited(self, train: Train) -> str | None:
        """Say in one line why local steps like these would make the method wrong; ``None`` if they do not."""
        return None

    def init_server(self, params: Vector, clients: int) -> Record:
        """Return the first server state, for a number of clients; it always has the entry ``params``."""
        return {"params": params.clone()}

    def init_layers(self, server: Record, objective: Objective) -> Record:
        """Add what depends on the layers of the model to the first server state; by default nothing."""
        return server

    def enrol(self, server: Record, clients: int) -> Record:
        """Return the server state for another number of clients: some may have joined since."""
        return server

    def forget(self, server: Record, clients: Sequence[int]) -> Record:
        """Return the server state without what it says about clients that were deleted."""
        return server

    def init_client(self, params: Vector) -> Record:
        """Return the first state of a new client; only an axis that is empty here may change its length."""
        return {}

    def broadcast(self, server: Record) -> Record:
        """Return the part of the server's state that is sent to clients."""
        return server

    def address(self, sent: Record, client: int) -> Record:
        """Return what one client is sent, of what travels; it has the entry ``params``, too, perhaps packed.

        Only an axis that is empty in the first round may change its length.
        """
        return sent

    def receive(self, sent: Record, objective: Objective) -> Record:
        """Restore on the client what :meth:`address` packed: ``params`` is then the whole vector."""
        return sent

    def draw(self, server: Record, seed: int, round_: int) -> Record:
        """Add this round's randomness to the server state, if the server needs any; it is never sent."""
        return server

    def prepare(self, server: Record, local: Local) -> Record:
        """Return a client's upload in the extra exchange at the start of a round."""
        return {}

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """Return the server state to train from, after the extra exchange."""
        return server

    @stacked
    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """Return the model from which local steps begin; it is not changed."""
        return server["params"]

    @stacked
    @plain_gradient
    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute the stochastic gradient of one local step."""
        return local.stochastic_gradient(params)

    @stacked
    @plain_gradient
    def direction(
        self,
        grad: Vector,
        params: Vector,
        server: Record,
        client: Record,
    ) -> Vector:
        """Turn a stochastic gradient into the direction of one local step; may modify it in place."""
        return grad

    @stacked
    def finish(
        self,
        params: Vector,
        server: Record,
        client: Record,
        local: Local,
    ) -> tuple[Record, Record]:
        """Finish local training: return the upload and the client's next state."""
        return {"delta": params - server["params"]}, client

    def settle(self, state: Record, sent: Record, arrived: Record) -> Record:
        """Return the client's next state if the server gets ``arrived`` of what :meth:`finish` sent.

        A state that mirrors what the server knows of the client follows it; by default it stays as it is.
        """
        return state

    def unpack(self, upload: Record, params: Vector) -> Record:
        """Return an upload as the server reads it, of what travelled; ``params`` is the server's model."""
        return upload

    @from_means
    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Return the next server state."""
        step = weighted_mean(uploads, "delta")
        return {"params": server["params"].add(step, alpha=self.server_lr)}

    def refine(self, server: Record, uploads: Uploads, bench: Bench) -> Record:
        """Return the server state after more work on the server, if it ``refines``; the buffers stay."""
        return server

    def serve(self, server: Record) -> Record:
        """Return the server state at the end of a round, with the model to evaluate if it is another one."""
        return server

    def report(self, rounds: int) -> dict[str, float]:
        """Return measures of the run after a number of rounds."""
        return {}


def first_server_state(
    backbone: Backbone, params: Vector, clients: int, objective: Objective
) -> Record:
    """Return the state of the server before the first round."""
    return backbone.init_layers(backbone.init_server(params, clients), objective)
