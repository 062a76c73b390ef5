"""Deletion requests: samples and clients that must not be used from some round on."""

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from chronofed.clients.state import ClientState
from chronofed.core.config import Config, Natural
from chronofed.core.errors import SpecError
from chronofed.core.types import Record
from chronofed.methods.memories import MemoryItem
from chronofed.scenarios.base import Plan, Visit


class Deletion(Config):
    """A request to delete data; it takes effect before a round and holds for ever.

    Attributes:
        round: First round that must not use the deleted data.
        rows: Training samples to delete, by position.
        clients: Clients to delete, with their state and everything that a memory holds of them.
    """

    round: Natural = 0
    rows: tuple[Natural, ...] = ()
    clients: tuple[Natural, ...] = ()


def check_deletions(deletions: Sequence[Deletion], rounds: int) -> None:
    """Refuse a deletion whose round is never reached: its data would stay.

    Raises:
        SpecError: With the number of the deletion.
    """
    for number, deletion in enumerate(deletions):
        if deletion.round >= rounds:
            raise SpecError(
                f"deletions[{number}].round: {deletion.round} is never reached, because the run has {rounds} "
                f"rounds, counted from 0; use {rounds - 1} or less"
            )


def last_deletion(deletions: Sequence[Deletion], done: int) -> int:
    """Return the round of the last deletion that took effect in the first ``done`` rounds; -1 if none did.

    A snapshot after that many rounds, or fewer, may contain deleted data.
    """
    return max((deletion.round for deletion in deletions if deletion.round < done), default=-1)


def without(plan: Plan, deletions: Sequence[Deletion]) -> Plan:
    """Remove deleted samples and clients from a round's plan."""
    due = [deletion for deletion in deletions if deletion.round <= plan.round]
    if not due:
        return plan
    rows = [row for deletion in due for row in deletion.rows]
    clients = {client for deletion in due for client in deletion.clients}
    visits = {i: _without_rows(visit, rows) for i, visit in plan.visits.items() if i not in clients}
    return Plan(plan.round, {i: visit for i, visit in visits.items() if visit is not None})


def _without_rows(visit: Visit, rows: Sequence[int]) -> Visit | None:
    """Remove rows from a visit; return ``None`` if it had rows and has lost them all."""
    indices = visit.indices[~np.isin(visit.indices, rows)]
    return Visit(indices, visit.key) if len(indices) or not len(visit.indices) else None


def apply_deletions(
    client_states: MutableMapping[int, ClientState], due: Sequence[Deletion]
) -> None:
    """Remove deleted samples and clients from client states.

    A backbone's state goes as a whole if its ``sources`` say that it was computed from a deleted sample.
    """
    rows = torch.tensor([row for deletion in due for row in deletion.rows], dtype=torch.int64)
    gone = {client for deletion in due for client in deletion.clients}
    # One client state at a time: they may not all fit into memory.
    for client in list(client_states):
        if client in gone:
            del client_states[client]
        elif len(rows):
            _delete_rows(client_states, client, rows)


def _delete_rows(
    client_states: MutableMapping[int, ClientState], client: int, rows: torch.Tensor
) -> None:
    before = client_state = client_states[client]
    left = tuple(k for k in (without_rows(k, rows) for k in client_state.items) if k is not None)
    if list(map(id, left)) != list(map(id, client_state.items)):
        client_state = replace(client_state, items=left)
    if made_of(client_state.backbone_state, rows):
        client_state = replace(client_state, backbone_state={})
    if client_state is not before:
        client_states[client] = client_state


def made_of(record: Record, rows: torch.Tensor) -> bool:
    """Tell if a record was computed from any of these samples, as its ``sources`` say."""
    return bool(torch.isin(record.get("sources", rows[:0]), rows).any())


def without_rows(item: MemoryItem, rows: torch.Tensor) -> MemoryItem | None:
    """Remove samples from an item; return ``None`` if nothing is left.

    An item that was computed from several samples together (``sources``) goes as a whole. One of a
    ``reservoir`` stays without samples: a uniform sample of all data must know how many it was drawn from.
    """
    if made_of(item.record, rows):
        return None
    if "rows" not in item.record or not len(rows):
        return item
    stay = ~torch.isin(item.record["rows"], rows)
    if stay.all():
        return item
    if not stay.any():
        return replace(item, record={}) if "reservoir" in item.record else None
    return replace(item, record={name: t[stay] for name, t in item.record.items()})
