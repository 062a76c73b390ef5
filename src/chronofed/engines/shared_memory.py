"""Pickling between the parent and its own worker processes, with arrays in shared memory.

This is the only module of the package that pickles. Unpickling runs code that the bytes name, so these bytes
never cross a trust boundary: the parent writes them for processes that it started itself, on pipes that nobody
else can open, and nothing here may read a file, a socket or a message of a client. The one exception is a
:class:`Parcel`, which travels inside a Ray cluster; Ray itself pickles, so whoever uses it trusts all of it.

Two things differ from plain pickle. Tensors travel by value: torch would move the caller's own tensors, and the
NumPy views of them, to shared memory. And errors arrive whatever the signature of their constructors.
"""

import io
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chronofed.core.errors import ChronofedError, IncompatibleError

# Alignment of torch's own memory. Libraries may round differently on memory that is aligned otherwise.
ALIGNMENT_BYTES = 64
# The first pickle protocol that can keep the bytes of arrays out of band.
PROTOCOL = 5


def dumps(
    content: object, label: str, buffer_callback: Callable[[Any], object] | None = None
) -> bytes:
    """Pickle; arrays go to ``buffer_callback``, if given, instead of into the result.

    Raises:
        IncompatibleError: If ``content`` has parts that another process cannot import.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, PROTOCOL, True, buffer_callback).dump(content)
    except Exception as error:
        msg = (
            f"{label}: cannot be sent to worker processes ({error}); define its classes and functions "
            "at the top of a module, or use threads"
        )
        raise IncompatibleError(msg) from error
    return file.getvalue()


def loads(pickled: bytes, buffers: Iterable[Any] = ()) -> Any:
    """Unpickle the bytes of :func:`dumps`, and of nothing else."""
    return ForkingPickler.loads(pickled, buffers=buffers)


@dataclass(frozen=True, slots=True)
class SharedObject:
    """An object whose arrays lie in one block of shared memory, for any number of processes.

    Attributes:
        pickled: The object without its arrays.
        block: The shared memory, ``(bytes,)``.
        slices: The part of ``block`` that each array occupies.
    """

    pickled: bytes
    block: Tensor
    slices: tuple[slice, ...]

    @classmethod
    def of(cls, content: object, label: str) -> "SharedObject":
        """Copy an object's arrays to shared memory."""
        pickled, arrays, slices, size = _out_of_band(content, label)
        block = _allocate(size)
        for part, array in zip(slices, arrays, strict=True):
            block.numpy()[part] = array
        return cls(pickled, block, slices)

    def load(self) -> Any:
        """Return the object; its arrays are the shared ones."""
        memory = self.block.numpy()
        return loads(self.pickled, [memory[part] for part in self.slices])


@dataclass(frozen=True, slots=True)
class Parcel:
    """An object whose arrays lie in one array, for the processes of a Ray cluster.

    Attributes:
        pickled: The object without its arrays.
        block: The arrays, ``(bytes,)``.
        slices: The part of ``block`` that each array occupies.
    """

    pickled: bytes
    block: NDArray[np.uint8]
    slices: tuple[slice, ...]

    @classmethod
    def of(cls, content: object, label: str) -> "Parcel":
        """Copy an object's arrays into one."""
        pickled, arrays, slices, size = _out_of_band(content, label)
        block = np.zeros(size, dtype=np.uint8)
        for part, array in zip(slices, arrays, strict=True):
            block[part] = array
        return cls(pickled, block, slices)

    @property
    def nbytes(self) -> int:
        """Bytes that travel, without a few for the slices."""
        return len(self.pickled) + self.block.nbytes

    def load(self) -> Any:
        """Return the object, with arrays of its own."""
        memory = torch.empty(len(self.block), dtype=torch.uint8).numpy()
        memory[:] = self.block
        return loads(self.pickled, [memory[part] for part in self.slices])

    def view(self) -> Any:
        """Return the object; its arrays are those of ``block``, which Ray shares: nobody may write to them."""
        with warnings.catch_warnings():
            # Torch has no tensors that are read-only.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return loads(self.pickled, [self.block[part] for part in self.slices])


def _out_of_band(
    content: object, label: str
) -> tuple[bytes, list[NDArray[np.uint8]], tuple[slice, ...], int]:
    """Pickle an object; return it with its arrays, their slices of one block, and the size of that."""
    buffers: list[Any] = []
    # A callback that returned something true would keep the array inside.
    pickled = dumps(content, label, buffers.append)
    arrays = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
    starts = list(accumulate((_aligned(len(array)) for array in arrays), initial=0))
    slices = tuple(slice(s, s + len(a)) for s, a in zip(starts, arrays, strict=False))
    return pickled, arrays, slices, max(starts[-1], 1)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _allocate(size: int) -> Tensor:
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
    """Python's own, except for plain tensors and errors."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException):
            return _build_error, (type(obj), obj.args, getattr(obj, "__notes__", []))
        if type(obj) in (Tensor, nn.Parameter) and obj.layout == torch.strided:
            values = obj.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            properties = (obj.dtype, tuple(obj.shape), obj.device, obj.requires_grad)
            return _build_tensor, (type(obj), values, *properties)
        return NotImplemented


def _build_error(
    kind: type[BaseException], args: tuple[Any, ...], notes: list[str]
) -> BaseException:
    error = kind.__new__(kind, *args)
    for note in notes:
        error.add_note(note)
    return error


def _build_tensor(
    kind: type[Tensor],
    values: NDArray[np.uint8],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device,
    requires_grad: bool,
) -> Tensor:
    memory = torch.from_numpy(values)
    if memory.data_ptr() % ALIGNMENT_BYTES:
        memory = memory.clone()
    tensor = memory.view(dtype).view(shape).to(device)
    return nn.Parameter(tensor, requires_grad) if kind is nn.Parameter else tensor
