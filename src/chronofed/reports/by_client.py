"""Results by client and by class over time, from the records of runs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.names import Names
from chronofed.reports.downsample import evenly_spaced
from chronofed.reports.groups import Group
from chronofed.reports.period_history import LEVELS, UNSEEN, PeriodHistory, encoded
from chronofed.reports.runs import RunView
from chronofed.reports.spread import rounded

# Columns and rows of a map of classes, and clients of a strip.
MOST_TIMES = 40
MOST_CLASSES = 100
MOST_CLIENTS = 400
Cells = dict[int, dict[int, float]]
Periods = Callable[[RunView], PeriodHistory]


def by_client(run: RunView, periods: Periods = RunView.periods) -> tuple[str, dict[int, float]]:
    """Compute the accuracy of every client, and say what it is measured on.

    On the next period it is the share of all forecasts of the run; else the mean over a client's data sets
    after the last round, weighted by their test rows where those are its own.
    """
    lines = run.record("breakdown")
    if any("period" in line for line in lines):
        return "next period, all forecasts of the run", _forecasts(lines)
    history = periods(run)
    if history.pairs:
        _, now, _ = history.downsample(2)
        own = history.basis == "rows"
        about = "its own test rows" if own else "the classes it held, in the common test set"
        weights = [history.tested.get(pair, 1) if own else 1 for pair in history.pairs]
        return f"{about}, after the last round", _means(history.pairs, now[-1], weights)
    if lines and lines[-1].get("clients"):
        last = lines[-1]
        return "after the last round", {c: value for c, _, value in last["clients"]}
    return "", {}


def _forecasts(lines: Iterable[dict[str, Any]]) -> dict[int, float]:
    rows: dict[int, float] = defaultdict(float)
    right: dict[int, float] = defaultdict(float)
    for line in lines:
        for client, count, accuracy in line.get("clients", ()):
            rows[client] += count
            right[client] += count * accuracy
    return {client: right[client] / count for client, count in rows.items() if count}


def _means(
    pairs: Sequence[tuple[int, int]], levels: NDArray[np.uint16], weights: Sequence[int]
) -> dict[int, float]:
    found: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for (client, _), level, weight in zip(pairs, levels.tolist(), weights, strict=True):
        if level != UNSEEN:
            found[client].append((level / LEVELS, weight))
    return {
        client: sum(value * weight for value, weight in values) / sum(w for _, w in values)
        for client, values in found.items()
        if sum(weight for _, weight in values)
    }


def client_rows(groups: Sequence[Group], periods: Periods = RunView.periods) -> dict[str, Any]:
    """Tabulate the accuracy of every client of every experiment, and name the worst.

    Clients with names are the same in every run, so that a dot is the mean over seeds. Others are drawn by each
    seed anew, and every run has dots of its own.
    """
    rows, abouts = [], set()
    for place, group in enumerate(groups):
        values: dict[str, list[float]] = defaultdict(list)
        for run in group.runs:
            names = Names.recorded(run.directory.scenario())
            about, found = by_client(run, periods)
            seed = "" if names.clients or len(group.runs) == 1 else f", seed {run.spec['seed']}"
            for client, accuracy in sorted(found.items()):
                values[f"{names.client(client)}{seed}"].append(accuracy)
            abouts |= {about} - {""}
        if values:
            means = [(name, fmean(several)) for name, several in values.items()]
            worst = min(means, key=lambda each: each[1])
            rows.append({
                "group": place, "values": [[n, _percent(v)] for n, v in means[:MOST_CLIENTS]],
                "clients": len(means), "worst": [worst[0], _percent(worst[1]), rounded(worst[1], 1, 100.0)],
            })  # fmt: skip
    return {"about": "; ".join(sorted(abouts)), "rows": rows}


def _percent(share: float) -> float:
    return float(f"{100 * share:.4g}")


def recalls(run: RunView, periods: Periods = RunView.periods) -> Cells:
    """Compute the recall of every class by round, as far as records have it.

    Without a record of classes it is the accuracy on a data set that holds one class alone.
    """
    lines = [line for line in run.record("breakdown") if "classes" in line]
    if lines:
        return {
            int(line["round"]): {
                k: recall for k, (_, recall, _, rows) in enumerate(line["classes"]) if rows
            }
            for line in lines
        }
    history = periods(run)
    if history.basis != "classes":
        return {}
    pure = {pair: int(held[0][0]) for pair, held in history.held.items() if len(held) == 1}
    rounds, now, _ = history.downsample(len(history.rounds))
    found: Cells = {}
    for round_, levels in zip(rounds, now.tolist(), strict=True):
        known = zip(history.pairs, levels, strict=True)
        found[round_] = {
            pure[pair]: level / LEVELS for pair, level in known if pair in pure and level != UNSEEN
        }
    return found


def class_maps(groups: Sequence[Group], periods: Periods = RunView.periods) -> dict[str, Any]:
    """Tabulate the recall of every class over rounds, mean over the runs of each experiment."""
    tables = {k: [recalls(run, periods) for run in group.runs] for k, group in enumerate(groups)}
    tables = {k: [table for table in runs if table] for k, runs in tables.items()}
    every = sorted({round_ for runs in tables.values() for table in runs for round_ in table})
    rounds = [every[k] for k in evenly_spaced(len(every), MOST_TIMES)]
    kinds = {k for runs in tables.values() for t in runs for cells in t.values() for k in cells}
    count = min(MOST_CLASSES, max(kinds, default=-1) + 1)
    names = next((s.get("classes") for g in groups for r in g.runs if (s := _about(r))), None) or []
    return {
        "classes": [_class_name(names, k) for k in range(count)],
        "rounds": rounds,
        "maps": [
            {"group": place, "values": encoded(_mean_map(runs, rounds, count))}
            for place, runs in tables.items()
            if runs and count
        ],
    }


def _class_name(names: Sequence[object], k: int) -> str:
    """Return the name of a class; a number alone would not say that it is one."""
    name = str(names[k]) if k < len(names) else str(k)
    return f"class {name}" if name.isdigit() else name


def _about(run: RunView) -> dict[str, Any]:
    return run.directory.scenario()


def _mean_map(tables: Sequence[Cells], rounds: Sequence[int], count: int) -> NDArray[np.uint16]:
    """Average over runs: hundredths of a per cent, ``(classes, rounds)``."""
    levels = np.full((count, len(rounds)), UNSEEN, dtype=np.uint16)
    for row, column in np.ndindex(count, len(rounds)):
        cells = (table.get(rounds[column], {}) for table in tables)
        found = [cell[row] for cell in cells if row in cell]
        if found:
            levels[row, column] = round(LEVELS * fmean(found))
    return levels
