"""The safetensors format as a stream: written one tensor after another, read one at a time.

A file is 8 bytes of length, a header in JSON with the place of every tensor, and the tensors. The bytes are
those that ``safetensors.torch.save`` makes of the same tensors, but they are never all in memory.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

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
}  # in the order of the format, by which a file is sorted: the last come first
TYPES = {code: dtype for dtype, code in CODES.items()}
_RANK = {code: -rank for rank, code in enumerate(TYPES)}
_LENGTH = 8  # bytes of the header's length, and what it is padded to
_ITEMS = 1000  # tensors in a part of the header


class Outline(NamedTuple):
    """All of a tensor but its numbers."""

    rank: int
    name: str
    code: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "Outline":
        """A tensor's outline; outlines sort as a file does."""
        code = CODES[tensor.dtype]
        return cls(_RANK[code], name, code, _same(tuple(tensor.shape)))

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * TYPES[self.code].itemsize


class Place(NamedTuple):
    """Where a file has a tensor."""

    code: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * TYPES[self.code].itemsize


class Source(Protocol):
    """Bytes that can be read from any place."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def read_into(self, start: int, out: memoryview) -> None:
        """Fill ``out`` with the bytes from ``start`` on; ``ValueError`` if they end before."""
        ...


class Bytes:
    """Bytes in memory."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = memoryview(content)

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.content)

    def read_into(self, start: int, out: memoryview) -> None:
        """Copy some of them."""
        out[:] = self.content[start : start + len(out)]


class OpenFile:
    """A file that stays open, and so readable even after it was removed, until nobody needs it."""

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: Path) -> None:
        self._descriptor = -1  # if it cannot be opened
        self._descriptor = os.open(path, os.O_RDONLY)
        self.path = path
        self.size = os.fstat(self._descriptor).st_size

    def read_into(self, start: int, out: memoryview) -> None:
        """Read some bytes; threads do not disturb each other."""
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
    """A file of tensors that are all there, part by part."""
    return stream((Outline.of(*item) for item in tensors.items()), tensors.__getitem__, metadata)


def stream(
    outlines: Iterable[Outline], tensor: Callable[[str], Tensor], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """A file, part by part; tensors are asked for by name, in the order of the file.

    Yields:
        The header, then every tensor.
    """
    order = sorted(outlines)
    length = sum(map(len, _header(order, metadata)))
    padding = -length % _LENGTH
    yield (length + padding).to_bytes(_LENGTH, "little")
    yield from _header(order, metadata)
    yield b" " * padding
    for outline in order:
        yield numbers(tensor(outline.name))


def read_header(source: Source) -> tuple[dict[str, str], dict[str, Place]]:
    """A file's metadata, and the place of every tensor.

    Raises:
        ValueError: If it is not such a file.
        KeyError: If it says too little.
    """
    length = int.from_bytes(_bytes(source, 0, _LENGTH), "little")
    start = _LENGTH + length

    def place(table: dict[str, Any]) -> Place | dict[str, Any]:
        return _place(table, start, source.size) if "data_offsets" in table else table

    header = json.loads(_bytes(source, _LENGTH, length), object_hook=place)
    if not isinstance(header, dict):
        raise ValueError("the header is not a table")
    return header.pop("__metadata__", {}), header


def read(source: Source, place: Place) -> Tensor:
    """One tensor, with memory of its own."""
    tensor = torch.empty(place.shape, dtype=TYPES[place.code])
    source.read_into(place.start, numbers(tensor))
    return tensor


def numbers(tensor: Tensor) -> memoryview:
    """A tensor's numbers as bytes; its own memory if they lie in order."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _header(order: list[Outline], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """The table in parts, letter for letter as the reference implementation writes it."""
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


def _place(about: Mapping[str, Any], start: int, size: int) -> Place:
    begin, end = about["data_offsets"]
    place = Place(about["dtype"], _same(tuple(about["shape"])), start + begin)
    if place.code not in TYPES or place.nbytes != end - begin or not 0 <= begin <= size - start:
        raise ValueError("a tensor's size does not fit its place")
    if start + end > size:
        raise ValueError("the file ends too early")
    return place


@lru_cache(maxsize=4096)
def _same(shape: tuple[int, ...]) -> tuple[int, ...]:
    """One tuple for all tensors of a shape: there may be hundreds of thousands."""
    return shape


def _bytes(source: Source, start: int, count: int) -> bytearray:
    if start + count > source.size:
        raise ValueError("the file ends too early")
    content = bytearray(count)
    source.read_into(start, memoryview(content))
    return content
