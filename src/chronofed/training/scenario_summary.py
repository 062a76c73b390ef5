"""A scenario in a few numbers, for readers of a run who do not have its data."""

from typing import Any

import numpy as np

from chronofed.core.names import Names
from chronofed.data.dataset import Dataset
from chronofed.scenarios.base import Indices, Scenario

# Columns and rows that fit on a page.
ROUNDS = 40
CLIENTS = 24
# Clients up to which their names are recorded.
NAMES = 1000
# Clients whose presence is recorded.
ROWS = 400
# A run of more rounds than this has no end.
ENDLESS = 10**9
# Classes listed for one client and round, the most frequent first.
CLASSES = 12
# Key and samples of each client that is there.
Held = dict[int, tuple[int, Indices]]


def describe(scenario: Scenario, data: Dataset, rounds: int) -> dict[str, Any]:
    """Tabulate who holds how many samples of which class, in rounds spread evenly over the run.

    Returns:
        ``rounds`` of the run, ``clients`` of the scenario, if they are ``returning``, their ``classes``, the
        rounds ``shown``, and ``held``: for every client shown, for every round shown, the data set's key and
        ``[class, samples]`` of its most frequent classes, or null for a client that does not take part; no
        classes where the clients' data are ``remote``. Of many clients: ``there``, a text of 0 and 1 for every
        client, a digit for every round shown, and ``mix``, the samples of each class in every round shown, of
        all clients together. Where the clients and data sets are those of the data, and have names there,
        ``client_names`` and ``period_names``.
    """
    # Of a run without end, the first ones.
    last = rounds if rounds < ENDLESS else ROUNDS
    shown = sorted({round(k) for k in np.linspace(0, last - 1, min(last, ROUNDS))})
    columns = [_visits(scenario, round_) for round_ in shown]
    everyone = scenario.clients if scenario.persistent else max(map(len, columns), default=0)
    labels, kinds = data.labels, len(data.groups)

    def cell(held: tuple[int, Indices] | None) -> list[Any] | None:
        if held is None:
            return None
        counts = np.bincount(labels[held[1]], minlength=kinds)
        most = np.argsort(-counts, kind="stable")[:CLASSES]
        return [held[0], [[int(c), int(counts[c])] for c in most if counts[c]]]

    found, names = names_of(scenario, data), {}
    if 0 < len(found.clients) <= NAMES:
        names = {"client_names": list(found.clients), "period_names": list(found.periods)}
    return names | {
        "rounds": rounds,
        "clients": everyone,
        "returning": scenario.persistent,
        "remote": scenario.remote,
        "classes": list(data.groups),
        "shown": shown,
        "held": [
            [cell(column.get(client)) for column in columns]
            for client in range(min(everyone, CLIENTS))
        ],
        "there": [
            "".join(str(int(client in column)) for column in columns)
            for client in range(min(everyone, ROWS))
        ],
        "mix": [_mix(column, labels, kinds) for column in columns],
    }


def _mix(held: Held, labels: Indices, kinds: int) -> list[int]:
    """Count the samples of each class that all clients of a round hold together."""
    parts = [labels[indices] for _, indices in held.values()]
    found: list[int] = np.bincount(np.concatenate(parts or [labels[:0]]), minlength=kinds).tolist()
    return found


def names_of(scenario: Scenario, data: Dataset) -> Names:
    """Return the names of a scenario's clients and data sets, where they are those of the data.

    A scenario that splits the rows in another way has other clients than the table. Where clients are remote,
    the data here are test data, which do not name the clients.
    """
    origin = data.origin
    if origin is None or scenario.remote or not getattr(scenario.stream, "follows_origin", False):
        return Names(returning=scenario.persistent)
    return Names(origin.clients, origin.periods, scenario.persistent)


def _visits(scenario: Scenario, round_: int) -> Held:
    """Return key and samples of each client; where none comes back, of the first, second, ... of the round."""
    visits = scenario.at(round_).visits
    names = visits if scenario.persistent else range(len(visits))
    return {n: (visit.key, visit.indices) for n, visit in zip(names, visits.values(), strict=True)}
