"""Evaluation of the global model after a round."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chronofed.core.config import Config, Count, Natural
from chronofed.core.errors import ChronofedError, SpecError, UserCodeError
from chronofed.core.seeds import numpy_generator
from chronofed.core.user_code import in_one_line, user_traceback
from chronofed.data.dataset import EvaluateOn
from chronofed.engines.base import one_thread
from chronofed.methods.method import Method
from chronofed.models.classification import Classification, Score
from chronofed.scenarios.base import Scenario
from chronofed.training.drift import drift_measures
from chronofed.training.followed_pairs import FollowedPairs
from chronofed.training.loop import Snapshot
from chronofed.training.measure import Measure
from chronofed.training.measures import BY_KEY, MEASURES, load_measures
from chronofed.training.period_accuracy import AccuracyHistory, PeriodAccuracy
from chronofed.training.records import RECORDS
from chronofed.training.round_weights import round_weights
from chronofed.training.scoring import Scorer
from chronofed.training.summary import Measures

# Pairs of client and data set that "auto" follows at most.
MOST_PAIRS = 3000


class Evaluate(Config):
    """When and on what the global model is evaluated.

    Attributes:
        every: Rounds between evaluations; the last round is always evaluated.
        on: Rows to evaluate on: ``test``, or ``validation`` while you choose settings. In the names of measures
            ``test`` then means these rows, and the test rows are not used at all.
        seen: Evaluate on at most so many of the training samples seen so far, drawn anew each time; 0 for
            none. The number used is recorded as ``seen_samples``.
        periods: Follow the accuracy by client and data set, from which forgetting and backward transfer are
            computed. Costs no pass over data, but a few bytes a pair in the record. ``auto`` does it for
            returning clients, and of more than 3000 pairs follows a random sample of 3000; ``on`` follows
            all. How many is recorded as ``followed_pairs`` and ``seen_pairs``.
        past: Measure client drift, time drift and information loss on so many of the latest data sets of
            every client (a simulation knows them); 0 for not at all. Price: for each of them one gradient of
            its data and one of what is kept of it.
        measures: Your own measures, each as ``package.module:NAME`` of a :class:`~chronofed.Measure`.

    Where clients are remote, only they can see their data: ``seen`` and ``auto`` find nothing to evaluate then,
    and what was asked for explicitly is refused.
    """

    every: Count = 1
    on: EvaluateOn = "test"
    seen: Natural = 2000
    periods: Literal["auto", "on", "off"] = "auto"
    past: Natural = 0
    measures: tuple[str, ...] = ()

    def due(self, round_: int, last: int) -> bool:
        """Tell if the model is evaluated after this round."""
        return round_ % self.every == 0 or round_ == last

    def own_measures(self) -> tuple[Measure, ...]:
        """Import the user's own measures.

        Raises:
            SpecError: If one cannot be imported, or its key is taken.
        """
        return load_measures(self.measures)

    def check(self, scenario: Scenario) -> None:
        """Refuse measures that cannot be computed.

        Raises:
            SpecError: If the server would need data that it does not have, or a measure cannot be imported.
        """
        self.own_measures()
        asked = {"periods = 'on'": self.periods == "on", f"past = {self.past}": self.past > 0}
        for name in (name for name, wanted in asked.items() if wanted and scenario.remote):
            msg = f"evaluate.{name} needs the clients' data, which are elsewhere: leave it out"
            raise SpecError(msg)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The numbers of one snapshot, and a line for each record (:mod:`chronofed.training.records`)."""

    measures: Measures
    records: dict[str, Mapping[str, Any]]


