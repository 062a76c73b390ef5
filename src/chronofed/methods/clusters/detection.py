"""The states of every client's detector in one record: their lengths differ."""

from collections.abc import Sequence

import torch
from torch import Tensor

from chronofed.core.types import Record

STATE = "detector_"
SIZES = "_sizes"


def store_states(own: dict[str, Tensor], states: Sequence[Record]) -> None:
    """Write the states of all clients, one after the other."""
    for name in states[0] if states else ():
        parts = [state[name] for state in states]
        own[STATE + name] = torch.cat(parts)
        own[STATE + name + SIZES] = torch.tensor([len(part) for part in parts])


def detector_states(own: dict[str, Tensor]) -> list[Record]:
    """Read the states of all clients."""
    names = [n for n in own if n.startswith(STATE) and not n.endswith(SIZES)]
    parts = {
        name.removeprefix(STATE): torch.split(own[name], own[name + SIZES].tolist())
        for name in names
    }
    clients = len(next(iter(parts.values()), ()))
    return [{name: part[i] for name, part in parts.items()} for i in range(clients)]
