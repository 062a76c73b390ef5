"""Runs as a reader sees them: one data model for tables, pages and figures."""

import json
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronofed.metrics.summary import summarise
from chronofed.records.directory import RunDirectory, State

SAME_RESULT = (
    "name",
    "seed",
    "checkpoint",
)  # keys in which repetitions of one experiment may differ


@dataclass(frozen=True, slots=True)
class RunView:
    """One run, read from its directory."""

    path: Path
    spec: dict[str, Any]
    state: State
    history: list[dict[str, Any]]
    summary: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "RunView":
        """Read a run, finished or not."""
        directory = RunDirectory.open(path)
        spec = tomllib.loads(directory.spec_path.read_text(encoding="utf-8"))
        history = directory.history()
        summary = directory.summary() or {}
        if not summary and history:
            summary = summarise(history) | {"seconds": round(directory.seconds()["total"], 3)}
        return cls(path, spec, directory.state, history, summary)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.spec["name"])


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one experiment that differ in the seed alone."""

    name: str
    runs: tuple[RunView, ...]

    def mean_and_deviation(self, key: str) -> tuple[float, float] | None:
        """Mean and sample deviation of one number of the summaries; deviation 0 for a single run."""
        values = [float(run.summary[key]) for run in self.runs if key in run.summary]
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return statistics.fmean(values), deviation

    def curve(self, key: str) -> list[tuple[int, float, float]]:
        """Mean and deviation over runs of one measure, by round."""
        by_round: dict[int, list[float]] = {}
        for run in self.runs:
            for measures in run.history:
                if key in measures:
                    by_round.setdefault(measures["round"], []).append(float(measures[key]))
        return [
            (round_, statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else 0.0)
            for round_, v in sorted(by_round.items())
        ]


def groups(views: Sequence[RunView]) -> list[Group]:
    """Put repetitions together; where two experiments share a name, the directory tells them apart."""
    members: dict[str, list[RunView]] = {}
    for view in views:
        same = {key: value for key, value in view.spec.items() if key not in SAME_RESULT}
        members.setdefault(json.dumps(same, sort_keys=True), []).append(view)
    names = [runs[0].name for runs in members.values()]
    return [
        Group(name if names.count(name) == 1 else f"{name} ({runs[0].path.name})", tuple(runs))
        for name, runs in zip(names, members.values(), strict=True)
    ]
