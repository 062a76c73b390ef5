"""Records as bytes, and back: safetensors, with a digest by which equal ones are known."""

import hashlib
from collections.abc import Mapping

from torch import Tensor

from chronofed import safefile
from chronofed.types import Record

ROW_NAMES = ("rows", "sources")  # under which memories keep where samples came from


def encode(record: Record) -> bytes:
    """The bytes of a safetensors file; equal records, equal bytes."""
    return b"".join(safefile.save(record, {}))


def decode(content: bytes) -> Record:
    """The record that :func:`encode` wrote.

    Raises:
        ValueError: If it did not.
    """
    source = safefile.Bytes(content)
    try:
        _, places = safefile.read_header(source)
        return {name: safefile.read(source, place) for name, place in places.items()}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a record: {error}") from error


def digest(content: bytes) -> bytes:
    """By which content is known, and checked when it is read."""
    return hashlib.blake2b(content, digest_size=16).digest()


def rows_of(record: Mapping[str, Tensor]) -> list[int]:
    """The rows that a record was taken or made from, where it says so."""
    return sorted({row for name in ROW_NAMES if name in record for row in record[name].tolist()})


def census(record: Mapping[str, Tensor]) -> tuple[int, int]:
    """How many samples a record holds, and of how many classes; none if it holds no samples."""
    labels = record.get("y")
    return (0, 0) if labels is None else (len(labels), len(set(labels.tolist())))
