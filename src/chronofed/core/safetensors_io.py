"""The safetensors format as a stream: tensors are written and read one at a time.

A file consists of 8 bytes with the length of the header, a JSON header with the place of every tensor, and the
tensors. The bytes equal those of ``safetensors.torch.save``, but are never all in memory, as they would be with
the ``safetensors`` package. That package is only a test oracle: nothing here imports it.

A reader believes nothing: a header is bounded (:mod:`chronofed.core.limits`), and its tensors must fill the
rest of the file exactly, so that a file never promises more memory than it has bytes.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from chronofed.core.errors import StorageError
from chronofed.core.limits import FILE_HEADER, MAX_DIMENSIONS, HeaderLimits

# In the order of the format. Files are sorted by it, with the last types first.
CODES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
TYPES = {code: dtype for dtype, code in CODES.items()}
_RANK = {code: -rank for rank, code in enumerate(TYPES)}
# Bytes of the header's length; the header is padded to a multiple of it.
_LENGTH = 8
# Tensors in one part of the header.
_ITEMS = 1000

# The entries of a header, each with the brace or comma before it, as the reference implementation writes them.
# A JSON parser would first make lists and tables of a hostile header, 27 bytes of memory for each of its bytes.
_TEXT = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_METADATA = re.compile(rb'\{"__metadata__":(\{(?:"%s":"%s",?){0,16}+\})' % (_TEXT, _TEXT))
_TENSOR = re.compile(
    rb'[{,]"(%s)":\{"dtype":"(\w+)","shape":\[([\d,]*)\],"data_offsets":\[(\d{1,19}),(\d{1,19})\]\}'
    % _TEXT
)


class Outline(NamedTuple):
    """A tensor's name, type and shape, without its numbers."""

    rank: int
    name: str
    code: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "Outline":
        """Return the outline of a tensor; outlines sort in the order of a file."""
        code = CODES[tensor.dtype]
        return cls(_RANK[code], name, code, _same(tuple(tensor.shape)))

    @property
    def nbytes(self) -> int:
        """Size of the numbers in bytes."""
        return math.prod(self.shape) * TYPES[self.code].itemsize


class Place(NamedTuple):
    """The type, shape and place of a tensor in a file."""

    code: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Size of the numbers in bytes."""
        return math.prod(self.shape) * TYPES[self.code].itemsize


class Source(Protocol):
    """Bytes with random access."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        ...

    def read_into(self, start: int, out: memoryview) -> None:
        """Fill ``out`` with the bytes from ``start`` on; raise ``ValueError`` if there are too few."""
        ...


