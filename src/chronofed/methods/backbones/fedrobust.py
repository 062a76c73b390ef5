"""FedRobust."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from chronofed.core.config import Positive
from chronofed.core.errors import SpecError
from chronofed.core.types import Batch, Record, Vector
from chronofed.methods.backbones.base import Backbone
from chronofed.methods.local import ClientLocal, Local, one_client, with_sources

# Most features of a full matrix, which a client keeps.
LARGEST = 1_000


class FedRobust(Backbone, tag="fedrobust"):
    r"""FedAvg against an adversary on every client that scales and shifts the inputs.

    .. math::
        \min_w \sum_i a_i \max_{\Lambda_i, \delta_i}\; f_i(w; \Lambda_i x + \delta_i)
        - \lambda \big(\|\Lambda_i - I\|^2 + \|\delta_i\|^2\big)

    With :math:`u_j`, the gradient of a sample's loss in its shifted input, every local step descends in *w* on
    the shifted mini-batch, and at the same time the adversary ascends on it by steps :math:`\eta`:

    .. math::
        \delta \gets \frac{\delta + \eta\, \overline{u}}{1 + 2 \eta\lambda}, \qquad
        \Lambda - I \gets \frac{\Lambda - I + \eta\, \overline{u x^\top}}{1 + 2 \eta\lambda}

    The penalty is taken implicitly, so that steps are stable for every :math:`\lambda`; the publication's are
    explicit. Either ends at :math:`\delta = \overline{u} / (2\lambda)`. A large :math:`\lambda` is FedAvg. The
    adversary stays with its client from round to round, also when the data set changes. Replayed samples of a
    memory are shifted like present ones. The model is evaluated on plain inputs.

    It sends as FedAvg. A client keeps two numbers for each feature, or with ``full`` a matrix, and a step
    costs a second gradient, in the inputs. The batched engine does not serve it. An adversary that a deleted
    sample had a part in is dropped. No public code was at hand.

    A small :math:`\lambda` protects against more, up to where the loss grows faster in the shift than the
    penalty: from there on the adversary grows without end, and training fails. Choose it by trial, from 1
    down. In our tests it helps against shifts that are chosen to harm the model, and not against random ones.

    Attributes:
        penalty: Weight :math:`\lambda` of the adversary's distance from doing nothing.
        ascent_lr: Step size :math:`\eta` of the adversary.
        form: Matrix :math:`\Lambda`: ``diagonal``, one factor for each feature, or ``full``, for at most 1,000
            features.
    """

    stateful: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Reisizadeh et al. (2020), Robust Federated Learning: The Case of Affine Distribution Shifts"
    )

    penalty: Positive = 1.0
    ascent_lr: Positive = 0.1
    form: Literal["diagonal", "full"] = "diagonal"

    def init_client(self, params: Vector) -> Record:
        """Start without an adversary: the number of features is not known yet."""
        scale = params.new_empty((0, 0) if self.form == "full" else (0,))
        none = torch.empty(0, dtype=torch.int64)
        return {"sources": none, "scale": scale, "shift": params.new_empty(0)}

    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """Begin at the server's model; note the adversary, at first one that does nothing."""
        one, scale, shift = one_client(local), client["scale"], client["shift"]
        if not len(shift):
            features = one.objective.encode(one.samples.x[:1]).numel()
            if self.form == "full" and features > LARGEST:
                raise SpecError(
                    f"method.backbone.form: full keeps a matrix, and {features:,} features are more than "
                    f"{LARGEST:,}; use diagonal"
                )
            shift = server["params"].new_zeros(features)
            scale = torch.diag(shift) if self.form == "full" else shift.clone()
        one.scratch.update(fedrobust_scale=scale, fedrobust_shift=shift)
        return server["params"]

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute the gradient on shifted inputs, and let the adversary ascend."""
        one = one_client(local)
        batch = one.next_batch()
        x = one.objective.encode(batch.x)
        shifted = Batch(self._shifted(x, one), batch.y, batch.weight, batch.offset, batch.scale)
        # In evaluation mode, before training mode changes the buffers.
        slopes = one.objective.input_gradient(params, shifted.x, shifted.y)
        gradient = one.batch_gradient(params, shifted)
        self._ascend(slopes, x, batch.weight, one)
        return gradient

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update; keep the adversary."""
        upload, _ = super().finish(params, server, client, local)
        own = {name: local.scratch[f"fedrobust_{name}"] for name in ("scale", "shift")}
        return upload, {**own, "sources": with_sources(client["sources"], local)}

    def _shifted(self, x: Tensor, local: ClientLocal) -> Tensor:
        r"""Return :math:`\Lambda x + \delta`; the adversary holds :math:`\Lambda - I`."""
        scale, shift = (local.scratch[f"fedrobust_{name}"] for name in ("scale", "shift"))
        flat = x.flatten(1)  # (b, features)
        moved = flat @ scale.T if self.form == "full" else flat * scale
        return (flat + moved + shift).view_as(x)

    def _ascend(self, slopes: Tensor, x: Tensor, weight: Tensor, local: ClientLocal) -> None:
        u = slopes.flatten(1) * weight.to(slopes)[:, None]
        flat = x.flatten(1)
        outer = u.T @ flat if self.form == "full" else (u * flat).sum(0)
        for name, slope in (("scale", outer), ("shift", u.sum(0))):
            stepped = local.scratch[f"fedrobust_{name}"].add(slope, alpha=self.ascent_lr)
            local.scratch[f"fedrobust_{name}"] = stepped.div_(1 + 2 * self.ascent_lr * self.penalty)
