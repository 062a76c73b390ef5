"""FedRoD."""

from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.errors import SpecError
from chronofed.core.flat import take
from chronofed.core.types import Objective, Record, Spans, Vector
from chronofed.methods.backbones.base import Backbone
from chronofed.methods.local import ClientLocal, Local, one_client


class FedRod(Backbone, tag="fedrod"):
    r"""A generic head that learns all classes alike, and a personal head beside it on every client.

    .. math::
        \text{generic:}\; \ell(z + \log n,\, y), \qquad \text{personal:}\; \ell(z + z^p,\, y), \quad
        z = W \phi(x) + b, \; z^p = W_i^p \phi(x) + b_i^p

    with the shares :math:`n_c` of the classes in the samples of training (balanced softmax). A class that the
    client lacks has :math:`\log 0`, and is left out. The personal head trains after the rest, for as many plain
    steps, with the features :math:`\phi` and the generic head as they are then. It starts from 0, so that the
    personal model starts as the generic one. As both heads are linear, the personal model is the generic one
    with the head :math:`W + W_i^p`: that is what ``personal_accuracy`` measures.

    It sends as FedAvg. A client keeps a model and a head; a step costs one gradient, and one more of the head.
    A request to delete a sample makes a client that had it start its personal head anew. The batched engine
    does not serve it. Public code (PFLlib) starts personal heads as copies of the generic one, and trains them
    within the same steps. The hypernetwork of the publication is not here. A regression has no classes to
    balance.

    Attributes:
        head: Name of the last layer, such as ``fc``; by default the last one whose weights are a matrix.
    """

    stateful: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Chen and Chao (2022), On Bridging Generic and Personalized Federated Learning for Image Classification"
    )

    head: str | None = None

    def init_client(self, params: Vector) -> Record:
        """Start the personal model from the global one, with an empty head and no sources."""
        none = torch.empty(0, dtype=torch.int64)
        return {"personal": params.clone(), "head": params[:0].clone(), "sources": none}

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Compute a gradient with the logits shifted by the shares of the classes."""
        return local.stochastic_gradient(params, offset=self._offset(one_client(local)))

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the update; train the personal head on the final features."""
        upload, _ = super().finish(params, server, client, local)
        one, spans = one_client(local), self._spans(local.objective)
        personal, own = params.clone(), client["head"]
        if len(own):
            _add_(personal, spans, own)
        for _ in range(one.steps):
            batch = one.pool.at(*one.draw())
            step = one.objective.loss_gradient(personal, batch, spans)
            _add_(personal, spans, step.mul_(-one.train.lr))
        head = take(personal, spans) - take(params, spans)
        state = {"personal": personal, "buffers": one.objective.buffers, "head": head}
        return upload, {**state, "sources": _sources(client["sources"], one)}

    def _offset(self, local: ClientLocal) -> Tensor | None:
        """Return the logarithms of the classes' shares; minus infinity for a class without samples."""
        y = local.pool.samples.y
        if y.is_floating_point():
            return None
        if "fedrod_offset" not in local.scratch:
            classes = local.objective.shapes[self._name(local.objective)][0]
            weight = local.pool.weight.abs()
            share = torch.zeros(classes, dtype=torch.float64).index_add_(
                0, y, weight / weight.sum()
            )
            local.scratch["fedrod_offset"] = share.log()
        return local.scratch["fedrod_offset"]

    def _name(self, objective: Objective) -> str:
        """Return the name of the head's weights.

        Raises:
            SpecError: If there is no such layer.
        """
        found = [name for name, shape in objective.shapes.items() if len(shape) == 2]
        if self.head is not None:
            found = [name for name in found if name == f"{self.head}.weight"]
        if not found:
            known = ", ".join(name for name in objective.names if name.endswith(".weight"))
            what = (
                "a last layer with a matrix"
                if self.head is None
                else f"a matrix {self.head}.weight"
            )
            raise SpecError(f"method.backbone.head: the model has not {what}; it has {known}")
        return found[-1]

    def _spans(self, objective: Objective) -> Spans:
        """Return the parameters of the head: its weights, and its bias if it has one."""
        weight = self._name(objective)
        bias = weight.removesuffix("weight") + "bias"
        return tuple(objective.names[name] for name in (weight, bias) if name in objective.names)


def _add_(params: Vector, spans: Spans, values: Vector) -> None:
    """Add values to a part of the parameters in place."""
    sizes = [span.stop - span.start for span in spans]
    for span, part in zip(spans, torch.split(values, sizes), strict=True):
        params[span] += part


def _sources(earlier: Tensor, local: ClientLocal) -> Tensor:
    """Return the rows that the personal head has seen; replayed ones were present once."""
    rows = local.samples.rows
    return earlier if rows is None else torch.unique(torch.cat([earlier, rows]))
