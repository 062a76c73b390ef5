"""Profiling: the seconds of a round by phase, on one core."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronofed.core.timing import PhaseTimer
from chronofed.core.types import Batch, Vector
from chronofed.engines.serial import SerialEngine
from chronofed.models.objective import TorchObjective
from chronofed.models.supervised import SupervisedTask
from chronofed.runs.built import BuiltRun
from chronofed.runs.checkpoint import save
from chronofed.training.evaluation import Evaluator
from chronofed.training.loop import run

PHASES = ("data", "forward and backward", "update", "memory", "probe", "aggregate", "other")
GRADIENT = "forward and backward"


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds by phase.

    Attributes:
        rounds: Rounds timed.
        round: Seconds of one round by phase.
        after: Seconds of one evaluation and of one checkpoint.
    """

    rounds: int
    round: dict[str, float]
    after: dict[str, float]


def profile(built: BuiltRun, rounds: int) -> Profile:
    """Time some rounds after a warm-up round; write nothing.

    Args:
        built: The experiment.
        rounds: Rounds to time, if the experiment has that many.

    Returns:
        Mean seconds by phase.
    """
    experiment, task, scenario, last = built.experiment, built.task, built.scenario, built.rounds
    timer, rounds = PhaseTimer(), max(1, min(rounds, last - 1))
    engine = SerialEngine(_Timed(task, timer), timer=timer)
    snapshots = run(
        experiment.method,
        scenario,
        task,
        rounds=min(rounds + 1, last),
        train=experiment.train,
        engine=engine,
        seed=experiment.seed,
        timer=timer,
        checked=True,
    )
    snapshot = next(snapshots)
    if last > 1:
        timer.drain()
    begin = time.perf_counter()
    snapshot = [snapshot, *snapshots][-1]
    total = time.perf_counter() - begin
    spent = timer.drain()
    evaluate = Evaluator(
        task,
        scenario,
        experiment.method,
        experiment.evaluate,
        experiment.seed,
        upcoming=built.upcoming,
    )
    with timer("evaluate"):
        evaluate(snapshot, built.upcoming.first if built.upcoming else None)
    with timer("write"), tempfile.TemporaryDirectory() as folder:
        save(Path(folder), snapshot, keep=1)
    return Profile(rounds, _phases(spent, total, rounds), timer.drain())


def _phases(spent: dict[str, float], total: float, rounds: int) -> dict[str, float]:
    """Return the seconds of one round; the update is training without its gradients."""
    training = spent.pop("train", 0.0)
    spent["update"] = max(0.0, training - spent.get(GRADIENT, 0.0))
    spent["other"] = max(0.0, total - sum(spent.values()))
    return {phase: spent.get(phase, 0.0) / rounds for phase in PHASES}


@dataclass(frozen=True, slots=True)
class _Timed:
    """A task whose objectives time their gradients."""

    task: SupervisedTask
    timer: PhaseTimer

    def objective(self) -> TorchObjective:
        objective = self.task.objective()
        inner, timer = objective.gradient, self.timer

        def gradient(params: Vector, batch: Batch) -> Vector:
            with timer(GRADIENT):
                return inner(params, batch)

        objective.gradient = gradient  # type: ignore[method-assign]
        return objective

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)
