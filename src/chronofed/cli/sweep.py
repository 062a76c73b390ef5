"""The command ``chronofed sweep``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.many import cluster_of
from chronofed.cli.options import (
    add_address,
    add_data,
    add_json,
    add_quiet,
    add_spec,
    check_counts,
    check_spec,
    parse_seeds,
)
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.errors import DivergedError, SpecError

if TYPE_CHECKING:
    from chronofed.reports.tables import TextTable
    from chronofed.runs.runner import OnRound, Progress
    from chronofed.studies.sweep import Trial

GROUP = "experiments"
HELP = "tune settings of an experiment"

MOST_TRIALS = 1_000_000


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser)
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY=VALUES",
        help="values to try: a range, train.lr=0.01:0.3, or a list, train.epochs=1,2; repeat for more",
    )
    text = "number of trials (default 20)"
    parser.add_argument("--trials", type=int, default=20, metavar="N", help=text)
    text = (
        "number of the summary to optimise: accuracies up, errors and losses down (default anytime)"
    )
    parser.add_argument("--measure", default="anytime", metavar="KEY", help=text)
    text = "seeds to average over (default 0)"
    parser.add_argument("--seeds", default="0", metavar="LIST", help=text)
    text = "score trials on test rows, not on validation rows; the test rows cannot judge the result then"
    parser.add_argument("--on-test", action="store_true", help=text)
    text = "folder of the runs (default: runs/sweep-NAME)"
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=text)
    text = "with --address: trials at a time, none of which is stopped early (default 1)"
    parser.add_argument("--at-once", type=int, metavar="N", help=text)
    for add in (add_address, add_data, add_quiet, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """Tune settings; write the runs and the best spec."""
    check_counts(options, "trials", most=MOST_TRIALS)
    check_counts(options, "at_once")
    if options.at_once is not None and options.address is None:
        raise SpecError("--at-once: only on a cluster; give --address, too")
    check_spec(options.spec)
    import shlex

    from chronofed.cli.progress import progress
    from chronofed.studies.search_range import SearchRange
    from chronofed.studies.sweep import Sweep

    sweep = Sweep(
        options.spec,
        [SearchRange.parse(text) for text in options.vary],
        options.output or Path("runs") / f"sweep-{options.spec.stem}",
        options.set,
        options.data,
        options.measure,
        parse_seeds(options.seeds),
        "test" if options.on_test else "validation",
        cluster_of(options),
        options.at_once or 1,
    )
    sweep.check()
    sweep.open()
    if not (options.quiet or options.json):
        note(f"trials are scored on {sweep.scored_on()}")
    with progress(options.quiet or options.json) as bars:
        moves: dict[int, OnRound] = {}

        def on_round(number: int, at: "Progress") -> None:
            if number not in moves:
                moves[number] = bars.watch(f"trial {number}")
            moves[number](at)

        trials = sweep.run(options.trials, on_round)
    if trials[0].value is None:
        raise DivergedError("all trials diverged: try smaller learning rates")
    best = sweep.save(trials[0])
    if options.json:
        plain = [_plain(trial) for trial in trials]
        emit_json({"best": str(best), "scored_on": sweep.on, "trials": plain})
        return 0
    emit(_table(trials, f"{trials[0].measure} ({sweep.on})").terminal())
    note(f"best: {shlex.join(_changes(trials[0]))}; the whole spec: {best}")
    return 0


def _changes(trial: "Trial") -> list[str]:
    return [word for key, value in trial.settings.items() for word in ("-s", f"{key}={value}")]


def _plain(trial: "Trial") -> dict[str, object]:
    return {
        "trial": trial.number,
        "settings": trial.settings,
        "value": trial.value,
        "state": trial.state,
    }


def _table(trials: "Sequence[Trial]", measure: str) -> "TextTable":
    from chronofed.reports.tables import TextTable

    keys = list(trials[0].settings)
    rows = [
        [str(t.number), *(_shown(t.settings[k]) for k in keys), _shown(t.value), _words(t)]
        for t in trials
    ]
    return TextTable("Trials, best first", ["trial", *keys, measure, ""], rows)


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _words(trial: "Trial") -> str:
    return {"complete": "", "pruned": "stopped early", "fail": "diverged"}[trial.state]
