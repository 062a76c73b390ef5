"""Tuning settings with Optuna: every trial is an ordinary run, and one that falls behind is stopped early."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chronofed.errors import DivergedError, MissingExtraError, SpecError
from chronofed.experiments import runner
from chronofed.experiments.spec import Experiment, load
from chronofed.experiments.study import Study
from chronofed.records.atomic import make_folder, write_atomic

if TYPE_CHECKING:
    import optuna

WIDE = 10  # a range whose ends differ by at least this factor is searched on a logarithmic scale
DIVERGED = "diverged"
PATIENCE = 5  # trials that are finished before any is stopped early


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting that is varied, and what it may be.

    Attributes:
        key: Its place in the specification, such as ``train.lr``.
        options: The values to choose from, as text; empty if there is a range.
        low: Least value of the range.
        high: Largest value of the range.
        whole: Whether only whole numbers count.
    """

    key: str
    options: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False

    @classmethod
    def parse(cls, text: str) -> "Choice":
        """Read ``KEY=LOW:HIGH`` or ``KEY=A,B,C``.

        >>> Choice.parse("train.lr=0.01:0.3").logarithmic, Choice.parse("model.kind=linear,mlp").options
        (True, ('linear', 'mlp'))

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
        """Whether values are searched by their order of magnitude."""
        return self.low > 0 and self.high / self.low >= WIDE

    @property
    def extremes(self) -> tuple[str, ...]:
        """All options, or both ends of the range, as text."""
        ends = (self.low, self.high)
        return self.options or tuple(repr(int(end) if self.whole else end) for end in ends)

    def suggest(self, trial: "optuna.Trial") -> str:
        """A value, as text."""
        if self.options:
            return str(trial.suggest_categorical(self.key, self.options))
        if self.whole:
            ends = int(self.low), int(self.high)
            return str(trial.suggest_int(self.key, *ends, log=self.logarithmic))
        return repr(trial.suggest_float(self.key, self.low, self.high, log=self.logarithmic))


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one choice of settings.

    Attributes:
        number: Counted from 0.
        settings: What was chosen.
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
        choices: What is varied.
        folder: Where runs and the search's own record are; called again with it, the search goes on.
        overrides: Other changes to the specification.
        data: Folder of data files.
        measure: The number of the summary to make as large as possible.
        seeds: Every choice is judged by its mean over these.
    """

    spec: Path
    choices: Sequence[Choice]
    folder: Path
    overrides: Sequence[str] = ()
    data: Path | None = None
    measure: str = "anytime"
    seeds: Sequence[int] = (0,)

    def check(self) -> None:
        """Refuse what cannot be run, before anything is: every option, and both ends of every range.

        Raises:
            SpecError: If a value is impossible, or a setting unknown.
        """
        ends = [choice.extremes for choice in self.choices]
        for values in zip_longest(*ends):
            self.experiment([v or e[0] for v, e in zip(values, ends, strict=True)], self.seeds[0])

    def save(self, trial: Trial) -> Path:
        """Write the whole specification of a trial beside the runs."""
        values = [str(trial.settings[choice.key]) for choice in self.choices]
        path = self.folder / "best.toml"
        write_atomic(path, self.experiment(values, self.seeds[0]).resolved().encode())
        return path

    def experiment(self, values: Sequence[str], seed: int) -> Experiment:
        """The specification with values for all choices."""
        changes = [
            f"{choice.key}={value}" for choice, value in zip(self.choices, values, strict=True)
        ]
        found = load(self.spec, [*self.overrides, *changes], self.data)
        return msgspec.structs.replace(found, seed=seed)

    def run(
        self,
        trials: int,
        watch: Callable[[int, runner.Progress], None] = lambda n, p: None,  # noqa: ARG005
    ) -> list[Trial]:
        """Search until there are so many trials, those of earlier calls included; best first.

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
            pruner=optuna.pruners.MedianPruner(n_startup_trials=PATIENCE),
        )
        # Not the same numbers again when a search goes on.
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        self._take_up(study)
        left = trials - sum(trial.state.is_finished() for trial in study.trials if not _lost(trial))
        study.optimize(
            lambda trial: self._value(trial, watch), max(0, left), catch=(DivergedError,)
        )
        return ranked(study)

    def _take_up(self, study: "optuna.Study") -> None:
        """Queue again what was under way when an earlier call was stopped; its runs go on."""
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

    def _value(self, trial: "optuna.Trial", watch: Callable[[int, runner.Progress], None]) -> float:
        """Run one choice over all seeds, the first of which can show that it is not worth the rest."""
        values = [choice.suggest(trial) for choice in self.choices]
        study, summaries = Study(self.folder, self.data), []
        for seed in self.seeds:

            def follow(at: runner.Progress, first: bool = seed == self.seeds[0]) -> None:
                watch(trial.number, at)
                if first and at.measures is not None and at.round < at.rounds:
                    trial.report(float(at.measures["test_accuracy"]), at.round)
                    if trial.should_prune():
                        raise _optuna().TrialPruned

            directory = study.open(self.experiment(values, seed))
            try:
                summaries.append(runner.proceed(directory, self.data, follow))
            except DivergedError:
                trial.set_user_attr(DIVERGED, True)
                raise
        if self.measure not in summaries[0]:
            known = ", ".join(key for key in summaries[0] if "seconds" not in key)
            raise SpecError(f"--measure: no '{self.measure}' in the summary; there are: {known}")
        return sum(float(summary[self.measure]) for summary in summaries) / len(summaries)


def ranked(study: "optuna.Study") -> list[Trial]:
    """All trials but those that were queued again, best first, those without a value last."""
    found = [
        Trial(t.number, t.params, t.value, t.state.name.lower())
        for t in study.trials
        if t.state.is_finished() and not _lost(t)
    ]
    return sorted(found, key=lambda t: (t.state != "complete", -(t.value or 0.0), t.number))


def _lost(trial: "optuna.trial.FrozenTrial") -> bool:
    """Whether a trial was under way when its process ended: such a one is queued again."""
    return trial.state.name in ("RUNNING", "FAIL") and DIVERGED not in trial.user_attrs


def _optuna() -> Any:  # noqa: ANN401 - a module
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "sweep", "a sweep") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
