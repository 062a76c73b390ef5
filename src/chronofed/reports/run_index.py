"""An index of the runs below a folder for the live page: read-only, and confined to the folder."""

import json
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chronofed.core.errors import ChronofedError
from chronofed.reports.experiment_names import names_by_difference
from chronofed.reports.groups import groups
from chronofed.reports.jsonl_follow import JsonlFollower, last_lines
from chronofed.reports.payload import build_payload
from chronofed.reports.period_history import PeriodHistory
from chronofed.reports.run_changes import Changes
from chronofed.reports.runs import (
    RunView,
    check_files,
    interim,
    method_of,
    read_spec,
    runs_below,
)
from chronofed.reports.styles import StyleKey, extended, style_key
from chronofed.runs.directory import RunDirectory
from chronofed.training.measure import headline_of
from chronofed.training.measures import headline_text

# Files whose change means that a run is read again.
RUN_FILES = (".toml", ".json", ".jsonl", "lock", "running")
# Runs on one page, and runs that are kept in memory.
MOST_CHOSEN = 500
# Payloads that are kept in memory.
PAYLOADS = 4
# Evaluations from which the remaining time is estimated.
RECENT = 10
K = TypeVar("K")
V = TypeVar("V")
Stamp = tuple[tuple[str, int, int, int], ...]


