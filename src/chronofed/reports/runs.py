"""Runs as a reader sees them: one data model for the terminal, tables, pages and figures."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np

from chronofed.core import toml
from chronofed.core.errors import RunError, SpecError
from chronofed.reports.downsample import Numbers
from chronofed.reports.period_history import PeriodHistory
from chronofed.runs.directory import LASTING_FILES, RunDirectory, State
from chronofed.training.measure import MeasureDisplay
from chronofed.training.measures import BY_KEY
from chronofed.training.summary import summarise

logger = logging.getLogger(__name__)


class SpecTable(TypedDict):
    """The keys of a specification that readers rely on."""

    name: str
    seed: int
    rounds: NotRequired[int | str]
    data: NotRequired[dict[str, Any]]
    method: NotRequired[dict[str, dict[str, Any] | str]]


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
        if directory.changed_files([directory.spec_path.name]):
            logger.warning("%s was changed after the run had begun", directory.spec_path)
        history = directory.history()
        own = directory.measures()
        summary = directory.summary()
        if summary is not None:
            check_unchanged(directory, ("metrics.jsonl", "summary.json"))
        else:
            summary = interim(history, directory, own)
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
        return float(found) if isinstance(found, int | float) else None

    def record(self, name: str) -> list[dict[str, Any]]:
        """Read all lines of a record (:mod:`chronofed.training.records`)."""
        return self.directory.record(name)

    def periods(self) -> PeriodHistory:
        """Read the accuracy by client and data set over time."""
        return PeriodHistory().add(self.directory.lines("period_accuracy.jsonl"))

    def check(self) -> None:
        """Check the files that are read when asked for.

        Raises:
            RunError: If one is damaged.
        """
        check_files(self.directory)
        for name in LASTING_FILES:
            for _ in self.directory.lines(name):
                pass
        if self.state == "finished":
            check_unchanged(self.directory, LASTING_FILES)


def read_runs(paths: Iterable[Path], *, every_file: bool = False) -> list[RunView]:
    """Read the runs at or below some paths; skip a damaged one, and log why.

    Args:
        paths: Run directories, or folders with runs below them.
        every_file: Whether to check all records too, not only what a table of results needs.

    Raises:
        RunError: If there is no run, or none that can be read.
    """
    found, damaged = [], None
    for path in find_runs(paths):
        try:
            view = RunView.read(path)
            if every_file:
                view.check()
            found.append(view)
        except RunError as error:
            logger.warning("skipped %s: %s", path, error)
            damaged = error
    if damaged is not None and not found:
        raise RunError("none of these runs can be read") from damaged
    return found


def check_unchanged(directory: RunDirectory, names: Sequence[str]) -> None:
    """Refuse files of a finished run that changed after they had been written.

    Raises:
        RunError: With the name of the first.
    """
    for name in directory.changed_files(names):
        msg = f"{directory.path / name} was changed after the run had finished; repair it with: "
        raise RunError(f"{msg}chronofed resume {directory.path}")


def check_files(directory: RunDirectory) -> None:
    """Read the small files of a run that pages show.

    Raises:
        RunError: If one is damaged.
    """
    for read in (directory.scenario, directory.environment, directory.failure, directory.measures):
        read()


def read_spec(directory: RunDirectory) -> dict[str, Any]:
    """Read the specification as it was written.

    Raises:
        RunError: If it is damaged.
    """
    try:
        spec = toml.load(directory.spec_path)
        msgspec.convert(spec, SpecTable)
    except (SpecError, msgspec.ValidationError) as error:
        msg = f"{directory.spec_path} is damaged ({error}); restore it, or make the run again"
        raise RunError(msg) from error
    return spec


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


def remembers(spec: Mapping[str, Any]) -> bool:
    """Return whether a method has a memory.

    >>> remembers({"method": {"memory": {"kind": "core-set"}}}), remembers({"method": {}})
    (True, False)
    """
    memory = spec.get("method", {}).get("memory", {})
    kind = memory.get("kind", "") if isinstance(memory, Mapping) else memory
    return kind not in ("", "forget", "none")
