"""A scenario in a few numbers, for those who look at a run when its data are not at hand."""

from typing import Any

import numpy as np

from chronofed.scenarios.base import Indices, Scenario
from chronofed.tasks.dataset import Dataset

ROUNDS = 40  # columns that fit on a page
CLIENTS = 24  # rows that fit on a page
NAMES = 1000  # clients that are called by their names
ENDLESS = 10**9  # rounds that nobody will see
KINDS = 12  # classes listed for one client and round, the most frequent first


def describe(scenario: Scenario, data: Dataset, rounds: int) -> dict[str, Any]:
    """Who holds how many samples of which class, in rounds spread evenly over the run.

    Returns:
        ``rounds`` of the run, ``clients`` of the scenario, whether they are ``returning``, their ``classes``,
        the rounds ``shown``, and ``held``: for every client shown, for every round shown, the data set's key
        and ``[class, samples]`` of its most frequent classes, or null for a client that is not there; no
        classes where the clients' data are ``elsewhere``. Where the data name their clients and periods,
        ``client_names`` and ``period_names``.
    """
    last = rounds if rounds < ENDLESS else ROUNDS  # of a run without end, the first ones
    shown = sorted({round(k) for k in np.linspace(0, last - 1, min(last, ROUNDS))})
    columns = [_visits(scenario, round_) for round_ in shown]
    everyone = scenario.clients if scenario.persistent else max(map(len, columns), default=0)
    labels, kinds = data.labels, len(data.classes)

    def cell(held: tuple[int, Indices] | None) -> list[Any] | None:
        if held is None:
            return None
        counts = np.bincount(labels[held[1]], minlength=kinds)
        most = np.argsort(-counts, kind="stable")[:KINDS]
        return [held[0], [[int(c), int(counts[c])] for c in most if counts[c]]]

    names = {}
    origin = (
        None if scenario.elsewhere else data.origin
    )  # of test data it says nothing about clients
    if origin is not None and len(origin.clients) <= NAMES:
        names = {"client_names": list(origin.clients), "period_names": list(origin.periods)}
    return names | {
        "rounds": rounds,
        "clients": everyone,
        "returning": scenario.persistent,
        "elsewhere": scenario.elsewhere,
        "classes": list(data.classes),
        "shown": shown,
        "held": [
            [cell(column.get(client)) for column in columns]
            for client in range(min(everyone, CLIENTS))
        ],
    }


def _visits(scenario: Scenario, round_: int) -> dict[int, tuple[int, Indices]]:
    """What each client holds; where none comes back, the first, second, ... one of the round."""
    visits = scenario.at(round_).visits
    names = visits if scenario.persistent else range(len(visits))
    return {n: (visit.key, visit.indices) for n, visit in zip(names, visits.values(), strict=True)}
