"""Tuning settings with Optuna: every trial is an ordinary run, and a bad one is stopped early.

Trials are scored on validation rows, which are taken from the training rows. Test rows are left out of the
data of a trial altogether, so that they can still say how good the chosen settings are. Where a model is
evaluated on the next period, trials see the first half of the periods only, for the same reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from chronofed.core.atomic import make_folder, write_atomic
from chronofed.core.errors import (
    ChronofedError,
    DivergedError,
    MissingExtraError,
    RunError,
    SpecError,
)
from chronofed.data.dataset import EvaluateOn
from chronofed.engines.cluster import Cluster
from chronofed.runs import runner
from chronofed.runs.built import build
from chronofed.runs.directory import RunDirectory
from chronofed.runs.load_spec import load
from chronofed.runs.settle import TUNING_SHARE, settle, tuning_periods
from chronofed.runs.spec import Experiment
from chronofed.studies.grid import run_all
from chronofed.studies.one_run import GridRun, RunOutcome
from chronofed.studies.search_range import SearchRange
from chronofed.studies.study import Study
from chronofed.training.measure import HEADLINES, MeasureDisplay, headline_of
from chronofed.training.measures import BY_KEY, MEASURES, OPTIONAL
from chronofed.training.summary import summary_keys

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 5
"""Trials to finish before any is stopped early."""
VALIDATION_SHARE = 0.2
"""Share of the training rows that trials are scored on, if the specification has none for it."""
DIVERGED = "diverged"
MEASURED = "measured"
"""Attribute of a trial: the number of the summary that it is scored by, and its value."""
SCORED_ON = "scored_on"

OnRound: TypeAlias = Callable[[int, runner.Progress], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: the settings it tried and their value.

    Attributes:
        number: Counted from 0.
        settings: The settings tried.
        value: The measure's mean over seeds; ``None`` if it was stopped early or diverged.
        state: ``complete``, ``pruned``, or ``fail`` if it diverged.
        measure: The number of the summary that it is.
    """

    number: int
    settings: dict[str, Any]
    value: float | None
    state: str
    measure: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """A number of a summary that trials are scored by.

    Attributes:
        key: Its name.
        sign: -1 if less is better.
    """

    key: str
    sign: float


