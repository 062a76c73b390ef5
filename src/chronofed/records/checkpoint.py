"""Snapshots as safetensors files whose names carry a digest of their content."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from chronofed.errors import RunError
from chronofed.loop import Snapshot
from chronofed.memories import Keepsake
from chronofed.protocol import Locker
from chronofed.records.atomic import write_atomic
from chronofed.traffic import Traffic
from chronofed.types import Record

FORMAT = "chronofed-checkpoint-1"


def save(folder: Path, snapshot: Snapshot, keep: int) -> Path:
    """Write a checkpoint, then remove all but the latest ``keep``."""
    content = encode(snapshot)
    path = folder / f"{snapshot.round:08d}-{_digest(content)}.safetensors"
    write_atomic(path, content)
    for old in sorted(folder.glob("*.safetensors"))[:-keep]:
        if old != path:
            old.unlink(missing_ok=True)
    return path


def load_latest(folder: Path) -> tuple[Snapshot | None, list[str]]:
    """The latest checkpoint that is whole, and one line for each damaged one that was passed over."""
    complaints: list[str] = []
    for path in sorted(folder.glob("*.safetensors"), reverse=True):
        try:
            return load(path), complaints
        except RunError as error:
            complaints.append(str(error))
    return None, complaints


def load(path: Path) -> Snapshot:
    """Read one checkpoint.

    Raises:
        RunError: If the file is damaged.
    """
    content = path.read_bytes()
    if path.stem.split("-")[-1] != _digest(content):
        msg = f"checkpoint {path.name} is damaged (its content does not match its digest)"
        raise RunError(msg)
    try:
        return decode(content)
    except (SafetensorError, KeyError, ValueError) as error:
        msg = f"checkpoint {path.name} cannot be read: {error}"
        raise RunError(msg) from error


def encode(snapshot: Snapshot) -> bytes:
    """A snapshot as the bytes of a safetensors file; equal snapshots, equal bytes."""
    about = {
        "format": FORMAT,
        "round": snapshot.round,
        "traffic": [snapshot.traffic.down, snapshot.traffic.up],
        "past": [_about(keepsake) for keepsake in snapshot.past],
        "lockers": {
            client: [_about(keepsake) for keepsake in locker.kept]
            for client, locker in sorted(snapshot.lockers.items())
        },
    }
    # Copies, because safetensors refuses tensors that share memory, and records may be views.
    tensors = {n: t.clone(memory_format=torch.contiguous_format) for n, t in _tensors(snapshot)}
    return safetensors.torch.save(tensors, {"about": json.dumps(about)})


def decode(content: bytes) -> Snapshot:
    """The snapshot that :func:`encode` wrote."""
    about = json.loads(_metadata(content)["about"])
    if about["format"] != FORMAT:
        msg = f"unknown format {about['format']!r}"
        raise ValueError(msg)
    parts = _tree(safetensors.torch.load(content))
    lockers = {
        int(client): Locker(
            parts.get(f"locker/{client}/state", {}), _kept(parts, f"locker/{client}/kept", kept)
        )
        for client, kept in about["lockers"].items()
    }
    return Snapshot(
        about["round"],
        parts["server"],
        parts["model"]["buffers"],
        lockers,
        _kept(parts, "past", about["past"]),
        parts.get("weights", {}),
        Traffic(*about["traffic"]),
    )


def _about(keepsake: Keepsake) -> list[int]:
    return [keepsake.round, keepsake.client, keepsake.key, keepsake.size]


def _tensors(snapshot: Snapshot) -> Iterator[tuple[str, Tensor]]:
    yield "model/buffers", snapshot.buffers
    yield from _named("server", snapshot.server)
    yield from _named("weights", snapshot.weights)
    for k, keepsake in enumerate(snapshot.past):
        yield from _named(f"past/{k}", keepsake.record)
    for client, locker in snapshot.lockers.items():
        yield from _named(f"locker/{client}/state", locker.state)
        for k, keepsake in enumerate(locker.kept):
            yield from _named(f"locker/{client}/kept/{k}", keepsake.record)


def _named(place: str, record: Record) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in record.items():
        yield f"{place}/{name}", tensor


def _tree(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Records by their place."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        place, _, key = name.rpartition("/")
        parts.setdefault(place, {})[key] = tensor
    return parts


def _kept(
    parts: dict[str, dict[str, Tensor]], place: str, about: list[list[int]]
) -> tuple[Keepsake, ...]:
    return tuple(
        Keepsake(round_, client, key, size, parts.get(f"{place}/{k}", {}))
        for k, (round_, client, key, size) in enumerate(about)
    )


def _metadata(content: bytes) -> dict[str, str]:
    """The header's metadata: 8 bytes of length, then JSON."""
    length = int.from_bytes(content[:8], "little")
    metadata: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return metadata


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
