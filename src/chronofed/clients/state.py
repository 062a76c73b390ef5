"""The state that a client keeps between rounds, and its only codec.

A file stores a client state in two parts: named tensors (:func:`named_tensors`), and a few integers about every
memory item (:func:`item_metadata`). :func:`assemble` puts both together again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from chronofed.core.types import Record
from chronofed.methods.memories import MemoryItem

ItemMetadata: TypeAlias = list[list[int]]
"""Round, client, key and size of every item."""
OPTIMIZER = "optimizer/"
"""Start of the names of the optimisers' tensors in a file."""


@dataclass(frozen=True, slots=True)
class ClientState:
    """State that stays with a client between rounds.

    Attributes:
        backbone_state: The backbone's state, such as a control variate or a personal model.
        items: Items of a memory that lives on the client.
        optimizer_state: The state of its optimisers, if they are not reset every round.
    """

    backbone_state: Record = field(default_factory=dict)
    items: tuple[MemoryItem, ...] = ()
    optimizer_state: Record = field(default_factory=dict)


def item_metadata(items: Sequence[MemoryItem]) -> ItemMetadata:
    """Return everything about some items but their tensors."""
    return [[item.round, item.client, item.key, item.size] for item in items]


def named_tensors(client_state: ClientState) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a client state with their names in a file."""
    for name, tensor in client_state.backbone_state.items():
        yield f"backbone/{name}", tensor
    for name, tensor in client_state.optimizer_state.items():
        yield f"{OPTIMIZER}{name}", tensor
    for k, item in enumerate(client_state.items):
        for name, tensor in item.record.items():
            yield f"items/{k}/{name}", tensor


def assemble(metadata: ItemMetadata, tensors: Record) -> ClientState:
    """Rebuild a client state from :func:`item_metadata` and :func:`named_tensors`."""
    state: dict[str, Tensor] = {}
    optimizer_state: dict[str, Tensor] = {}
    records: list[dict[str, Tensor]] = [{} for _ in metadata]
    for name, tensor in tensors.items():
        kind, _, key = name.partition("/")
        if kind == "backbone":
            state[key] = tensor
        elif name.startswith(OPTIMIZER):
            optimizer_state[key] = tensor
        else:
            number, _, key = key.partition("/")
            records[int(number)][key] = tensor
    return ClientState(state, tuple(map(assemble_item, metadata, records)), optimizer_state)


def assemble_item(metadata: list[int], record: Record) -> MemoryItem:
    """Rebuild one item from its metadata and its tensors."""
    round_, client, key, size = metadata
    return MemoryItem(round_, client, key, size, record)


def join_records(client_state: ClientState) -> Record:
    """Return all tensors but those of memory items in one record."""
    optimizer_state = {f"{OPTIMIZER}{name}": t for name, t in client_state.optimizer_state.items()}
    return {**client_state.backbone_state, **optimizer_state}


def split_records(record: Record, items: tuple[MemoryItem, ...]) -> ClientState:
    """Rebuild a client state from :func:`join_records` and its items."""
    backbone_state = {name: t for name, t in record.items() if not name.startswith(OPTIMIZER)}
    optimizer_state = {
        name.removeprefix(OPTIMIZER): t for name, t in record.items() if name not in backbone_state
    }
    return ClientState(backbone_state, items, optimizer_state)
