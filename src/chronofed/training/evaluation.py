"""Evaluation of the global model after a round."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from chronofed.core.config import kind_of
from chronofed.core.errors import ChronofedError, SpecError, UserCodeError
from chronofed.core.seeds import numpy_generator
from chronofed.core.types import Samples
from chronofed.core.user_code import in_one_line, user_traceback
from chronofed.engines.base import one_thread
from chronofed.methods.clusters.table import followed
from chronofed.methods.method import Method
from chronofed.models.supervised import Score, SupervisedTask
from chronofed.scenarios.base import Scenario
from chronofed.training.breakdown import breakdown
from chronofed.training.classification_measures import Outcome
from chronofed.training.drift import drift_measures
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluated_part import EvaluatedPart
from chronofed.training.followed_pairs import FollowedPairs
from chronofed.training.loop import Snapshot
from chronofed.training.measure import Measure
from chronofed.training.measures import BY_KEY, MEASURES, OPTIONAL
from chronofed.training.nearest_mean import class_means, nearest_mean
from chronofed.training.next_period import EvaluatedRows, NextPeriod, evaluated_rows
from chronofed.training.own_priors import personal_models
from chronofed.training.period_accuracy import AccuracyHistory, PeriodAccuracy
from chronofed.training.records import RECORDS
from chronofed.training.round_weights import round_weights
from chronofed.training.scoring import Scorer
from chronofed.training.summary import Measures

# Pairs of client and data set that "auto" follows at most.
MOST_PAIRS = 3000


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
        rows: The samples that are evaluated: the test set, or those of the next period.
        test: Score of the global model on them: loss, ``accuracy`` and ``correct`` (for each sample), or
            of a regression ``errors``; and its outputs.
    """

    snapshot: Snapshot
    task: SupervisedTask
    scenario: Scenario
    method: Method
    rows: EvaluatedRows
    test: Score
    _evaluator: "Evaluator"

    @property
    def labels(self) -> Tensor:
        """Classes of the evaluated samples ``(samples,)``; of a regression scaled targets."""
        return self.rows.samples.y

    @property
    def logits(self) -> Tensor:
        """Outputs of the global model on the samples: logits ``(samples, classes)``, or ``(samples, 1)``."""
        return self.test.outputs

    @property
    def counted(self) -> bool:
        """True if the number of evaluated samples differs from one evaluation to another."""
        return self.rows.period is not None or self._evaluator.settings.sample > 0

    @cached_property
    def held_out(self) -> Score | None:
        """Score on the test set; ``None`` if nothing is held out."""
        return self._evaluator.score_held_out(self.snapshot, self.rows, self.test)

    @cached_property
    def outcome(self) -> Outcome | None:
        """Chances and classes of the evaluated samples; ``None`` if there are no classes."""
        if not self.task.data.classes:
            return None
        return Outcome.of(self.logits, self.labels, self.rows.client)

    @property
    def breakdown(self) -> dict[str, Any]:
        """Figures by class and by client; empty unless measures of classification are asked for."""
        return breakdown(self) if self._evaluator.detailed else {}

    @cached_property
    def seen(self) -> Score | None:
        """Score on training samples seen so far; ``None`` if there are none, or it is switched off."""
        return self._evaluator.score_seen(self.snapshot)

    @cached_property
    def validation(self) -> Score | None:
        """Score on the validation rows, beside the test rows; ``None`` if nothing is decided by them."""
        rows = self.task.data.validation
        if rows is None or not self._evaluator.validation:
            return None
        if rows is self.task.data.test:
            return self.test
        return self._evaluator.score(self.snapshot, rows)

    @cached_property
    def personal(self) -> dict[str, float]:
        """Accuracy of personal models and of the global one beside them, where there are personal models."""
        return self._evaluator.score_personal(self.snapshot, self.rows, self.test)

    @cached_property
    def clusters(self) -> dict[str, float]:
        """Accuracy of the models that clients follow and of the main one beside them, if there are several."""
        return self._evaluator.score_clusters(self.snapshot, self.rows, self.test)

    @property
    def followers(self) -> dict[str, Any]:
        """The number of the model that every client follows, -1 for none; empty if there is only one."""
        found = followed(self.snapshot.server)
        if found is None:
            return {}
        _, places, numbers = found
        line = [numbers[places[i]] if i in places else -1 for i in range(self.scenario.clients)]
        models = sorted(number for number in numbers if number >= 0)
        return {"round": self.snapshot.round, "models": models, "of": line}

    @cached_property
    def reported(self) -> dict[str, float]:
        """Numbers that round weights and backbone report."""
        weights = self.method.weights.report(self.snapshot.weighting_state)
        reported = weights | self.method.composed.report(self.snapshot.round)
        head, server = self.method.head, self.snapshot.server
        return reported if head is None else reported | head.report(server)

    @property
    def choices(self) -> dict[str, Any]:
        """Choices that the method made by itself, and why; empty if there was nothing to choose."""
        head = self.method.head
        found = {} if head is None else head.why(self.snapshot.server)
        if not found:
            return {}
        parts = {"memory": self.method.memory, "weights": self.method.weights}
        named = {name: kind_of(part) for name, part in parts.items()}
        back = "clients come back" if self.scenario.persistent else "clients never come back"
        return {"round": self.snapshot.round, **found, **named, "because": back}

    @cached_property
    def drift(self) -> dict[str, float]:
        """Drifts and information loss; empty without ``evaluate.past``, and where it is not its turn."""
        evaluator, most = self._evaluator, self._evaluator.settings.past
        waits = evaluator.settings.past_at == "last" and self.snapshot.round != evaluator.last
        if not most or waits:
            return {}
        parts = (self.task, self.scenario, self.method.memory, evaluator.scorer.objective)
        return drift_measures(*parts, self.snapshot, most)

    @cached_property
    def periods(self) -> dict[str, Any]:
        """The accuracy by client and data set; empty where nothing was measured."""
        if self.held_out is None:
            return {}
        return self._evaluator.follow_periods(self.snapshot, self.held_out)

    @cached_property
    def by_period(self) -> dict[str, float]:
        """Forgetting, backward transfer and the number of pairs; empty where nothing was measured."""
        line = self.periods
        if not line:
            return {}
        history = self._evaluator.accuracy_history
        pairs = {"followed_pairs": len(line[history.entry]), "seen_pairs": line["pairs"]}
        return history.measures() | pairs

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
        upcoming: The rows of the next period; ``None`` for the protocol ``holdout``.
        validation: Evaluate on the validation rows, too.
        last: The last round, for settings that measure more after it; ``None`` if there is none.
    """

    task: SupervisedTask
    scenario: Scenario
    method: Method
    settings: Evaluate
    seed: int
    workers: int = 1
    upcoming: NextPeriod | None = None
    validation: bool = False
    last: int | None = None
    scorer: Scorer = field(init=False)
    accuracy_history: AccuracyHistory = field(init=False)
    _measures: tuple[Measure, ...] = field(init=False)
    # (n,): the training samples that were seen before round _until
    _seen: NDArray[np.bool_] = field(init=False)
    _until: int = field(init=False, default=0)
    _period_accuracy: PeriodAccuracy = field(init=False)
    _followed: FollowedPairs = field(init=False)
    _means: Tensor | None = field(init=False, default=None)
    _part: EvaluatedPart | None = field(init=False)

    def __post_init__(self) -> None:
        if self.settings.classifier != "outputs" and not self.task.data.classes:
            raise SpecError("evaluate.classifier: 'nearest-mean' needs classes; use 'outputs'")
        self._seen = np.zeros(len(self.task.data.train), dtype=bool)
        self._part = EvaluatedPart.of(self.task, self.settings.sample, self.seed)
        self.scorer = Scorer(self.task, self.workers)
        self._period_accuracy = self._no_accuracy()
        self._followed = self._no_pairs()
        self.accuracy_history = AccuracyHistory(lower=not self.task.data.classes)
        self._measures = (*MEASURES, *self.settings.own_measures())

    def absorb(self, recorded: Iterable[Mapping[str, Any]]) -> None:
        """Take over the lines of the record by period that were recorded before a run was stopped."""
        for line in recorded:
            self.accuracy_history.add(line)

    def due(self, round_: int, last: int) -> bool:
        """Tell if the model is evaluated after this round, of which the run has ``last``."""
        if self.upcoming is None:
            return self.settings.due(round_, last)
        return self.upcoming.period(round_) is not None

    @property
    def detailed(self) -> bool:
        """True if figures by class and by client are recorded."""
        return self.upcoming is not None or any(m in OPTIONAL for m in self._measures)

    def __call__(self, snapshot: Snapshot, period: int | None = None) -> Evaluation:
        """Compute all measures and records of one snapshot.

        Args:
            snapshot: The state after a round.
            period: With the protocol ``next``: the period to evaluate on; by default the one after the periods
                that were trained on.
        """
        with one_thread():
            self._advance(snapshot.round)
            task = self._task(snapshot.round)
            rows = evaluated_rows(task, self.upcoming, snapshot.round, period)
            self._means = self._class_means(snapshot)
            test = self.score(snapshot, rows.samples)
            parts = (snapshot, task, self.scenario, self.method, rows, test)
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

    def _task(self, round_: int) -> SupervisedTask:
        """Return the task with the test rows of this evaluation."""
        whole = self._part is None or round_ == self.last
        return self.task if whole else self._part.task  # type: ignore[union-attr]

    def _advance(self, round_: int) -> None:
        """Learn who saw what until ``round_``; start over if it lies in the past."""
        if round_ < self._until:
            self._seen[:], self._until = False, 0
            self._period_accuracy = self._no_accuracy()
            self._followed = self._no_pairs()
            self.accuracy_history = AccuracyHistory(self.accuracy_history.lower)
        for earlier in range(self._until, round_):
            for client, visit in self.scenario.at(earlier).visits.items():
                self._seen[visit.indices] = True
                if self._follows and self._period_accuracy.visit(client, visit):
                    self._followed.add((client, visit.key))
        self._until = round_

    def _no_accuracy(self) -> PeriodAccuracy:
        """Follow test rows by client and period only where the scenario has the data's clients and periods."""
        follows = getattr(self.scenario.stream, "follows_origin", False)
        data = (self._part.task if self._part else self.task).data
        return PeriodAccuracy(data if follows else replace(data, origin=None))

    def _no_pairs(self) -> FollowedPairs:
        return FollowedPairs(self.seed, MOST_PAIRS if self.settings.periods == "auto" else None)

    @property
    def _follows(self) -> bool:
        """Follow single clients; where new ones come for ever, they would fill the memory."""
        wanted = self.scenario.persistent or self.settings.periods == "on"
        return wanted and not self.scenario.remote

    def score(self, snapshot: Snapshot, samples: Samples) -> Score:
        """Score the global model on samples, with the classifier of the settings."""
        found = self.scorer.score(snapshot.params, snapshot.buffers, samples)
        if self._means is None:
            return found
        return nearest_mean(found, self.scorer.objective, snapshot.params, samples, self._means)

    def _class_means(self, snapshot: Snapshot) -> Tensor | None:
        """Return the means of the kept samples by class, if the settings ask for them and anybody has come."""
        if self.settings.classifier == "outputs" or not self._seen.any():
            return None
        objective, states = self.scorer.objective, snapshot.client_states
        objective.buffers = snapshot.buffers
        every = (states[client] for client in sorted(states))
        return class_means(objective, snapshot.params, every, len(self.task.data.classes))

    def score_seen(self, snapshot: Snapshot) -> Score | None:
        """Score the model on training samples seen so far."""
        indices = np.flatnonzero(self._seen)
        if self.settings.seen == 0 or len(indices) == 0:
            return None
        if len(indices) > self.settings.seen:
            rng = numpy_generator(self.seed, "seen", snapshot.round)
            indices = np.sort(rng.choice(indices, self.settings.seen, replace=False))
        return self.score(snapshot, self.task.samples(indices))

    def score_held_out(self, snapshot: Snapshot, rows: EvaluatedRows, test: Score) -> Score | None:
        """Score the model on the test set; ``None`` if nothing is held out."""
        if rows.period is None:
            return test
        held = self.task.data.test
        return self.score(snapshot, held) if len(held) else None

    def score_personal(
        self, snapshot: Snapshot, rows: EvaluatedRows, test: Score
    ) -> dict[str, float]:
        """Score personal models, each on its own client's part of the samples, beside the global one."""
        own, shared = [], []
        for i, params in personal_models(self.method, self.scenario, self.task, snapshot):
            score = self.scorer.score(params, snapshot.buffers, rows.samples)
            own.append(self._client_accuracy(i, rows, score))
            shared.append(self._client_accuracy(i, rows, test))
        # One client state at a time: they may not all fit into memory.
        for i in sorted(snapshot.client_states):
            state = snapshot.client_states[i].backbone_state
            samples = rows.of_client(i)
            if "personal" in state and len(samples):
                buffers = state.get("buffers", snapshot.buffers)
                score = self.scorer.score(state["personal"], buffers, samples)
                own.append(self._client_accuracy(i, rows, score))
                shared.append(self._client_accuracy(i, rows, test))
        return self._averaged(personal=own, client=shared)

    def score_clusters(
        self, snapshot: Snapshot, rows: EvaluatedRows, test: Score
    ) -> dict[str, float]:
        """Score the models that clients follow, each on its followers' parts of the samples."""
        found = followed(snapshot.server)
        if found is None:
            return {}
        models, places, _ = found
        score = {
            place: self.scorer.score(models[place], snapshot.buffers, rows.samples)
            for place in sorted(set(places.values()))
        }
        tested = [(i, place) for i, place in places.items() if len(rows.of_client(i))]
        own = [self._client_accuracy(i, rows, score[place]) for i, place in tested]
        shared = [self._client_accuracy(i, rows, test) for i, _ in tested]
        return self._averaged(cluster=own, client=shared)

    def _averaged(self, **named: list[float | None]) -> dict[str, float]:
        """Return the means over clients; one without test samples of its own cannot be measured."""
        what = "mae" if self.accuracy_history.lower else "accuracy"
        measured = {key: [a for a in found if a is not None] for key, found in named.items()}
        return {f"{key}_{what}": float(np.mean(found)) for key, found in measured.items() if found}

    def _client_accuracy(self, client: int, rows: EvaluatedRows, score: Score) -> float | None:
        if rows.period is None:
            return self._period_accuracy.client_accuracy(client, self._followed_rows(score))
        whole = len(score) == len(rows.samples)
        return float(score.by_sample[rows.client == client if whole else slice(None)].mean())

    def _followed_rows(self, score: Score) -> NDArray[np.float64]:
        """Return the values of the test rows that accuracies by data set are measured on, always the same."""
        return score.by_sample if self._part is None else self._part.of_score(score)

    def follow_periods(self, snapshot: Snapshot, test: Score) -> dict[str, Any]:
        """Add the accuracy of the followed pairs to the history, and return the line to record."""
        if not self._follows or self.settings.periods == "off":
            return {}
        accuracies = self._period_accuracy.accuracies(
            self._followed_rows(test), self._followed.pairs
        )
        if not accuracies:
            return {}
        found = [(int(client), int(key)) for client, key, _ in accuracies]
        new = [pair for pair in found if pair not in self.accuracy_history.first]
        line = {
            "round": snapshot.round,
            "basis": self._period_accuracy.basis,
            "pairs": self._followed.seen,
            self.accuracy_history.entry: accuracies,
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
