"""Where the time of a round goes, phase by phase, on one core."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronofed.clock import Clock
from chronofed.engines.serial import SerialEngine
from chronofed.experiments.spec import Experiment
from chronofed.loop import run
from chronofed.metrics.evaluation import Evaluator
from chronofed.records.checkpoint import save
from chronofed.tasks.classification import Classification
from chronofed.tasks.objective import TorchObjective
from chronofed.types import Batch, Vector

PHASES = ("data", "forward and backward", "update", "memory", "probe", "aggregate", "other")
GRADIENT = "forward and backward"


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds by phase.

    Attributes:
        rounds: Rounds that were timed.
        round: Seconds of one round, by phase.
        after: Seconds of one evaluation and of one checkpoint.
    """

    rounds: int
    round: dict[str, float]
    after: dict[str, float]


def profile(experiment: Experiment, rounds: int, data: Path | None = None) -> Profile:
    """Time some rounds, after one to warm up; nothing is kept.

    Args:
        experiment: What to run.
        rounds: Rounds to time, if the experiment has as many.
        data: Folder of data files.

    Returns:
        Mean seconds by phase.
    """
    task, scenario, last = experiment.build(data)
    clock, rounds = Clock(), max(1, min(rounds, last - 1))
    engine = SerialEngine(_Timed(task, clock), clock=clock)
    snapshots = run(
        experiment.method,
        scenario,
        task,
        rounds=min(rounds + 1, last),
        train=experiment.train,
        engine=engine,
        seed=experiment.seed,
        clock=clock,
    )
    snapshot = next(snapshots)
    if last > 1:
        clock.read()
    begin = time.perf_counter()
    snapshot = [snapshot, *snapshots][-1]
    total = time.perf_counter() - begin
    spent = clock.read()
    evaluate = Evaluator(task, scenario, experiment.method, experiment.evaluate, experiment.seed)
    with clock("evaluate"):
        evaluate(snapshot)
    with clock("write"), tempfile.TemporaryDirectory() as folder:
        save(Path(folder), snapshot, keep=1)
    return Profile(rounds, _phases(spent, total, rounds), clock.read())


def _phases(spent: dict[str, float], total: float, rounds: int) -> dict[str, float]:
    """Seconds of one round; an update is what training takes beside gradients."""
    training = spent.pop("train", 0.0)
    spent["update"] = max(0.0, training - spent.get(GRADIENT, 0.0))
    spent["other"] = max(0.0, total - sum(spent.values()))
    return {phase: spent.get(phase, 0.0) / rounds for phase in PHASES}


@dataclass(frozen=True, slots=True)
class _Timed:
    """A task whose objectives book the time of their gradients."""

    task: Classification
    clock: Clock

    def objective(self) -> TorchObjective:
        objective = self.task.objective()
        inner, clock = objective.gradient, self.clock

        def gradient(params: Vector, batch: Batch) -> Vector:
            with clock(GRADIENT):
                return inner(params, batch)

        objective.gradient = gradient  # type: ignore[method-assign]
        return objective

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.task, name)