def find_measure(
    name: str, summary: Mapping[str, Any], own: Sequence[MeasureDisplay] = ()
) -> Scored:
    """Find a number of a summary; a statistic alone is that of the run's headline.

    Raises:
        SpecError: If there is no such number.
    """
    columns = [column for measure in (*MEASURES, *own) for column in measure.columns()]
    lower = {column.key for column in columns if column.better == "lower"}
    for key in (name, f"{name}_{HEADLINES['regression']}"):
        if key in summary:
            return Scored(key, -1.0 if key in lower else 1.0)
    known = ", ".join(key for key in summary if "seconds" not in key)
    raise SpecError(f"--measure {name}: not measured here; use one of {known}")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A search for the best settings of one specification.

    Attributes:
        spec: The specification file.
        ranges: The settings to vary.
        folder: Folder of the runs and of Optuna's database; a search continues in the folder where it stopped.
        overrides: Other changes to the specification.
        data: Folder of data files.
        measure: The number of the summary to optimise: the largest is best, of an error or a loss the least.
            ``anytime``, ``last`` and ``best5`` are of the accuracy, or of a regression of the ``rmse``.
        seeds: The value of a trial is its mean over these seeds.
        on: Rows that trials are scored on. The ``test`` rows cannot be used to judge the result any more.
        cluster: Machines that share the runs of the trials.
        at_once: Trials at a time on a cluster. They do not know of each other's values, so others are tried
            than with one at a time; none is stopped early.
    """

    spec: Path
    ranges: Sequence[SearchRange]
    folder: Path
    overrides: Sequence[str] = ()
    data: Path | None = None
    measure: str = "anytime"
    seeds: Sequence[int] = (0,)
    on: EvaluateOn = "validation"
    cluster: Cluster | None = None
    at_once: int = 1

    def check(self) -> None:
        """Check every option and both ends of every range before anything runs.

        Raises:
            SpecError: If a value is impossible, or a setting unknown.
        """
        keys = [each.key for each in self.ranges]
        for key in keys:
            if keys.count(key) > 1:
                raise SpecError(f"--vary {key}: given twice; give all its values at once")
        if "evaluate.on" in keys:
            raise SpecError("--vary evaluate.on: all trials must be scored on the same rows")
        ends = [each.extremes for each in self.ranges]
        for values in zip_longest(*ends):
            one = self.experiment([v or e[0] for v, e in zip(values, ends, strict=True)])
            # Which are computed by default depends on the data.
            left_open = one.evaluate.measures is None
            known = summary_keys(OPTIONAL if left_open else one.evaluate.own_measures())
            if self.measure not in known:
                listed = ", ".join(known)
                raise SpecError(f"--measure {self.measure}: not in a summary; use one of {listed}")

    def save(self, trial: Trial) -> Path:
        """Write the specification of a trial to ``best.toml``, with its own split of the data.

        It is not evaluated on periods that it was chosen by.
        """
        best = self._loaded([str(trial.settings[each.key]) for each in self.ranges])
        best = self._skipping(best)
        path = self.folder / "best.toml"
        value = f"{trial.measure} = {trial.value!r} on {self._rows(self._scored(best))}"
        content = msgspec.structs.replace(best, seed=self.seeds[0]).resolved()
        write_atomic(path, f"# Chosen by chronofed sweep: {value}.\n{content}".encode())
        return path

    def _skipping(self, best: Experiment) -> Experiment:
        if self.on == "test" or settle(best).evaluate.protocol != "next":
            return best
        data = build(best, self.data).task.data
        used = tuning_periods(data)
        if data.origin is None or used == len(data.origin.periods):
            return best
        evaluate = msgspec.structs.replace(best.evaluate, skip=max(used, best.evaluate.skip))
        return msgspec.structs.replace(best, evaluate=evaluate)

    def experiment(self, values: Sequence[str]) -> Experiment:
        """Load the specification with a value for every range, to be scored on the rows of this sweep."""
        return self._scored(self._loaded(values))

    def scored_on(self) -> str:
        """Say in a few words what trials are scored on."""
        return self._rows(self.experiment([each.extremes[0] for each in self.ranges]))

    def _scored(self, experiment: Experiment) -> Experiment:
        """Evaluate on the rows of this sweep; hold out validation rows if there are none."""
        experiment = settle(experiment)
        data, follows = experiment.data, experiment.evaluate.protocol == "next"
        if self.on == "validation" and not data.validation and not follows:
            data = msgspec.structs.replace(data, validation=VALIDATION_SHARE)
        evaluate = msgspec.structs.replace(experiment.evaluate, on=self.on, baselines="off", skip=0)
        return msgspec.structs.replace(experiment, data=data, evaluate=evaluate)

    def _rows(self, experiment: Experiment) -> str:
        follows = experiment.evaluate.protocol == "next"
        if self.on == "test":
            rows = "the next period, all of them" if follows else "test rows"
            return f"{rows}, which cannot judge the result any more"
        if follows:
            return f"the next period, in the first {TUNING_SHARE:.0%} of the periods"
        return f"validation rows ({experiment.data.validation:g} of the training rows)"

    def _loaded(self, values: Sequence[str]) -> Experiment:
        changes = [f"{each.key}={value}" for each, value in zip(self.ranges, values, strict=True)]
        return load(self.spec, [*self.overrides, *changes], self.data)

    def run(self, trials: int, on_round: OnRound = lambda number, progress: None) -> list[Trial]:
        """Search until there are ``trials`` trials, including those of earlier calls.

        Args:
            trials: Number of trials.
            on_round: Called after every round with the number of the trial and the run's progress.

        Returns:
            The trials, best first.

        Raises:
            MissingExtraError: If Optuna is not installed.
            RunError: If Optuna's database is damaged.
        """
        optuna, study = _optuna(), self.open()
        self._requeue(study)
        if self.cluster is not None:
            while (done := len(ranked(study))) < trials:
                self._several(study, done, min(self.at_once, trials - done), on_round)
            return ranked(study)
        for number in range(len(ranked(study)), trials):
            # Seeded by the trials before it, so that a search that was stopped continues with the same values.
            study.sampler = optuna.samplers.TPESampler(seed=number)
            study.optimize(lambda trial: self._value(trial, on_round), 1, catch=(DivergedError,))
        return ranked(study)

    def _several(self, study: "optuna.Study", done: int, count: int, on_round: OnRound) -> None:
        """Run some trials with all their seeds at once, on the cluster."""
        study.sampler = _optuna().samplers.TPESampler(seed=done, constant_liar=True)
        trials = [study.ask() for _ in range(count)]
        tried = [self.experiment([each.suggest(t) for each in self.ranges]) for t in trials]
        asked = [msgspec.structs.replace(one, seed=seed) for one in tried for seed in self.seeds]
        place = Study(self.folder, self.data).path
        # Trials may repeat each other's values, and a directory is one run's.
        runs = list({place(one): GridRun(one, place(one)) for one in asked}.values())
        owners = [
            tried.index(msgspec.structs.replace(r.experiment, seed=tried[0].seed)) for r in runs
        ]

        def tell(number: int, at: runner.Progress) -> None:
            on_round(trials[owners[number]].number, at)

        ends = run_all(runs, None, self.data, tell, cluster=self.cluster)
        outcomes = dict(zip((run.path for run in runs), ends, strict=True))
        for trial, one in zip(trials, tried, strict=True):
            seeded = [msgspec.structs.replace(one, seed=seed) for seed in self.seeds]
            self._close(study, trial, one, [outcomes[place(each)] for each in seeded])

    def _close(
        self,
        study: "optuna.Study",
        trial: "optuna.Trial",
        experiment: Experiment,
        outcomes: Sequence[RunOutcome],
    ) -> None:
        """Tell the value of a trial; a trial that diverged has none, any other error ends the search."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, ChronofedError)]
        for error in errors:
            if not isinstance(error, DivergedError):
                raise error
        if errors:
            trial.set_user_attr(DIVERGED, True)
            study.tell(trial, state=_optuna().trial.TrialState.FAIL)
            return
        summaries = [outcome for outcome in outcomes if not isinstance(outcome, ChronofedError)]
        study.tell(trial, self._score(trial, experiment, summaries))

    def open(self) -> "optuna.Study":
        """Make the folder and the database, or open those of an earlier call.

        Raises:
            MissingExtraError: If Optuna is not installed.
            RunError: If Optuna's database is damaged.
            SpecError: If earlier trials were scored on other rows.
        """
        library = _optuna()
        make_folder(self.folder)
        database = self.folder / "sweep.db"
        try:
            study: optuna.Study = library.create_study(
                direction="maximize",
                storage=f"sqlite:///{database}",
                study_name="sweep",
                load_if_exists=True,
                pruner=library.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS),
            )
        # Errors of SQLAlchemy, which only Optuna imports, and Optuna's own.
        except Exception as error:
            reason = str(error).partition("\n")[0]
            msg = f"{database}: cannot be read ({reason}); move it away, or choose another -o"
            raise RunError(msg) from error
        self._check_rows(study)
        return study

    def _check_rows(self, study: "optuna.Study") -> None:
        """Record what the trials are scored on; refuse to go on with other rows.

        Raises:
            SpecError: If earlier trials were scored on other rows.
        """
        before = study.user_attrs.get(SCORED_ON, "test") if study.trials else self.on
        if before != self.on:
            msg = f"{self.folder}: its trials were scored on {before} rows; choose another folder (-o)"
            raise SpecError(msg)
        study.set_user_attr(SCORED_ON, self.on)

    def _requeue(self, study: "optuna.Study") -> None:
        """Queue again the trials that were running when an earlier call was stopped; their runs resume."""
        optuna = _optuna()
        known = [trial.params for trial in study.trials if not _lost(trial)]
        waiting = [trial for trial in study.trials if trial.state.name == "WAITING"]
        known += [trial.system_attrs["fixed_params"] for trial in waiting]
        for trial in study.trials:
            if trial.state == optuna.trial.TrialState.RUNNING:
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            if _lost(trial) and trial.params not in known:
                study.enqueue_trial(trial.params)
                known.append(trial.params)

    def _value(self, trial: "optuna.Trial", on_round: OnRound) -> float:
        """Run a trial over all seeds; the first seed decides whether it is stopped early."""
        experiment = self.experiment([each.suggest(trial) for each in self.ranges])
        summaries = [
            self._summary(msgspec.structs.replace(experiment, seed=seed), trial, on_round)
            for seed in self.seeds
        ]
        return self._score(trial, experiment, summaries)

    def _score(
        self,
        trial: "optuna.Trial",
        experiment: Experiment,
        summaries: Sequence[Mapping[str, Any]],
    ) -> float:
        """Record and return the mean of a measure over the seeds, with the sign that Optuna maximises."""
        measure = find_measure(self.measure, summaries[0], experiment.evaluate.own_measures())
        value = sum(float(summary[measure.key]) for summary in summaries) / len(summaries)
        trial.set_user_attr(MEASURED, [measure.key, value])
        return measure.sign * value

    def _summary(
        self, experiment: Experiment, trial: "optuna.Trial", on_round: OnRound
    ) -> dict[str, Any]:
        """Run one seed of a trial."""
        path = Study(self.folder, self.data).path(experiment)
        reporter = _Reporter(trial, RunDirectory(path), experiment.seed == self.seeds[0])

        def report(at: runner.Progress) -> None:
            on_round(trial.number, at)
            reporter(at)

        try:
            summary = runner.run(experiment, path, self.data, on_round=report)
        except DivergedError:
            trial.set_user_attr(DIVERGED, True)
            raise
        reporter.catch_up(summary["rounds"], summary["rounds"])
        return summary


