"""Places of client states: their worker and their version."""

from collections.abc import Iterable, MutableMapping
from typing import Any

from chronofed.clients.cache import StateCache
from chronofed.clients.state import ClientState


class Placement:
    """Copies that workers keep of the driver's client states.

    A worker may keep a state only until the driver's is replaced: by the client's next one, by a deletion, or
    by another run's. Then it is stale, and must be forgotten.

    Args:
        states: The driver's client states; only those in a cache have versions.
    """

    def __init__(self, states: MutableMapping[int, ClientState]) -> None:
        self._states = states
        self._held: dict[int, tuple[int, Any]] = {}
        self._proposed: dict[int, int] = {}
        # Clients whose states were left behind on a worker when another one served them.
        self._left: dict[int, list[int]] = {}

    def at(self, client: int) -> int | None:
        """Return the worker that has the client's present state."""
        worker, version = self._held.get(client, (None, None))
        return worker if version is not None and version == self._version(client) else None

    def propose(self, client: int, worker: int) -> None:
        """Note that a worker has made the client's next state, which the driver may keep or not."""
        self._proposed[client] = worker

    def settle(self, client: int) -> None:
        """Note that the driver has kept the proposed state."""
        if client not in self._proposed:
            return
        worker, (before, _) = self._proposed.pop(client), self._held.get(client, (None, None))
        if before is not None and before != worker:
            self._left.setdefault(before, []).append(client)
        self._held[client] = worker, self._version(client)

    def lose(self, clients: Iterable[int]) -> None:
        """Note that workers have dropped the states of some clients."""
        for client in clients:
            self._held.pop(client, None)

    def clear(self) -> None:
        """Note that no worker has a state that counts."""
        for kept in (self._held, self._proposed, self._left):
            kept.clear()

    def stale(self) -> dict[int, list[int]]:
        """Remove what is no longer the driver's; return these clients by worker."""
        found, self._left = self._left, {}
        for client in [client for client in self._held if self.at(client) is None]:
            found.setdefault(self._held.pop(client)[0], []).append(client)
        return found

    def _version(self, client: int) -> Any:
        return self._states.version(client) if isinstance(self._states, StateCache) else None
