"""The contract of an assignment of clients to models."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from torch import Tensor

from chronofed.core.config import Kind
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Uploads
from chronofed.methods.clusters.table import Table, place_of
from chronofed.methods.local import Local

NewState: TypeAlias = Callable[[Record], Record]
"""Makes the inner backbone's server state of a new model, from that of the model which it is a copy of."""


class Assignment(Kind):
    """Says which client follows which model: settings and pure functions over records.

    The server's table (:class:`~chronofed.methods.clusters.table.Table`) has entries of the assignment's own,
    which clients see only as far as :meth:`question` and :meth:`told` send them. In every round: ``draw``; if
    it ``asks``, ``question`` and ``answer`` by every client, and ``decide``; training; ``learn``.
    """

    stateful: ClassVar[bool] = True
    """Clients must come back, since they keep the number of the model that they follow."""
    asks: ClassVar[bool] = False
    """True if every round begins with an exchange in which clients answer, and so by name."""
    upload_keys: ClassVar[tuple[str, ...]] = ()
    """The entries of uploads that it adds, but for whole numbers."""
    reference: ClassVar[str] = ""
    """The paper that introduced the method."""

    def init(self, models: int, clients: int) -> Record:
        """Return its first entries of the table."""
        return {}

    def enrol(self, own: dict[str, Tensor], clients: int) -> None:
        """Adapt its entries to another number of clients."""

    def forget(self, own: dict[str, Tensor], client: int) -> None:
        """Remove what its entries hold of a client."""

    def draw(self, own: dict[str, Tensor], seed: int) -> None:
        """Add randomness to its entries, if it needs any."""

    def place(self, server: Record, client: int | None) -> int:
        """Return the place of the model that a client trains in this round."""
        if client is None:
            raise TypeError("an assignment by client needs the client's name")
        return place_of(server, client)

    def question(self, server: Record, client: int) -> Record:
        """Return what a client is sent besides its model, in the exchange that begins a round."""
        return {}

    def answer(self, server: Record, local: Local, models: int) -> Record:
        """Return a client's upload in that exchange; ``models`` is the number of places."""
        return {}

    def decide(self, table: Table, uploads: Uploads, new_state: NewState) -> None:
        """Assign the clients of a round in the table."""

    def told(self, server: Record, client: int) -> Record:
        """Return what a client is sent besides its model for its training."""
        return {}

    def report(self, params: Vector, server: Record, local: Local) -> Record:
        """Return what a client adds to its upload after training."""
        return {}

    @abstractmethod
    def learn(self, table: Table, uploads: Uploads) -> None:
        """Update the table after training."""
