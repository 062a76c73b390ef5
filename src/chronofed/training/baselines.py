"""Baselines of a result: predictions of the next period that need no federation.

Every baseline knows what the federation knew after a period, and is scored on the same rows of the next one. A
pure function of data, scenario, training settings and seed, so a run that is stopped computes it again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.clients.client import Client
from chronofed.clients.deletion import without
from chronofed.clients.messages import Order
from chronofed.core.seeds import entropy, numpy_generator
from chronofed.core.types import Vector
from chronofed.data.dataset import Codes
from chronofed.engines.base import one_thread
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.models.objective import TorchObjective
from chronofed.models.supervised import SupervisedTask
from chronofed.scenarios.base import Plan, Scenario, Visit
from chronofed.training.next_period import NextPeriod

Values = NDArray[np.float64]
BaselineName = Literal["majority", "persistence", "last_period", "local", "pooled"]

SIMPLE: tuple[BaselineName, ...] = ("majority", "persistence")
TRAINED: tuple[BaselineName, ...] = ("last_period", "local", "pooled")


@dataclass(frozen=True, slots=True)
class Model:
    """Parameters and buffers of a model."""

    params: Vector
    buffers: Vector


class Baseline(Protocol):
    """A predictor that follows the periods."""

    def __init__(self, around: "Surroundings") -> None: ...

    def learn(self, round_: int) -> None:
        """See the data of one round."""
        ...

    def predict(self, rows: Codes) -> Values | None:
        """Predict the targets of training rows that come later; ``None`` if training diverged."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that baselines are a function of.

    Attributes:
        task: Data and model.
        scenario: Who holds which data when.
        upcoming: The rows of every period.
        train: How a model trains on the rows of a round.
        seed: Root of the run's randomness.
    """

    task: SupervisedTask
    scenario: Scenario
    upcoming: NextPeriod
    train: Train
    seed: int
    targets: Values = field(init=False)  # (n,)
    objective: TorchObjective = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", self.task.data.train.y.numpy().astype(np.float64))
        object.__setattr__(self, "objective", self.task.objective())

    def period(self, round_: int) -> int:
        """Return the period of a round."""
        return round_ // self.upcoming.rounds_per_period

    def rows(self, round_: int) -> Codes:
        """Return all rows of a round's period."""
        return self.upcoming.all_rows(self.period(round_), round_)

    def visits(self, round_: int) -> dict[int, Visit]:
        """Return what every client holds in a round; those that the server does not ask have data, too."""
        stream = self.scenario.stream
        everyone = {int(i): stream.visit(int(i), round_) for i in stream.candidates(round_)}
        held = {i: visit for i, visit in everyone.items() if visit is not None}
        return dict(without(Plan(round_, held), self.upcoming.deletions).visits)

    def initial(self) -> Model:
        """Return the model that the run starts from."""
        return Model(*self.task.initial(self.seed))

    def fit(self, model: Model, rows: Codes, round_: int, client: int, purpose: str) -> Model:
        """Train a model on some rows, as a client does in a round."""
        method = Method()
        order = Order(
            round_,
            client,
            {"params": model.params},
            model.buffers,
            method.weights.resolve(method.weights.init()),
            None,
            self.train.at(round_),
            entropy(self.seed, "baseline", purpose),
        )
        samples = self.task.samples(rows)
        result, _ = Client(method, order, None, self.objective, samples, key=0).serve()
        return Model(model.params + result.upload["delta"], result.buffers)

    def predict(self, model: Model, rows: Codes) -> Values | None:
        """Predict with a model; ``None`` if it is not finite."""
        if not torch.isfinite(model.params).all():
            return None
        self.objective.buffers = model.buffers
        samples = self.task.samples(rows)
        batches = torch.split(samples.x, self.task.evaluation_batch)
        outputs = torch.cat([self.objective.logits(model.params, x) for x in batches]).cpu()
        found = outputs.argmax(1) if self.task.data.classes else outputs.flatten()
        return found.numpy().astype(np.float64)


@dataclass(slots=True)
class Majority:
    """The most frequent class so far, of several the first; for numbers, their mean so far."""

    around: Surroundings
    _rows: list[Codes] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def learn(self, round_: int) -> None:
        """See the rows of a period once."""
        if self.around.period(round_) not in self._seen:
            self._seen.add(self.around.period(round_))
            self._rows.append(self.around.rows(round_))

    @property
    def value(self) -> float:
        """The prediction for everybody."""
        seen = self.around.targets[np.concatenate(self._rows)]
        if not self.around.task.data.classes:
            return float(seen.mean()) if len(seen) else 0.0
        return float(np.bincount(seen.astype(np.int64), minlength=1).argmax())

    def predict(self, rows: Codes) -> Values:
        """Predict the same for all rows."""
        return np.full(len(rows), self.value)


@dataclass(slots=True)
class Persistence:
    """The last target of the client before the period; of a new client, the majority."""

    around: Surroundings
    _majority: Majority = field(init=False)
    _last: Values = field(init=False)

    def __post_init__(self) -> None:
        self._majority = Majority(self.around)
        self._last = np.full(len(self.around.upcoming.origin.clients), np.nan)

    def learn(self, round_: int) -> None:
        """Remember the last target of every client; rows are in time order."""
        self._majority.learn(round_)
        rows = self.around.rows(round_)
        # Of several values for one place, NumPy keeps the last.
        self._last[self.around.upcoming.client[rows]] = self.around.targets[rows]

    def predict(self, rows: Codes) -> Values:
        """Predict the last target of each row's client."""
        found = self._last[self.around.upcoming.client[rows]]
        return np.where(np.isnan(found), self._majority.value, found)


