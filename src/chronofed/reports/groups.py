"""Experiments as rows of tables and curves: runs that differ only in the seed, put together."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chronofed.reports.downsample import Numbers
from chronofed.reports.experiment_names import names_by_difference
from chronofed.reports.runs import RunView, flatten
from chronofed.reports.spread import Spread
from chronofed.training.measure import Column, MeasureDisplay, TaskName
from chronofed.training.measures import MEASURES, of_tasks, task_of

# Keys in which repetitions of one experiment may differ.
SAME_RESULT = ("name", "seed", "checkpoint", "card", "track")


@dataclass(frozen=True, slots=True)
class Group:
    """One row of a table: the finished runs of an experiment, or one run that is not finished.

    Attributes:
        name: The row's name.
        runs: Runs that differ only in the seed, each seed once.
        experiment: The experiment's name, which several rows may share; by default the row's.
        seeds: The number of seeds of the experiment, finished or not; by default those of the row.
        copies: Runs that are left out, because another has the same settings and seed.
    """

    name: str
    runs: tuple[RunView, ...]
    experiment: str = ""
    seeds: int | None = None
    copies: tuple[RunView, ...] = ()

    @property
    def finished(self) -> bool:
        """True if all runs of the row are finished."""
        return all(run.state == "finished" for run in self.runs)

    @property
    def rounds(self) -> int:
        """The round of the latest evaluation."""
        return max(map(_rounds, self.runs), default=0)

    @property
    def size(self) -> str:
        """Runs and rounds, such as ``3 x 40``.

        ``2 of 3 x 40`` if a third seed is not finished; ``1 x 12 of 40`` for a run that is not.
        """
        count = len(self.runs)
        runs = f"{count} of {self.seeds}" if self.finished and self.seeds != count else str(count)
        planned = self.runs[0].spec.get("rounds") if self.runs else None
        rounds = str(self.rounds)
        if not self.finished and isinstance(planned, int):
            rounds += f" of {planned}"
        return f"{runs} x {rounds}"

    def by_seed(self, key: str) -> dict[int, float]:
        """Return one number of the summaries by seed."""
        found = {int(run.spec.get("seed", 0)): run.number(key) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, key: str) -> Spread | None:
        """Compute mean and deviation over runs of one number of the summaries; ``None`` if no run has it."""
        return Spread.of(list(self.by_seed(key).values()))

    def text(self, column: Column) -> str:
        """Write mean and deviation of a column as every table shows them; ``-`` if it was not measured."""
        found = self.spread(column.key)
        if found is None:
            return "-"
        return found.text(column.digits, column.scale, expected=len(self.runs))

    def curve(self, key: str) -> list[tuple[int, float, float]]:
        """Compute mean and deviation over runs of one measure, by round."""
        rounds, means, deviations = self.bands(key)
        return [
            (int(r), float(m), float(d)) for r, m, d in zip(rounds, means, deviations, strict=True)
        ]

    def bands(self, key: str) -> tuple[Numbers, Numbers, Numbers]:
        """Compute rounds, means and deviations over runs of one measure; NaN for that of a single value."""
        series = [run.series(key) for run in self.runs]
        rounds = np.unique(np.concatenate([r for r, _ in series]))
        table = np.full((len(series), len(rounds)), np.nan)
        for row, (own, values) in zip(table, series, strict=True):
            row[np.searchsorted(rounds, own)] = values
        known = ~np.isnan(table)
        count = np.maximum(known.sum(0), 1)
        means = np.where(known, table, 0.0).sum(0) / count
        # A loss may be infinite.
        with np.errstate(invalid="ignore"):
            squares = np.where(known, table - means, 0.0) ** 2
        deviations = np.sqrt(squares.sum(0) / np.maximum(count - 1, 1))
        return rounds, means, np.where(count > 1, deviations, np.nan)


def groups(views: Sequence[RunView]) -> list[Group]:
    """Group repetitions into rows.

    Finished runs of one experiment form a row. A run that is not finished has a row of its own: its numbers are
    those of another round, or missing. A seed counts once. Experiments that share a name are told apart by
    the settings in which they differ, or by their directories where those are too many.
    """
    members: dict[str, list[RunView]] = {}
    for view in views:
        members.setdefault(json.dumps(_decisive(view.spec), sort_keys=True), []).append(view)
    experiments = list(members.values())
    names = experiment_names([runs[0] for runs in experiments])
    return [row for name, runs in zip(names, experiments, strict=True) for row in _rows(name, runs)]


def _decisive(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a result depends on."""
    return {key: value for key, value in spec.items() if key not in SAME_RESULT}


