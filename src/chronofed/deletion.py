"""Forgetting on request: data and clients that must play no part from some round on."""

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from chronofed.config import Config, Natural
from chronofed.memories import Keepsake
from chronofed.protocol import Locker
from chronofed.scenarios.base import Plan, Visit


class Deletion(Config):
    """A request to forget, carried out before a round and kept for ever after.

    Attributes:
        round: The first round in which nothing of it may be used.
        rows: Training samples, by position.
        clients: Clients, with everything that was kept of or for them.
    """

    round: Natural = 0
    rows: tuple[Natural, ...] = ()
    clients: tuple[Natural, ...] = ()


def without(plan: Plan, deletions: Sequence[Deletion]) -> Plan:
    """A round's plan without what was deleted before it."""
    due = [deletion for deletion in deletions if deletion.round <= plan.round]
    if not due:
        return plan
    rows = [row for deletion in due for row in deletion.rows]
    clients = {client for deletion in due for client in deletion.clients}
    visits = {i: _left(visit, rows) for i, visit in plan.visits.items() if i not in clients}
    return Plan(plan.round, {i: visit for i, visit in visits.items() if visit is not None})


def _left(visit: Visit, rows: Sequence[int]) -> Visit | None:
    """A visit without some rows; ``None`` if it had some and has lost them all."""
    indices = visit.indices[~np.isin(visit.indices, rows)]
    return Visit(indices, visit.key) if len(indices) or not len(visit.indices) else None


def apply_deletions(lockers: MutableMapping[int, Locker], due: Sequence[Deletion]) -> None:
    """Remove deleted samples and clients from what clients keep."""
    rows = torch.tensor([row for deletion in due for row in deletion.rows], dtype=torch.int64)
    gone = {client for deletion in due for client in deletion.clients}
    for client in list(lockers):  # one locker at a time: they may not all fit into memory
        if client in gone:
            del lockers[client]
        elif len(rows):
            _delete_rows(lockers, client, rows)


def _delete_rows(lockers: MutableMapping[int, Locker], client: int, rows: torch.Tensor) -> None:
    locker = lockers[client]
    left = tuple(k for k in (without_rows(k, rows) for k in locker.kept) if k is not None)
    if list(map(id, left)) != list(map(id, locker.kept)):
        lockers[client] = replace(locker, kept=left)


def without_rows(keepsake: Keepsake, rows: torch.Tensor) -> Keepsake | None:
    """A keepsake without some samples; ``None`` if nothing is left of it."""
    if torch.isin(keepsake.record.get("sources", rows[:0]), rows).any():
        return None  # made of all of them together
    if "rows" not in keepsake.record or not len(rows):
        return keepsake
    stay = ~torch.isin(keepsake.record["rows"], rows)
    if stay.all():
        return keepsake
    if not stay.any():
        return None
    return replace(keepsake, record={name: t[stay] for name, t in keepsake.record.items()})
