"""Records as bytes in the safetensors format, with a digest that identifies equal ones."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from chronofed.core import safetensors_io
from chronofed.core.limits import MESSAGE_HEADER
from chronofed.core.types import Record

ROW_NAMES = ("rows", "sources")
"""Tensors in which memories keep the rows that their samples came from."""
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class RecordError(ValueError):
    """Bytes that are not a record."""


def encode(record: Record) -> bytes:
    """Return the bytes of a safetensors file; equal records give equal bytes."""
    return b"".join(safetensors_io.save(record, {}))


def decode(content: bytes) -> Record:
    """Read a record that :func:`encode` wrote.

    Raises:
        RecordError: If the bytes are not such a record.
    """
    try:
        record = safetensors_io.read_tensors(safetensors_io.Bytes(content), MESSAGE_HEADER)
    except ValueError as error:
        raise RecordError(f"not a record: {error}") from error
    for name in {"y", *ROW_NAMES} & record.keys():
        if record[name].dim() != 1 or (name in ROW_NAMES and record[name].dtype not in _WHOLE):
            raise RecordError(f"not a record: {name} is not a list of numbers")
    lengths = {tensor.shape[:1] for tensor in record.values()} if "rows" in record else {()}
    if len(lengths) > 1:
        raise RecordError("not a record: not every sample has a row")
    return record


def verified(digest_: bytes, content: bytes) -> bytes:
    """Return content whose digest is right.

    Raises:
        RecordError: If it is not.
    """
    if digest(content) != digest_:
        raise RecordError("checksum mismatch in a record")
    return content


def digest(content: bytes) -> bytes:
    """Return the digest that identifies content, and against which it is checked when it is read."""
    return hashlib.blake2b(content, digest_size=16).digest()


def rows_of(record: Mapping[str, Tensor]) -> list[int]:
    """Return the rows that a record was taken or computed from, as far as it names them."""
    return sorted({row for name in ROW_NAMES if name in record for row in record[name].tolist()})


def count_samples(record: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the number of samples in a record and of their classes; 0 and 0 if it holds no samples.

    Targets that are numbers have no classes.
    """
    labels = record.get("y")
    if labels is None:
        return 0, 0
    return len(labels), 0 if labels.is_floating_point() else len(set(labels.tolist()))