class Bytes:
    """Bytes in memory."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = memoryview(content)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self.content)

    def read_into(self, start: int, out: memoryview) -> None:
        """Copy some bytes."""
        out[:] = self.content[start : start + len(out)]


class OpenFile:
    """An open file, which stays readable after it is removed, until this object is collected."""

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: Path) -> None:
        # For ``__del__``, if the file cannot be opened.
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY)
        self.path = path
        self.size = os.fstat(self._descriptor).st_size

    def read_into(self, start: int, out: memoryview) -> None:
        """Read some bytes; safe to call from several threads."""
        while len(out):
            count = os.preadv(self._descriptor, [out], start)
            if not count:
                raise ValueError(f"{self.path.name} ends too early")
            out, start = out[count:], start + count

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def save(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """Encode tensors that are all in memory, part by part."""
    return stream((Outline.of(*item) for item in tensors.items()), tensors.__getitem__, metadata)


def stream(
    outlines: Iterable[Outline], tensor: Callable[[str], Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """Encode a file part by part; ``tensor`` is called with each name in the order of the file.

    Yields:
        The header, then every tensor.

    Raises:
        StorageError: If there are more tensors than a reader accepts.
    """
    order = sorted(outlines)
    length = sum(map(len, _header(order, metadata)))
    if length > FILE_HEADER.max_bytes or len(order) > FILE_HEADER.max_tensors:
        raise StorageError(
            f"{len(order)} tensors are too many for one file (at most {FILE_HEADER.max_tensors}, with names in "
            f"{FILE_HEADER.max_bytes} bytes); let clients keep fewer data sets"
        )
    padding = -length % _LENGTH
    yield (length + padding).to_bytes(_LENGTH, "little")
    yield from _header(order, metadata)
    yield b" " * padding
    for outline in order:
        yield numbers(tensor(outline.name))


def read_header(
    source: Source, limits: HeaderLimits = FILE_HEADER
) -> tuple[dict[str, str], dict[str, Place]]:
    """Read a file's metadata and the place of every tensor.

    Raises:
        ValueError: If the file is not in the safetensors format, or beyond the limits.
    """
    length = int.from_bytes(_bytes(source, 0, _LENGTH), "little")
    if length > limits.max_bytes:
        raise ValueError(f"a header of {length} bytes; at most {limits.max_bytes} are accepted")
    header = _bytes(source, _LENGTH, length)
    found = _METADATA.match(header)
    metadata: dict[str, str] = json.loads(found[1]) if found else {}
    places: dict[str, Place] = {}
    stop = start = _LENGTH + length
    for name, code, shape, begin, end in _entries(header, found.end() if found else 0):
        place = places[name] = Place(code, shape, stop)
        if start + begin != stop or end - begin != place.nbytes:
            raise ValueError("tensors overlap, leave a gap, or do not fit their place")
        stop += place.nbytes
        if len(places) > limits.max_tensors:
            raise ValueError(f"more than {limits.max_tensors} tensors")
    if stop != source.size:
        raise ValueError(f"the file has {source.size} bytes, its header promises {stop}")
    return metadata, places


def read_tensors(source: Source, limits: HeaderLimits = FILE_HEADER) -> dict[str, Tensor]:
    """Read all tensors of a file without metadata into new memory.

    Raises:
        ValueError: If the file is not in the safetensors format, or beyond the limits.
    """
    return {name: read(source, place) for name, place in read_header(source, limits)[1].items()}


def read(source: Source, place: Place) -> Tensor:
    """Read one tensor into new memory.

    Raises:
        ValueError: If the file has become shorter, or truth values are not 0 or 1.
    """
    tensor = torch.empty(place.shape, dtype=TYPES[place.code])
    content = numbers(tensor)
    source.read_into(place.start, content)
    # Torch computes nonsense with other bytes.
    if tensor.dtype == torch.bool and len(content) and tensor.view(torch.uint8).max() > 1:
        raise ValueError("truth values that are neither 0 nor 1")
    return tensor


def numbers(tensor: Tensor) -> memoryview:
    """Return a tensor's numbers as bytes; without a copy if the tensor is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    # To torch a single number is contiguous with any stride.
    flat = flat.as_strided((flat.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def _header(order: list[Outline], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """Encode the header in parts, byte for byte as the reference implementation does."""
    items = [f'{{"__metadata__":{_compact(metadata)}']
    stop = 0
    for outline in order:
        start, stop = stop, stop + outline.nbytes
        shape = ",".join(map(str, outline.shape))
        items.append(
            f',{_compact(outline.name)}:{{"dtype":"{outline.code}","shape":[{shape}],'
            f'"data_offsets":[{start},{stop}]}}'
        )
        if len(items) > _ITEMS:
            yield "".join(items).encode()
            items.clear()
    yield ("".join(items) + "}").encode()


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _entries(header: bytearray, at: int) -> Iterator[tuple[str, str, tuple[int, ...], int, int]]:
    """Yield the entry of every tensor in a header, from the mark before the first entry on.

    Raises:
        ValueError: If there is anything else, or a tensor comes twice.
    """
    names: set[str] = set()
    end = len(header.rstrip(b" ")) - 1
    while at < end:
        found = _TENSOR.match(header, at)
        if not found:
            raise ValueError(f"the header is malformed at byte {at}")
        name = _name(found[1])
        if name in names:
            raise ValueError(f"a tensor comes twice: {name!r:.80}")
        names.add(name)
        yield name, *_layout(found[2], found[3]), int(found[4]), int(found[5])
        at = found.end()
    if header[at : at + 1] != b"}":
        raise ValueError("the header is not a table")


@lru_cache(maxsize=4096)
def _layout(code: bytes, axes: bytes) -> tuple[str, tuple[int, ...]]:
    """Return the type and shape in a header; all tensors of a shape share one tuple."""
    shape = tuple(map(int, axes.split(b","))) if axes else ()
    if len(shape) > MAX_DIMENSIONS or max(shape, default=0) >= 2**63 or code.decode() not in TYPES:
        raise ValueError("a tensor of unknown type or impossible shape")
    return code.decode(), shape


def _name(name: bytes) -> str:
    text: str = json.loads(b'"%s"' % name) if b"\\" in name else name.decode()
    return text


@lru_cache(maxsize=4096)
def _same(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Share one tuple among all tensors of a shape: there may be hundreds of thousands."""
    return shape


def _bytes(source: Source, start: int, count: int) -> bytearray:
    if start + count > source.size:
        raise ValueError("the file ends too early")
    content = bytearray(count)
    source.read_into(start, memoryview(content))
    return content