def file_stamps(path: Path) -> Stamp | None:
    """Return what changes when a run is written; ``None`` if one of its files is not a regular file.

    A link could lead anywhere, so a run with a link among its files is not shown.
    """
    found = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(RUN_FILES):
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        return None
                    found.append((entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError:
        # A file may vanish while it is looked at: the next look is complete.
        return ()
    return tuple(sorted(found))


@dataclass(slots=True)
class FollowedRun:
    """A run that is read again and again: only new lines are read."""

    path: Path
    _records: dict[str, tuple[JsonlFollower, list[dict[str, Any]]]] = field(default_factory=dict)
    _period_follower: JsonlFollower = field(init=False)
    _periods: PeriodHistory = field(default_factory=PeriodHistory)

    def __post_init__(self) -> None:
        self._period_follower = JsonlFollower(self.path / "period_accuracy.jsonl")

    def view(self) -> "LiveView":
        """Return the run as it is now."""
        directory = RunDirectory(self.path)
        history, own = self.record("metrics"), directory.measures()
        summary = directory.summary() or interim(history, directory, own)
        check_files(directory)
        spec, state = read_spec(directory), directory.state
        return LiveView(self.path, spec, state, history, summary, own, followed=self)

    def record(self, name: str) -> list[dict[str, Any]]:
        """Return all lines of a record as of now."""
        if name not in self._records:
            self._records[name] = (JsonlFollower(self.path / f"{name}.jsonl"), [])
        follower, lines = self._records[name]
        restarted, new = follower.read()
        if restarted:
            lines.clear()
        lines += new
        return lines

    def periods(self) -> PeriodHistory:
        """Return the accuracy by client and data set as of now."""
        restarted, new = self._period_follower.read()
        self._periods = (PeriodHistory() if restarted else self._periods).add(new)
        return self._periods


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView(RunView):
    """A run whose records were partly read before."""

    followed: FollowedRun

    def record(self, name: str) -> list[dict[str, Any]]:
        """Return all lines of a record."""
        return self.followed.record(name)

    def periods(self) -> PeriodHistory:
        """Return the accuracy by client and data set over time."""
        return self.followed.periods()


class RunIndex:
    """All runs below a folder, for any number of readers, one at a time.

    Args:
        root: The folder, or one run.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._rows: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._followed: dict[Path, FollowedRun] = {}
        self._payloads: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._styles: dict[StyleKey, int] = {}
        self._named: tuple[frozenset[tuple[str, ...]], dict[tuple[str, ...], str]] = (
            frozenset(),
            {},
        )
        self._changes = Changes()
        self._guard = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """List the runs, the latest first; a run that did not change is not read again."""
        with self._guard:
            rows: dict[str, tuple[Stamp, dict[str, Any]]] = {}
            for path in self._paths():
                now = file_stamps(path)
                if now is None:
                    continue
                name = self._name(path)
                known = self._rows.get(name)
                if known and known[0] == now and known[1]["state"] == "finished":
                    rows[name] = known
                elif known and known[0] == now:
                    # A process may have started or stopped working on it without touching a file.
                    rows[name] = (now, known[1] | _live_state(RunDirectory(path), known[1]))
                else:
                    rows[name] = (now, _row(name, path))
            self._rows = rows
            self._give_styles()
            self._give_names()
            return sorted((self._styled(row) for _, row in rows.values()), key=_order)

    def changes(self, at: str) -> dict[str, Any]:
        """Return the rows of the list that changed since an earlier answer, or all."""
        rows = self.rows()
        with self._guard:
            return self._changes.since(at, rows)

    def payload(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the data that a page shows of some of the runs; unknown names are left out."""
        with self._guard:
            known = {self._name(path): path for path in self._paths()}
            wanted = [known[name] for name in dict.fromkeys(names) if name in known]
            chosen = wanted[:MOST_CHOSEN]
            files = [(path, file_stamps(path), RunDirectory(path).state) for path in chosen]
            state = (len(wanted), *files)
            if state not in self._payloads:
                views = [self._view(path) for path, now, _ in files if now is not None]
                readable = [view for view in views if view is not None]
                styles = dict(self._styles)
                found = build_payload(groups(readable), "Runs", styles)
                self._payloads[state] = found | {"runs_left_out": len(wanted) - len(chosen)}
            return _recent(self._payloads, state, PAYLOADS)

    def _give_styles(self) -> None:
        """Give every run below the folder a style, so that no selection changes a colour.

        What has one keeps it: a new run must not change the colours of those that a reader looks at.
        """
        keys = {tuple(row["key"]) for _, row in self._rows.values() if row["key"]}
        if not keys <= self._styles.keys():
            self._styles = extended(self._styles, keys)

    def _give_names(self) -> None:
        """Name experiments that share a name by the settings in which they differ."""
        known = frozenset(
            (row["name"], *row["key"]) for _, row in self._rows.values() if row["key"]
        )
        if known == self._named[0]:
            return
        by_name: dict[str, list[tuple[str, ...]]] = {}
        for each in sorted(known):
            by_name.setdefault(each[0], []).append(each)
        names: dict[tuple[str, ...], str] = {}
        for name, same in by_name.items():
            found = names_by_difference([json.loads(each[-1]) for each in same]) or []
            before = "" if len(by_name) == 1 else f"{name}, "
            names |= dict(zip(same, [f"{before}{own}" for own in found], strict=False))
        self._named = (known, names)

    def _styled(self, row: dict[str, Any]) -> dict[str, Any]:
        known = {name: value for name, value in row.items() if name != "key"}
        name = self._named[1].get((row["name"], *row["key"]), row["name"])
        style = self._styles.get(tuple(row["key"]), 0) if row["key"] else 0
        return known | {"name": name, "style": style}

    def _view(self, path: Path) -> RunView | None:
        """Return a run as it is now; ``None`` if it cannot be read, for which the list gives the reason."""
        self._followed.setdefault(path, FollowedRun(path))
        try:
            return _recent(self._followed, path, MOST_CHOSEN).view()
        except (ChronofedError, OSError):
            del self._followed[path]
            return None

    def _paths(self) -> list[Path]:
        if (self._root / "spec.toml").is_file():
            return [self._root]
        return list(runs_below(self._root))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path != self._root else path.name


def _recent(kept: dict[K, V], key: K, most: int) -> V:
    """Return a cached value, and drop the least recently used beyond ``most``."""
    kept[key] = kept.pop(key)
    for old in list(kept)[:-most]:
        del kept[old]
    return kept[key]


def _order(row: dict[str, Any]) -> tuple[bool, float, str]:
    return row["state"] != "running", -float(row["updated"]), str(row["id"])


def _row(name: str, path: Path) -> dict[str, Any]:
    """Describe one run in the list; one that cannot be read is listed with the reason."""
    directory = RunDirectory(path)
    row: dict[str, Any] = {
        "id": name,
        "name": name,
        "seed": 0,
        "method": "",
        "round": 0,
        "score": None,
    }
    row |= {
        "key": [],
        "rounds": None,
        "headline": "",
        "updated": 0.0,
        "state": "failed",
        "eta": None,
    }
    try:
        spec = read_spec(directory)
        lines = last_lines(path / "metrics.jsonl")
        latest = lines[-1] if lines else {}
        updated = (path / ("metrics.jsonl" if lines else "spec.toml")).stat().st_mtime
        row |= {"name": str(spec.get("name", name)), "seed": spec.get("seed", 0)}
        row |= {"key": list(style_key(spec))}
        row |= {"method": method_of(spec), "round": latest.get("round", 0), "updated": updated}
        row |= {"rounds": spec.get("rounds") or directory.scenario().get("rounds")}
        row |= {"score": latest.get(headline_of(latest))}
        row |= {"headline": headline_text(latest).removeprefix("accuracy "), "note": ""}
        check_files(directory)
        directory.summary()
        return row | _live_state(directory, row)
    except (ChronofedError, OSError) as error:
        return row | {"note": str(error)}


def _live_state(directory: RunDirectory, row: dict[str, Any]) -> dict[str, Any]:
    """Return what may change while no file does."""
    state = directory.state
    eta = _seconds_left(directory, row) if state == "running" else None
    note = directory.failure() if state == "failed" else row.get("note", "")
    return {"state": state, "eta": eta, "note": note}


def _seconds_left(directory: RunDirectory, row: dict[str, Any]) -> float | None:
    """Estimate the remaining time from the latest evaluations."""
    recent = last_lines(directory.path / "times.jsonl")[-RECENT:]
    if not row["rounds"] or len(recent) < 2:
        return None
    rounds = int(recent[-1]["round"]) - int(recent[0]["round"])
    spent = sum(float(line["total"]) for line in recent[1:])
    left = max(0, int(row["rounds"]) - int(row["round"]))
    return round(left * spent / max(1, rounds), 1)
