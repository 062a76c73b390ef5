"""The data that a page shows of some runs, as plain data: the report embeds it, the live page fetches it.

Every section of a page has a builder in :data:`SECTIONS` and a part of the same name in ``web/sections.js``.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from chronofed.reports.best import best_rows
from chronofed.reports.curve_tables import curve_tables, finite, short
from chronofed.reports.downsample import evenly_spaced
from chronofed.reports.groups import Group, differences, measures_of
from chronofed.reports.notes import counted, notes
from chronofed.reports.overview import data_name, overview
from chronofed.reports.period_history import PeriodHistory, encoded
from chronofed.reports.phases import phase_table
from chronofed.reports.result_columns import result_columns
from chronofed.reports.results_table import results_table
from chronofed.reports.runs import RunView, flatten, method_of, remembers
from chronofed.reports.styles import StyleKey, styles_of
from chronofed.training.measure import Column, MeasureDisplay

# Cells and rows of all period tables together.
CELLS = 50_000
PAIRS = 12_000
COLUMNS_OF_WEIGHTS, LEAST_OF_WEIGHTS = 60, 12
# Numbers of all tables of weights together, and the fewest data sets that are told apart.
WEIGHTS, LEAST_PAST = 60_000, 3
# Columns and rows of a table of several models.
COLUMNS_OF_CLUSTERS = 120
CLIENTS_OF_CLUSTERS = 100
# Bytes of all scenarios together.
SCENARIO_BYTES = 130_000


@dataclass(frozen=True)
class Page:
    """The experiments of a page, and what several sections need of them.

    Attributes:
        groups: The experiments.
        known_styles: Styles that were given before, as on a live page.
    """

    groups: Sequence[Group]
    known_styles: Mapping[StyleKey, int] | None = None

    @property
    def runs(self) -> list[tuple[int, RunView]]:
        """All runs, each with the number of its experiment."""
        return [(number, run) for number, group in enumerate(self.groups) for run in group.runs]

    @property
    def first_runs(self) -> list[tuple[int, RunView]]:
        """The first run of every experiment."""
        return [(number, group.runs[0]) for number, group in enumerate(self.groups) if group.runs]

    @cached_property
    def measures(self) -> tuple[MeasureDisplay, ...]:
        """All measures that the runs may have."""
        return measures_of(self.groups)

    def label(self, number: int, run: RunView) -> str:
        """Name a run; experiments that share a name are told apart as in the table."""
        group = self.groups[number]
        if group.experiment in ("", run.name):
            return run.label
        return f"{group.name}, seed {run.spec.get('seed', 0)}" if group.finished else group.name

    def periods(self, run: RunView) -> PeriodHistory:
        """Return the accuracy by client and data set of a run, read once."""
        if run.path not in self._histories:
            self._histories[run.path] = run.periods()
        return self._histories[run.path]

    @cached_property
    def _histories(self) -> dict[Path, PeriodHistory]:
        return {}

    @cached_property
    def scenarios(self) -> list[dict[str, Any]]:
        """The different scenarios, each with its runs."""
        known: dict[str, dict[str, Any]] = {}
        for number, run in self.runs:
            about = run.directory.scenario()
            if about:
                entry = known.setdefault(str(about), {**about, "of": [], "labels": []})
                entry["of"].append(_run_id(number, run))
                entry["labels"].append(self.label(number, run))
        return list(known.values())


def build_payload(
    found: Sequence[Group], title: str, known_styles: Mapping[StyleKey, int] | None = None
) -> dict[str, Any]:
    """Build everything that a page shows of some experiments."""
    page = Page(found, known_styles)
    payload = {"title": title, "subtitle": _subtitle(found)}
    for build in SECTIONS.values():
        payload |= build(page)
    return payload


def _subtitle(found: Sequence[Group]) -> str:
    runs = [run for group in found for run in group.runs]
    data = sorted({data_name(run.spec) for run in runs})
    experiments = len({group.experiment or group.name for group in found})
    counts = f"{counted(experiments, 'experiment')}, {counted(len(runs), 'run')}"
    return f"{counts} on {', '.join(data)}" if data else counts


def _overview(page: Page) -> dict[str, Any]:
    """The first screen."""
    return {"overview": overview(page.groups, page.periods)}


def _summary(page: Page) -> dict[str, Any]:
    """The table of experiments, and the same numbers for a paper."""
    shown = result_columns(page.groups)
    measured = [c for c in shown if any(group.spread(c.key) for group in page.groups)]
    best = best_rows(page.groups, measured)
    table = results_table(page.groups)
    keys = ("key", "heading", "digits", "better", "scale")
    return {
        "columns": [{key: getattr(column, key) for key in keys} for column in shown],
        "groups": [
            _row(group, measured) | {"style": style}
            for group, style in zip(
                page.groups, styles_of(page.groups, page.known_styles), strict=True
            )
        ],
        "best": best,
        "notes": notes(page.groups, measured, best),
        "downloads": {"csv": table.csv(), "tex": table.latex()},
    }


def _row(group: Group, measured: Sequence[Column]) -> dict[str, Any]:
    return {
        "name": group.name,
        "method": method_of(group.runs[0].spec),
        "remembers": remembers(group.runs[0].spec),
        "runs": [
            {
                "seed": run.spec.get("seed", 0),
                "state": run.state,
                "round": int(run.summary.get("rounds", 0)),
                "path": run.path.name,
                "failure": run.directory.failure(),
            }
            for run in group.runs
        ],
        "size": group.size,
        "cells": {
            column.key: {"text": group.text(column), "mean": finite(found.mean)}
            for column in measured
            if (found := group.spread(column.key)) is not None
        },
    }


def _curves(page: Page) -> dict[str, Any]:
    """Curves by measure."""
    return {"measures": curve_tables(page.groups, page.measures)}


def _forgetting(page: Page) -> dict[str, Any]:
    """Accuracy by client and data set, and the number of runs for which there was no room.

    Where there is too much for a page, only the first run of every experiment is shown, or the first few.
    """
    found = [(number, run, page.periods(run)) for number, run in page.runs]
    found = [entry for entry in found if entry[2].pairs]
    total = len(found)
    if sum(len(history.pairs) for _, _, history in found) > PAIRS:
        first = {id(run) for _, run in page.first_runs}
        found = [entry for entry in found if id(entry[1]) in first]
    while len(found) > 1 and sum(len(history.pairs) for _, _, history in found) > PAIRS:
        found.pop()
    pairs = sum(len(history.pairs) for _, _, history in found)
    most = max(2, min(200, CELLS // max(1, pairs)))
    tables = [_periods(page, number, run, history, most) for number, run, history in found]
    return {"periods": tables, "periods_left_out": total - len(tables)}


def _periods(
    page: Page, number: int, run: RunView, history: PeriodHistory, most: int
) -> dict[str, Any]:
    """The accuracies of one run at ``most`` evaluations."""
    rounds, now, best = history.downsample(most)
    met = [k for k, about in enumerate(page.scenarios) if _run_id(number, run) in about["of"]]
    about = page.scenarios[met[-1]] if met else {}
    names = ("classes", "client_names", "period_names")
    return {
        "group": number,
        "label": page.label(number, run),
        "scenario": met[-1] if met else None,
        "names": {key: about[key] for key in names if key in about},
        "basis": history.basis,
        "followed": history.followed,
        "seen": history.seen,
        "rounds": rounds,
        "pairs": [number for pair in history.pairs for number in pair],
        "held": [_class_shares(history.held.get(pair, [])) for pair in history.pairs],
        "tested": [history.tested.get(pair) for pair in history.pairs],
        "accuracy": encoded(now),
        "best": encoded(best),
    }


def _class_shares(held: list[list[float]]) -> list[int]:
    """Classes and their shares in per cent, one after the other."""
    return [number for kind, share in held for number in (int(kind), round(100 * share))]


def _weights(page: Page) -> dict[str, Any]:
    """Round weights over time of the first run of every experiment, newest past first.

    Where there are many, fewer rounds are shown, and then fewer data sets apart from the older ones.
    """
    records = [(number, run, run.record("round_weights")) for number, run in page.first_runs]
    found = [entry for entry in records if entry[2]]
    room = WEIGHTS // max(1, len(found))
    depth = max((len(line["past"]) for _, _, lines in found for line in lines[-1:]), default=0)
    most = min(COLUMNS_OF_WEIGHTS, max(LEAST_OF_WEIGHTS, room // max(1, depth)))
    apart = max(LEAST_PAST, room // most)
    return {"weights": [_weights_of(page, *entry, most, apart) for entry in found]}


def _weights_of(
    page: Page, number: int, run: RunView, lines: list[dict[str, Any]], most: int, apart: int
) -> dict[str, Any]:
    chosen = [lines[k] for k in evenly_spaced(len(lines), most)]
    return {
        "group": number,
        "label": page.label(number, run),
        "rounds": [line["round"] for line in chosen],
        "present": [short(line["present"]) for line in chosen],
        "past": [[short(p) for p in line["past"][:apart]] for line in chosen],
        "older": [short(line["older"] + sum(line["past"][apart:])) for line in chosen],
    }


def _clusters(page: Page) -> dict[str, Any]:
    """The model that each client followed over time, of the first run of experiments with several models."""
    records = [(number, run, run.record("clusters")) for number, run in page.first_runs]
    return {"clusters": [_clusters_of(page, *entry) for entry in records if entry[2]]}


def _clusters_of(
    page: Page, number: int, run: RunView, lines: list[dict[str, Any]]
) -> dict[str, Any]:
    chosen = [lines[k] for k in evenly_spaced(len(lines), COLUMNS_OF_CLUSTERS)]
    return {
        "group": number,
        "label": page.label(number, run),
        "names": run.directory.scenario().get("client_names", [])[:CLIENTS_OF_CLUSTERS],
        "clients": len(lines[-1]["of"]),
        "rounds": [line["round"] for line in chosen],
        "models": [len(line["models"]) for line in chosen],
        "of": [line["of"][:CLIENTS_OF_CLUSTERS] for line in chosen],
    }


def _run_id(number: int, run: RunView) -> str:
    return f"{number}:{run.spec.get('seed', 0)}"


def _scenario(page: Page) -> dict[str, Any]:
    """The first scenarios, as many as a page has room for."""
    sizes = np.cumsum([len(json.dumps(about)) for about in page.scenarios])
    most = max(1, int(np.searchsorted(sizes, SCENARIO_BYTES)))
    return {"scenarios": page.scenarios[:most], "scenarios_in_all": len(page.scenarios)}


def _sweep(page: Page) -> dict[str, Any]:
    """The settings that differ, with their value in every experiment."""
    found = differences(page.groups)
    return {
        "differences": {key: [_text(value) for value in values] for key, values in found.items()}
    }


def _settings(page: Page) -> dict[str, Any]:
    """All settings."""
    return {"settings": [_texts(flatten(group.runs[0].spec)) for group in page.groups]}


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in values.items()}


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return str(value)


def _environment(page: Page) -> dict[str, Any]:
    """The different machines and versions, each with its runs."""
    known: dict[str, dict[str, Any]] = {}
    for number, run in page.runs:
        about = flatten(run.directory.environment())
        command = about.pop("command", None)
        entry = known.setdefault(str(about), {"about": _texts(about), "of": [], "commands": []})
        entry["of"].append(page.label(number, run))
        if command and " ".join(map(str, command)) not in entry["commands"]:
            entry["commands"].append(" ".join(map(str, command)))
    return {"environments": list(known.values())}


def _times(page: Page) -> dict[str, Any]:
    """Seconds by phase of every experiment, mean over its runs."""
    return {"times": phase_table(page.groups)}


SECTIONS: dict[str, Callable[[Page], dict[str, Any]]] = {
    "overview": _overview,
    "forgetting": _forgetting,
    "sweep": _sweep,
    "summary": _summary,
    "curves": _curves,
    "scenario": _scenario,
    "weights": _weights,
    "times": _times,
    "clusters": _clusters,
    "settings": _settings,
    "environment": _environment,
}
"""Builders of the sections, each with the keys of the payload that its part of the page reads."""