@dataclass(slots=True)
class LastPeriod:
    """A model that is trained from the start on all rows of the last period, and on nothing else."""

    around: Surroundings
    _model: Model = field(init=False)
    _period: int = -1

    def learn(self, round_: int) -> None:
        """Train on the rows of the period; from the initial model in its first round."""
        if self.around.period(round_) != self._period:
            self._period, self._model = self.around.period(round_), self.around.initial()
        rows = self.around.rows(round_)
        if len(rows):
            self._model = self.around.fit(self._model, rows, round_, 0, "last period")

    def predict(self, rows: Codes) -> Values | None:
        """Predict with the model."""
        return self.around.predict(self._model, rows)


@dataclass(slots=True)
class Local:
    """One model for each client, which trains on that client's data alone, from the initial model on."""

    around: Surroundings
    _models: dict[int, Model] = field(default_factory=dict)
    _initial: Model = field(init=False)

    def __post_init__(self) -> None:
        self._initial = self.around.initial()

    def learn(self, round_: int) -> None:
        """Let every client that has data train its own model."""
        for client, visit in self.around.visits(round_).items():
            model = self._models.get(client, self._initial)
            self._models[client] = self.around.fit(model, visit.indices, round_, client, "local")

    def predict(self, rows: Codes) -> Values | None:
        """Predict each row with its client's model; of a new client, with the initial one."""
        who, found = self.around.upcoming.client[rows], np.empty(len(rows))
        for client in np.unique(who).tolist():
            model = self._models.get(client, self._initial)
            values = self.around.predict(model, rows[who == client])
            if values is None:
                return None
            found[who == client] = values
        return found


@dataclass(slots=True)
class Pooled:
    """One model in one place with all rows so far; it takes as many samples a round as all clients together."""

    around: Surroundings
    _model: Model = field(init=False)
    _seen: Codes = field(init=False)
    _period: int = -1

    def __post_init__(self) -> None:
        self._model = self.around.initial()
        self._seen = np.zeros(0, dtype=np.int64)

    def learn(self, round_: int) -> None:
        """Train on a new random sample of all rows so far."""
        period = self.around.period(round_)
        if period != self._period:
            self._period = period
            parts = [self.around.upcoming.all_rows(k, round_) for k in range(period + 1)]
            self._seen = np.concatenate(parts)
        held = sum(len(visit.indices) for visit in self.around.visits(round_).values())
        if held:
            draw = numpy_generator(self.around.seed, "baseline pooled", round_)
            rows = draw.choice(self._seen, min(held, len(self._seen)), replace=False)
            self._model = self.around.fit(self._model, np.sort(rows), round_, 0, "pooled")

    def predict(self, rows: Codes) -> Values | None:
        """Predict with the model."""
        return self.around.predict(self._model, rows)


BASELINES: dict[BaselineName, type[Baseline]] = {
    "majority": Majority,
    "persistence": Persistence,
    "last_period": LastPeriod,
    "local": Local,
    "pooled": Pooled,
}


@dataclass(frozen=True, slots=True)
class BaselineScores:
    """The scores of one baseline, each with the round after which the rows were evaluated."""

    rounds: tuple[int, ...]
    scores: tuple[float | None, ...]


def score_baselines(
    around: Surroundings, names: Sequence[BaselineName], rounds: Sequence[int]
) -> dict[BaselineName, BaselineScores]:
    """Score baselines on the rows that a run was evaluated on after some rounds.

    The score is the accuracy, or for numbers the root of the mean square error.
    """
    with one_thread():
        return {
            name: BaselineScores(tuple(rounds), tuple(_scores(around, BASELINES[name], rounds)))
            for name in names
        }


def _scores(
    around: Surroundings, kind: type[Baseline], rounds: Sequence[int]
) -> Iterator[float | None]:
    baseline, done = kind(around), 0
    for end in rounds:
        for round_ in range(done, end):
            baseline.learn(round_)
        done = end
        rows = around.upcoming.rows(around.period(end), end)
        found = baseline.predict(rows)
        yield None if found is None else _score(around, found, rows)


def _score(around: Surroundings, found: Values, rows: Codes) -> float:
    truth = around.targets[rows]
    if around.task.data.classes:
        return float((found == truth).mean())
    target = getattr(around.task.data.preparation, "target", None)
    scale = 1.0 if target is None else float(target.deviation)
    return float(np.sqrt(np.square(found - truth).mean()) * scale)


def samples_trained(around: Surroundings, rounds: int) -> float:
    """Estimate the samples that one trained baseline passes through a model."""
    train, stream = around.train, around.scenario.stream
    if train.steps is not None:
        size = 1 if train.batch_size == "full" else train.batch_size
        return float(rounds * stream.clients * train.steps * size)
    return float(len(around.targets) * around.upcoming.rounds_per_period * train.epochs)
