"""Snapshots as safetensors files whose names carry a digest of their content.

Lockers may be more than memory holds: they are written one after another, and read when they are asked for.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from chronofed import safefile
from chronofed.engines.lockers import About, LockerView, about, assembled, keepsake, named
from chronofed.errors import RunError
from chronofed.loop import Snapshot
from chronofed.protocol import Locker
from chronofed.records.atomic import write_parts
from chronofed.safefile import Bytes, OpenFile, Outline, Place, Source
from chronofed.traffic import Traffic
from chronofed.types import Record

FORMAT = "chronofed-checkpoint-1"
LOCKER = "locker/"
_PART = 1 << 20  # bytes that are read at once


def save(folder: Path, snapshot: Snapshot, keep: int) -> Path:
    """Write a checkpoint, then remove all but the latest ``keep``."""
    digest = hashlib.blake2b(digest_size=8)
    name = f"{snapshot.round:08d}"

    def parts() -> Iterator[bytes | memoryview]:
        for part in stream(snapshot):
            digest.update(part)
            yield part

    def final() -> str:
        return f"{name}-{digest.hexdigest()}.safetensors"

    path = write_parts(folder / name, parts(), final)
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
    """Read one checkpoint, but for the lockers, which are read when they are asked for.

    The file may be removed meanwhile: it stays open as long as one of its lockers is referred to.

    Raises:
        RunError: If the file is damaged.
    """
    try:
        source = OpenFile(path)
        if path.stem.split("-")[-1] != _digest(_chunks(source)):
            msg = f"checkpoint {path.name} is damaged (its content does not match its digest)"
            raise RunError(msg)
        return _decode(source)
    except (OSError, KeyError, TypeError, ValueError) as error:
        msg = f"checkpoint {path.name} cannot be read: {error}"
        raise RunError(msg) from error


def encode(snapshot: Snapshot) -> bytes:
    """A snapshot as the bytes of a safetensors file; equal snapshots, equal bytes."""
    return b"".join(stream(snapshot))


def stream(snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    """The same bytes part by part, with one locker at a time in memory."""
    kept: dict[int, About] = {}
    outlines = [Outline.of(*item) for item in _shared(snapshot)]
    for client in sorted(snapshot.lockers):
        locker = snapshot.lockers[client]
        kept[client] = about(locker.kept)
        outlines += [Outline.of(f"{LOCKER}{client}/{n}", t) for n, t in named(locker)]
    rest = {
        "format": FORMAT,
        "round": snapshot.round,
        "traffic": [snapshot.traffic.down, snapshot.traffic.up],
        "past": about(snapshot.past),
        "lockers": kept,
    }
    yield from safefile.stream(outlines, _Tensors(snapshot), {"about": json.dumps(rest)})


def decode(content: bytes) -> Snapshot:
    """The snapshot that :func:`encode` wrote."""
    return _decode(Bytes(content))


def _decode(source: Source) -> Snapshot:
    metadata, places = safefile.read_header(source)
    rest = json.loads(metadata["about"])
    if rest["format"] != FORMAT:
        msg = f"unknown format {rest['format']!r}"
        raise ValueError(msg)
    shared = _tree(
        {n: safefile.read(source, p) for n, p in places.items() if not n.startswith(LOCKER)}
    )
    return Snapshot(
        rest["round"],
        shared["server"],
        shared["model"]["buffers"],
        LockerView.of(_lockers(source, places, rest["lockers"])),
        tuple(keepsake(k, shared.get(f"past/{n}", {})) for n, k in enumerate(rest["past"])),
        shared.get("weights", {}),
        Traffic(*rest["traffic"]),
        shared.get("engine", {}),
    )


@dataclass(frozen=True, slots=True)
class _InCheckpoint:
    """One client's locker in a file that holds them all."""

    source: Source
    about: About
    places: dict[str, Place]

    @property
    def nbytes(self) -> int:
        return sum(place.nbytes for place in self.places.values())

    def read(self) -> Locker:
        try:
            tensors = {n: safefile.read(self.source, p) for n, p in self.places.items()}
        except (OSError, ValueError) as error:
            raise RunError(f"a checkpoint in use cannot be read any more: {error}") from error
        return assembled(self.about, tensors)


def _lockers(
    source: Source, places: Mapping[str, Place], rest: Mapping[str, About]
) -> dict[int, _InCheckpoint]:
    """Where to find each client's locker."""
    lockers = {client: _InCheckpoint(source, kept, {}) for client, kept in rest.items()}
    for name, place in places.items():
        if name.startswith(LOCKER):
            client, _, inner = name.removeprefix(LOCKER).partition("/")
            lockers[client].places[sys.intern(inner)] = place
    return {int(client): locker for client, locker in lockers.items()}


class _Tensors:
    """The tensors of a snapshot by name; a client's are asked for together, so one locker is held."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._lockers = snapshot.lockers
        self._shared = dict(_shared(snapshot))
        self._client = ""
        self._own: dict[str, Tensor] = {}

    def __call__(self, name: str) -> Tensor:
        if not name.startswith(LOCKER):
            return self._shared[name]
        client, _, inner = name.removeprefix(LOCKER).partition("/")
        if client != self._client:
            self._client, self._own = client, {}
            self._own = dict(named(self._lockers[int(client)]))
        return self._own[inner]


def _shared(snapshot: Snapshot) -> Iterator[tuple[str, Tensor]]:
    """All tensors but those of lockers."""
    yield "model/buffers", snapshot.buffers
    yield from _named("server", snapshot.server)
    yield from _named("weights", snapshot.weights)
    yield from _named("engine", snapshot.engine)
    for k, kept in enumerate(snapshot.past):
        yield from _named(f"past/{k}", kept.record)


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


def _chunks(source: Source) -> Iterator[memoryview]:
    for start in range(0, source.size, _PART):
        part = memoryview(bytearray(min(_PART, source.size - start)))
        source.read_into(start, part)
        yield part


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
