"""One run of many: its outcome, and what is told while it works."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

from chronofed.core.errors import ChronofedError
from chronofed.runs import runner
from chronofed.runs.spec import Experiment

RunOutcome: TypeAlias = dict[str, Any] | ChronofedError
"""The summary of a run, or the error that stopped it."""
News: TypeAlias = runner.Progress | logging.LogRecord
"""News of a run before its outcome."""
OnRound: TypeAlias = Callable[[int, runner.Progress], None]
OnEnd: TypeAlias = Callable[[int, RunOutcome], None]


@dataclass(frozen=True, slots=True)
class GridRun:
    """One run of a grid.

    Attributes:
        experiment: The settings.
        path: The run's directory; if it holds a run already, that is resumed.
    """

    experiment: Experiment
    path: Path


def outcome_of(
    run: GridRun, data: Path | None, workers: int | None, on_round: runner.OnRound
) -> RunOutcome:
    """Run one run, and return its summary or the error that the user can fix."""
    try:
        return runner.run(run.experiment, run.path, data, workers=workers, on_round=on_round)
    except ChronofedError as error:
        return error


class QueueOfRecords(QueueHandler):
    """Passes log records to a function, such as the sending end of a pipe."""

    def __init__(self, tell: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(SimpleQueue())
        self._tell = tell

    def enqueue(self, record: logging.LogRecord) -> None:
        """Pass on one record."""
        self._tell(record)