def experiment_names(views: Sequence[RunView]) -> list[str]:
    """Name experiments, one run of each: by their names where those differ."""
    names = [view.name for view in views]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, own in enumerate(names) if own == name]
        found = names_by_difference([_decisive(views[place].spec) for place in places])
        before = "" if len(places) == len(views) else f"{name}, "
        for number, place in enumerate(places):
            other = f"{name} ({views[place].path.name})"
            names[place] = f"{before}{found[number]}" if found else other
    return names


def _rows(name: str, runs: Sequence[RunView]) -> list[Group]:
    """Make the rows of one experiment."""
    by_seed: dict[int, list[RunView]] = {}
    for run in runs:
        by_seed.setdefault(int(run.spec.get("seed", 0)), []).append(run)
    # Of several runs of one seed the most complete one counts, and of equal ones the first.
    kept = [max(same, key=_completeness) for same in by_seed.values()]
    finished = tuple(run for run in kept if run.state == "finished")
    rows = [Group(name, finished, name, len(kept))] if finished else []
    rows += [
        Group(f"{name}{_seed(run, name, len(kept))} ({run.state})", (run,), name, len(kept))
        for run in kept
        if run.state != "finished"
    ]
    copies = tuple(run for run in runs if not any(run is one for one in kept))
    return [replace(rows[0], copies=copies), *rows[1:]]


def _seed(run: RunView, name: str, seeds: int) -> str:
    """Name the seed of a run, unless the experiment is named by its settings and has no other."""
    return f", seed {run.spec.get('seed', 0)}" if name == run.name or seeds > 1 else ""


def _completeness(run: RunView) -> tuple[bool, int]:
    return run.state == "finished", _rounds(run)


def _rounds(run: RunView) -> int:
    return int(run.summary.get("rounds", 0))


def measures_of(found: Sequence[Group]) -> tuple[MeasureDisplay, ...]:
    """Collect all measures that some experiments may have: the package's, and the users' own."""
    own = {m.key: m for group in found for run in group.runs for m in run.own_measures}
    ours = of_tasks(tasks_of(found))
    everywhere = {m.key for m in ours if all(m.key in _retitled(group) for group in found)}
    usual = (own[m.key] if m.key in everywhere and m.key in own else m for m in ours)
    return (*usual, *(own[key] for key in own if key not in {m.key for m in MEASURES}))


def tasks_of(found: Sequence[Group]) -> list[TaskName]:
    """Return the tasks of some experiments, from what they recorded; a classification if there is nothing."""
    lines = [run.history[-1] for group in found for run in group.runs if run.history]
    return sorted({task_of(line) for line in lines}) or ["classification"]


def _retitled(group: Group) -> set[str]:
    """Return the measures that all runs of a group describe in words of their own."""
    keys = [{m.key for m in run.own_measures} for run in group.runs]
    return set.intersection(*keys) if keys else set()


def differences(found: Sequence[Group]) -> dict[str, list[Any]]:
    """Find the settings in which experiments differ: the value of each, ``None`` where there is none."""
    specs = [flatten(group.runs[0].spec) for group in found]
    keys = dict.fromkeys(key for spec in specs for key in spec)
    return {
        key: values
        for key in keys
        if key.split(".")[0] not in SAME_RESULT
        for values in [[spec.get(key) for spec in specs]]
        if any(value != values[0] for value in values)
    }
