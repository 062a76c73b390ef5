"""Going on from a finished run: with the periods that came since, or for more rounds."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from chronofed.core.errors import DataError, RunError, SpecError
from chronofed.data.periods import Period
from chronofed.data.preparation import Settled
from chronofed.data.table import Table
from chronofed.runs.built import BuiltRun, build
from chronofed.runs.directory import RunDirectory
from chronofed.runs.extension import (
    Extension,
    commit,
    frozen_preparation,
    known_periods,
    last_snapshot,
    record_sizes,
    recover,
    settled,
)
from chronofed.runs.load_spec import load_run
from chronofed.runs.period_digests import PeriodDigests, in_time_order
from chronofed.runs.restore import finished_summary
from chronofed.runs.runner import OnRound, proceed, resume
from chronofed.runs.spec import Experiment, on_engine


@dataclass(frozen=True, slots=True)
class Request:
    """Plan of an extension.

    Attributes:
        file: File with newer rows, or with the whole table; by default the run's own files, which have grown.
        rounds: Number of further rounds, for a scenario without periods.
        data: Folder of data files.
        engine: Engine for this part; by default the run's.
        workers: Clients to train in parallel in this part; by default as many as the run says.
    """

    file: Path | None = None
    rounds: int | None = None
    data: Path | None = None
    engine: str | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Extended:
    """The outcome of an extension.

    Attributes:
        summary: The run's summary.
        periods: Names of the new periods.
        rounds: Number of new rounds; 0 if there was nothing new.
        finished: Whether the run had to be finished first.
    """

    summary: dict[str, Any]
    periods: tuple[str, ...] = ()
    rounds: int = 0
    finished: bool = False


def extend(
    directory: RunDirectory, request: Request, on_round: OnRound = lambda progress: None
) -> Extended:
    """Finish a run if it is not finished, then go on with what is new.

    Called again after a crash, it goes on where it was stopped; ``rounds`` do not count twice.

    Raises:
        RunError: If another process is using the run, earlier rows have changed, or clients are elsewhere.
        DataError: If the new rows do not fit the model.
        SpecError: If there is nothing that could be extended.
    """
    if directory.remote:
        raise RunError(
            f"{directory.path}: its clients are on Flower; only runs of this machine can go on"
        )
    recover(directory)
    summary, _ = finished_summary(directory)
    unfinished = summary is None
    if summary is None:
        settings = on_engine(load_run(directory, request.data), request.engine, request.workers)
        summary = resume(directory, request.data, experiment=settings, on_round=on_round)
        if request.rounds is not None:
            return Extended(summary, finished=True)
    if "stopped_early" in summary:
        raise SpecError(
            f"{directory.path}: {summary['stopped_early']} (stop), so it does not go on"
        )
    with directory.lock():
        built, new = _plan(directory, request, int(summary["rounds"]))
        if built is None:
            return Extended(summary, finished=unfinished)
        now = on_engine(built.experiment, request.engine, request.workers)
        ready = replace(built, experiment=now)
        # Refuses an engine that cannot train this, before anything is written.
        ready.choose_engine()
        _commit(directory, built, new, int(summary["rounds"]))
    done = int(summary["rounds"])
    summary = proceed(directory, ready, on_round=on_round)
    return Extended(summary, new, built.rounds - done, unfinished)


def news(directory: RunDirectory) -> tuple[str, ...]:
    """Name the periods that wait in the data file of a finished run; nothing is written.

    Raises:
        ChronofedError: If the run cannot go on with the data as they are.
    """
    summary, _ = finished_summary(directory)
    return _plan(directory, Request(), int(summary["rounds"]))[1] if summary else ()


def _plan(
    directory: RunDirectory, request: Request, done: int
) -> tuple[BuiltRun | None, tuple[str, ...]]:
    """Build the longer run and name its new periods; ``None`` if there is nothing new."""
    settings = load_run(directory, request.data)
    if request.rounds is not None:
        if request.file is not None:
            raise SpecError("--rounds: new data bring their own rounds; leave one of the two out")
        longer = msgspec.structs.replace(settings, rounds=done + request.rounds)
        return build(longer, request.data, settled=settled(directory)), ()
    known = known_periods(directory)
    if known is None or not isinstance(settings.data, Table):
        raise SpecError(
            f"{directory.path}: its data have no periods, so there are no later ones; go on with --rounds N"
        )
    if settings.data.test != 0 and settings.data.holdout == "latest":
        raise SpecError(
            f"{directory.path}: its test rows are the latest (data.holdout), which later periods would change; "
            "use evaluate.protocol = 'next' in a new run"
        )
    return _with_later_periods(directory, settings, known, request, done)


def _with_later_periods(
    directory: RunDirectory,
    settings: Experiment,
    known: PeriodDigests,
    request: Request,
    done: int,
) -> tuple[BuiltRun | None, tuple[str, ...]]:
    frozen = Settled(frozen_preparation(directory.path))
    built = _build(_with_file(settings, request, frozen, known), request, frozen)
    now = built.periods
    changed = known.changed(now) if now else "all periods"
    if now is None or changed:
        raise DataError(_changed(directory, changed, known, now))
    new = tuple(now.periods)[len(known.periods) :]
    if not new:
        return None, ()
    if not in_time_order(built.task.data, len(known.periods)):
        raise DataError(
            f"{directory.path}: rows of new periods are earlier than rows of old ones; with windows of rows, "
            "extend when all clients have filled theirs"
        )
    if built.rounds * len(known.periods) != done * len(now.periods):
        raise SpecError(
            f"{directory.path}: its {done} rounds did not end with its periods (rounds in spec.toml, or "
            "another scenario), so later periods cannot follow; start a new run"
        )
    if settings.rounds is None:
        return built, new
    experiment = msgspec.structs.replace(built.experiment, rounds=built.rounds)
    return replace(built, experiment=experiment), new


def _changed(
    directory: RunDirectory, what: str, known: PeriodDigests, now: PeriodDigests | None
) -> str:
    """Say which earlier rows changed, in one line."""
    name = what.removeprefix("period ")
    rows = dict(zip(known.periods, known.rows, strict=True)).get(name)
    found = dict(zip(now.periods, now.rows, strict=True)).get(name) if now else None
    count = "" if rows is None or rows == found else f" (it had {rows} rows, now {found or 0})"
    return (
        f"{directory.path}: {what} has changed since the run was trained on it{count}; only rows of later "
        "periods may be added: restore the rows, or start a new run"
    )


def _build(experiment: Experiment, request: Request, frozen: Settled) -> BuiltRun:
    """Build with as many rounds as there are periods now."""
    every = msgspec.structs.replace(experiment, rounds=None)
    return build(every, request.data, settled=frozen)


def _with_file(
    settings: Experiment, request: Request, frozen: Settled, known: PeriodDigests
) -> Experiment:
    """Replace the table by a file that holds all of it, or add a file that holds newer rows only."""
    table, file = settings.data, request.file
    assert isinstance(table, Table)
    if file is None:
        return settings
    if not file.is_file():
        raise DataError(f"--data: no file {file}")
    path = str(file.resolve())
    if path in (table.path, *table.more):
        return settings
    whole = msgspec.structs.replace(table, path=path, more=())
    added = msgspec.structs.replace(table, more=(*table.more, path))
    holds_all = _holds_all(whole, request, frozen, settings.seed, known)
    return msgspec.structs.replace(settings, data=whole if holds_all else added)


def _holds_all(
    whole: Table, request: Request, frozen: Settled, seed: int, known: PeriodDigests
) -> bool:
    """Tell if a file begins with the first period that is known."""
    first, positional = next(iter(known.periods)), _is_positional(whole)
    origin = whole.load_settled(request.data, seed, frozen).origin
    if origin is None or first not in origin.periods:
        return False
    # Windows of rows begin at 0 in every file.
    return not positional or len(origin.periods) >= len(known.periods)


def _is_positional(table: Table) -> bool:
    return not table.time or Period.parse(table.period).unit == "rows"


def _commit(directory: RunDirectory, built: BuiltRun, new: tuple[str, ...], done: int) -> None:
    """Write the extension down."""
    last_snapshot(directory, done)
    experiment, now = built.experiment, built.periods
    table = experiment.data
    counts = dict(zip(now.periods, now.rows, strict=True)) if now else {}
    line = {
        "round": done,
        "rounds": built.rounds,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": [table.path, *table.more] if isinstance(table, Table) else [],
        "periods": {name: now.periods[name] for name in new} if now else {},
        "rows": sum(counts[name] for name in new),
        "clients": built.scenario.clients,
    }
    again = experiment.evaluate.end_differs or not experiment.evaluate.due(done, built.rounds)
    commit(
        directory,
        Extension(
            done,
            experiment.resolved(),
            built.identity,
            now.to_json().decode() if now else "",
            record_sizes(directory, done, again),
            line,
        ),
    )
