"""The runs below a folder, as the live page lists and follows them: read-only, and nothing outside it."""

import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chronofed.errors import ChronofedError
from chronofed.records.directory import RunDirectory
from chronofed.reports.document import build
from chronofed.reports.periods import PeriodBook
from chronofed.reports.tail import Tail, last_lines
from chronofed.reports.view import RunView, groups, interim, method_of, read_spec, runs_below

FILES = (
    "spec.toml",
    "environment.json",
    "metrics.jsonl",
    "periods.jsonl",
    "weights.jsonl",
    "times.jsonl",
    "scenario.json",
    "summary.json",
    "failure.json",
    "lock",
)
MOST_CHOSEN = 60  # runs on one page, and runs that are kept in memory
DOCUMENTS = 4  # pages that are kept in memory
RECENT = 10  # evaluations that tell how fast a run is
K = TypeVar("K")
V = TypeVar("V")
Stamp = tuple[tuple[int, int, int], ...]


def stamp(path: Path) -> Stamp | None:
    """What changes when a run is written; ``None`` if one of its files is not a plain file of its own.

    A link could lead anywhere, so a run with a link among its files is not shown.
    """
    found = []
    for name in FILES:
        try:
            about = os.lstat(path / name)
        except OSError:
            found.append((0, 0, 0))
            continue
        if not stat.S_ISREG(about.st_mode):
            return None
        found.append((about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(found)


@dataclass(slots=True)
class Followed:
    """A run that is read again and again: only what is new is read."""

    path: Path
    _tails: dict[str, Tail] = field(init=False)
    _history: list[dict[str, Any]] = field(default_factory=list)
    _weights: list[dict[str, Any]] = field(default_factory=list)
    _book: PeriodBook = field(default_factory=PeriodBook)

    def __post_init__(self) -> None:
        names = ("metrics.jsonl", "periods.jsonl", "weights.jsonl")
        self._tails = {name: Tail(self.path / name) for name in names}

    def view(self) -> RunView:
        """The run as it is now."""
        directory = RunDirectory(self.path)
        for name, lines in (("metrics.jsonl", self._history), ("weights.jsonl", self._weights)):
            again, new = self._tails[name].read()
            if again:
                lines.clear()
            lines += new
        again, new = self._tails["periods.jsonl"].read()
        self._book = (PeriodBook() if again else self._book).add(new)
        summary = directory.summary() or interim(self._history, directory)
        spec, state = read_spec(directory), directory.state
        return LiveView(self.path, spec, state, self._history, summary, self._book, self._weights)


@dataclass(frozen=True, slots=True)
class LiveView(RunView):
    """A run with what was read of it already."""

    book: PeriodBook
    lines: list[dict[str, Any]]

    def periods(self) -> PeriodBook:
        """Accuracy by client and data set over time."""
        return self.book

    def weights(self) -> list[dict[str, Any]]:
        """Round weights over time."""
        return self.lines


class Shelf:
    """All runs below a folder; answers for any number of readers, one at a time.

    Args:
        root: The folder, or one run.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._rows: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._followed: dict[Path, Followed] = {}
        self._documents: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._guard = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """One entry a run, the latest first; a run that did not change is not read again."""
        with self._guard:
            rows: dict[str, tuple[Stamp, dict[str, Any]]] = {}
            for path in self._paths():
                now = stamp(path)
                if now is None:
                    continue
                name = self._name(path)
                known = self._rows.get(name)
                if known and known[0] == now and known[1]["state"] == "finished":
                    rows[name] = known
                elif (
                    known and known[0] == now
                ):  # whether a process works on it is no matter of files
                    rows[name] = (now, known[1] | _standing(RunDirectory(path), known[1]))
                else:
                    rows[name] = (now, _row(name, path))
            self._rows = rows
            return sorted((row for _, row in rows.values()), key=_order)

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """What a page shows of some of the runs; unknown names are left out."""
        with self._guard:
            known = {self._name(path): path for path in self._paths()}
            chosen = [known[name] for name in dict.fromkeys(names) if name in known][:MOST_CHOSEN]
            state = tuple((path, stamp(path), RunDirectory(path).state) for path in chosen)
            if state not in self._documents:
                views = [self._view(path) for path, now, _ in state if now is not None]
                there = [view for view in views if view is not None]
                self._documents[state] = build(groups(there), "Runs")
            return _recent(self._documents, state, DOCUMENTS)

    def _view(self, path: Path) -> RunView | None:
        """A run as it is now; ``None`` if it cannot be read, for which the list gives the reason."""
        self._followed.setdefault(path, Followed(path))
        try:
            return _recent(self._followed, path, MOST_CHOSEN).view()
        except (ChronofedError, OSError, ValueError, KeyError):
            del self._followed[path]
            return None

    def _paths(self) -> list[Path]:
        if (self._root / "spec.toml").is_file():
            return [self._root]
        return list(runs_below(self._root))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path != self._root else path.name


def _recent(kept: dict[K, V], key: K, most: int) -> V:
    """A value that is kept; those that were not asked for lately go."""
    kept[key] = kept.pop(key)
    for old in list(kept)[:-most]:
        del kept[old]
    return kept[key]


def _order(row: dict[str, Any]) -> tuple[bool, float, str]:
    return row["state"] != "running", -float(row["updated"]), str(row["id"])


def _row(name: str, path: Path) -> dict[str, Any]:
    """One run in the list; one that cannot be read is listed with the reason."""
    directory = RunDirectory(path)
    row: dict[str, Any] = {"id": name, "name": name, "seed": 0, "method": "", "round": 0}
    row |= {"rounds": None, "accuracy": None, "updated": 0.0, "state": "failed", "eta": None}
    try:
        spec = read_spec(directory)
        lines = last_lines(path / "metrics.jsonl")
        latest = lines[-1] if lines else {}
        updated = (path / ("metrics.jsonl" if lines else "spec.toml")).stat().st_mtime
        row |= {"name": str(spec.get("name", name)), "seed": spec.get("seed", 0)}
        row |= {"method": method_of(spec), "round": latest.get("round", 0), "updated": updated}
        row |= {"rounds": spec.get("rounds") or directory.scenario().get("rounds")}
        row |= {"accuracy": latest.get("test_accuracy"), "note": ""}
        return row | _standing(directory, row)
    except (ChronofedError, OSError, ValueError) as error:
        return row | {"note": str(error)}


def _standing(directory: RunDirectory, row: dict[str, Any]) -> dict[str, Any]:
    """What may change while no file does."""
    state = directory.state
    eta = _seconds_left(directory, row) if state == "running" else None
    note = directory.failure() if state == "failed" else row.get("note", "")
    return {"state": state, "eta": eta, "note": note}


def _seconds_left(directory: RunDirectory, row: dict[str, Any]) -> float | None:
    """At the pace of the latest evaluations."""
    recent = last_lines(directory.path / "times.jsonl")[-RECENT:]
    if not row["rounds"] or len(recent) < 2:
        return None
    rounds = int(recent[-1]["round"]) - int(recent[0]["round"])
    spent = sum(float(line["total"]) for line in recent[1:])
    left = max(0, int(row["rounds"]) - int(row["round"]))
    return round(left * spent / max(1, rounds), 1)
