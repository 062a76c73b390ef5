"""Running many runs: one after another in this process, or several at a time, each in its own process."""

import logging
import multiprocessing
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from chronofed.core.errors import ChronofedError
from chronofed.engines.base import usable_cores
from chronofed.engines.cluster import Cluster
from chronofed.engines.processes import end_with_parent, start
from chronofed.runs import runner
from chronofed.studies.cluster_grid import ClusterPool
from chronofed.studies.one_run import (
    GridRun,
    OnEnd,
    OnRound,
    QueueOfRecords,
    RunOutcome,
    outcome_of,
)


def run_all(
    runs: Sequence[GridRun],
    jobs: int | None,
    data: Path | None = None,
    on_round: OnRound = lambda number, progress: None,
    on_end: OnEnd = lambda number, outcome: None,
    cluster: Cluster | None = None,
) -> list[RunOutcome]:
    """Run everything that is not finished; an error in one run does not stop the others.

    With one job, runs follow one another in this process and train their clients in parallel. With more, every
    run has its own process and trains its clients one after another. On a cluster, it has its own worker.

    Args:
        runs: The runs; each is built when its turn comes.
        jobs: Runs at a time; by default one for each core, of the cluster if there is one.
        data: Folder of data files.
        on_round: Called after every round with the number of the run and its progress.
        on_end: Called with the number of a run and its outcome.
        cluster: Machines that share the runs.

    Returns:
        The summary or the error of every run, in order.
    """
    if cluster is not None:
        return ClusterPool(runs, jobs, data, on_round, on_end, cluster).run()
    jobs = jobs or usable_cores()
    if min(jobs, len(runs)) > 1:
        return _Pool(runs, jobs, data, on_round, on_end).run()
    outcomes: list[RunOutcome] = []
    for number, run in enumerate(runs):
        outcomes.append(outcome_of(run, data, None, partial(on_round, number)))
        on_end(number, outcomes[-1])
    return outcomes


@dataclass(frozen=True, slots=True)
class _Worker:
    """The process of a run."""

    number: int
    process: BaseProcess
    pipe: Connection

    def receive(self) -> runner.Progress | logging.LogRecord | RunOutcome:
        """Return the next progress, log record or outcome of the run."""
        try:
            news: runner.Progress | logging.LogRecord | RunOutcome = self.pipe.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            return ChronofedError(f"the process of a run ended (exit code {code}); resume it")
        return news


@dataclass(frozen=True, slots=True)
class _Pool:
    """Runs in processes, at most ``jobs`` at a time."""

    runs: Sequence[GridRun]
    jobs: int
    data: Path | None
    on_round: OnRound
    on_end: OnEnd

    def run(self) -> list[RunOutcome]:
        outcomes: dict[int, RunOutcome] = {}
        waiting, working = list(enumerate(self.runs))[::-1], dict[Connection, _Worker]()
        try:
            while waiting or working:
                while waiting and len(working) < self.jobs:
                    worker = _start(*waiting.pop(), self.data)
                    working[worker.pipe] = worker
                for pipe in wait(list(working)):
                    worker = working[pipe]  # type: ignore[index]
                    outcome = self._handle(worker)
                    if outcome is not None:
                        outcomes[worker.number] = outcome
                        del working[worker.pipe]
                        worker.process.join()
        finally:
            # Killing is safe, because a run can be resumed from any moment.
            for worker in working.values():
                worker.process.kill()
        return [outcomes[number] for number in range(len(self.runs))]

    def _handle(self, worker: _Worker) -> RunOutcome | None:
        """Pass on one message of a worker; return the outcome if it was the last."""
        news = worker.receive()
        if isinstance(news, runner.Progress):
            self.on_round(worker.number, news)
        elif isinstance(news, logging.LogRecord):
            logging.getLogger(news.name).handle(news)
        else:
            self.on_end(worker.number, news)
            return news
        return None


def _start(number: int, run: GridRun, data: Path | None) -> _Worker:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe(duplex=False)
    level = logging.getLogger("chronofed").getEffectiveLevel()
    process = context.Process(target=_work, args=(there, run, data, level))
    start(process)
    there.close()
    return _Worker(number, process, here)


def _work(pipe: Connection, run: GridRun, data: Path | None, level: int) -> None:
    """Run one run in a process that its parent started and will stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    logger = logging.getLogger("chronofed")
    logger.addHandler(QueueOfRecords(pipe.send))
    logger.setLevel(level)
    pipe.send(outcome_of(run, data, 1, pipe.send))
