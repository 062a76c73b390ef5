"""The command ``chronofed sweep``."""

import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from chronofed.cli.output import emit, emit_json, note
from chronofed.cli.progress import progress
from chronofed.cli.values import seeds_of
from chronofed.errors import DivergedError, SpecError
from chronofed.experiments.runner import Progress, Watch
from chronofed.experiments.sweep import Choice, Sweep, Trial
from chronofed.reports.tables import TextTable


def main(options: Namespace) -> int:
    """Tune settings; leave the runs and the best specification."""
    if options.trials < 1:
        raise SpecError(f"--trials: expected a number >= 1, not {options.trials}")
    sweep = Sweep(
        options.spec,
        [Choice.parse(text) for text in options.vary],
        options.output or Path("runs") / f"sweep-{options.spec.stem}",
        options.set,
        options.data,
        options.measure,
        seeds_of(options.seeds),
    )
    sweep.check()
    with progress(options.quiet or options.json) as bars:
        watches: dict[int, Watch] = {}

        def watch(number: int, at: Progress) -> None:
            if number not in watches:
                watches[number] = bars.watch(f"trial {number}")
            watches[number](at)

        trials = sweep.run(options.trials, watch)
    if trials[0].value is None:
        raise DivergedError("all trials diverged: try smaller learning rates")
    best = sweep.save(trials[0])
    if options.json:
        emit_json({"best": str(best), "trials": [_plain(trial) for trial in trials]})
        return 0
    emit(_table(trials, options.measure).terminal())
    note(f"best: {shlex.join(_changes(trials[0]))}; the whole specification: {best}")
    return 0


def _changes(trial: Trial) -> list[str]:
    return [word for key, value in trial.settings.items() for word in ("-s", f"{key}={value}")]


def _plain(trial: Trial) -> dict[str, object]:
    return {
        "trial": trial.number,
        "settings": trial.settings,
        "value": trial.value,
        "state": trial.state,
    }


def _table(trials: Sequence[Trial], measure: str) -> TextTable:
    keys = list(trials[0].settings)
    rows = [
        [str(t.number), *(_shown(t.settings[k]) for k in keys), _shown(t.value), _words(t)]
        for t in trials
    ]
    return TextTable("Trials, best first", ["trial", *keys, measure, ""], rows)


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _words(trial: Trial) -> str:
    return {"complete": "", "pruned": "stopped early", "fail": "diverged"}[trial.state]
