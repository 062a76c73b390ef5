"""Compressed."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Generator, Tensor

from chronofed.core.seeds import torch_generator
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Uploads
from chronofed.methods.compression import quantise, restore, spread, top
from chronofed.methods.local import Local, one_client
from chronofed.methods.schedules import Share
from chronofed.methods.wrappers.base import Computed, Wrapper, parts

ERROR = "error."


class Compressed(Wrapper, tag="compressed"):
    r"""Sends short forms of what clients upload, around any backbone.

    Every vector *v* of an upload is replaced by :math:`Q(v)` before it leaves the client, and numbers stay as
    they are. The server and the client's own state see :math:`Q(v)`. Around FedAvg it is FedCOM, with the
    publication's :math:`\gamma` as ``server_lr``; around FedGATE it is FedCOMGATE.

    ``quantise`` rounds at random, so that the mean of :math:`Q(v)` is *v*. ``top`` keeps the largest entries,
    which is biased; ``feedback`` corrects it (and goes with ``quantise``, too):

    .. math:: \text{send}\; Q(v + e_i), \qquad e_i \gets v + e_i - Q(v + e_i)

    Traffic counts what travels: ``bits`` for an entry and one number, or a value and a position of four bytes
    for every entry that is kept. What the server sends is not compressed, nor are buffers and the records of a
    memory. With feedback a client keeps what it has not sent: a model for every vector. In the extra exchange
    of a round (``mime``, ``fedlin``) there is none. It may stand inside ``clipped`` and ``private`` or around
    them: both bound what arrived. The batched engine serves it.

    Public code differs: QSGD divides by the l2 norm in place of the largest entry, which needs more levels.

    Attributes:
        backbone: The inner backbone.
        form: The short form: ``quantise``, a few bits for every entry, or ``top``, the largest entries.
        bits: Bits of an entry; for ``quantise``.
        ratio: Share of the entries that are kept; for ``top``. 1 is the inner backbone.
        feedback: Whether a client adds what it did not send to its next upload. It must come back for that.
        server_lr: Unused: set that of the inner backbone.
    """

    stateful = Computed(lambda own: own.feedback or own.backbone.stateful)
    reference: ClassVar[str] = (
        "Haddadpour et al. (2021), Federated Learning with Compression: Unified Analysis and Sharp "
        "Guarantees"
    )

    form: Literal["quantise", "top"] = "quantise"
    bits: Literal[2, 4, 8] = 8
    ratio: Share = 0.1
    feedback: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(isinstance(part, Compressed) for part in parts(self.backbone)):
            raise ValueError("Compressed.backbone: compressed twice; remove one of the two")
        if self.server_lr != 1.0:
            raise ValueError("Compressed.server_lr: set server_lr of the inner backbone instead")
        if self.form == "top" and self.bits != 8:
            raise ValueError("Compressed.bits is for form = 'quantise'; 'top' has ratio")
        if self.form == "quantise" and self.ratio != 0.1:
            raise ValueError("Compressed.ratio is for form = 'top'; 'quantise' has bits")

    def init_client(self, params: Vector) -> Record:
        """Start with everything sent."""
        inner = self.backbone.init_client(params)
        if not self.feedback:
            return inner
        return {**inner, **{ERROR + entry: params[:0] for entry in self.upload_keys}}

    def prepare(self, server: Record, local: Local) -> Record:
        """Compress the uploads of the extra exchange, without feedback."""
        answer = self.backbone.prepare(server, local)
        generator = _generator(local, "prepare")
        return _joined({name: self._short(t, generator) for name, t in answer.items()})

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Compress the upload, with what was not sent before; the inner state follows what arrives."""
        inner = {name: t for name, t in client.items() if not name.startswith(ERROR)}
        upload, state = self.backbone.finish(params, server, inner, local)
        wanted = {name: _plus(t, client.get(ERROR + name)) for name, t in upload.items()}
        generator = _generator(local, "finish")
        short = {name: self._short(t, generator) for name, t in wanted.items()}
        arrived = {n: self._long(s, wanted[n].numel()) for n, s in short.items()}
        state = self.backbone.settle(state, upload, arrived)
        if self.feedback:
            lost = {n: wanted[n] - arrived[n] if wanted[n].dim() else params[:0] for n in wanted}
            errors = {n: t for n, t in client.items() if n.startswith(ERROR)}
            state = {**state, **errors, **{ERROR + n: t for n, t in lost.items()}}
        return _joined(short), state

    def unpack(self, upload: Record, params: Vector) -> Record:
        """Restore the vectors, as far as the model is long."""
        short: dict[str, dict[str, Tensor]] = {}
        for name, tensor in upload.items():
            entry, _, part = name.partition("/")
            short.setdefault(entry, {})[part] = tensor
        long = {name: self._long(each, len(params)) for name, each in short.items()}
        return self.backbone.unpack(long, params)

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone."""
        return self.backbone.aggregate(server, uploads)

    def _short(self, tensor: Tensor, generator: Generator) -> Record:
        """Return the short form of a vector; a number or an empty vector stays as it is."""
        if not tensor.dim() or not len(tensor) or (self.form == "top" and self.ratio == 1):
            return {"": tensor}
        if self.form == "top":
            return top(tensor, self.ratio)
        return quantise(tensor, self.bits, generator)

    def _long(self, short: Record, length: int) -> Tensor:
        """Return what the server makes of a short form."""
        if "" in short:
            return short[""]
        return spread(short, length) if self.form == "top" else restore(short, self.bits, length)


def _plus(tensor: Tensor, error: Tensor | None) -> Tensor:
    return tensor if error is None or not len(error) else tensor + error


def _joined(short: Mapping[str, Record]) -> Record:
    """Name the parts of short forms, as in ``delta/codes``."""
    return {
        f"{name}/{part}" if part else name: tensor
        for name, each in short.items()
        for part, tensor in each.items()
    }


def _generator(local: Local, exchange: str) -> Generator:
    """Return a generator of its own for this visit, whatever training has drawn."""
    return torch_generator(one_client(local).generator.initial_seed(), "compress", exchange)
