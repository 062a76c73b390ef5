"""CWR+ and CWR*."""

from typing import ClassVar, Literal

import torch

from chronofed.core.types import Objective, Record, Vector
from chronofed.methods.backbones.base import Uploads
from chronofed.methods.layers import Layer, class_shares, head_of
from chronofed.methods.local import Local, one_client
from chronofed.methods.wrappers.base import Added, ClientWrapper


class Cwr(ClientWrapper, tag="cwr"):
    r"""Copy weights with re-init: absent classes keep their rows of the last layer, around any backbone.

    A client starts with the consolidated rows :math:`c_j` of its classes (CWR*; with zeros in CWR+) and zeros
    for all others. After training, *m* is the mean over all entries of the rows :math:`t_j` of its classes: one
    number. With :math:`n_{ij}` samples of class *j* on client *i*, the server consolidates

    .. math::
        c_j \gets \frac{p_j c_j + \bar t_j}{p_j + 1}, \quad
        \bar t_j = \frac{\sum_i n_{ij} (t_{ij} - m_i)}{\sum_i n_{ij}}, \quad
        p_j = \sqrt{\frac{N_j}{\sum_i n_{ij}}}, \quad N_j \gets N_j + \sum_i n_{ij},

    from :math:`c_j = 0`, :math:`N_j = 0`; rows of classes that nobody had stay. With one client it is the
    publication's rule, where a round is a batch. With ``average = "clients"`` every client counts as one sample
    of its own mix of classes. Replayed samples count with their weight. The bias of the layer is held at 0:
    the heads of the public code have none. The other layers are the inner backbone's.

    AR1 is ``cwr`` around ``si`` without importance on the last layer: leave that layer out of an ``si`` inside,
    since its end there is not its own. Put a server's optimiser (``fedopt``) inside too; around it, it would
    move the rows. A client sends the last layer once more, and one number for each class. A regression has no
    classes: there it is the inner backbone. The batched engine does not serve it. The noise of ``private`` is
    for rows and shares apart, which makes three releases, and their quotient suffers.

    Attributes:
        backbone: The inner backbone.
        rule: ``star``: classes start from their consolidated rows. ``plus``: from 0.
        layer: Name of the layer with a row for each class, such as ``fc``; by default the last one.
        server_lr: Unused: set that of the inner backbone.
    """

    reference: ClassVar[str] = (
        "Maltoni and Lomonaco (2019), Continuous Learning in Single-Incremental-Task Scenarios (CWR+, AR1); "
        "Lomonaco et al. (2020), Rehearsal-Free Continual Learning over Small Non-I.I.D. Batches (CWR*)"
    )
    upload_keys = Added("rows", "shares")
    nonnegative = Added("shares")
    sends_model = False

    rule: Literal["star", "plus"] = "star"
    layer: str | None = None

    def init_layers(self, server: Record, objective: Objective) -> Record:
        """Start with rows and bias of 0, and without samples of any class."""
        server = super().init_layers(server, objective)
        head = head_of(objective, self.layer)
        if head is None:
            return server
        params = server["params"].clone()
        for span in _spans(head):
            params[span] = 0
        seen = torch.zeros(head.outputs, dtype=torch.float64)
        place = torch.tensor([head.weight.start, head.weight.stop])
        return {**server, "params": params, "cwr_place": place, "cwr_seen": seen}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone; the counts stay on the server."""
        return self.backbone.broadcast(_inner(server))

    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """Start from the rows of the client's classes, and from 0 for others."""
        params = self.backbone.start(server, client, local)
        head = self._head(local)
        if head is None:
            return params
        params = params.clone()
        known = self._shares(head, local) > 0 if self.rule == "star" else False
        head.rows_of(params).mul_(torch.as_tensor(known).expand(head.outputs)[:, None])
        return params

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """As the inner backbone; the bias of the last layer does not move."""
        gradient = self.backbone.gradient(params, server, local)
        head = self._head(local)
        if head is not None and head.bias is not None:
            gradient[head.bias] = 0
        return gradient

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the rows of the client's classes without their mean, and the share of each class."""
        head = self._head(local)
        if head is None:
            upload, state = self.backbone.finish(params, server, client, local)
            none = torch.zeros(0, dtype=torch.float64)
            return {**upload, "rows": params[:0].clone(), "shares": none}, state
        shares = self._shares(head, local)
        trained = head.rows_of(params)
        rows = (trained - trained[shares > 0].mean()) * shares[:, None].to(params)
        rest = params.clone()
        for span in _spans(head):
            rest[span] = server["params"][span]
        upload, state = self.backbone.finish(rest, server, client, local)
        return {**upload, "rows": rows, "shares": shares}, state

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Let the inner backbone aggregate, and consolidate the rows."""
        inner = self.backbone.aggregate(_inner(server), uploads)
        if "cwr_place" not in server:
            return inner
        start, stop = server["cwr_place"].tolist()
        params, seen = inner["params"].clone(), server["cwr_seen"]
        shape = uploads[0][1]["rows"].shape
        now = torch.zeros_like(seen)
        rows = torch.zeros(shape, dtype=torch.float64)
        for weight, upload in uploads:
            now.add_(upload["shares"], alpha=weight)
            rows.add_(upload["rows"], alpha=weight)
        params[start:stop] = consolidated(
            server["params"][start:stop].view(shape), rows, seen, now
        ).reshape(-1)
        return {
            **inner,
            "params": params,
            "cwr_place": server["cwr_place"],
            "cwr_seen": seen + now.clamp(min=0),
        }

    def _head(self, local: Local) -> Layer | None:
        """Return the layer with a row for each class; ``None`` for a regression."""
        regression = one_client(local).samples.y.is_floating_point()
        return None if regression else head_of(local.objective, self.layer)

    def _shares(self, head: Layer, local: Local) -> Vector:
        pool = one_client(local).pool
        return class_shares(pool.samples.y, pool.weight, head.outputs)


def consolidated(kept: Vector, rows: Vector, seen: Vector, now: Vector) -> Vector:
    """Return the consolidated rows, ``(classes, k)``.

    Args:
        kept: The rows so far.
        rows: Sums of trained rows, each times its number of samples.
        seen: Numbers of samples of the classes so far, ``(classes,)``.
        now: Numbers of samples of the classes in this round.

    >>> old, new = torch.tensor([[-0.5, 1.5]]), torch.tensor([[0.0, 0.0]])
    >>> consolidated(old, 2 * new, torch.tensor([8.0]), torch.tensor([2.0])).tolist()
    [[-0.3333333432674408, 1.0]]
    """
    present = now > 0
    past = torch.sqrt(seen / now.where(present, torch.ones_like(now)))[:, None]
    mean = rows / now.where(present, torch.ones_like(now))[:, None]
    mixed = ((kept * past + mean) / (past + 1)).to(kept)
    return mixed.where(present[:, None], kept)


def _spans(head: Layer) -> list[slice]:
    return [head.weight] if head.bias is None else [head.weight, head.bias]


def _inner(server: Record) -> Record:
    return {name: tensor for name, tensor in server.items() if not name.startswith("cwr_")}
