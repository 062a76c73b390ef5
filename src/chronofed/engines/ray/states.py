"""Changes of a client's state: items that both sides have already need not travel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chronofed.clients.state import ClientState
from chronofed.core.types import Record
from chronofed.methods.memories import MemoryItem


@dataclass(frozen=True, slots=True)
class Change:
    """A client's next state, without the items that it had before.

    Attributes:
        state: The next state; of its items only the new ones.
        places: For every item of the next state its position among the old ones, or below 0, ``-1 - k`` for
            the new item *k*.
    """

    state: ClientState
    places: tuple[int, ...]

    @classmethod
    def between(cls, before: ClientState | None, after: ClientState) -> "Change":
        """Compare two states; an item is old if it is the same object."""
        old = {id(item): k for k, item in enumerate(before.items if before else ())}
        new: list[MemoryItem] = []
        places = [_place(item, old, new) for item in after.items]
        return cls(replace(after, items=tuple(new)), tuple(places))

    @property
    def uses_old(self) -> bool:
        """True if the next state has items of the one before."""
        return any(place >= 0 for place in self.places)

    def applied(self, before: Sequence[MemoryItem]) -> ClientState:
        """Return the next state, given the items of the one before."""
        new = self.state.items
        items = tuple(before[k] if k >= 0 else new[-1 - k] for k in self.places)
        return replace(self.state, items=items)


def own(state: ClientState) -> ClientState:
    """Copy a state, which may be a part of a parcel: one tensor that is kept would keep the whole parcel."""
    items = tuple(replace(item, record=own_record(item.record)) for item in state.items)
    return ClientState(own_record(state.backbone_state), items, own_record(state.optimizer_state))


def own_record(record: Record) -> Record:
    """Copy the tensors of a record."""
    return {name: tensor.clone() for name, tensor in record.items()}


def _place(item: MemoryItem, old: dict[int, int], new: list[MemoryItem]) -> int:
    if id(item) in old:
        return old[id(item)]
    new.append(item)
    return -len(new)
