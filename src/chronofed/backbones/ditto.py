"""Ditto."""

from typing import ClassVar

from chronofed.backbones.base import Backbone, stacked
from chronofed.config import NonNegative
from chronofed.local import Local
from chronofed.types import Record, Vector


class Ditto(Backbone, tag="ditto"):
    r"""FedAvg, and on every client a personal model that is tied to the global one.

    .. math::
        v_i \approx \arg\min_v\; f_i(v) + \frac{\lambda}{2} \|v - w_t\|^2

    The personal model takes as many steps as the global one, after it, and never leaves the client.

    Attributes:
        tie: Weight :math:`\lambda` of the tie; 0 is purely local training.
    """

    stateful: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Li et al. (2021), Ditto: Fair and Robust Federated Learning Through Personalization"
    )

    tie: NonNegative = 0.1

    def init_client(self, params: Vector) -> Record:
        """A new client's personal model is the global one."""
        return {"personal": params.clone()}

    @stacked
    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update of the global model; train the personal one, which has buffers of its own."""
        upload, _ = super().finish(params, server, client, local)
        shared = local.objective.buffers
        local.objective.buffers = client.get("buffers", shared)

        def direction(personal: Vector) -> Vector:
            gradient = local.stochastic_gradient(personal)
            return gradient.add_(personal - server["params"], alpha=self.tie)

        personal = local.descend(client["personal"], direction)
        state = {"personal": personal, "buffers": local.objective.buffers}
        local.objective.buffers = shared
        return upload, state
