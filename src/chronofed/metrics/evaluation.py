"""How the global model does after a round, and what explains it."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chronofed.config import Config, Count, Natural
from chronofed.engines.serial import one_thread
from chronofed.errors import SpecError
from chronofed.loop import Snapshot
from chronofed.metrics.influence import round_weights
from chronofed.metrics.past import past_measures
from chronofed.metrics.periods import PeriodTable, Standing
from chronofed.metrics.summary import Measures
from chronofed.protocol import Method
from chronofed.scenarios.base import Scenario
from chronofed.seeds import numpy_generator
from chronofed.tasks.classification import Classification, Score
from chronofed.tasks.objective import TorchObjective
from chronofed.types import Samples, Vector

MOST_PERIODS = 3000  # client-periods that "auto" follows


class Evaluate(Config):
    """When and on what the global model is evaluated.

    Attributes:
        every: Rounds between evaluations; the last round is always evaluated.
        seen: Evaluate on at most so many of the training samples seen so far, drawn anew each time; 0 for
            none. The number used is recorded as ``seen_samples``.
        periods: Whether to follow the accuracy on every client and data set, from which forgetting and
            backward transfer are computed. Costs no pass over data, but a few bytes a pair in the record;
            ``auto`` does it for returning clients with at most 3000 pairs.
        past: Measure client drift, time drift and information loss on so many of the latest data sets of
            every client (a simulation knows them); 0 for not at all. Price: for each of them one gradient of
            its data and one of what is kept of it.

    Where clients are elsewhere, nobody but they can see their data: ``seen`` and ``auto`` find nothing to
    evaluate then, and what was asked for in so many words is refused.
    """

    every: Count = 1
    seen: Natural = 2000
    periods: Literal["auto", "on", "off"] = "auto"
    past: Natural = 0

    def due(self, round_: int, last: int) -> bool:
        """Whether the model is evaluated after this round."""
        return round_ % self.every == 0 or round_ == last

    def check(self, scenario: Scenario) -> None:
        """Refuse measures for which the server would need the clients' data.

        Raises:
            SpecError: If it does not have them.
        """
        asked = {"periods = 'on'": self.periods == "on", f"past = {self.past}": self.past > 0}
        for name in (name for name, wanted in asked.items() if wanted and scenario.elsewhere):
            msg = f"evaluate.{name} needs the clients' data, which are elsewhere: leave it out"
            raise SpecError(msg)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Numbers of one snapshot, the accuracy on every client and data set seen so far, and round weights."""

    measures: Measures
    periods: dict[str, Any]
    weights: dict[str, Any]