@dataclass(frozen=True)
class EvaluationContext:
    """Everything that a measure can be computed from; costly parts are computed when first asked for.

    Attributes:
        snapshot: The state after the round, with the global model's ``params`` and ``buffers``.
        task: Data set and model.
        scenario: Who holds which data when.
        method: How it is learned.
        test: Loss, accuracy and ``correct`` (a boolean for each sample) of the global model on the test set.
    """

    snapshot: Snapshot
    task: Classification
    scenario: Scenario
    method: Method
    test: Score
    _evaluator: "Evaluator"

    @property
    def labels(self) -> Tensor:
        """Classes of the test samples ``(samples,)``."""
        return self.task.data.test.y

    @cached_property
    def logits(self) -> Tensor:
        """Logits of the global model on the test set ``(samples, classes)``."""
        model = (self.snapshot.params, self.snapshot.buffers)
        return self._evaluator.scorer.logits(*model, self.task.data.test)

    @cached_property
    def seen(self) -> Score | None:
        """Score on training samples seen so far; ``None`` if there are none, or it is switched off."""
        return self._evaluator.score_seen(self.snapshot)

    @cached_property
    def personal(self) -> dict[str, float]:
        """Accuracy of personal models and of the global one beside them, where there are personal models."""
        return self._evaluator.score_personal(self.snapshot, self.test)

    @cached_property
    def reported(self) -> dict[str, float]:
        """Numbers that round weights and backbone report."""
        weights = self.method.weights.report(self.snapshot.weighting_state)
        return weights | self.method.backbone.report(self.snapshot.round)

    @cached_property
    def drift(self) -> dict[str, float]:
        """Drifts and information loss; empty without ``evaluate.past``."""
        evaluator, most = self._evaluator, self._evaluator.settings.past
        if not most:
            return {}
        parts = (self.task, self.scenario, self.method.memory, evaluator.scorer.objective)
        return drift_measures(*parts, self.snapshot, most)

    @cached_property
    def periods(self) -> dict[str, Any]:
        """The accuracy by client and data set; empty where nothing was measured."""
        return self._evaluator.follow_periods(self.snapshot, self.test)

    @cached_property
    def by_period(self) -> dict[str, float]:
        """Forgetting, backward transfer and the number of pairs; empty where nothing was measured."""
        line = self.periods
        if not line:
            return {}
        pairs = {"followed_pairs": len(line["accuracy"]), "seen_pairs": line["pairs"]}
        return self._evaluator.accuracy_history.measures() | pairs

    @cached_property
    def round_weights(self) -> dict[str, Any]:
        """Mean round weights; empty where nothing is remembered."""
        return round_weights(self.method, self.snapshot)


