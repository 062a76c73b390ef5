"""What clients keep, within a budget of memory: lockers not needed for long lie on disk.

A locker never changes, so a file is written at most once for it; a client's next locker has its own. A file
goes when neither the store nor a snapshot refers to it any more: the references are Python's own.
"""

import json
import os
import shutil
import tempfile
import weakref
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Protocol

from torch import Tensor

from chronofed import safefile
from chronofed.errors import RunError, cannot_write
from chronofed.memories import Keepsake
from chronofed.protocol import Locker
from chronofed.types import Record

PREFIX = "lockers-"
"""How the name of a folder of spilled lockers begins."""

About = list[list[int]]  # of every keepsake: round, client, key, size


class Stored(Protocol):
    """A locker outside the memory."""

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take in memory."""
        ...

    def read(self) -> Locker:
        """Read it, whenever it is asked for.

        Raises:
            RunError: If it is damaged or gone.
        """
        ...


class LockerView(Mapping[int, Locker]):
    """Lockers as they were at some time: in memory, or read when asked for and then not kept."""

    __slots__ = ("__weakref__", "_handles")

    def __init__(self, handles: "Mapping[int, Handle]") -> None:
        self._handles = handles

    @classmethod
    def of(cls, stored: Mapping[int, Stored]) -> "LockerView":
        """Lockers that all lie outside the memory."""
        return cls({client: Handle(None, each) for client, each in stored.items()})

    def __getitem__(self, client: int) -> Locker:
        return self._handles[client].get()

    def __contains__(self, client: object) -> bool:
        return client in self._handles

    def __iter__(self) -> Iterator[int]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def handles(self) -> "Mapping[int, Handle]":
        """Where the lockers are, for a store to take over."""
        return self._handles


class LockerStore(MutableMapping[int, Locker]):
    """Lockers by client; those used least recently lie on disk.

    Safe to use from several threads. Tensors that are parts of larger ones are copied, for they would keep the
    whole alive. What a snapshot still refers to counts like the store's own.

    Args:
        budget: Most bytes of tensors in memory; ``None`` for no limit: then it does no more than a ``dict``.
        folder: Where the store makes a folder of its own for files; by default that of the system for temporary
            files, which on some systems is memory, too. It goes with the store and the last snapshot.
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        if budget is not None and budget < 0:
            raise ValueError(f"LockerStore.budget: {budget} is below 0")
        self.budget = budget
        self._parent = folder
        self._folder: _Folder | None = None
        self._handles: dict[int, Handle] = {}
        self._held: OrderedDict[weakref.ref[Handle], int] = OrderedDict()  # oldest use first
        self._lost: deque[weakref.ref[Handle]] = deque()  # handles that are no more
        self._total = 0
        self._lock = RLock()

    @property
    def held(self) -> int:
        """Bytes of tensors in memory; not counted where there is no limit."""
        with self._lock:
            self._settle()
            return self._total

    def snapshot(self) -> LockerView:
        """The present lockers, whatever becomes of the store; costs no copy of any tensor."""
        with self._lock:
            return LockerView(dict(self._handles))

    def adopt(self, lockers: Mapping[int, Locker]) -> None:
        """Take over lockers; those of a view stay where they are, unread."""
        if not isinstance(lockers, LockerView):
            self.update(lockers)
            return
        for client, handle in lockers.handles.items():
            # The locker is looked at first: what another thread spills meanwhile is stored by then.
            self._put(client, handle.locker, handle.stored)

    def __getitem__(self, client: int) -> Locker:
        with self._lock:
            handle = self._handles[client]
            locker = handle.locker = handle.get()
            self._hold(handle)
            return locker

    def __setitem__(self, client: int, locker: Locker) -> None:
        self._put(client, locker, None)

    def __delitem__(self, client: int) -> None:
        with self._lock:
            del self._handles[client]

    def __contains__(self, client: object) -> bool:
        return client in self._handles

    def __iter__(self) -> Iterator[int]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def clear(self) -> None:
        """Remove all lockers, unread."""
        with self._lock:
            self._handles.clear()

    def _put(self, client: int, locker: Locker | None, stored: Stored | None) -> None:
        if self.budget is not None and locker is not None:
            locker = _compact(locker)
        handle = Handle(locker, stored)
        with self._lock:
            self._handles[client] = handle
            if locker is not None:
                self._hold(handle)

    def _hold(self, handle: "Handle") -> None:
        """Count a handle that has its locker in memory as used just now, and make room for it."""
        if self.budget is None:
            return
        if handle.held is None:
            handle.held = weakref.ref(handle, self._lost.append)
            self._held[handle.held] = handle.nbytes
            self._total += handle.nbytes
        else:
            self._held.move_to_end(handle.held)
        self._settle()
        while self._total > self.budget:
            self._spill(next(iter(self._held)))

    def _spill(self, reference: "weakref.ref[Handle]") -> None:
        handle = reference()
        if handle is not None:
            if handle.stored is None and handle.locker is not None:
                handle.stored = self._write(handle.locker, handle.nbytes)
            handle.locker = handle.held = None
        self._total -= self._held.pop(reference, 0)

    def _write(self, locker: Locker, nbytes: int) -> "_Spilled":
        if self._folder is None or self._folder.process != os.getpid():
            self._folder = _Folder(self._parent)
        return _Spilled(self._folder, locker, nbytes)

    def _settle(self) -> None:
        """No longer count what nobody refers to."""
        while self._lost:
            self._total -= self._held.pop(self._lost.popleft(), 0)


