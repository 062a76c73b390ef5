"""Runs as a reader sees them: one data model for the terminal, tables, pages and figures."""

import json
import os
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronofed.core.errors import RunError
from chronofed.reports.downsample import Numbers
from chronofed.reports.period_history import PeriodHistory
from chronofed.runs.directory import RunDirectory, State
from chronofed.training.measure import MeasureDisplay
from chronofed.training.measures import BY_KEY, MEASURES
from chronofed.training.summary import summarise

# Keys in which repetitions of one experiment may differ.
SAME_RESULT = ("name", "seed", "checkpoint", "track")


@dataclass(frozen=True, slots=True)
class RunView:
    """One run, read from its directory; records are read when asked for.

    Attributes:
        path: The run directory.
        spec: The specification as plain tables.
        state: Finished, running, stopped or failed.
        history: All evaluations, in order.
        summary: The summary, or an interim one.
        own_measures: The user's own measures.
    """

    path: Path
    spec: dict[str, Any]
    state: State
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    own_measures: tuple[MeasureDisplay, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "RunView":
        """Read a run, finished or not.

        Raises:
            RunError: If there is none, or it is damaged.
        """
        directory = RunDirectory.open(path)
        spec = read_spec(directory)
        history = directory.history()
        own = directory.measures()
        summary = directory.summary() or interim(history, directory, own)
        return cls(path, spec, directory.state, history, summary, own)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.spec.get("name", self.path.name))

    @property
    def label(self) -> str:
        """Name and seed."""
        return f"{self.name}, seed {self.spec.get('seed', 0)}"

    @property
    def directory(self) -> RunDirectory:
        """The directory."""
        return RunDirectory(self.path)

    def series(self, key: str) -> tuple[Numbers, Numbers]:
        """Return rounds and values of one measure."""
        found = [(line["round"], line[key]) for line in self.history if key in line]
        rounds, values = np.array(found, dtype=np.float64).reshape(-1, 2).T
        return rounds, values

    def number(self, key: str) -> float | None:
        """Return a number of the summary, or one that a measure derives from it, such as ``traffic``."""
        measure = BY_KEY.get(key)
        derive = measure.from_summary if measure else None
        found = derive(self.summary) if derive else self.summary.get(key)
        return None if found is None else float(found)

    def record(self, name: str) -> list[dict[str, Any]]:
        """Read all lines of a record (:mod:`chronofed.training.records`)."""
        return self.directory.record(name)

    def periods(self) -> PeriodHistory:
        """Read the accuracy by client and data set over time."""
        return PeriodHistory().add(self.directory.lines("period_accuracy.jsonl"))


def read_spec(directory: RunDirectory) -> dict[str, Any]:
    """Read the specification as it was written.

    Raises:
        RunError: If it is damaged.
    """
    try:
        return tomllib.loads(directory.spec_path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{directory.spec_path} is damaged ({error}); delete the run and make it again"
        raise RunError(msg) from error


def interim(
    history: Sequence[dict[str, Any]],
    directory: RunDirectory,
    own: Sequence[MeasureDisplay] = (),
) -> dict[str, Any]:
    """Summarise a run that is not finished."""
    if not history:
        return {}
    return summarise(history, own) | {"seconds": round(directory.seconds().get("total", 0.0), 3)}


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Find the runs at or below some paths, in order, each once; links to folders are not followed.

    Raises:
        RunError: If there is none at or below one of them.
    """
    found: dict[Path, None] = {}
    for path in paths:
        below = [path] if (path / "spec.toml").is_file() else sorted(runs_below(path))
        if not below:
            msg = (
                f"{path} is not a run directory (it has no spec.toml), and no run is below it; "
                "runs are made by: chronofed run SPEC.toml"
            )
            raise RunError(msg)
        found |= dict.fromkeys(below)
    return list(found)


def runs_below(folder: Path) -> Iterator[Path]:
    """Yield every run below a folder; a run contains no runs."""
    for place, folders, files in os.walk(folder):
        if "spec.toml" in files and Path(place) != folder:
            folders.clear()
            yield Path(place)
        folders[:] = [name for name in folders if not name.startswith(".")]


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one experiment that differ only in the seed."""

    name: str
    runs: tuple[RunView, ...]

    def mean_and_deviation(self, key: str) -> tuple[float, float] | None:
        """Compute mean and sample deviation of one number of the summaries; the deviation of one run is 0."""
        found = [run.number(key) for run in self.runs]
        values = [value for value in found if value is not None]
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return statistics.fmean(values), deviation

    def curve(self, key: str) -> list[tuple[int, float, float]]:
        """Compute mean and deviation over runs of one measure, by round."""
        rounds, means, deviations = self.bands(key)
        return [
            (int(r), float(m), float(d)) for r, m, d in zip(rounds, means, deviations, strict=True)
        ]

    def bands(self, key: str) -> tuple[Numbers, Numbers, Numbers]:
        """Compute rounds, means and deviations over runs of one measure."""
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
        return rounds, means, np.sqrt(squares.sum(0) / np.maximum(count - 1, 1))


def groups(views: Sequence[RunView]) -> list[Group]:
    """Group repetitions; experiments that share a name are told apart by their directories."""
    members: dict[str, list[RunView]] = {}
    for view in views:
        same = {key: value for key, value in view.spec.items() if key not in SAME_RESULT}
        members.setdefault(json.dumps(same, sort_keys=True), []).append(view)
    names = [runs[0].name for runs in members.values()]
    return [
        Group(name if names.count(name) == 1 else f"{name} ({runs[0].path.name})", tuple(runs))
        for name, runs in zip(names, members.values(), strict=True)
    ]


def measures_of(found: Sequence[Group]) -> tuple[MeasureDisplay, ...]:
    """Collect all measures that some experiments may have: the package's, and the users' own."""
    own = {m.key: m for group in found for run in group.runs for m in run.own_measures}
    return (*MEASURES, *(measure for key, measure in own.items() if key not in BY_KEY))


def flatten(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Flatten a nested table to dotted keys.

    >>> flatten({"rounds": 3, "train": {"lr": 0.1}})
    {'rounds': 3, 'train.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{place}{key}.")
        else:
            flat[f"{place}{key}"] = value
    return flat


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


def method_of(spec: Mapping[str, Any]) -> str:
    """Describe a method in a few words.

    >>> method_of({"method": {"backbone": {"kind": "fedavg"}, "memory": {"kind": "core-set", "size": 20}}})
    'fedavg + core-set'
    """
    method = spec.get("method", {})
    parts = [method.get(part, {}).get("kind", "") for part in ("backbone", "memory")]
    words = " + ".join(part for part in parts if part and part != "forget")
    weights = method.get("weights", {}).get("kind", "")
    return f"{words}, {weights} weights" if weights and parts[1] != "forget" else words
