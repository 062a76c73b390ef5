"""What a page shows of some runs, as plain data: the report embeds it, the live page asks for it."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from chronofed.reports.terminal import COLUMNS
from chronofed.reports.thin import Numbers, spread, thin
from chronofed.reports.view import Group, RunView, differences, flatten, method_of

MEASURES = (  # key, title, unit
    ("test_accuracy", "Accuracy on the test set", "%"),
    ("seen_accuracy", "Accuracy on training data seen so far", "%"),
    ("forgetting", "Forgetting", "%"),
    ("test_loss", "Loss on the test set", ""),
    ("seen_loss", "Loss on training data seen so far", ""),
    ("information_loss", "Information loss", ""),
    ("client_drift", "Client drift G²", ""),
    ("time_drift", "Time drift D²", ""),
    ("estimated_information_loss", "Information loss, estimated while training", ""),
    ("estimated_client_drift", "Client drift, estimated while training", ""),
    ("estimated_time_drift", "Time drift, estimated while training", ""),
    ("personal_accuracy", "Accuracy of personal models", "%"),
    ("client_accuracy", "Accuracy of the global model on clients' own classes", "%"),
)
POINTS = 24_000  # of all curves together: half a megabyte at most
MOST_POINTS = 600  # of one curve: more than a screen can show
CELLS = 80_000  # of all period tables together
PAIRS = 9_000  # of all period tables together
COLUMNS_OF_WEIGHTS = 60
SCENARIO_BYTES = 130_000  # of all scenarios together


def build(found: Sequence[Group], title: str) -> dict[str, Any]:
    """Everything that a page shows of some experiments."""
    runs = [(number, run) for number, group in enumerate(found) for run in group.runs]
    scenarios = _scenarios(runs)
    tables, left_out = _periods(runs, scenarios)
    return {
        "title": title,
        "subtitle": _subtitle(found),
        "columns": [
            {"key": c.key, "heading": c.heading, "digits": c.digits, "better": c.better}
            for c in COLUMNS
        ],
        "groups": [_group(group) for group in found],
        "measures": _measures(found),
        "periods": tables,
        "periods_left_out": left_out,
        "weights": [_weights(n, run) for n, run in _first(runs) if run.weights()],
        "scenarios": _fitting(scenarios),
        "scenarios_in_all": len(scenarios),
        "differences": {key: _shown(values) for key, values in differences(found).items()},
        "settings": [_shown(flatten(group.runs[0].spec)) for group in found],
        "environments": _environments(runs),
    }


def _shown(values: Any) -> Any:  # noqa: ANN401 - settings as text, whatever they are
    if isinstance(values, dict):
        return {key: _text(value) for key, value in values.items()}
    return [_text(value) for value in values]


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return str(value)


def _subtitle(found: Sequence[Group]) -> str:
    runs = [run for group in found for run in group.runs]
    data = sorted({_data_name(run.spec) for run in runs})
    counts = f"{_many(len(found), 'experiment')}, {_many(len(runs), 'run')}"
    return f"{counts} on {', '.join(data)}" if data else counts


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _data_name(spec: dict[str, Any]) -> str:
    data = spec.get("data", {})
    name = data.get("name") or str(data.get("path", "data")).rsplit("/", 1)[-1]
    return str(name)


def _group(group: Group) -> dict[str, Any]:
    """A row of the table."""
    rounds = [int(run.summary.get("rounds", 0)) for run in group.runs]
    cells = {}
    for column in COLUMNS:
        pair = group.mean_and_deviation(column.key)
        if pair is not None:
            cells[column.key] = [_short(column.scale * value) for value in pair]
    return {
        "name": group.name,
        "method": method_of(group.runs[0].spec),
        "runs": [
            {
                "seed": run.spec.get("seed", 0),
                "state": run.state,
                "round": done,
                "path": run.path.name,
                "failure": run.directory.failure(),
            }
            for run, done in zip(group.runs, rounds, strict=True)
        ],
        "rounds": max(rounds),
        "cells": cells,
    }


def _measures(found: Sequence[Group]) -> list[dict[str, Any]]:
    """Curves by measure: rounds, means and deviations of every group, thinned to what can be seen."""
    there = {key for group in found for run in group.runs for key in _keys(run)}
    shown = [measure for measure in MEASURES if measure[0] in there]
    most = min(MOST_POINTS, max(40, POINTS // max(1, len(shown) * len(found))))
    return [
        {
            "key": key,
            "title": title,
            "unit": unit,
            "curves": [_curve(group, key, 100.0 if unit == "%" else 1.0, most) for group in found],
        }
        for key, title, unit in shown
    ]


def _keys(run: RunView) -> set[str]:
    """Measures of a run; the first line may lack some."""
    return {key for line in (*run.history[:1], *run.history[-1:]) for key in line}


def _curve(group: Group, key: str, scale: float, most: int) -> dict[str, Any]:
    rounds, means, deviations = group.bands(key)
    kept = thin(means, most)
    curve = {"x": rounds[kept].astype(int).tolist(), "y": _numbers(scale * means[kept])}
    if len(group.runs) > 1:
        curve["d"] = _numbers(scale * deviations[kept])
    return curve


def _numbers(values: Numbers) -> list[float | None]:
    return [_short(value) for value in values]


def _short(value: float) -> float | None:
    """Five digits are enough for the eye; what is not finite cannot be drawn, or written as JSON."""
    return float(f"{value:.5g}") if np.isfinite(value) else None


def _first(runs: Sequence[tuple[int, RunView]]) -> list[tuple[int, RunView]]:
    """The first run of every group."""
    return list({number: (number, run) for number, run in reversed(runs)}.values())[::-1]


def _periods(
    runs: Sequence[tuple[int, RunView]], scenarios: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """Period tables, and of how many runs they were left out.

    Where there is too much for a page, only the first run of every group has one, or the first few.
    """
    books = [(number, run, run.periods()) for number, run in runs]
    books = [entry for entry in books if entry[2].pairs]
    there = len(books)
    if sum(len(book.pairs) for _, _, book in books) > PAIRS:
        first = {id(run) for _, run in _first(runs)}
        books = [entry for entry in books if id(entry[1]) in first]
    while len(books) > 1 and sum(len(book.pairs) for _, _, book in books) > PAIRS:
        books.pop()
    most = max(2, min(200, CELLS // max(1, sum(len(book.pairs) for _, _, book in books))))
    place = {label: k for k, about in enumerate(scenarios) for label in about["of"]}
    tables = []
    for number, run, book in books:
        rounds, now, best = book.frames(most)
        tables.append(
            {
                "group": number,
                "label": run.label,
                "scenario": place.get(_where(number, run)),
                "names": _names(scenarios, place.get(_where(number, run))),
                "rounds": rounds,
                "pairs": [number for pair in book.pairs for number in pair],
                "held": [_mostly(book.held.get(pair, [])) for pair in book.pairs],
                "accuracy": base64.b64encode(now.tobytes()).decode(),
                "best": base64.b64encode(best.tobytes()).decode(),
            }
        )
    return tables, there - len(tables)


def _mostly(held: list[list[float]]) -> list[int]:
    """Classes and their shares in per cent, one after the other."""
    return [number for kind, share in held for number in (int(kind), round(100 * share))]


def _names(scenarios: Sequence[dict[str, Any]], place: int | None) -> dict[str, Any]:
    """What classes, clients and periods are called."""
    about = {} if place is None else scenarios[place]
    return {key: about[key] for key in ("classes", "client_names", "period_names") if key in about}


def _fitting(scenarios: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first scenarios, as many as a page has room for."""
    sizes = np.cumsum([len(json.dumps(about)) for about in scenarios])
    return list(scenarios[: max(1, int(np.searchsorted(sizes, SCENARIO_BYTES)))])


