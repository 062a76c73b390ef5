"""Tuning settings with Optuna: every trial is an ordinary run, and a bad one is stopped early."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from chronofed.core.atomic import make_folder, write_atomic
from chronofed.core.errors import DivergedError, MissingExtraError, SpecError
from chronofed.runs import runner
from chronofed.runs.load_spec import load
from chronofed.runs.spec import Experiment
from chronofed.studies.study import Study

if TYPE_CHECKING:
    import optuna

LOG_SCALE_RATIO = 10
"""A range whose ends differ by at least this factor is searched on a logarithmic scale."""
STARTUP_TRIALS = 5
"""Trials to finish before any is stopped early."""
DIVERGED = "diverged"

OnRound: TypeAlias = Callable[[int, runner.Progress], None]


@dataclass(frozen=True, slots=True)
class SearchRange:
    """The values to search for one setting: a list of options, or a range of numbers.

    Attributes:
        key: The setting's place in the specification, such as ``train.lr``.
        options: The options as text; empty if there is a range.
        low: Least value of the range.
        high: Largest value of the range.
        integer: Whether the range holds integers only.
    """

    key: str
    options: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    integer: bool = False

    @classmethod
    def parse(cls, text: str) -> "SearchRange":
        """Parse ``KEY=LOW:HIGH`` or ``KEY=A,B,C``.

        >>> SearchRange.parse("train.lr=0.01:0.3").logarithmic
        True
        >>> SearchRange.parse("model.kind=linear,mlp").options
        ('linear', 'mlp')

        Raises:
            SpecError: If it is neither.
        """
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise SpecError(f"--vary {text}: expected KEY=LOW:HIGH or KEY=A,B,C")
        low, colon, high = values.partition(":")
        if not colon:
            return cls(key, tuple(values.split(",")))
        try:
            ends = float(low), float(high)
        except ValueError:
            raise SpecError(f"--vary {text}: expected numbers, LOW:HIGH") from None
        if not ends[0] < ends[1] or not all(map(math.isfinite, ends)):
            raise SpecError(f"--vary {text}: expected the lower number first")
        return cls(key, (), *ends, low.isdecimal() and high.isdecimal())

    @property
    def logarithmic(self) -> bool:
        """True if the range is searched on a logarithmic scale."""
        return self.low > 0 and self.high / self.low >= LOG_SCALE_RATIO

    @property
    def extremes(self) -> tuple[str, ...]:
        """All options, or both ends of the range, as text."""
        ends = (self.low, self.high)
        return self.options or tuple(repr(int(end) if self.integer else end) for end in ends)

    def suggest(self, trial: "optuna.Trial") -> str:
        """Let a trial choose a value; return it as text."""
        if self.options:
            return str(trial.suggest_categorical(self.key, self.options))
        if self.integer:
            ends = int(self.low), int(self.high)
            return str(trial.suggest_int(self.key, *ends, log=self.logarithmic))
        return repr(trial.suggest_float(self.key, self.low, self.high, log=self.logarithmic))


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: the settings it tried and their value.

    Attributes:
        number: Counted from 0.
        settings: The settings tried.
        value: The measure's mean over seeds; ``None`` if it was stopped early or diverged.
        state: ``complete``, ``pruned``, or ``fail`` if it diverged.
    """

    number: int
    settings: dict[str, Any]
    value: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """A search for the best settings of one specification.

    Attributes:
        spec: The specification file.
        ranges: The settings to vary.
        folder: Folder of the runs and of Optuna's database; a search continues in the folder where it stopped.
        overrides: Other changes to the specification.
        data: Folder of data files.
        measure: The number of the summary to maximise.
        seeds: The value of a trial is its mean over these seeds.
    """

    spec: Path
    ranges: Sequence[SearchRange]
    folder: Path
    overrides: Sequence[str] = ()
    data: Path | None = None
    measure: str = "anytime"
    seeds: Sequence[int] = (0,)

    def check(self) -> None:
        """Check every option and both ends of every range before anything runs.

        Raises:
            SpecError: If a value is impossible, or a setting unknown.
        """
        ends = [each.extremes for each in self.ranges]
        for values in zip_longest(*ends):
            self.experiment([v or e[0] for v, e in zip(values, ends, strict=True)])

    def save(self, trial: Trial) -> Path:
        """Write the whole specification of a trial to ``best.toml``."""
        values = [str(trial.settings[each.key]) for each in self.ranges]
        best = msgspec.structs.replace(self.experiment(values), seed=self.seeds[0])
        path = self.folder / "best.toml"
        write_atomic(path, best.resolved().encode())
        return path

    def experiment(self, values: Sequence[str]) -> Experiment:
        """Load the specification with a value for every range."""
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
        """
        optuna = _optuna()
        make_folder(self.folder)
        study = optuna.create_study(
            direction="maximize",
            storage=f"sqlite:///{self.folder / 'sweep.db'}",
            study_name="sweep",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS),
        )
        # Seeded by the trials so far, so that a continued search does not repeat its numbers.
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        self._requeue(study)
        left = trials - sum(trial.state.is_finished() for trial in study.trials if not _lost(trial))
        study.optimize(
            lambda trial: self._value(trial, on_round), max(0, left), catch=(DivergedError,)
        )
        return ranked(study)

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
        if self.measure not in summaries[0]:
            known = ", ".join(key for key in summaries[0] if "seconds" not in key)
            raise SpecError(f"--measure: no '{self.measure}' in the summary; there are: {known}")
        return sum(float(summary[self.measure]) for summary in summaries) / len(summaries)

    def _summary(
        self, experiment: Experiment, trial: "optuna.Trial", on_round: OnRound
    ) -> dict[str, Any]:
        """Run one seed of a trial."""
        prunable = experiment.seed == self.seeds[0]

        def report(at: runner.Progress) -> None:
            on_round(trial.number, at)
            if prunable and at.measures is not None and at.round < at.rounds:
                trial.report(float(at.measures["test_accuracy"]), at.round)
                if trial.should_prune():
                    raise _optuna().TrialPruned

        path = Study(self.folder, self.data).path(experiment)
        try:
            return runner.run(experiment, path, self.data, on_round=report)
        except DivergedError:
            trial.set_user_attr(DIVERGED, True)
            raise


def ranked(study: "optuna.Study") -> list[Trial]:
    """Return all trials but those that were queued again: best first, those without a value last."""
    found = [
        Trial(t.number, t.params, t.value, t.state.name.lower())
        for t in study.trials
        if t.state.is_finished() and not _lost(t)
    ]
    return sorted(found, key=lambda t: (t.state != "complete", -(t.value or 0.0), t.number))


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
