"""Records as bytes in the safetensors format, with a digest that identifies equal ones."""

import hashlib
from collections.abc import Mapping

from torch import Tensor

from chronofed.core import safetensors_io
from chronofed.core.types import Record

ROW_NAMES = ("rows", "sources")
"""Tensors in which memories keep the rows that their samples came from."""


def encode(record: Record) -> bytes:
    """Return the bytes of a safetensors file; equal records give equal bytes."""
    return b"".join(safetensors_io.save(record, {}))


def decode(content: bytes) -> Record:
    """Read a record that :func:`encode` wrote.

    Raises:
        ValueError: If the bytes are not such a record.
    """
    source = safetensors_io.Bytes(content)
    try:
        _, places = safetensors_io.read_header(source)
        return {name: safetensors_io.read(source, place) for name, place in places.items()}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a record: {error}") from error


def digest(content: bytes) -> bytes:
    """Return the digest that identifies content, and against which it is checked when it is read."""
    return hashlib.blake2b(content, digest_size=16).digest()


def rows_of(record: Mapping[str, Tensor]) -> list[int]:
    """Return the rows that a record was taken or computed from, as far as it names them."""
    return sorted({row for name in ROW_NAMES if name in record for row in record[name].tolist()})


def count_samples(record: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the number of samples in a record and of their classes; 0 and 0 if it holds no samples."""
    labels = record.get("y")
    return (0, 0) if labels is None else (len(labels), len(set(labels.tolist())))