class Handle:
    """Where one locker is: in memory, stored, or both."""

    __slots__ = ("__weakref__", "held", "locker", "stored")

    def __init__(self, locker: Locker | None, stored: Stored | None) -> None:
        self.locker = locker
        self.stored = stored
        self.held: weakref.ref[Handle] | None = None  # by which a store counts it

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take in memory."""
        if self.stored is not None:
            return self.stored.nbytes
        return 0 if self.locker is None else sum(t.nbytes for _, t in named(self.locker))

    def get(self) -> Locker:
        """The locker; read, if it is not in memory."""
        locker, stored = self.locker, self.stored  # another thread may spill it at any time
        if locker is not None:
            return locker
        assert stored is not None
        return stored.read()


def snapshot_of(lockers: Mapping[int, Locker]) -> Mapping[int, Locker]:
    """Lockers as they are now: by their own snapshot, if they can make one, else by a copy."""
    snapshot: Callable[[], Mapping[int, Locker]] | None = getattr(lockers, "snapshot", None)
    return dict(lockers) if snapshot is None else snapshot()


def refill(lockers: MutableMapping[int, Locker], content: Mapping[int, Locker]) -> None:
    """Replace all lockers; at most one is read at a time."""
    lockers.clear()
    if isinstance(lockers, LockerStore):
        lockers.adopt(content)
    else:
        lockers.update(content)


def about(kept: Sequence[Keepsake]) -> About:
    """All of some keepsakes but their tensors."""
    return [[k.round, k.client, k.key, k.size] for k in kept]


def named(locker: Locker) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a locker by their names in a file."""
    for name, tensor in locker.state.items():
        yield f"state/{name}", tensor
    for k, kept in enumerate(locker.kept):
        for name, tensor in kept.record.items():
            yield f"kept/{k}/{name}", tensor


def assembled(rest: About, tensors: Record) -> Locker:
    """The locker of which :func:`about` and :func:`named` told."""
    state: dict[str, Tensor] = {}
    records: list[dict[str, Tensor]] = [{} for _ in rest]
    for name, tensor in tensors.items():
        kind, _, key = name.partition("/")
        if kind == "state":
            state[key] = tensor
        else:
            number, _, key = key.partition("/")
            records[int(number)][key] = tensor
    return Locker(state, tuple(map(keepsake, rest, records)))


def keepsake(rest: list[int], record: Record) -> Keepsake:
    """One keepsake from what :func:`about` told of it and its tensors."""
    round_, client, key, size = rest
    return Keepsake(round_, client, key, size, record)


class _Folder:
    """A folder that is removed when nobody needs it any more, at the latest when the program ends."""

    __slots__ = ("__weakref__", "_count", "path", "process")

    def __init__(self, parent: Path | None) -> None:
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError as error:
            raise cannot_write(parent or Path(tempfile.gettempdir()), error) from error
        self._count = 0
        self.process = os.getpid()
        weakref.finalize(self, _remove, self.path, self.process)

    def number(self) -> int:
        """Of a file that is not there yet."""
        self._count += 1
        return self._count


class _Spilled:
    """A locker in a file of its own, which goes with this object."""

    __slots__ = ("_check", "_folder", "_number", "nbytes")

    def __init__(self, folder: _Folder, locker: Locker, nbytes: int) -> None:
        self._folder = folder  # must last as long as the file
        self._number = folder.number()
        self._check = 0
        self.nbytes = nbytes
        rest = {"about": json.dumps(about(locker.kept))}
        try:
            with self._path.open("wb") as file:
                for part in safefile.save(dict(named(locker)), rest):
                    self._check = zlib.crc32(part, self._check)
                    file.write(part)
        except OSError as error:
            _remove(self._path, folder.process)
            raise cannot_write(self._path, error) from error

    def read(self) -> Locker:
        """Read it back."""
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise self._broken((error.strerror or str(error)).lower()) from error
        if zlib.crc32(content) != self._check:
            raise self._broken("its content has changed")
        source = safefile.Bytes(content)
        rest, places = safefile.read_header(source)
        tensors = {name: safefile.read(source, place) for name, place in places.items()}
        return assembled(json.loads(rest["about"]), tensors)

    @property
    def _path(self) -> Path:
        return self._folder.path / f"{self._number}.safetensors"

    def _broken(self, reason: str) -> RunError:
        return RunError(
            f"cannot read back what a client keeps, {self._path}: {reason}; "
            "go on from the latest checkpoint, and let nothing else touch this folder"
        )

    def __del__(self) -> None:
        _remove(self._path, self._folder.process)


def _remove(path: Path, process: int) -> None:
    """Remove a file or folder, unless this is a copy of the process that it belongs to."""
    if os.getpid() != process:
        return
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _compact(locker: Locker) -> Locker:
    """A locker whose tensors hold no more memory than they show, in the order in which they are stored."""
    if all(_is_whole(tensor) for _, tensor in named(locker)):
        return locker
    kept = tuple(replace(k, record=_whole(k.record)) for k in locker.kept)
    return Locker(_whole(locker.state), kept)


def _whole(record: Record) -> Record:
    return {name: t if _is_whole(t) else t.contiguous().clone() for name, t in record.items()}


def _is_whole(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() <= tensor.nbytes
