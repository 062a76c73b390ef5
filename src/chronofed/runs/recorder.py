"""Recording a run: evaluations, seconds and checkpoints."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from chronofed.clients.deletion import last_deletion
from chronofed.core.timing import PhaseTimer
from chronofed.runs.built import BuiltRun
from chronofed.runs.checkpoint import RunPoint
from chronofed.runs.checkpoint_writer import CheckpointWriter
from chronofed.runs.directory import RunDirectory
from chronofed.runs.record_digests import RecordDigests
from chronofed.runs.tracking import Guarded
from chronofed.training.evaluation import Evaluator
from chronofed.training.loop import Snapshot
from chronofed.training.stopping import EarlyStopping
from chronofed.training.summary import Measures

NOTHING: Mapping[str, float] = {}


@dataclass(slots=True)
class Recorder:
    """Evaluates, records and saves a run, round by round.

    Attributes:
        directory: The run's directory.
        built: The experiment.
        evaluator: Evaluates a snapshot.
        stopping: Decides whether the run ends early.
        tracker: Receives every evaluation.
        timer: Measures the time of each phase.
        writer: Writes checkpoints.
        wait_for_writes: Whether to wait until a checkpoint is on disk.
    """

    directory: RunDirectory
    built: BuiltRun
    evaluator: Evaluator
    stopping: EarlyStopping
    tracker: Guarded
    timer: PhaseTimer
    writer: CheckpointWriter
    wait_for_writes: bool
    _since: float = 0.0
    _digests: RecordDigests = field(init=False)
    _identity: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._digests = RecordDigests(self.directory)
        self._identity = self.built.identity

    def start_clock(self) -> None:
        """Start to measure the time until the first evaluation."""
        self._since = time.perf_counter()

    def catch_up(self, snapshot: Snapshot) -> None:
        """Evaluate the snapshot that a run continues from, if an extension left that open."""
        due = self.evaluator.due(snapshot.round, self.built.rounds)
        if due and not self._evaluated(snapshot.round):
            spent = self.directory.take_times(snapshot.round)
            self.stopping.absorb([self._evaluate(snapshot, spent)])

    def _evaluated(self, round_: int) -> bool:
        history = self.directory.history()
        return bool(history) and history[-1]["round"] >= round_

    def record(self, snapshot: Snapshot) -> Measures | None:
        """Do what is due after a round; return the evaluation, if there was one."""
        settings, rounds = self.built.experiment, self.built.rounds
        measures = None
        if self.evaluator.due(snapshot.round, rounds):
            measures = self._evaluate(snapshot)
            self.stopping.absorb([measures])
        forgotten = last_deletion(settings.deletions, snapshot.round)
        # Older checkpoints may hold what a deletion has just removed: replace them at once.
        due = snapshot.round in (rounds, forgotten + 1)
        if due or self.stopping.reason or snapshot.round % settings.checkpoint.every == 0:
            self._save(snapshot, forgotten)
        return measures

    def seconds(self) -> dict[str, float]:
        """Return the time by phase, with what came after the last evaluation."""
        spent = self.directory.seconds()
        if self.built.upcoming is not None:
            rest = {"total": time.perf_counter() - self._since, **self.timer.drain()}
            spent = added(spent, rest)
        return spent

    def _evaluate(self, snapshot: Snapshot, spent: Mapping[str, float] = NOTHING) -> Measures:
        with self.timer("evaluate"):
            found = self.evaluator(snapshot)
        now = time.perf_counter()
        seconds = added(spent, {"total": now - self._since, **self.timer.drain()})
        self._digests.add(self.directory.append(found.measures, seconds, found.records))
        self.tracker.log(snapshot.round, found.measures)
        self._since = now
        return found.measures

    def _save(self, snapshot: Snapshot, forgotten: int) -> None:
        point = RunPoint(self._digests.now(), self._identity)
        with self.timer("write"):
            self.writer.save(snapshot, self.built.experiment.checkpoint.keep, point, forgotten)
            if self.wait_for_writes:
                self.writer.wait()


def added(spent: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Add seconds by phase.

    >>> added({"train": 1.0}, {"train": 0.5, "total": 2.0})
    {'train': 1.5, 'total': 2.0}
    """
    return {**spent, **{phase: spent.get(phase, 0.0) + value for phase, value in more.items()}}
