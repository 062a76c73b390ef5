"""Ditto."""

from typing import ClassVar

from chronofed.core.config import NonNegative
from chronofed.core.stacking import stacked
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone
from chronofed.methods.local import Local


class Ditto(Backbone, tag="ditto"):
    r"""FedAvg plus a personal model on every client, tied to the global one.

    .. math::
        v_i \approx \arg\min_v\; f_i(v) + \frac{\lambda}{2} \|v - w_t\|^2

    After the global model, the personal one trains for as many steps. It never leaves the client.

    Attributes:
        tie: Weight :math:`\lambda` of the tie; 0 is purely local training.
    """

    stateful: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Li et al. (2021), Ditto: Fair and Robust Federated Learning Through Personalization"
    )

    tie: NonNegative = 0.1

    def init_client(self, params: Vector) -> Record:
        """Start the personal model from the global one."""
        return {"personal": params.clone()}

    @stacked
    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update of the global model, and train the personal one, which has its own buffers."""
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
