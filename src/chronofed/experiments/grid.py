"""Several runs at a time, each in a process of its own: cells in parallel, clients one after the other."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from chronofed.engines.processes import end_with_parent
from chronofed.errors import ChronofedError
from chronofed.experiments import runner
from chronofed.experiments.spec import on_engine
from chronofed.records import RunDirectory

Outcome: TypeAlias = dict[str, Any] | ChronofedError
Watch: TypeAlias = Callable[[int, runner.Progress], None]


def proceed_all(
    directories: Sequence[RunDirectory],
    jobs: int,
    data: Path | None = None,
    watch: Watch = lambda number, progress: None,  # noqa: ARG005
    say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
) -> list[Outcome]:
    """Work on runs until all are finished; one that fails does not stop the others.

    With one job, runs follow each other in this process and clients run side by side; with more, every run has
    a process and its clients follow each other.

    Args:
        directories: The runs.
        jobs: How many at a time.
        data: Folder of data files.
        watch: Told of every round: which run, and where it is.
        say: Told, in one line, of anything unusual.

    Returns:
        The summary or the error of every run, in order.
    """
    if min(jobs, len(directories)) > 1:
        return _side_by_side(directories, jobs, data, watch, say)
    outcomes: list[Outcome] = []
    for number, directory in enumerate(directories):
        try:
            told = lambda progress, number=number: watch(number, progress)  # noqa: E731
            outcomes.append(runner.proceed(directory, data, told, say))
        except ChronofedError as error:
            outcomes.append(error)
    return outcomes


@dataclass(frozen=True, slots=True)
class _Cell:
    """A run that is being worked on."""

    number: int
    process: BaseProcess
    pipe: Connection


def _side_by_side(
    directories: Sequence[RunDirectory],
    jobs: int,
    data: Path | None,
    watch: Watch,
    say: Callable[[str], None],
) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    waiting, working = list(enumerate(directories))[::-1], dict[Connection, _Cell]()
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                cell = _start(*waiting.pop(), data)
                working[cell.pipe] = cell
            for pipe in wait(list(working)):
                cell = working[pipe]  # type: ignore[index]
                news = _news(cell)
                if isinstance(news, runner.Progress):
                    watch(cell.number, news)
                elif isinstance(news, str):
                    say(news)
                else:
                    outcomes[cell.number] = news
                    del working[cell.pipe]
                    cell.process.join()
    finally:
        for cell in working.values():
            cell.process.kill()  # a run can be continued from any moment
    return [outcomes[number] for number in range(len(directories))]


def _start(number: int, directory: RunDirectory, data: Path | None) -> _Cell:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, directory.path, data))
    process.start()
    there.close()
    return _Cell(number, process, here)


def _news(cell: _Cell) -> runner.Progress | str | Outcome:
    """What a run has to say: where it is, something unusual, or how it ended."""
    try:
        news: runner.Progress | str | Outcome = cell.pipe.recv()
    except EOFError:
        cell.process.join()
        code = cell.process.exitcode
        return ChronofedError(f"the process of a run ended (exit code {code}); resume it")
    return news


def _work(pipe: Connection, path: Path, data: Path | None) -> None:
    """One run, in a process that its parent started and ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        outcome: Outcome = runner.proceed(
            RunDirectory.open(path),
            data,
            pipe.send,
            pipe.send,
            lambda experiment: on_engine(experiment, None, 1),
        )
    except ChronofedError as error:
        outcome = error
    pipe.send(outcome)
