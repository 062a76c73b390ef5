"""The contract of a backbone, with the steps of the paper's algorithm as the default."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
import torch

from chronofed.config import Kind, Positive
from chronofed.local import Local
from chronofed.stacking import stacked as stacked
from chronofed.types import Record, Vector

Decay = Annotated[float, msgspec.Meta(ge=0, lt=1)]  # what is kept of a running mean
Uploads = Sequence[
    tuple[float, Record]
]  # (weight, upload) of every client, in the order of clients


def weighted_mean(uploads: Uploads, key: str) -> Vector:
    """Weighted mean of one entry of the uploads."""
    total = sum(weight for weight, _ in uploads)
    mean = torch.zeros_like(uploads[0][1][key])
    for weight, upload in uploads:
        mean.add_(upload[key], alpha=weight / total)
    return mean


class Backbone(Kind, kw_only=True):
    r"""A federated optimiser as settings plus pure functions; it owns no loop and no state.

    Server and client states are records (``str -> Tensor``), so that every engine can send, store and
    checkpoint them without knowing the algorithm. The defaults are ``CFL Algorithm Framework``: a client
    returns :math:`\Delta_i = w_{i,K} - w`, the server takes :math:`w \gets w + \eta_g \sum_i a_i \Delta_i`.

    Attributes:
        server_lr: Global step size :math:`\eta_g`.
    """

    stateful: ClassVar[bool] = False
    """Whether a client must come back with what it kept."""
    reference: ClassVar[str] = ""
    """Where the method comes from."""

    prepares: ClassVar[bool] = False
    """Whether every round begins with an exchange of its own (:meth:`prepare`, :meth:`begin`)."""
    fixed_data: ClassVar[bool] = False
    """Whether it assumes that a client's data stay the same; where they change, its state goes stale."""
    sends: ClassVar[tuple[str, ...]] = ("delta",)
    """All that a client's uploads hold in a round's exchanges; what is not named here cannot be clipped."""
    counts: ClassVar[tuple[str, ...]] = ()
    """Those of them that count something, and so are never negative."""
    private: ClassVar[bool] = False
    """Whether it promises differential privacy, which all that leaves a client must then keep."""

    server_lr: Positive = 1.0

    def init_server(self, params: Vector, clients: int) -> Record:  # noqa: ARG002
        """First server state, for so many clients; ``params`` is always one of its entries."""
        return {"params": params.clone()}

    def init_client(self, params: Vector) -> Record:  # noqa: ARG002
        """First state of a client that was never seen before."""
        return {}

    def broadcast(self, server: Record) -> Record:
        """The part of the server's state that clients need, and so travels."""
        return server

    def draw(self, server: Record, seed: int, round_: int) -> Record:  # noqa: ARG002
        """Server state with this round's randomness, where the server needs any; it never travels."""
        return server

    def prepare(self, server: Record, local: Local) -> Record:  # noqa: ARG002
        """What a client sends in the exchange that begins a round, where there is one."""
        return {}

    def begin(self, server: Record, uploads: Uploads) -> Record:  # noqa: ARG002
        """Server state to train from, after the exchange that begins a round."""
        return server

    @stacked
    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:  # noqa: ARG002
        """The stochastic gradient of one local step."""
        return local.stochastic_gradient(params)

    @stacked
    def direction(
        self,
        grad: Vector,
        params: Vector,  # noqa: ARG002
        server: Record,  # noqa: ARG002
        client: Record,  # noqa: ARG002
    ) -> Vector:
        """Turn a stochastic gradient into the direction of one local step; may work in place."""
        return grad

    @stacked
    def finish(
        self,
        params: Vector,
        server: Record,
        client: Record,
        local: Local,  # noqa: ARG002
    ) -> tuple[Record, Record]:
        """Close local training: what is sent, and the client's next state."""
        return {"delta": params - server["params"]}, client

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Next server state."""
        step = weighted_mean(uploads, "delta")
        return {"params": server["params"].add(step, alpha=self.server_lr)}

    def report(self, rounds: int) -> dict[str, float]:  # noqa: ARG002
        """What is known of it after so many rounds, as measures of the run."""
        return {}
