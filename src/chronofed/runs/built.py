"""Building an experiment: load its data once, make its task and scenario, and check that they fit together."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from chronofed.clients.deletion import check_deletions
from chronofed.clients.partial_sums import check_summable
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import to_table
from chronofed.data.dataset import Dataset, EvaluateOn
from chronofed.data.holdout import with_validation
from chronofed.data.preparation import Settled
from chronofed.engines.auto import EngineChoice, choose
from chronofed.methods.backbones.base import first_server_state
from chronofed.methods.method import check, check_buffers, check_samples, check_task
from chronofed.models.supervised import SupervisedTask
from chronofed.runs.identity import digest_data, identify
from chronofed.runs.load_spec import locate
from chronofed.runs.period_digests import PeriodDigests, digest_periods
from chronofed.runs.server_data import digest_samples, load_server_samples, without_held_out
from chronofed.runs.settle import settle, settle_measures, tuning_periods
from chronofed.runs.spec import FOREVER, Experiment
from chronofed.runs.start import StartModel, load_start
from chronofed.scenarios import Scenario
from chronofed.training.loop import Snapshot
from chronofed.training.next_period import NextPeriod, next_period


@dataclass(frozen=True, slots=True)
class BuiltRun:
    """An experiment that is ready to run: built and checked once, then handed on.

    Attributes:
        experiment: The settings.
        task: The model and its data.
        scenario: Who takes part when, with which data.
        rounds: Rounds in all.
        data_digest: Digest of the data.
        periods: Digests of the data by period, if they have periods.
        start: The model to start from, if it is not a random one.
        upcoming: The rows of the next period, if the model is evaluated on them.
        server_samples: Unlabelled samples of the server, if it has any.
        server_digest: Digest of their source; empty if there are none.
    """

    experiment: Experiment
    task: SupervisedTask
    scenario: Scenario
    rounds: int
    data_digest: str
    periods: PeriodDigests | None = None
    start: StartModel | None = None
    upcoming: NextPeriod | None = None
    server_samples: Tensor | None = None
    server_digest: str = ""

    @property
    def identity(self) -> dict[str, str]:
        """Everything that must not change between two parts of a run."""
        start = self.start.digest if self.start else ""
        return identify(self.experiment, self.data_digest, start, self.server_digest)

    def first_snapshot(self) -> Snapshot | None:
        """Return the state before the first round of a run that starts from a model; ``None`` for any other."""
        if self.start is None:
            return None
        method, (params, buffers) = self.experiment.method, self.start.values(self.task)
        server = first_server_state(
            method.composed, params, self.scenario.clients, self.task.objective()
        )
        return Snapshot(0, server, buffers, weighting_state=method.weights.init())

    @property
    def watched_loss(self) -> str:
        """The loss that tells if training diverged; the next period may have outliers that are not to blame."""
        return "test_loss" if self.upcoming is None else "seen_loss"

    def choose_engine(self) -> EngineChoice:
        """Choose an engine of this machine.

        Raises:
            IncompatibleError: If the requested engine cannot train this, or none can.
        """
        self.scenario.check_here()
        cohort = self.scenario.clients if self.scenario.cohort is None else self.scenario.cohort
        settings = self.experiment
        return choose(
            settings.engine,
            settings.workers,
            self.task,
            settings.method,
            cohort,
            settings.train,
            settings.cluster,
        )


def build(
    experiment: Experiment,
    data: Path | None = None,
    beside: Path | None = None,
    check_identity: Callable[[dict[str, str]], None] | None = None,
    settled: Settled | None = None,
    *,
    on_client: bool = False,
) -> BuiltRun:
    """Load the data, make task and scenario, and refuse what cannot work.

    Args:
        experiment: The settings.
        data: Folder of data files.
        beside: Folder that a relative data path starts from; by default the current one.
        check_identity: Called with the identity as soon as the data are loaded: other data may not even fit.
        settled: What earlier parts of the same run have settled about its table.
        on_client: Whether this is the machine of a client, which does not have the server's own samples.

    Raises:
        SpecError: If the parts do not fit together.
        IncompatibleError: If the scenario cannot serve the method.
    """
    check_device(experiment.device)
    if on_client:
        experiment = msgspec.structs.replace(experiment, server_data=None)
    experiment = settle(locate(experiment, beside or Path.cwd(), data))
    start = load_start(experiment.start) if experiment.start else None
    settled = _settled(settled or Settled(), start)
    loaded = experiment.data.load_settled(data, experiment.seed, settled)
    experiment = settle_measures(experiment, loaded)
    samples = load_server_samples(experiment, loaded, data)
    periods, server_digest = digest_periods(loaded), digest_samples(samples)
    data_digest = periods.digest() if periods else digest_data(loaded)
    if check_identity is not None:
        begun = start.digest if start else ""
        check_identity(identify(experiment, data_digest, begun, server_digest))
    dataset = _split(experiment, loaded)
    scenario = experiment.scenario.on(dataset, experiment.seed)
    experiment = msgspec.structs.replace(experiment, method=experiment.method.fitted(scenario))
    if start is not None:
        start.check_settings(to_table(experiment.model))
    task, rounds = experiment.task(dataset), _rounds(experiment, scenario)
    upcoming = _upcoming(experiment, dataset, scenario, rounds)
    # Before it is trained on, every row of a later period is evaluated on.
    held_out = (loaded.test, loaded.validation, dataset.test, dataset.train if upcoming else None)
    built = BuiltRun(
        experiment,
        task,
        scenario,
        rounds,
        data_digest,
        periods,
        start,
        upcoming,
        without_held_out(samples, held_out),
        server_digest,
    )
    if not on_client:
        check_samples(experiment.method, built.server_samples)
    _check(built)
    return built


def _settled(settled: Settled, start: StartModel | None) -> Settled:
    """Take the preparation of the model to start from, unless the run has one of its own already."""
    if start is None or settled.preparation is not None:
        return settled
    return replace(settled, preparation=start.preparation)


def _split(experiment: Experiment, dataset: Dataset) -> Dataset:
    """Hold out validation samples if they are wanted, and leave those to evaluate on."""
    settings, on = experiment.data, experiment.evaluate.on
    if experiment.evaluate.protocol == "next":
        return _with_next(dataset, on)
    if dataset.validation is None and settings.validation:
        dataset = with_validation(dataset, settings.validation, experiment.seed)
    dataset = dataset.evaluated_on(on)
    if not len(dataset.test):
        reasons = "".join(f"; {note}" for note in dataset.notes if note.startswith(f"no {on}"))
        msg = f"data: no {on} samples; hold some rows out (data.{on}){reasons}"
        raise SpecError(msg)
    if not len(dataset.train):
        raise SpecError(f"data: no training samples are left; lower data.{on}")
    return dataset


def _with_next(dataset: Dataset, on: EvaluateOn) -> Dataset:
    """Leave the data for evaluations on the next period; only the first periods if settings are chosen."""
    if not len(dataset.train):
        raise SpecError("data: no training samples are left; lower data.test")
    return dataset if on == "test" else dataset.first_periods(tuning_periods(dataset))


def _upcoming(
    experiment: Experiment, dataset: Dataset, scenario: Scenario, rounds: int
) -> NextPeriod | None:
    evaluate = experiment.evaluate
    if evaluate.protocol != "next":
        return None
    found = next_period(dataset, scenario, evaluate.every, evaluate.skip, experiment.deletions)
    periods = min(len(found.origin.periods), rounds // found.rounds_per_period)
    ends = (found.rounds_per_period * (k + 1) for k in range(periods))
    if all(found.period(end) is None for end in ends):
        msg = f"evaluate: nothing is ever evaluated in {rounds} rounds, {found.rounds_per_period} a period"
        raise SpecError(f"{msg}; lower evaluate.every or evaluate.skip, or train longer")
    return found


def check_device(name: str) -> None:
    """Compute one number on a device.

    Raises:
        SpecError: If torch does not know the device, or this machine does not have it.
    """
    if name == "cpu":
        return
    try:
        torch.ones(1, device=name).sum().item()
    # Torch raises AssertionError, NotImplementedError and RuntimeError, by the kind of device.
    except Exception as error:
        reason = (str(error).strip() or "not available").splitlines()[0].rstrip(". ")
        raise SpecError(f"device: {name!r} does not work here ({reason}); use cpu") from error


def _rounds(experiment: Experiment, scenario: Scenario) -> int:
    if experiment.rounds == "forever":
        if scenario.rounds is not None:
            msg = f"rounds: forever, but this scenario ends after {scenario.rounds} rounds"
            raise SpecError(msg)
        return FOREVER
    if experiment.evaluate.protocol == "next" and experiment.evaluate.on == "validation":
        return min(experiment.rounds or FOREVER, scenario.rounds or FOREVER)
    rounds = experiment.rounds if experiment.rounds is not None else scenario.rounds
    if rounds is None:
        msg = "rounds: missing (this scenario has no end of its own)"
        raise SpecError(msg)
    return rounds


def _check(built: BuiltRun) -> None:
    experiment, task, scenario = built.experiment, built.task, built.scenario
    check(experiment.method, scenario, built.rounds, experiment.train)
    check_task(experiment.method, regression=not task.data.classes)
    if experiment.partial_sums is not None:
        check_summable(experiment.method.composed)
    experiment.evaluate.check(scenario)
    experiment.evaluate.check_end(experiment.stop is None and built.rounds != FOREVER)
    if experiment.stop is not None:
        classified, follows = bool(task.data.classes), built.upcoming is not None
        experiment.stop.check(task.data.validation, classified, follows)
    check_deletions(experiment.deletions, built.rounds)
    if scenario.remote and any(deletion.rows for deletion in experiment.deletions):
        msg = (
            "deletions.rows: clients are elsewhere, so are their rows; see: chronofed client forget"
        )
        raise SpecError(msg)
    task.check_size()
    params, buffers = built.start.values(task) if built.start else task.initial(experiment.seed)
    check_buffers(experiment.method, buffers)
    one_sample = task.samples(np.zeros(1, dtype=np.int64))
    experiment.method.memory.check(task.objective(), params, one_sample)
