"""HeteroFL."""

from typing import Annotated, ClassVar

import msgspec
import torch

from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Objective, Record, Vector
from chronofed.methods.backbones.base import Bench, Upload, Uploads
from chronofed.methods.layers import class_shares, head_of, levels, matrix_layers
from chronofed.methods.local import ClientLocal, Local, one_client
from chronofed.methods.wrappers.base import Added, ClientWrapper
from chronofed.methods.wrappers.view import ScaledObjective, with_objective

Rate = Annotated[float, msgspec.Meta(gt=0, le=1)]
LEVELS, CLASSES = "heterofl_levels", "heterofl_classes"


class HeteroFL(ClientWrapper, tag="heterofl"):
    r"""Clients of different width: each trains the first units of every hidden layer, around any backbone.

    Client *i* has the rate :math:`r_i`, by its number: the rates are repeated in turn. Of a hidden layer of *n*
    units it holds the first :math:`\lceil r_i n \rceil`. The server moves every entry by the mean over the
    clients :math:`S_k` that hold it, and leaves those that nobody holds:

    .. math:: w_k \gets w_k + \eta_g \frac{\sum_{i \in S_k} a_i \Delta_{i,k}}{\sum_{i \in S_k} a_i}

    In training the outputs of hidden layers are divided by :math:`r_i` (the scaler). With the masked loss the
    logits of classes that a client lacks are 0, not minus infinity, and their rows of the last layer are
    neither trained nor averaged. The publication has clients of equal weight (``average = "clients"``).

    Only what a client holds travels: at rate *r* about :math:`r^2` of a deep network, and *r* of one with a
    single hidden layer. Training costs as much as the whole network here: the cut is an exact mask, not a
    smaller module. The server keeps the width and the class of every entry. Rates drawn anew every round are
    not offered. A memory sees the cut network without the scaler. Layers must follow each other in the order of
    their parameters, as in all models here but ``progressive``.

    BatchNorm is refused where a client is cut (the publication computes its statistics once, at the end):
    choose another normalisation. Groups of GroupNorm keep their size, so cut between them. The batched engine
    does not serve it, nor does ``private``, since parts of different size have no mean.

    Attributes:
        backbone: The inner backbone.
        rates: Share of the hidden units that a client has; client *i* has the rate at position *i* modulo their
            number. All 1 is the inner backbone, but for the masked loss.
        scaler: Divide the outputs of hidden layers by the rate in training.
        masked_loss: Leave classes out that the client lacks, as above; not for a regression.
        server_lr: Unused: set that of the inner backbone.
    """

    reference: ClassVar[str] = (
        "Diao et al. (2021), HeteroFL: Computation and Communication Efficient Federated Learning for "
        "Heterogeneous Clients"
    )
    upload_keys = Added("classes")
    nonnegative = Added("classes")
    sends_model = False

    rates: tuple[Rate, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    scaler: bool = True
    masked_loss: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rates:
            raise ValueError("HeteroFL.rates: empty; name at least one rate, such as [1.0, 0.5]")

    def init_layers(self, server: Record, objective: Objective) -> Record:
        """Remember which entries a rate holds, and which class an entry of the last layer belongs to.

        Raises:
            IncompatibleError: If a client would be cut and the model has BatchNorm.
        """
        own = {LEVELS: levels(objective), CLASSES: _classes(objective)}
        if objective.uses_batch_statistics and not (own[LEVELS] < min(self.rates)).all():
            raise IncompatibleError(
                "model: HeteroFL cuts clients to a part of the units, which BatchNorm does not allow; choose "
                "another normalisation (resnet18: norm = 'group'), or rates = [1.0]"
            )
        return {**super().init_layers(server, objective), **own}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone, and what :meth:`address` needs."""
        return {**self.backbone.broadcast(_inner(server)), **_own(server)}

    def address(self, sent: Record, client: int) -> Record:
        """Cut every vector to the entries that a client holds, and tell it its rate."""
        inner = self.backbone.address(_inner(sent), client)
        rate = self.rates[client % len(self.rates)]
        held = sent[LEVELS] < rate
        return {**_packed(inner, held), "rate": torch.tensor([rate], dtype=torch.float64)}

    def receive(self, sent: Record, objective: Objective) -> Record:
        """Put what came into whole vectors, with zeros elsewhere."""
        return self.backbone.receive(_whole(sent, _held(sent, objective)), objective)

    def prepare(self, server: Record, local: Local) -> Record:
        """As the inner backbone, of the cut network."""
        return self._upload(self.backbone.prepare(server, self._cut(server, local)), server, local)

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone; every entry counts where it is held."""
        return super().begin(server, self._spread(server, uploads))

    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """As the inner backbone, of the cut network."""
        return self.backbone.start(server, client, self._cut(server, local))

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """As the inner backbone, of the cut network."""
        return self.backbone.gradient(params, server, self._cut(server, local))

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Send the entries that the client holds, and the classes that it has."""
        upload, state = self.backbone.finish(params, server, client, self._cut(server, local))
        return self._upload(upload, server, local), state

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Let the inner backbone aggregate; every entry counts where it is held."""
        inner = self.backbone.aggregate(_inner(server), self._spread(server, uploads))
        return {**inner, **_own(server)}

    def refine(self, server: Record, uploads: Uploads, bench: Bench) -> Record:
        """As the inner backbone; every entry counts where it is held."""
        return super().refine(server, self._spread(server, uploads), bench)

    def _cut(self, server: Record, local: Local) -> ClientLocal:
        """Return the client's problem with the cut network."""
        scratch = local.scratch
        if "heterofl_scale" not in scratch:
            scratch["heterofl_scale"] = self._scale(server, local)
        return with_objective(local, ScaledObjective(local.objective, scratch["heterofl_scale"]))

    def _scale(self, server: Record, local: Local) -> Vector:
        r"""Return the factors of the parameters: 0 for what is cut, :math:`1/r` on hidden layers."""
        objective, rate = local.objective, float(server["rate"])
        scale = _held(server, objective).to(server["params"])
        for layer in matrix_layers(objective)[:-1] if self.scaler else ():
            for span in (layer.weight, layer.bias):
                if span is not None:
                    scale[span] /= rate
        rows = torch.cat([self._present(local), torch.ones(1, dtype=torch.float64)])
        return scale.mul_(rows[_classes(objective).long()].to(scale))

    def _present(self, local: Local) -> Vector:
        """Return 1 for the classes that a client trains on, 0 for others; all if none are left out."""
        both, head = one_client(local), head_of(local.objective)
        classes = 1 if head is None else head.outputs
        labels = both.pool.samples.y
        if head is None or not self.masked_loss or labels.is_floating_point():
            return torch.ones(classes, dtype=torch.float64)
        return (class_shares(labels, both.pool.weight, classes) > 0).double()

    def _upload(self, upload: Record, server: Record, local: Local) -> Record:
        held = _held(server, local.objective)
        if any(n == "delta" and t.shape != held.shape for n, t in upload.items()):
            raise IncompatibleError(
                "method.backbone: HeteroFL needs the update of the whole model from its inner backbone, which "
                "sends a part; choose another one"
            )
        return {**_packed(upload, held), "classes": self._present(local)}

    def _spread(self, server: Record, uploads: Uploads) -> Uploads:
        """Restore whole vectors, scaled: their weighted mean is then the mean over those that hold an entry."""
        masks = [self._holds(server, upload) for upload in uploads]
        total = torch.zeros_like(masks[0])
        for upload, mask in zip(uploads, masks, strict=True):
            total.add_(mask, alpha=upload[0])
        # Where nobody holds an entry all masks are 0.
        share = sum(weight for weight, _ in uploads) / total.where(total > 0, 1)
        return [
            Upload(upload[0], self._scaled(server, upload, mask * share), upload.sender)
            for upload, mask in zip(uploads, masks, strict=True)
        ]

    def _holds(self, server: Record, upload: Upload) -> Vector:
        """Return the mask of the entries that a client trained."""
        rate = self.rates[upload.client % len(self.rates)]
        present = torch.cat([upload[1]["classes"] > 0, torch.ones(1, dtype=torch.bool)])
        return ((server[LEVELS] < rate) & present[server[CLASSES].long()]).double()

    def _scaled(self, server: Record, upload: Upload, factor: Vector) -> Record:
        held = server[LEVELS] < self.rates[upload.client % len(self.rates)]
        whole = _whole(upload[1], held)
        return {n: t * factor.to(t) if t.shape == factor.shape else t for n, t in whole.items()}


def _held(server: Record, objective: Objective) -> Vector:
    """Return the mask of what a client holds."""
    return levels(objective) < float(server["rate"])


def _classes(objective: Objective) -> Vector:
    """Return the class of every entry of the last layer, and -1 elsewhere."""
    found = torch.full_like(levels(objective), -1, dtype=torch.int32)
    head = head_of(objective)
    if head is not None:
        numbers = torch.arange(head.outputs, dtype=torch.int32)
        found[head.weight] = numbers.repeat_interleave(head.shape[1:].numel())
        if head.bias is not None:
            found[head.bias] = numbers
    return found


def _inner(server: Record) -> Record:
    return {name: tensor for name, tensor in server.items() if not name.startswith("heterofl_")}


def _own(server: Record) -> Record:
    return {name: tensor for name, tensor in server.items() if name.startswith("heterofl_")}


def _packed(record: Record, held: Vector) -> Record:
    """Cut the vectors of a record that are as long as the model."""
    return {n: t[held] if t.shape == held.shape else t for n, t in record.items()}


def _whole(record: Record, held: Vector) -> Record:
    """Undo :func:`_packed`, with zeros for what was cut."""
    count = int(held.sum())
    if count == len(held):
        return record
    return {
        n: t.new_zeros(len(held)).masked_scatter_(held, t) if t.shape == (count,) else t
        for n, t in record.items()
    }
