"""Building an experiment: load its data once, make its task and scenario, and check that they fit together."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chronofed.core.errors import SpecError
from chronofed.engines.auto import EngineChoice, choose
from chronofed.methods.method import check, check_buffers
from chronofed.models.classification import Classification
from chronofed.runs.load_spec import locate_data
from chronofed.runs.spec import FOREVER, Experiment
from chronofed.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class BuiltRun:
    """An experiment that is ready to run: built and checked once, then handed on.

    Attributes:
        experiment: The settings.
        task: The model and its data.
        scenario: Who takes part when, with which data.
        rounds: Rounds in all.
    """

    experiment: Experiment
    task: Classification
    scenario: Scenario
    rounds: int

    def choose_engine(self) -> EngineChoice:
        """Choose an engine of this machine.

        Raises:
            IncompatibleError: If the requested engine cannot train this, or none can.
        """
        self.scenario.check_here()
        cohort = self.scenario.clients if self.scenario.cohort is None else self.scenario.cohort
        settings = self.experiment
        return choose(
            settings.engine, settings.workers, self.task, settings.method, cohort, settings.train
        )


def build(experiment: Experiment, data: Path | None = None, beside: Path | None = None) -> BuiltRun:
    """Load the data, make task and scenario, and refuse what cannot work.

    Args:
        experiment: The settings.
        data: Folder of data files.
        beside: Folder that a relative data path starts from; by default the current one.

    Raises:
        SpecError: If the parts do not fit together.
        IncompatibleError: If the scenario cannot serve the method.
    """
    experiment = locate_data(experiment, beside or Path.cwd(), data)
    dataset = experiment.data.load(data, experiment.seed)
    if not len(dataset.test):
        msg = "data: no test samples; hold some rows out (data.holdout)"
        raise SpecError(msg)
    scenario = experiment.scenario.on(dataset, experiment.seed)
    built = BuiltRun(experiment, experiment.task(dataset), scenario, _rounds(experiment, scenario))
    _check(built)
    return built


def _rounds(experiment: Experiment, scenario: Scenario) -> int:
    if experiment.rounds == "forever":
        if scenario.rounds is not None:
            msg = f"rounds: forever, but this scenario ends after {scenario.rounds} rounds"
            raise SpecError(msg)
        return FOREVER
    rounds = experiment.rounds if experiment.rounds is not None else scenario.rounds
    if rounds is None:
        msg = "rounds: missing (this scenario has no end of its own)"
        raise SpecError(msg)
    return rounds


def _check(built: BuiltRun) -> None:
    experiment, task, scenario = built.experiment, built.task, built.scenario
    check(experiment.method, scenario, built.rounds)
    experiment.evaluate.check(scenario)
    if scenario.remote and any(deletion.rows for deletion in experiment.deletions):
        msg = (
            "deletions.rows: clients are elsewhere, so are their rows; see: chronofed client forget"
        )
        raise SpecError(msg)
    params, buffers = task.initial(experiment.seed)
    check_buffers(experiment.method, buffers)
    one_sample = task.samples(np.zeros(1, dtype=np.int64))
    experiment.method.memory.check(task.objective(), params, one_sample)