def _weights(number: int, run: RunView) -> dict[str, Any]:
    """Round weights of a run over time, newest past first."""
    lines = run.weights()
    chosen = [lines[k] for k in spread(len(lines), COLUMNS_OF_WEIGHTS)]
    return {
        "group": number,
        "label": run.label,
        "rounds": [line["round"] for line in chosen],
        "present": [_short(line["present"]) for line in chosen],
        "past": [[_short(p) for p in line["past"]] for line in chosen],
        "older": [_short(line["older"]) for line in chosen],
    }


def _where(number: int, run: RunView) -> str:
    return f"{number}:{run.spec.get('seed', 0)}"


def _scenarios(runs: Sequence[tuple[int, RunView]]) -> list[dict[str, Any]]:
    """The different scenarios, and which runs met them."""
    known: dict[str, dict[str, Any]] = {}
    for number, run in runs:
        about = run.directory.scenario()
        if about:
            entry = known.setdefault(str(about), {**about, "of": [], "labels": []})
            entry["of"].append(_where(number, run))
            entry["labels"].append(run.label)
    return list(known.values())


def _environments(runs: Sequence[tuple[int, RunView]]) -> list[dict[str, Any]]:
    """The different machines and versions, and which runs were made there."""
    known: dict[str, dict[str, Any]] = {}
    for _, run in runs:
        about = flatten(run.directory.environment())
        command = about.pop("command", None)
        entry = known.setdefault(str(about), {"about": _shown(about), "of": [], "commands": []})
        entry["of"].append(run.label)
        if command and " ".join(map(str, command)) not in entry["commands"]:
            entry["commands"].append(" ".join(map(str, command)))
    return list(known.values())
