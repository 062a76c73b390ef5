"""An in-memory cache of client states: beyond a limit, those used least recently move to disk.

A client state never changes, so it is written to disk at most once; the client's next state gets a file of its
own. A file is deleted when neither the cache nor a snapshot refers to it any more. Python's references do the
counting.
"""

import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Protocol

from torch import Tensor

from chronofed.clients.spill import SpilledState, SpillFolder
from chronofed.clients.state import ClientState, named_tensors
from chronofed.core.types import Record


class StoredState(Protocol):
    """A client state on disk: in a file of its own, or in a checkpoint."""

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take in memory."""
        ...

    def read(self) -> ClientState:
        """Read the client state; may be called again and again.

        Raises:
            RunError: If it is damaged or gone.
        """
        ...


class StateHandle:
    """One client state: in memory, on disk, or both.

    The cache and its snapshots share handles. So a state that is spilled leaves memory for all of them, and one
    that the cache reads back is in memory for all of them.
    """

    __slots__ = ("__weakref__", "cached", "client_state", "stored")

    def __init__(self, client_state: ClientState | None, stored: StoredState | None) -> None:
        self.client_state = client_state
        self.stored = stored
        # The cache's key for this handle, while the cache counts its bytes.
        self.cached: weakref.ref[StateHandle] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take in memory."""
        if self.stored is not None:
            return self.stored.nbytes
        if self.client_state is None:
            return 0
        return sum(tensor.nbytes for _, tensor in named_tensors(self.client_state))

    def get(self) -> ClientState:
        """Return the client state; read it if it is not in memory."""
        # Look at the memory first: another thread that spills the state sets `stored` before it clears this.
        client_state = self.client_state
        if client_state is not None:
            return client_state
        assert self.stored is not None
        return self.stored.read()


class StateView(Mapping[int, ClientState]):
    """Client states at one point in time, read-only. States on disk are read on access and not cached."""

    __slots__ = ("__weakref__", "_handles")

    def __init__(self, handles: Mapping[int, StateHandle]) -> None:
        self._handles = handles

    @classmethod
    def of(cls, stored: Mapping[int, StoredState]) -> "StateView":
        """Make a view of client states that are all on disk."""
        return cls({client: StateHandle(None, each) for client, each in stored.items()})

    def __getitem__(self, client: int) -> ClientState:
        return self._handles[client].get()

    def __contains__(self, client: object) -> bool:
        return client in self._handles

    def __iter__(self) -> Iterator[int]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def handles(self) -> Mapping[int, StateHandle]:
        """Handles by client, for a cache to adopt."""
        return self._handles


