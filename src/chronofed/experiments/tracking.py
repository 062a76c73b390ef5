"""Telling other tools about a run while it trains: TensorBoard, or anything with three methods.

An adapter is a class of one's own with :meth:`Tracker.start`, :meth:`Tracker.log` and :meth:`Tracker.finish`; a
specification names it as ``track = "package.module:factory"``. It hears of every evaluation and cannot change
the run: what it raises is said once, and the run goes on without it.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from chronofed.errors import ChronofedError, SpecError
from chronofed.metrics.summary import Measures


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What an adapter is told at the start.

    Attributes:
        path: Directory of the run.
        spec: The whole specification as plain tables.
        round: Rounds done before: more than 0 if a run is continued.
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
    """Hears of a run."""

    def start(self, run: TrackedRun) -> None:
        """Training begins, or goes on."""

    def log(self, round_: int, measures: Measures) -> None:
        """The model was evaluated after a round."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is finished; called once, and not at all for a run that stops half way."""


def find_tracker(name: str) -> Tracker:
    """The tracker that a specification names.

    Args:
        name: ``tensorboard``, or ``package.module:factory``, which is called without arguments.

    Raises:
        SpecError: If there is none of that name.
        MissingExtraError: If what it needs is not installed.
    """
    if name == "tensorboard":
        from chronofed.experiments.tensorboard import TensorBoard

        return TensorBoard()
    module, colon, attribute = name.partition(":")
    if not colon:
        msg = f"track: unknown value {name!r}; use 'tensorboard' or 'package.module:factory'"
        raise SpecError(msg)
    try:
        tracker = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        msg = f"track: cannot make {name!r}: {error}"
        raise SpecError(msg) from error
    if not isinstance(tracker, Tracker):
        msg = f"track: {name!r} makes a {type(tracker).__name__}, which lacks start, log or finish"
        raise SpecError(msg)
    return tracker


class Guarded:
    """A tracker that cannot stop the run: after its first failure it is left out.

    Args:
        tracker: The tracker; ``None`` for nobody.
        say: Told of the failure.
    """

    def __init__(self, tracker: Tracker | None, say: Callable[[str], None]) -> None:
        self._tracker, self._say = tracker, say

    def start(self, run: TrackedRun) -> None:
        """Training begins, or goes on."""
        self._try(lambda tracker: tracker.start(run))

    def log(self, round_: int, measures: Measures) -> None:
        """The model was evaluated after a round."""
        self._try(lambda tracker: tracker.log(round_, measures))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is finished."""
        self._try(lambda tracker: tracker.finish(summary))

    def _try(self, act: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            act(self._tracker)
        except ChronofedError:
            raise
        except Exception as error:  # whatever a user's own code raises
            kind = type(self._tracker).__name__
            self._say(f"track: {kind} failed ({error!r}); the run goes on without it")
            self._tracker = None
