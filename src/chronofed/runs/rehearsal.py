"""A rehearsal: before a run directory is made, take one step of every part on a few samples.

What fails in the user's own model, method or measures fails here, with one line, and nothing is left behind.
Nothing that a run uses is changed: the rehearsal has an engine, a task and client states of its own, and gives
the global random generators back as they were.
"""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import torch

from chronofed.core.errors import DivergedError, SpecError
from chronofed.core.seeds import torch_state_restored
from chronofed.core.types import Samples
from chronofed.core.user_code import in_one_line, user_code
from chronofed.engines.base import LocalEngine
from chronofed.engines.serial import SerialEngine
from chronofed.methods.local import Train
from chronofed.models.objective import ONE_SAMPLE, TorchObjective
from chronofed.models.supervised import SupervisedTask
from chronofed.runs.built import BuiltRun
from chronofed.scenarios import Indices, Scenario, Visit
from chronofed.scenarios.membership import Everyone
from chronofed.training.evaluation import Evaluator
from chronofed.training.loop import run as run_rounds
from chronofed.training.scenario_summary import names_of

# A client remembers in the first round what it recalls in the second.
ROUNDS = 2
# Samples that a client holds, and of the test set.
MOST_SAMPLES = 1000
TEST_SAMPLES = 4
# Rounds that are searched for a client with data.
MOST_EMPTY_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class _FirstSamples:
    """A stream of one client with a few samples, the same in every round under another key."""

    indices: Indices
    client: int
    clients: int
    persistent: bool
    rounds: int | None = ROUNDS

    def candidates(self, round_: int) -> Indices:
        return np.array([self.client])

    def visit(self, client: int, round_: int) -> Visit:
        return Visit(self.indices, round_)


def rehearse(built: BuiltRun) -> None:
    """Build the model, train one client for two rounds of one step, and evaluate; keep nothing of it.

    Args:
        built: The experiment.

    Raises:
        SpecError: If the model does not fit the data.
        UserCodeError: If any part fails.
    """
    with _global_generators_restored():
        _check_model(built.task)
        if built.scenario.remote:
            return
        with user_code("the rehearsal of the first round failed"):
            _check_batch_of_one(built)
            choice, found = built.choose_engine(), _first_visit(built)
            if found is not None:
                task = _smaller(built)
                # The engines of this package agree; one of the user's own is tried itself.
                engine = choice.build(task) if ":" in choice.engine else SerialEngine(task)
                with closing(engine):
                    _rounds(built, engine, *found)


def _rounds(built: BuiltRun, engine: LocalEngine, client: int, indices: Indices) -> None:
    settings, task = built.experiment, engine.task
    stream = _FirstSamples(indices, client, built.scenario.clients, built.scenario.persistent)
    scenario = Scenario(stream, Everyone(), None, settings.seed)
    assert isinstance(task, SupervisedTask)
    evaluator = Evaluator(
        task,
        scenario,
        settings.method,
        settings.evaluate,
        settings.seed,
        upcoming=built.upcoming,
    )
    period = built.upcoming.first if built.upcoming else None
    snapshots = run_rounds(
        settings.method,
        scenario,
        task,
        rounds=ROUNDS,
        train=_one_step(settings.train),
        engine=engine,
        seed=settings.seed,
        checked=True,
        server_samples=built.server_samples,
    )
    try:
        for snapshot in snapshots:
            evaluator(snapshot, period)
    except DivergedError:
        # The run itself says so, with its own round.
        return


def _one_step(train: Train) -> Train:
    return msgspec.structs.replace(train, steps=1, slow=0.0)


def _smaller(built: BuiltRun) -> SupervisedTask:
    """Return the task with a few of its test samples, unless somebody needs to see all of them."""
    task = built.task
    if task.data.origin is not None or built.experiment.evaluate.measures:
        return task
    return replace(task, data=replace(task.data, test=_few(task.data.test, TEST_SAMPLES)))


def _few(samples: Samples, most: int) -> Samples:
    return samples[torch.arange(min(most, len(samples)))]


def _first_visit(built: BuiltRun) -> tuple[int, Indices] | None:
    """Return the first client that takes part, and some of its samples; ``None`` if there is none."""
    for round_ in range(min(built.rounds, MOST_EMPTY_ROUNDS)):
        for client, visit in built.scenario.at(round_).visits.items():
            return client, visit.indices[:MOST_SAMPLES]
    return None


def _check_model(task: SupervisedTask) -> None:
    """Pass some test samples through the model.

    Raises:
        SpecError: If it has nothing to train, does not return a logit for each class or the one output of a
            regression, or the loss is not one number for each sample.
        UserCodeError: If it fails.
    """
    tested = task.data.test if len(task.data.test) else task.data.train
    objective, samples = task.objective(), _few(tested, TEST_SAMPLES)
    if not objective.flat.size:
        raise SpecError("model: it has no trainable parameters")
    logits = objective.logits(objective.flat.read(), samples.x)
    expected = (len(samples), task.outputs)
    found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if found != expected:
        raise SpecError(
            f"model: it returns {found} for {len(samples)} samples, expected {expected}"
        )
    _check_own_loss(objective, logits, samples)


def _check_own_loss(objective: TorchObjective, outputs: torch.Tensor, samples: Samples) -> None:
    """Refuse a user's own loss that does not return a number for each sample."""
    name = type(objective.loss).__name__
    with user_code(f"loss {name} failed"):
        losses = objective.loss(outputs, samples.y.to(objective.device))
    found = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
    if found != (len(samples),):
        raise SpecError(f"loss {name}: it returns {found}, expected one number for each sample")


def _check_batch_of_one(built: BuiltRun) -> None:
    """Take a step on a single sample, if a client can have a batch of one.

    Raises:
        SpecError: If the model cannot, as with BatchNorm of single numbers.
    """
    objective, one = built.task.objective(), built.task.samples(np.zeros(1, dtype=np.int64))
    objective.flat.module.train()
    try:
        with torch.no_grad():
            objective.flat.module(one.x.to(objective.device))
    except Exception as error:
        place = _batch_of_one(built, joined=objective.uses_batch_statistics)
        if place is None:
            return
        why = ONE_SAMPLE if objective.uses_batch_statistics else in_one_line(error)
        who = names_of(built.scenario, built.task.data).client(place[1])
        msg = f"round {place[0]}, {who}: the model fails on one sample: {why}"
        raise SpecError(msg) from error


def _batch_of_one(built: BuiltRun, *, joined: bool) -> tuple[int, int] | None:
    """Return round and client of a batch of one sample, in the first rounds.

    Args:
        built: The run.
        joined: Whether a last batch of one sample joins the one before it.
    """
    size = built.experiment.train.batch_size
    for round_ in range(min(built.rounds, MOST_EMPTY_ROUNDS)):
        for client, visit in built.scenario.at(round_).visits.items():
            samples = len(visit.indices)
            rest = size != "full" and samples % size == 1 % size
            if samples == 1 or size == 1 or (rest and not joined):
                return round_, client
    return None


@contextmanager
def _global_generators_restored() -> Iterator[None]:
    """Give the global generators of torch, NumPy and Python back as they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch_state_restored():
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