@dataclass(slots=True)
class _Reporter:
    """Reports the accuracies of a run to its trial, also those of an earlier call that was stopped.

    Of a regression it reports negative errors, because Optuna maximises.

    Attributes:
        trial: The trial.
        directory: The run.
        prunable: Whether anything is reported, and the trial may be stopped early.
    """

    trial: "optuna.Trial"
    directory: RunDirectory
    prunable: bool
    _reported: int = -1

    def __call__(self, at: runner.Progress) -> None:
        """Report what is new, and stop the trial if it is worse than others."""
        # No evaluation, and not the start either, when there may be some of an earlier call.
        if at.measures is None and self._reported >= 0:
            return
        self.catch_up(at.round, at.rounds)
        if self.prunable and self.trial.should_prune():
            raise _optuna().TrialPruned

    def catch_up(self, done: int, rounds: int) -> None:
        """Report all evaluations of the first ``done`` rounds, but for that of the last round of the run."""
        if not self.prunable or done == self._reported:
            return
        for line in self.directory.history():
            if self._reported < line["round"] <= done and line["round"] < rounds:
                headline = BY_KEY[headline_of(line)]
                sign = -1.0 if headline.better == "lower" else 1.0
                self.trial.report(sign * float(line[headline.key]), line["round"])
        self._reported = done


def ranked(study: "optuna.Study") -> list[Trial]:
    """Return all trials but those that were queued again: best first, those without a value last."""
    found = [trial for trial in study.trials if trial.state.is_finished() and not _lost(trial)]
    # Optuna maximises, so its value of an error is negative.
    found.sort(key=lambda t: (t.state.name != "COMPLETE", -(t.value or 0.0), t.number))
    return list(map(_trial, found))


def _trial(trial: "optuna.trial.FrozenTrial") -> Trial:
    measure, value = trial.user_attrs.get(MEASURED, ("", trial.value))
    return Trial(trial.number, trial.params, value, trial.state.name.lower(), measure)


def _lost(trial: "optuna.trial.FrozenTrial") -> bool:
    """Return whether a trial was running when its process ended, and so is queued again."""
    return trial.state.name in ("RUNNING", "FAIL") and DIVERGED not in trial.user_attrs


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "sweep", "a sweep") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