@dataclass(slots=True)
class Evaluator:
    """Evaluates the snapshots of one run; a pure function of the snapshot and of what was recorded before.

    Attributes:
        task: What is learned.
        scenario: Who saw what when.
        method: How it is learned.
        settings: What to evaluate.
        seed: Root of the run's randomness.
        workers: Threads that share the samples among them; the numbers do not depend on it.
    """

    task: Classification
    scenario: Scenario
    method: Method
    settings: Evaluate
    seed: int
    workers: int = 1
    _seen: NDArray[np.bool_] = field(init=False)  # (n,) which training samples were seen
    _until: int = field(init=False, default=0)  # by which round
    _objectives: list[TorchObjective] = field(init=False)
    _table: PeriodTable = field(init=False)
    _standing: Standing = field(init=False, default_factory=Standing)

    def __post_init__(self) -> None:
        self._seen = np.zeros(len(self.task.data.train), dtype=bool)
        self._objectives = [self.task.objective() for _ in range(self.workers)]
        self._table = PeriodTable(self.task.data)

    def absorb(self, recorded: Iterable[Mapping[str, Any]]) -> None:
        """Take over what was recorded of client-periods before a run was stopped."""
        for line in recorded:
            self._standing.add(line)

    def __call__(self, snapshot: Snapshot) -> Evaluation:
        """All measures of one snapshot."""
        with one_thread():
            self._advance(snapshot.round)
            test = self._score(snapshot.params, snapshot.buffers, None)
            measures: dict[str, float | int] = {
                "round": snapshot.round,
                "test_accuracy": test.accuracy,
                "test_loss": test.loss,
                "bytes_down": snapshot.traffic.down,
                "bytes_up": snapshot.traffic.up,
            }
            measures |= self._on_seen(snapshot) | self._personal(snapshot, test)
            measures |= self.method.weights.report(snapshot.weights)
            measures |= self.method.backbone.report(snapshot.round)
            if self.settings.past:
                pick = (self.task, self.scenario, self.method.memory, self._objectives[0])
                measures |= past_measures(*pick, snapshot, self.settings.past)
            periods = self._periods(snapshot, test)
            weights = round_weights(self.method, snapshot)
            return Evaluation(measures | self._standing.measures(), periods, weights)

    def _score(self, params: Vector, buffers: Vector, indices: NDArray[np.int64] | None) -> Score:
        samples = self.task.data.test if indices is None else self.task.samples(indices)
        parts = _shares(samples, self.workers, self.task.evaluation_batch)
        if len(parts) == 1:
            return self.task.score(self._objectives[0], params, buffers, samples)

        def partial(objective: TorchObjective, part: Samples) -> list[tuple[float, Tensor]]:
            with one_thread():
                return self.task.partial_scores(objective, params, buffers, part)

        with ThreadPoolExecutor(len(parts)) as pool:
            found = list(pool.map(partial, self._objectives, parts))
        return Score.of(chain.from_iterable(found))

    def _advance(self, round_: int) -> None:
        """Know who saw what until ``round_``; asked for the past, begin again."""
        if round_ < self._until:
            self._seen[:], self._until = False, 0
            self._table, self._standing = PeriodTable(self.task.data), Standing()
        for earlier in range(self._until, round_):
            for client, visit in self.scenario.at(earlier).visits.items():
                self._seen[visit.indices] = True
                if self._follows:
                    self._table.visit(client, visit)
        self._until = round_

    @property
    def _follows(self) -> bool:
        """Whether single clients matter; where new ones come for ever, they would fill the memory."""
        wanted = self.scenario.persistent or self.settings.periods == "on"
        return wanted and not self.scenario.elsewhere

    def _on_seen(self, snapshot: Snapshot) -> dict[str, float | int]:
        indices = np.flatnonzero(self._seen)
        if self.settings.seen == 0 or len(indices) == 0:
            return {}
        if len(indices) > self.settings.seen:
            rng = numpy_generator(self.seed, "seen", snapshot.round)
            indices = np.sort(rng.choice(indices, self.settings.seen, replace=False))
        score = self._score(snapshot.params, snapshot.buffers, indices)
        return {
            "seen_accuracy": score.accuracy,
            "seen_loss": score.loss,
            "seen_samples": len(indices),
        }

    def _personal(self, snapshot: Snapshot, test: Score) -> dict[str, float | int]:
        """Personal models, each on its own client's mix of test samples, beside the global one there."""
        own, shared = [], []
        for i in sorted(snapshot.lockers):  # one locker at a time: they may not all fit into memory
            model = snapshot.lockers[i].state.get("personal")
            if model is not None:
                right = self._score(model, snapshot.buffers, None).correct
                own.append(self._table.client_accuracy(i, right))
                shared.append(self._table.client_accuracy(i, test.correct))
        if not own:
            return {}
        return {"personal_accuracy": float(np.mean(own)), "client_accuracy": float(np.mean(shared))}

    def _periods(self, snapshot: Snapshot, test: Score) -> dict[str, Any]:
        wanted = self.settings.periods
        many = len(self._table) > MOST_PERIODS
        if not self._follows or wanted == "off" or (wanted == "auto" and many):
            return {}
        accuracies = self._table.accuracies(test.correct)
        new = [(c, k) for c, k, _ in accuracies if (c, k) not in self._standing.first]
        line = {
            "round": snapshot.round,
            "accuracy": accuracies,
            "held": [[c, k, self._table.main_classes((int(c), int(k)))] for c, k in new],
        }
        self._standing.add(line)
        return line


def _shares(samples: Samples, workers: int, batch: int) -> list[Samples]:
    """Equal shares that do not cut a batch in two, so that sums are the same for any number of workers."""
    batches = -(-len(samples) // batch)
    size = batch * -(-batches // workers)
    pairs = zip(torch.split(samples.x, size), torch.split(samples.y, size), strict=True)
    return [Samples(x, y) for x, y in pairs]
