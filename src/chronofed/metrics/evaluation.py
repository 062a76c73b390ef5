"""How the global model does after a round: on the test set, and on all training data seen so far."""

from dataclasses import dataclass, field

import numpy as np

from chronofed.config import Config, Count, Natural
from chronofed.engines.serial import one_thread
from chronofed.loop import Snapshot
from chronofed.metrics.summary import Measures
from chronofed.scenarios.base import Scenario
from chronofed.seeds import numpy_generator
from chronofed.tasks.classification import Classification
from chronofed.tasks.objective import TorchObjective


class Evaluate(Config):
    """When and on what the global model is evaluated.

    Attributes:
        every: Rounds between evaluations; the last round is always evaluated.
        seen: Evaluate on at most so many of the training samples seen so far, drawn anew each time; 0 for
            none. The number used is recorded as ``seen_samples``.
    """

    every: Count = 1
    seen: Natural = 2000

    def due(self, round_: int, last: int) -> bool:
        """Whether the model is evaluated after this round."""
        return round_ % self.every == 0 or round_ == last


@dataclass(slots=True)
class Evaluator:
    """Evaluates snapshots of one run; a pure function of the snapshot, whatever was evaluated before.

    Attributes:
        task: What is learned.
        scenario: Who saw what when.
        settings: What to evaluate.
        seed: Root of the run's randomness.
    """

    task: Classification
    scenario: Scenario
    settings: Evaluate
    seed: int
    _seen: np.ndarray = field(init=False)  # (n,) bool: which training samples were seen
    _until: int = field(init=False, default=0)  # by which round
    _objective: TorchObjective = field(init=False)

    def __post_init__(self) -> None:
        self._seen = np.zeros(len(self.task.data.train), dtype=bool)
        self._objective = self.task.objective()

    def __call__(self, snapshot: Snapshot) -> Measures:
        """All measures of one snapshot."""
        with one_thread():
            test = self.task.score(
                self._objective, snapshot.params, snapshot.buffers, self.task.data.test
            )
            measures = {
                "round": snapshot.round,
                "test_accuracy": test.accuracy,
                "test_loss": test.loss,
            }
            return measures | self._on_seen(snapshot)

    def _on_seen(self, snapshot: Snapshot) -> dict[str, float | int]:
        indices = self._sample_of_seen(snapshot.round)
        if len(indices) == 0:
            return {}
        score = self.task.score(
            self._objective, snapshot.params, snapshot.buffers, self.task.samples(indices)
        )
        return {
            "seen_accuracy": score.accuracy,
            "seen_loss": score.loss,
            "seen_samples": len(indices),
        }

    def _sample_of_seen(self, round_: int) -> np.ndarray:
        if self.settings.seen == 0:
            return np.empty(0, dtype=np.int64)
        if round_ < self._until:  # asked for the past: begin again
            self._seen[:], self._until = False, 0
        for earlier in range(self._until, round_):
            for visit in self.scenario.at(earlier).visits.values():
                self._seen[visit.indices] = True
        self._until = round_
        indices = np.flatnonzero(self._seen)
        if len(indices) <= self.settings.seen:
            return indices
        rng = numpy_generator(self.seed, "seen", round_)
        return np.sort(rng.choice(indices, self.settings.seen, replace=False))
