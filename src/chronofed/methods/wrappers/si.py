"""Synaptic intelligence."""

from typing import ClassVar

import msgspec
import torch

from chronofed.core.config import NonNegative, Positive
from chronofed.core.types import Record, Vector
from chronofed.methods.layers import layer_factors
from chronofed.methods.local import Local, with_sources
from chronofed.methods.wrappers.base import ClientWrapper

KEPT = ("importance", "anchor", "path", "moved", "end")


class Si(ClientWrapper, tag="si"):
    r"""Synaptic intelligence: parameters that lowered past losses are held, around any backbone.

    Along the local steps on a data set a client adds up the fall of its loss that each parameter brought,

    .. math:: \omega \gets \omega - g\, \Delta w,

    with the stochastic gradient *g* without penalty and the real change :math:`\Delta w` of a step. When its
    data set changes, it adds the ratio to the squared distance *D* that it moved on the finished one to the
    importance, and is held near its last model :math:`\tilde w` there:

    .. math::
        \Omega \gets \max\Big(0,\; \Omega + \frac{\omega}{D^2 + \xi}\Big), \qquad
        f(w) + c \sum_k \Omega_k (w_k - \tilde w_k)^2.

    The gradient is the inner backbone's, before its ``direction``; with a memory it has the remembered past in
    it. There is no factor 1/2. On :math:`h w^2/2` with steps :math:`\eta` the importance tends to
    :math:`h / (2 - \eta h)`. Between visits the server moves the model: that is no part of the path or of *D*.
    So the data sets of a client are its tasks, and a data set that comes back is a new task.

    Nothing more travels. A client keeps five models, and a step costs a few products of vectors; the batched
    engine does not serve it, since the path moves with every step. Public code differs: Avalanche and the code
    of AR1 take the gradient with the penalty, let importance be negative, bound it by 0.001 (``largest``), and
    have a factor 1/2.

    Attributes:
        backbone: The inner backbone.
        strength: Weight *c* of the penalty; 0 is the inner backbone.
        damping: Term :math:`\xi`, which bounds the importance of parameters that hardly moved.
        largest: Largest importance of a parameter; by default there is none.
        layers: Factor of the importance for parameters whose name matches a pattern such as ``fc.*``; the first
            match applies, and others have no importance. By default all parameters, alike.
        server_lr: Unused: set that of the inner backbone.
    """

    stateful: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Zenke et al. (2017), Continual Learning Through Synaptic Intelligence"
    )

    strength: NonNegative = 0.1
    damping: Positive = 0.1
    largest: Positive | None = None
    layers: dict[str, NonNegative] = msgspec.field(default_factory=lambda: {"*": 1.0})

    def __hash__(self) -> int:
        # A dict cannot be hashed.
        layers = frozenset(self.layers.items())
        return hash((self.backbone, self.strength, self.damping, self.largest, layers))

    def init_client(self, params: Vector) -> Record:
        """Start without importance, and without a data set."""
        own = {f"si_{name}": torch.zeros_like(params) for name in KEPT}
        none = torch.empty(0, dtype=torch.int64)
        inner = self.backbone.init_client(params)
        return {"sources": none, **inner, **own, "si_key": torch.full((1,), -1)}

    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """As the inner backbone; note what is held: the data set may have changed."""
        importance, anchor = self._held(client, local)
        local.scratch.update(si_importance=importance, si_anchor=anchor)
        return self.backbone.start(server, client, local)

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Follow the path, and add the gradient of the penalty to the inner backbone's."""
        gradient = self.backbone.gradient(params, server, local)
        self._follow(params, local)
        local.scratch.update(si_gradient=gradient.clone(), si_params=params.clone())
        local.scratch.setdefault("si_first", local.scratch["si_params"])
        away = params - local.scratch["si_anchor"]
        return gradient.addcmul_(local.scratch["si_importance"], away, value=2 * self.strength)

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """As the inner backbone; keep the path, and where it ended."""
        self._follow(params, local)
        upload, state = self.backbone.finish(params, server, client, local)
        notes, same = local.scratch, int(client["si_key"]) == local.key
        path, moved = notes["si_path"], params - notes["si_first"]
        own = {
            "si_importance": notes["si_importance"],
            "si_anchor": notes["si_anchor"],
            "si_path": client["si_path"] + path if same else path,
            "si_moved": client["si_moved"] + moved if same else moved,
            "si_end": params.clone(),
            "si_key": torch.full((1,), local.key),
        }
        return upload, {**state, **own, "sources": with_sources(client["sources"], local)}

    def _follow(self, params: Vector, local: Local) -> None:
        r"""Book the last step: :math:`\omega \gets \omega - g \Delta w`."""
        notes = local.scratch
        if "si_gradient" in notes:
            path = notes.get("si_path", torch.zeros_like(params))
            notes["si_path"] = path.addcmul(
                notes["si_gradient"], params - notes["si_params"], value=-1
            )

    def _held(self, client: Record, local: Local) -> tuple[Vector, Vector]:
        """Return importance and anchor; if the data set has changed, with the finished one."""
        if int(client["si_key"]) in (-1, local.key):
            return client["si_importance"], client["si_anchor"]
        new = client["si_path"] / client["si_moved"].square().add_(self.damping)
        new.mul_(layer_factors(self.layers, local.objective, new))
        return (client["si_importance"] + new).clamp_(0, self.largest), client["si_end"]
