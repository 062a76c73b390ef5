"""Checkpoints: snapshots as safetensors files whose names carry a digest of their content.

Client states may not all fit into memory: they are written one by one, and read on demand.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from chronofed.clients.cache import StateView
from chronofed.clients.state import (
    ClientState,
    ItemMetadata,
    assemble,
    assemble_item,
    item_metadata,
    named_tensors,
)
from chronofed.core import safetensors_io
from chronofed.core.atomic import remove, write_parts
from chronofed.core.errors import RunError
from chronofed.core.safetensors_io import Bytes, OpenFile, Outline, Place, Source
from chronofed.core.types import Record
from chronofed.training.loop import Snapshot
from chronofed.training.traffic import Traffic

FORMAT = "chronofed-checkpoint-3"
CLIENT = "client/"
_CHUNK_BYTES = 1 << 20


class FormatError(RunError):
    """An intact checkpoint of another version of chronofed."""


@dataclass(frozen=True, slots=True)
class RunPoint:
    """Description of the run in a checkpoint.

    Attributes:
        records: Size in bytes and digest of every lasting record when the snapshot was taken, by file name.
        identity: What the run is trained with (:mod:`chronofed.runs.identity`).
    """

    records: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)


def save(
    folder: Path, snapshot: Snapshot, keep: int, point: RunPoint | None = None, forgotten: int = -1
) -> Path:
    """Write a checkpoint, then remove all but the latest ``keep``.

    Args:
        folder: Folder of the checkpoints.
        snapshot: The snapshot.
        keep: Number of checkpoints to keep. Those of later rounds do not count: a damaged run went back.
        point: What the checkpoint says about its run.
        forgotten: Round of the latest deletion; checkpoints of that many rounds or fewer are removed.

    Returns:
        The new file.
    """
    digest = hashlib.blake2b(digest_size=8)
    name = f"{snapshot.round:08d}"

    def parts() -> Iterator[bytes | memoryview]:
        for part in stream(snapshot, point):
            digest.update(part)
            yield part

    def final() -> str:
        return f"{name}-{digest.hexdigest()}.safetensors"

    path = write_parts(folder / name, parts(), final)
    older = [old for old in files(folder) if old != path and old.name[:8] <= name]
    for number, old in enumerate(older, start=1):
        if number >= keep or old.name[:8] <= f"{forgotten:08d}":
            remove(old)
    return path


def files(folder: Path) -> list[Path]:
    """Return all checkpoint files, the latest first."""
    return sorted((path for path in folder.glob("*.safetensors") if path.is_file()), reverse=True)


def load_latest(folder: Path) -> tuple[Snapshot | None, list[str]]:
    """Load the latest intact checkpoint; also return one line for each damaged one that was skipped.

    Raises:
        FormatError: If another version of chronofed wrote it.
    """
    complaints: list[str] = []
    for path in files(folder):
        try:
            return load(path), complaints
        except FormatError:
            raise
        except RunError as error:
            complaints.append(str(error))
    return None, complaints


def load(path: Path) -> Snapshot:
    """Load one checkpoint; its client states are read on demand.

    The file may be removed meanwhile: it stays open as long as something refers to one of its client states.

    Raises:
        FormatError: If another version of chronofed wrote it.
        RunError: If the file is damaged.
    """
    return load_with_point(path)[0]


def load_with_point(path: Path) -> tuple[Snapshot, RunPoint]:
    """Load one checkpoint, and what it says about its run; otherwise as :func:`load`."""
    try:
        source = OpenFile(path)
        if path.stem.split("-")[-1] != _digest(_chunks(source)):
            msg = f"checkpoint {path.name} is damaged (its content does not match its digest)"
            raise RunError(msg)
        metadata, places = safetensors_io.read_header(source)
        about = json.loads(metadata["about"])
        if about["format"] != FORMAT:
            raise FormatError(_other_format(path, about["format"]))
        return _decode(source, about, places), RunPoint(**about["run"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        msg = f"checkpoint {path.name} cannot be read: {error}"
        raise RunError(msg) from error


def _other_format(path: Path, name: str) -> str:
    return (
        f"checkpoint {path} has format {name!r}, and this version of chronofed reads {FORMAT!r}; "
        "resume with the version that wrote it (environment.json names it)"
    )


def encode(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as the bytes of a safetensors file; equal snapshots give equal bytes."""
    return b"".join(stream(snapshot))


