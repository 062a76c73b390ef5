"""The status of a run: what it has seen, how it went lately, and what to do next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronofed.reports.followed import followed, followed_lines
from chronofed.reports.runs import RunView
from chronofed.reports.terminal.sparklines import braille
from chronofed.runs.json_files import read_json
from chronofed.training.measure import MeasureDisplay, placed
from chronofed.training.measures import MEASURES

LATEST = 6
"""Latest periods that are shown by name."""
CURVE = 24
"""Characters of the small curve."""


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a run, without its data.

    Attributes:
        view: The run.
        periods: Names of the periods that it was trained on, with their numbers of rows.
        clients: Number of clients.
        checkpoint: Rounds done at the latest checkpoint; ``None`` if there is none.
        extensions: A line for every time that it went on.
        waiting: Names of later periods in its data file; ``None`` if nobody looked.
        obstacle: Why it cannot go on with the data as they are.
    """

    view: RunView
    periods: dict[str, int]
    clients: int
    checkpoint: int | None
    extensions: Sequence[dict[str, Any]]
    waiting: tuple[str, ...] | None = None
    obstacle: str = ""

    @property
    def rounds(self) -> int:
        """Rounds done, as far as is recorded."""
        known = (self.view.summary.get("rounds"), self.checkpoint)
        return max((int(each) for each in known if each is not None), default=0)

    @property
    def headline(self) -> MeasureDisplay | None:
        """The first measure that a run shows while it trains."""
        recorded = {key for line in self.view.history[-1:] for key in line}
        shown = placed("progress", (*MEASURES, *self.view.own_measures))
        return next((measure for measure in shown if measure.key in recorded), None)

    def by_period(self) -> list[tuple[str, float]]:
        """Return the headline measure after every period; by round where there are no periods."""
        measure, planned = self.headline, int(self.view.directory.scenario().get("rounds", 0))
        if measure is None:
            return []
        lines = [
            (int(line["round"]), float(line[measure.key]))
            for line in self.view.history
            if measure.key in line
        ]
        names = list(self.periods)
        if not names or planned % len(names):
            return [(f"round {round_}", value) for round_, value in lines]
        # Later evaluations of a period replace earlier ones.
        length = planned // len(names)
        found = {
            names[(round_ - 1) // length]: value for round_, value in lines if round_ <= planned
        }
        return list(found.items())

    def next_step(self) -> str:
        """Say what to do, in one line."""
        path, state = self.view.path, self.view.state
        if state == "running":
            return f"it is running; follow it with: chronofed watch {path}"
        if state in ("failed", "stopped"):
            return f"continue it with: chronofed resume {path}"
        if self.obstacle:
            return self.obstacle
        if self.waiting:
            return f"train on the new periods with: chronofed extend {path}"
        if self.waiting is None:
            return f"go on with: chronofed extend {path} --rounds N"
        return f"nothing, until later rows come; then: chronofed extend {path}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what is known, each under a heading."""
        failure = self.view.directory.failure()
        yield "state", f"{self.view.state}{f': {failure}' if failure else ''}"
        yield "clients", str(self.clients)
        if self.periods:
            names = list(self.periods)
            rows = f"{sum(self.periods.values()):,} rows"
            yield "periods", f"{len(names)}, {names[0]} to {names[-1]}; {rows}"
        saved = "none" if self.checkpoint is None else f"round {self.checkpoint}"
        yield "rounds", f"{self.rounds}; last checkpoint: {saved}"
        for line in self.extensions[-3:]:
            what = (
                ", ".join(line.get("periods", {})) or f"rounds {line['round'] + 1}-{line['rounds']}"
            )
            yield "extended", f"{line.get('when', '')}: {what}"
        yield from self._lately()
        yield from self._models()
        if self.waiting:
            yield "waiting", ", ".join(self.waiting)
        yield "next", self.next_step()

    def _lately(self) -> Iterator[tuple[str, str]]:
        values, measure = self.by_period(), self.headline
        if measure is None or not values:
            return
        if len(values) > 1:
            yield measure.name, _curve([value for _, value in values])
        for name, value in values[-LATEST:]:
            yield "", f"{name}  {measure.progress_text(value)}"

    def _models(self) -> Iterator[tuple[str, str]]:
        names = self.view.directory.scenario().get("client_names", [])
        for number, line in enumerate(followed_lines(self.view.record("clusters"), names)):
            yield "" if number else "models", line

    def as_json(self) -> dict[str, Any]:
        """Return everything for a script."""
        measure = self.headline
        return {
            "run": str(self.view.path),
            "state": self.view.state,
            "failure": self.view.directory.failure(),
            "clients": self.clients,
            "periods": self.periods,
            "rounds": self.rounds,
            "checkpoint": self.checkpoint,
            "extensions": list(self.extensions),
            "measure": measure.key if measure else None,
            "by_period": dict(self.by_period()),
            "followed": followed(self.view.record("clusters")),
            "waiting": None if self.waiting is None else list(self.waiting),
            "obstacle": self.obstacle,
            "next": self.next_step(),
        }


def read_status(path: Path) -> Status:
    """Read the status of a run from its directory alone.

    Raises:
        RunError: If there is none, or it is damaged.
    """
    view = RunView.read(path)
    directory = view.directory
    table = read_json(path / "periods.json") or {}
    names, rows = table.get("periods", {}), table.get("rows", [])
    saved = [int(file.name[:8]) for file in directory.checkpoints.glob("????????-*.safetensors")]
    return Status(
        view,
        dict(zip(names, rows, strict=False)),
        int(directory.scenario().get("clients", 0)),
        max(saved, default=None),
        directory.extensions(),
    )


def _curve(values: Sequence[float]) -> str:
    x, y = np.arange(len(values), dtype=np.float64), np.asarray(values, dtype=np.float64)
    limits = (0.0, float(len(values) - 1), float(y.min()), float(y.max()))
    return braille(x, y, min(CURVE, len(values)), 1, limits)[0]