@dataclass(slots=True)
class Evaluator:
    """Evaluates the snapshots of one run; a pure function of the snapshot and of earlier records.

    Attributes:
        task: What is learned.
        scenario: Who holds which data when.
        method: How it is learned.
        settings: What to evaluate.
        seed: Root of the run's randomness.
        workers: Threads that share the samples; the numbers do not depend on it.
    """

    task: Classification
    scenario: Scenario
    method: Method
    settings: Evaluate
    seed: int
    workers: int = 1
    scorer: Scorer = field(init=False)
    accuracy_history: AccuracyHistory = field(init=False, default_factory=AccuracyHistory)
    _measures: tuple[Measure, ...] = field(init=False)
    # (n,): the training samples that were seen before round _until
    _seen: NDArray[np.bool_] = field(init=False)
    _until: int = field(init=False, default=0)
    _period_accuracy: PeriodAccuracy = field(init=False)
    _followed: FollowedPairs = field(init=False)

    def __post_init__(self) -> None:
        self._seen = np.zeros(len(self.task.data.train), dtype=bool)
        self.scorer = Scorer(self.task, self.workers)
        self._period_accuracy = PeriodAccuracy(self.task.data)
        self._followed = self._no_pairs()
        self._measures = (*MEASURES, *self.settings.own_measures())

    def absorb(self, recorded: Iterable[Mapping[str, Any]]) -> None:
        """Take over the lines of ``period_accuracy.jsonl`` that were recorded before a run was stopped."""
        for line in recorded:
            self.accuracy_history.add(line)

    def due(self, round_: int, last: int) -> bool:
        """Tell if the model is evaluated after this round, of which the run has ``last``."""
        return self.settings.due(round_, last)

    def __call__(self, snapshot: Snapshot) -> Evaluation:
        """Compute all measures and records of one snapshot."""
        with one_thread():
            self._advance(snapshot.round)
            test = self.scorer.score(snapshot.params, snapshot.buffers, self.task.data.test)
            parts = (snapshot, self.task, self.scenario, self.method, test)
            context = EvaluationContext(*parts, self)
            measures: dict[str, float | int] = {"round": snapshot.round}
            for measure in self._measures:
                value = _computed(measure, context)
                if value is not None:
                    measures[measure.key] = value
            # What a user's own backbone or round weights report is recorded without an entry, too.
            others = {k: v for k, v in context.reported.items() if k not in measures}
            lines = {record.name: record.line(context) for record in RECORDS}
            return Evaluation(
                measures | others, {name: line for name, line in lines.items() if line}
            )

    def _advance(self, round_: int) -> None:
        """Learn who saw what until ``round_``; start over if it lies in the past."""
        if round_ < self._until:
            self._seen[:], self._until = False, 0
            self._period_accuracy = PeriodAccuracy(self.task.data)
            self._followed = self._no_pairs()
            self.accuracy_history = AccuracyHistory()
        for earlier in range(self._until, round_):
            for client, visit in self.scenario.at(earlier).visits.items():
                self._seen[visit.indices] = True
                if self._follows and self._period_accuracy.visit(client, visit):
                    self._followed.add((client, visit.key))
        self._until = round_

    def _no_pairs(self) -> FollowedPairs:
        return FollowedPairs(self.seed, MOST_PAIRS if self.settings.periods == "auto" else None)

    @property
    def _follows(self) -> bool:
        """Follow single clients; where new ones come for ever, they would fill the memory."""
        wanted = self.scenario.persistent or self.settings.periods == "on"
        return wanted and not self.scenario.remote

    def score_seen(self, snapshot: Snapshot) -> Score | None:
        """Score the model on training samples seen so far."""
        indices = np.flatnonzero(self._seen)
        if self.settings.seen == 0 or len(indices) == 0:
            return None
        if len(indices) > self.settings.seen:
            rng = numpy_generator(self.seed, "seen", snapshot.round)
            indices = np.sort(rng.choice(indices, self.settings.seen, replace=False))
        return self.scorer.score(snapshot.params, snapshot.buffers, self.task.samples(indices))

    def score_personal(self, snapshot: Snapshot, test: Score) -> dict[str, float]:
        """Score personal models, each on its own client's mix of test samples, beside the global one."""
        own, shared = [], []
        # One client state at a time: they may not all fit into memory.
        for i in sorted(snapshot.client_states):
            state = snapshot.client_states[i].backbone_state
            if "personal" in state:
                buffers = state.get("buffers", snapshot.buffers)
                score = self.scorer.score(state["personal"], buffers, self.task.data.test)
                own.append(self._period_accuracy.client_accuracy(i, score.correct))
                shared.append(self._period_accuracy.client_accuracy(i, test.correct))
        # A client without test samples of its own cannot be measured.
        named = {"personal_accuracy": own, "client_accuracy": shared}
        measured = {key: [a for a in found if a is not None] for key, found in named.items()}
        return {key: float(np.mean(found)) for key, found in measured.items() if found}

    def follow_periods(self, snapshot: Snapshot, test: Score) -> dict[str, Any]:
        """Add the accuracy of the followed pairs to the history, and return the line to record."""
        if not self._follows or self.settings.periods == "off":
            return {}
        accuracies = self._period_accuracy.accuracies(test.correct, self._followed.pairs)
        if not accuracies:
            return {}
        found = [(int(client), int(key)) for client, key, _ in accuracies]
        new = [pair for pair in found if pair not in self.accuracy_history.first]
        line = {
            "round": snapshot.round,
            "basis": self._period_accuracy.basis,
            "pairs": self._followed.seen,
            "accuracy": accuracies,
            "held": [[*pair, self._period_accuracy.main_classes(pair)] for pair in new],
            "tested": [self._period_accuracy.tested(pair) for pair in new],
        }
        self.accuracy_history.add(line)
        return line


def _computed(measure: Measure, context: EvaluationContext) -> float | int | None:
    """The value of a measure; an error of a user's own measure names it."""
    if measure.compute is None:
        return None
    try:
        value = measure.compute(context)
        return value if value is None or isinstance(value, int | float) else float(value)
    except ChronofedError:
        raise
    except Exception as error:
        if measure.key in BY_KEY:
            raise
        msg = f"evaluate.measures: {measure.key!r} failed: {in_one_line(error)}"
        raise UserCodeError(msg, user_traceback(error)) from error
