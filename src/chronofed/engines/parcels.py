"""How things travel between a process and the workers that it started itself, on its own pipes.

Python's own serialisation, which must never read what others wrote; with two changes. Tensors go by value:
torch would move them to shared memory under whoever holds them now, NumPy views included. And errors arrive
whatever their constructors look like.
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chronofed.errors import ChronofedError, IncompatibleError

ALIGNMENT = (
    64  # bytes, of torch's own memory: libraries may round differently on memory aligned otherwise
)
PROTOCOL = 5  # the first that can leave the bytes of arrays aside


def pack(content: object, what: str, aside: Callable[[Any], object] | None = None) -> bytes:
    """Serialise; ``aside``, if given, is called with the bytes of every array, which are then left out.

    Raises:
        IncompatibleError: If ``content`` has parts that another process could not find.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, PROTOCOL, True, aside).dump(content)
    except Exception as error:
        msg = (
            f"{what}: cannot be sent to worker processes ({error}); define its classes and functions "
            "at the top of a module, or use threads"
        )
        raise IncompatibleError(msg) from error
    return file.getvalue()


def unpack(packed: bytes, aside: Iterable[Any] = ()) -> Any:  # noqa: ANN401
    """What was packed."""
    return ForkingPickler.loads(packed, buffers=aside)


@dataclass(frozen=True, slots=True)
class Parcel:
    """Content whose arrays lie in one block of shared memory, however many processes open it."""

    packed: bytes
    block: Tensor  # (bytes,)
    places: tuple[slice, ...]

    @classmethod
    def of(cls, content: object, what: str) -> "Parcel":
        """Copy all arrays to shared memory."""
        aside: list[Any] = []
        # A return value that is true would keep the array inside.
        packed = pack(content, what, aside.append)
        parts = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in aside]
        starts = list(accumulate((_aligned(len(part)) for part in parts), initial=0))
        block = _shared(max(starts[-1], 1))
        places = tuple(slice(s, s + len(p)) for s, p in zip(starts, parts, strict=False))
        for place, part in zip(places, parts, strict=True):
            block.numpy()[place] = part
        return cls(packed, block, places)

    def open(self) -> Any:  # noqa: ANN401
        """The content; its arrays are the shared ones."""
        memory = self.block.numpy()
        return unpack(self.packed, [memory[place] for place in self.places])


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _shared(size: int) -> Tensor:
    block = torch.empty(size, dtype=torch.uint8)
    try:
        block.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        msg = (
            f"processes: no room for {size / 2**20:.0f} MB of data in shared memory ({error}); "
            "enlarge /dev/shm or use threads"
        )
        raise ChronofedError(msg) from error
    return block


class _Pickler(ForkingPickler):
    """Python's own, but for plain tensors and errors."""

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401
        if isinstance(obj, BaseException):
            return _error, (type(obj), obj.args, getattr(obj, "__notes__", []))
        if type(obj) in (Tensor, nn.Parameter) and obj.layout == torch.strided:
            values = obj.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            as_it_was = (obj.dtype, tuple(obj.shape), obj.device, obj.requires_grad)
            return _tensor, (type(obj), values, *as_it_was)
        return NotImplemented


def _error(kind: type[BaseException], args: tuple[Any, ...], notes: list[str]) -> BaseException:
    error = kind.__new__(kind, *args)
    for note in notes:
        error.add_note(note)
    return error


def _tensor(
    kind: type[Tensor],
    values: NDArray[np.uint8],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device,
    requires_grad: bool,
) -> Tensor:
    memory = torch.from_numpy(values)
    if memory.data_ptr() % ALIGNMENT:
        memory = memory.clone()
    tensor = memory.view(dtype).view(shape).to(device)
    return nn.Parameter(tensor, requires_grad) if kind is nn.Parameter else tensor
