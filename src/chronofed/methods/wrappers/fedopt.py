"""FedOpt."""

from typing import ClassVar, Literal

import torch

from chronofed.core.config import Decay, Positive
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Uploads, from_means
from chronofed.methods.wrappers.base import Wrapper, parts


class _Cautious(Wrapper, kw_only=True):
    """Another default of ``server_lr``; a separate class, because an overridden field would move to the end."""

    server_lr: Positive = 0.1


class FedOpt(_Cautious, tag="fedopt"):
    r"""An optimiser on the server, around any backbone, whose update it uses as a pseudo-gradient.

    With :math:`D = w'_{t+1} - w_t`, where :math:`w'_{t+1}` is the inner backbone's next model,

    .. math::
        \text{momentum:}\quad & m \gets \beta_1 m + D, \quad w \gets w + \eta_g\, m \\
        \text{adam, yogi:}\quad & m \gets \beta_1 m + (1 - \beta_1) D, \quad
        w \gets w + \eta_g \frac{m}{\sqrt v + \epsilon} \\
        \text{adam:}\quad & v \gets v - (1 - \beta_2) (v - D^2) \\
        \text{yogi:}\quad & v \gets v - (1 - \beta_2)\, D^2 \operatorname{sign}(v - D^2)

    from :math:`m = 0`, :math:`v = \epsilon^2`. The inner backbone keeps its own ``server_lr``, which is a
    factor of :math:`D`. Clients train as with the inner backbone.

    Attributes:
        backbone: The inner backbone.
        optimizer: The server's optimiser.
        beta1: Share of the mean step that is kept from round to round.
        beta2: Share of the mean squared step that is kept; not for ``momentum``.
        epsilon: Limits the step if updates are small; not for ``momentum``.
        server_lr: Global step size :math:`\eta_g`. For ``adam`` and ``yogi`` it is about the distance that a
            parameter moves in a round, for ``momentum`` a factor of the accumulated steps.
    """

    reference: ClassVar[str] = "Reddi et al. (2021), Adaptive Federated Optimization"

    optimizer: Literal["momentum", "adam", "yogi"] = "adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    epsilon: Positive = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(isinstance(part, FedOpt) for part in parts(self.backbone)):
            msg = "FedOpt.backbone: a FedOpt in a FedOpt; one optimiser on the server is enough"
            raise ValueError(msg)
        if self.backbone.several_models:
            msg = "FedOpt.backbone: it has several models, and FedOpt would step one; put FedOpt inside it"
            raise ValueError(msg)

    def init_server(self, params: Vector, clients: int) -> Record:
        """Return the inner state, plus the optimiser's own under ``opt_`` names."""
        own = {"opt_m": torch.zeros_like(params)}
        if self.optimizer != "momentum":
            own["opt_v"] = torch.full_like(params, self.epsilon**2)
        return {**self.backbone.init_server(params, clients), **own}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone; the optimiser's state stays on the server."""
        inner = {name: tensor for name, tensor in server.items() if not name.startswith("opt_")}
        return self.backbone.broadcast(inner)

    @from_means
    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Let the inner backbone aggregate, and use its update as a pseudo-gradient."""
        inner = self.backbone.aggregate(server, uploads)
        step, params = inner["params"] - server["params"], server["params"]
        if self.optimizer == "momentum":
            mean = step.add_(server["opt_m"], alpha=self.beta1)
            return {**inner, "params": params.add(mean, alpha=self.server_lr), "opt_m": mean}
        mean = step.lerp(server["opt_m"], self.beta1)
        square = self._square(step.square_(), server["opt_v"])
        params = params.addcdiv(mean, square.sqrt().add_(self.epsilon), value=self.server_lr)
        return {**inner, "params": params, "opt_m": mean, "opt_v": square}

    def _square(self, new: Vector, old: Vector) -> Vector:
        """Update the running mean of squared steps; yogi changes it by at most the new square."""
        excess = old - new
        if self.optimizer == "yogi":
            excess = excess.sign_().mul_(new)
        return old.sub(excess, alpha=1 - self.beta2)
