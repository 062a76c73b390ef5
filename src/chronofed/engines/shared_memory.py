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
from mmap import mmap
from multiprocessing.reduction import ForkingPickler
from threading import Lock
from types import FunctionType
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chronofed.core.errors import ChronofedError, IncompatibleError

# Alignment of torch's own memory. Libraries may round differently on memory that is aligned otherwise.
ALIGNMENT_BYTES = 64
LEAST_PAGES_BYTES = 2**18
"""Size from which a block has pages of its own."""
IDLE_BYTES = 2**28
"""Memory that blocks for parcels may take while they are not used."""
# The first pickle protocol that can keep the bytes of arrays out of band.
PROTOCOL = 5


def dumps(
    content: object,
    label: str,
    buffer_callback: Callable[[Any], object] | None = None,
    *,
    abroad: bool = False,
) -> bytes:
    """Pickle; arrays go to ``buffer_callback``, if given, instead of into the result.

    Args:
        content: What to pickle.
        label: Its name in error messages.
        buffer_callback: Takes the buffers of arrays.
        abroad: Whether it is for processes that do not import this process's script.

    Raises:
        IncompatibleError: If ``content`` has parts that another process cannot import.
    """
    file, pickler = io.BytesIO(), _AbroadPickler if abroad else _Pickler
    try:
        pickler(file, PROTOCOL, True, buffer_callback).dump(content)
    except _ScriptError as error:
        msg = (
            f"{label}: {error} is defined in the script that is run, which workers on Ray cannot import; "
            "move it to a module that every node can import, or use threads"
        )
        raise IncompatibleError(msg) from None
    except Exception as error:
        msg = (
            f"{label}: cannot be sent to worker processes ({error}); define its classes and functions "
            "at the top of a module, or use threads"
        )
        raise IncompatibleError(msg) from error
    return file.getvalue()


def loads(pickled: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
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
        """Copy an object's arrays into one.

        Raises:
            IncompatibleError: If it has parts that a worker on another machine cannot import.
        """
        pickled, arrays, slices, size = _out_of_band(content, label, abroad=True)
        block = _POOL.take(size)
        for part, array in zip(slices, arrays, strict=True):
            block[part] = array
        return cls(pickled, block, slices)

    @property
    def nbytes(self) -> int:
        """Bytes that travel, without a few for the slices."""
        return len(self.pickled) + self.block.nbytes

    def load(self) -> Any:
        """Return the object, with arrays of its own."""
        memory = _POOL.take(len(self.block))
        memory[:] = self.block
        return loads(self.pickled, [memory[part] for part in self.slices])

    def view(self) -> Any:
        """Return the object; its arrays are those of ``block``, which Ray shares: nobody may write to them."""
        with warnings.catch_warnings():
            # Torch has no tensors that are read-only.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return loads(self.pickled, [self.block[part] for part in self.slices])


def _out_of_band(
    content: object, label: str, *, abroad: bool = False
) -> tuple[bytes, list[NDArray[np.uint8]], tuple[slice, ...], int]:
    """Pickle an object; return it with its arrays, their slices of one block, and the size of that."""
    buffers: list[Any] = []
    # A callback that returned something true would keep the array inside.
    pickled = dumps(content, label, buffers.append, abroad=abroad)
    arrays = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
    starts = list(accumulate((_aligned(len(array)) for array in arrays), initial=0))
    slices = tuple(slice(s, s + len(a)) for s, a in zip(starts, arrays, strict=False))
    return pickled, arrays, slices, max(starts[-1], 1)


def fresh_block(size: int) -> NDArray[np.uint8]:
    """Return aligned zeros; the system gets a large block back as soon as nobody needs it.

    In the C library's heap, small objects that stay between blocks of many sizes would keep it growing.
    """
    if size < LEAST_PAGES_BYTES:
        return torch.zeros(size, dtype=torch.uint8).numpy()
    return np.frombuffer(mmap(-1, size), dtype=np.uint8)


class BlockPool:
    """Blocks with pages of their own, lent again when nobody has a part of them: new pages are slow.

    Args:
        idle_bytes: Memory that blocks may take while nobody uses them.
    """

    def __init__(self, idle_bytes: int) -> None:
        self._idle_bytes, self._lock = idle_bytes, Lock()
        self._idle: list[mmap] = []
        self._lent: list[tuple[mmap, ReferenceType[NDArray[np.uint8]]]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return an aligned block; what is in it is left from its last use."""
        if size < LEAST_PAGES_BYTES:
            return torch.zeros(size, dtype=torch.uint8).numpy()
        with self._lock:
            self._take_back()
            # Sizes differ little from round to round; a block that is far too large is for something else.
            fits = (k for k, each in enumerate(self._idle) if size <= len(each) <= 2 * size)
            found = next(fits, None)
            memory = mmap(-1, size + size // 4) if found is None else self._idle.pop(found)
            block = np.frombuffer(memory, dtype=np.uint8, count=size)
            self._lent.append((memory, ref(block)))
            return block

    def _take_back(self) -> None:
        """Note which blocks nobody uses any more; the system gets the largest of them, if they are too many."""
        idle = [*self._idle, *(each for each, user in self._lent if user() is None)]
        self._lent = [(each, user) for each, user in self._lent if user() is not None]
        self._idle = sorted(idle, key=len)
        while sum(map(len, self._idle)) > self._idle_bytes:
            self._idle.pop()


_POOL = BlockPool(IDLE_BYTES)


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


class _ScriptError(Exception):
    """A class or function of the script; the message is its name."""


class _AbroadPickler(_Pickler):
    """Refuses classes and functions of the script that is run: elsewhere ``__main__`` is another module."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
            raise _ScriptError(obj.__qualname__)
        return super().reducer_override(obj)


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