def stream(snapshot: Snapshot, point: RunPoint | None = None) -> Iterator[bytes | memoryview]:
    """Yield the same bytes in parts, with one client state at a time in memory."""
    kept: dict[int, ItemMetadata] = {}
    outlines = [Outline.of(*item) for item in _shared(snapshot)]
    for client in sorted(snapshot.client_states):
        client_state = snapshot.client_states[client]
        kept[client] = item_metadata(client_state.items)
        outlines += [Outline.of(f"{CLIENT}{client}/{n}", t) for n, t in named_tensors(client_state)]
    rest = {
        "format": FORMAT,
        "round": snapshot.round,
        "traffic": [snapshot.traffic.down_bytes, snapshot.traffic.up_bytes],
        "past": item_metadata(snapshot.past),
        "client_states": kept,
        "run": asdict(point or RunPoint()),
    }
    yield from safetensors_io.stream(outlines, _Tensors(snapshot), {"about": json.dumps(rest)})


def decode(content: bytes) -> Snapshot:
    """Decode what :func:`encode` wrote."""
    source = Bytes(content)
    metadata, places = safetensors_io.read_header(source)
    return _decode(source, json.loads(metadata["about"]), places)


def _decode(source: Source, rest: Mapping[str, Any], places: Mapping[str, Place]) -> Snapshot:
    shared = _tree(
        {n: safetensors_io.read(source, p) for n, p in places.items() if not n.startswith(CLIENT)}
    )
    return Snapshot(
        rest["round"],
        shared["server"],
        shared["model"]["buffers"],
        StateView.of(_client_states(source, places, rest["client_states"])),
        tuple(assemble_item(k, shared.get(f"past/{n}", {})) for n, k in enumerate(rest["past"])),
        shared.get("weighting_state", {}),
        Traffic(*rest["traffic"]),
        shared.get("engine", {}),
    )


@dataclass(frozen=True, slots=True)
class _InCheckpoint:
    """The state of one client in a checkpoint file."""

    source: Source
    about: ItemMetadata
    places: dict[str, Place]

    @property
    def nbytes(self) -> int:
        return sum(place.nbytes for place in self.places.values())

    def read(self) -> ClientState:
        try:
            tensors = {n: safetensors_io.read(self.source, p) for n, p in self.places.items()}
        except (OSError, ValueError) as error:
            raise RunError(f"a checkpoint in use can no longer be read: {error}") from error
        return assemble(self.about, tensors)


def _client_states(
    source: Source, places: Mapping[str, Place], rest: Mapping[str, ItemMetadata]
) -> dict[int, _InCheckpoint]:
    """Find each client's state in the file."""
    client_states = {client: _InCheckpoint(source, kept, {}) for client, kept in rest.items()}
    for name, place in places.items():
        if name.startswith(CLIENT):
            client, _, inner = name.removeprefix(CLIENT).partition("/")
            client_states[client].places[sys.intern(inner)] = place
    return {int(client): client_state for client, client_state in client_states.items()}


class _Tensors:
    """The tensors of a snapshot by name; those of a client are read together, so one state is in memory."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._client_states = snapshot.client_states
        self._shared = dict(_shared(snapshot))
        self._client = ""
        self._own: dict[str, Tensor] = {}

    def __call__(self, name: str) -> Tensor:
        if not name.startswith(CLIENT):
            return self._shared[name]
        client, _, inner = name.removeprefix(CLIENT).partition("/")
        if client != self._client:
            self._client, self._own = client, {}
            self._own = dict(named_tensors(self._client_states[int(client)]))
        return self._own[inner]


def _shared(snapshot: Snapshot) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors but those of client states."""
    yield "model/buffers", snapshot.buffers
    yield from _named_tensors("server", snapshot.server)
    yield from _named_tensors("weighting_state", snapshot.weighting_state)
    yield from _named_tensors("engine", snapshot.engine)
    for k, kept in enumerate(snapshot.past):
        yield from _named_tensors(f"past/{k}", kept.record)


def _named_tensors(place: str, record: Record) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in record.items():
        yield f"{place}/{name}", tensor


def _tree(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group tensors into records by the first part of their names."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        place, _, key = name.rpartition("/")
        parts.setdefault(place, {})[key] = tensor
    return parts


def _chunks(source: Source) -> Iterator[memoryview]:
    for start in range(0, source.size, _CHUNK_BYTES):
        part = memoryview(bytearray(min(_CHUNK_BYTES, source.size - start)))
        source.read_into(start, part)
        yield part


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
