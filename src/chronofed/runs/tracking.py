"""Experiment trackers: TensorBoard, or any class with three methods.

A tracker of your own is a class with :meth:`Tracker.start`, :meth:`Tracker.log` and :meth:`Tracker.finish`; a
specification names it as ``track = "package.module:factory"``. It receives every evaluation and cannot change
the run: an exception is logged once, and the run continues without the tracker.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from chronofed.core.errors import ChronofedError, SpecError
from chronofed.core.user_code import import_name, user_code
from chronofed.training.summary import Measures

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that a tracker follows.

    Attributes:
        path: Directory of the run.
        spec: The whole specification as plain tables.
        round: Rounds done before: more than 0 if the run was resumed.
        rounds: Rounds in all.
    """

    path: Path
    spec: Mapping[str, Any]
    round: int
    rounds: int

    @property
    def name(self) -> str:
        """The experiment's name and seed."""
        return f"{self.spec['name']}-s{self.spec['seed']}"


@runtime_checkable
class Tracker(Protocol):
    """Receives the evaluations of a run."""

    def start(self, run: TrackedRun) -> None:
        """Begin: training starts or resumes."""

    def log(self, round_: int, measures: Measures) -> None:
        """Log the evaluation after a round."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """End: the run is finished. Not called for a run that is interrupted."""


def find_tracker(name: str) -> Tracker:
    """Make the tracker that a specification names.

    Args:
        name: ``tensorboard``, or ``package.module:factory``, which is called without arguments.

    Raises:
        SpecError: If there is none of that name.
        MissingExtraError: If it needs a package that is not installed.
    """
    if name == "tensorboard":
        from chronofed.runs.tensorboard import TensorBoard

        return TensorBoard()
    if ":" not in name:
        msg = f"track: unknown value {name!r}; use 'tensorboard' or 'package.module:factory'"
        raise SpecError(msg)
    factory = import_name(name, "track", "cannot make")
    with user_code(f"track: cannot make {name!r}"):
        tracker = factory()
    if not isinstance(tracker, Tracker):
        msg = f"track: {name!r} makes a {type(tracker).__name__}, which lacks start, log or finish"
        raise SpecError(msg)
    return tracker


class Guarded:
    """A tracker that cannot stop the run: its first exception is logged, then it is dropped.

    Args:
        tracker: The tracker; ``None`` for none.
    """

    def __init__(self, tracker: Tracker | None) -> None:
        self._tracker = tracker

    def start(self, run: TrackedRun) -> None:
        """Begin: training starts or resumes."""
        self._try(lambda tracker: tracker.start(run))

    def log(self, round_: int, measures: Measures) -> None:
        """Log the evaluation after a round."""
        self._try(lambda tracker: tracker.log(round_, measures))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """End: the run is finished."""
        self._try(lambda tracker: tracker.finish(summary))

    def _try(self, act: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            act(self._tracker)
        except ChronofedError:
            raise
        # A tracker is the user's code, so any exception is possible.
        except Exception as error:
            kind = type(self._tracker).__name__
            logger.warning("track: %s failed (%r); the run continues without it", kind, error)
            self._tracker = None