class StateCache(MutableMapping[int, ClientState]):
    """Client states by client, of which the least recently used move to disk.

    Safe to use from several threads. Tensors that are views of larger ones are copied, because a view would
    keep the whole storage alive. States that only a snapshot refers to count towards the limit, too.

    Args:
        limit_bytes: Maximum bytes of tensors in memory; ``None`` for no limit, and then it is just a ``dict``.
        folder: Parent of the cache's temporary folder; by default the system's folder for temporary files,
            which may itself be in memory. The temporary folder is deleted with the cache and its last snapshot.
    """

    def __init__(self, limit_bytes: int | None = None, folder: Path | None = None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ValueError(f"StateCache.limit_bytes: {limit_bytes} is below 0")
        self.limit_bytes = limit_bytes
        self._parent = folder
        self._folder: SpillFolder | None = None
        self._handles: dict[int, StateHandle] = {}
        # Bytes of the handles with a state in memory, the least recently used first.
        self._in_memory: OrderedDict[weakref.ref[StateHandle], int] = OrderedDict()
        # References whose handles were garbage collected, still to be subtracted.
        self._collected: deque[weakref.ref[StateHandle]] = deque()
        self._total = 0
        self._lock = RLock()

    @property
    def cached_bytes(self) -> int:
        """Bytes of tensors in memory; 0 if there is no limit, because nothing is counted then."""
        with self._lock:
            self._subtract_collected()
            return self._total

    def snapshot(self) -> StateView:
        """Return the present client states, which later changes do not affect; no tensor is copied."""
        with self._lock:
            return StateView(dict(self._handles))

    def version(self, client: int) -> "weakref.ref[StateHandle] | None":
        """Return a token that is the same, and refers to something, as long as the client's state is."""
        handle = self._handles.get(client)
        return None if handle is None else weakref.ref(handle)

    def adopt(self, client_states: Mapping[int, ClientState]) -> None:
        """Add client states; those of a view stay on disk, unread."""
        if not isinstance(client_states, StateView):
            self.update(client_states)
            return
        for client, handle in client_states.handles.items():
            # Arguments are evaluated in order: another thread sets `stored` before it clears `client_state`.
            self._put(client, handle.client_state, handle.stored)

    def __getitem__(self, client: int) -> ClientState:
        with self._lock:
            handle = self._handles[client]
            client_state = handle.client_state = handle.get()
            self._touch(handle)
            return client_state

    def __setitem__(self, client: int, client_state: ClientState) -> None:
        self._put(client, client_state, None)

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
        """Remove all client states without reading them."""
        with self._lock:
            self._handles.clear()

    def _put(
        self, client: int, client_state: ClientState | None, stored: StoredState | None
    ) -> None:
        if self.limit_bytes is not None and client_state is not None:
            client_state = _without_views(client_state)
        handle = StateHandle(client_state, stored)
        with self._lock:
            self._handles[client] = handle
            if client_state is not None:
                self._touch(handle)

    def _touch(self, handle: StateHandle) -> None:
        """Mark a handle with a state in memory as just used, and spill others until the limit is met."""
        if self.limit_bytes is None:
            return
        if handle.cached is None:
            handle.cached = weakref.ref(handle, self._collected.append)
            self._in_memory[handle.cached] = handle.nbytes
            self._total += handle.nbytes
        else:
            self._in_memory.move_to_end(handle.cached)
        self._subtract_collected()
        while self._total > self.limit_bytes:
            self._spill(next(iter(self._in_memory)))

    def _spill(self, reference: "weakref.ref[StateHandle]") -> None:
        handle = reference()
        if handle is not None:
            if handle.stored is None and handle.client_state is not None:
                handle.stored = self._write(handle.client_state, handle.nbytes)
            handle.client_state = handle.cached = None
        self._total -= self._in_memory.pop(reference, 0)

    def _write(self, client_state: ClientState, nbytes: int) -> SpilledState:
        # A fork must not write into its parent's folder, which the parent deletes.
        if self._folder is None or self._folder.process != os.getpid():
            self._folder = SpillFolder(self._parent)
        return SpilledState(self._folder, client_state, nbytes)

    def _subtract_collected(self) -> None:
        """Stop counting handles that nothing refers to any more."""
        while self._collected:
            self._total -= self._in_memory.pop(self._collected.popleft(), 0)


def snapshot_of(client_states: Mapping[int, ClientState]) -> Mapping[int, ClientState]:
    """Return the present client states: their own snapshot if they can make one, else a copy."""
    snapshot: Callable[[], Mapping[int, ClientState]] | None = getattr(
        client_states, "snapshot", None
    )
    return dict(client_states) if snapshot is None else snapshot()


def replace_all(
    client_states: MutableMapping[int, ClientState], content: Mapping[int, ClientState]
) -> None:
    """Replace all client states; at most one is read at a time."""
    client_states.clear()
    if isinstance(client_states, StateCache):
        client_states.adopt(content)
    else:
        client_states.update(content)


def _without_views(client_state: ClientState) -> ClientState:
    """Copy tensors that are views of larger ones or not contiguous; without any, return the same state."""
    if all(_owns_storage(tensor) for _, tensor in named_tensors(client_state)):
        return client_state
    kept = tuple(replace(item, record=_copy_views(item.record)) for item in client_state.items)
    own = _copy_views(client_state.backbone_state)
    return ClientState(own, kept, _copy_views(client_state.optimizer_state))


def _copy_views(record: Record) -> Record:
    return {name: t if _owns_storage(t) else t.contiguous().clone() for name, t in record.items()}


def _owns_storage(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() <= tensor.nbytes
