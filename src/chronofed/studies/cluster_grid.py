"""Running many runs on the machines of a Ray cluster, several at a time, each in a worker of its own."""

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from chronofed.core.errors import ChronofedError, IncompatibleError
from chronofed.core.user_code import in_one_line
from chronofed.engines.cluster import Cluster
from chronofed.engines.ray.connect import connect, total_workers
from chronofed.runs.directory import RunDirectory
from chronofed.studies.one_run import (
    GridRun,
    News,
    OnEnd,
    OnRound,
    QueueOfRecords,
    RunOutcome,
    outcome_of,
)

NEWS_S = 1.0
"""Seconds that a worker waits for news before it answers that there are none."""
CARRIED = ("CHRONOFED_DATA", "XDG_CACHE_HOME")
"""Environment variables of the driver that decide where data are."""


class RunWorker:
    """Works on one run; Ray makes an actor of it, which tells news while it works.

    Args:
        folder: The driver's working folder, if it is here, too.
        paths: Where the driver finds modules.
        environment: The driver's environment variables that matter.
        level: Level of log records to pass on.
    """

    def __init__(
        self, folder: str, paths: Sequence[str], environment: Mapping[str, str], level: int
    ) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        os.environ.update(environment)
        sys.path += [path for path in paths if path not in sys.path]
        self._news: SimpleQueue[News] = SimpleQueue()
        logger = logging.getLogger("chronofed")
        logger.addHandler(QueueOfRecords(self._news.put))
        logger.setLevel(level)

    def run(self, run: GridRun, data: Path | None) -> RunOutcome:
        """Run one run, from its start or from its latest checkpoint."""
        return outcome_of(run, data, 1, self._news.put)

    def news(self) -> list[News]:
        """Return what happened since the last call; wait a little if nothing did."""
        found: list[News] = []
        with contextlib.suppress(Empty):
            found.append(self._news.get(timeout=NEWS_S))
            while True:
                found.append(self._news.get_nowait())
        return found


@dataclass(eq=False, slots=True)
class _Member:
    """A worker, with Ray's references to its outcome and to its next news."""

    number: int
    actor: Any
    outcome: Any
    news: Any

    @property
    def references(self) -> list[Any]:
        """The references to wait for."""
        return [self.outcome] if self.news is None else [self.outcome, self.news]


@dataclass(slots=True)
class ClusterPool:
    """Runs on a cluster, at most ``jobs`` at a time, by default as many as it has cores."""

    runs: Sequence[GridRun]
    jobs: int | None
    data: Path | None
    on_round: OnRound
    on_end: OnEnd
    cluster: Cluster
    _outcomes: dict[int, RunOutcome] = field(default_factory=dict)
    _ray: Any = None

    def run(self) -> list[RunOutcome]:
        """Run everything; an error in one run does not stop the others.

        Raises:
            ChronofedError: If the cluster cannot be reached.
            IncompatibleError: If a run would use the cluster for its clients.
        """
        if any(run.experiment.engine == "ray" for run in self.runs):
            raise IncompatibleError(
                "engine ray: spreads the clients of one run; many runs are spread whole, so leave it out"
            )
        self._ray = connect(self.cluster, self.jobs)
        most = self.jobs or total_workers(self._ray)
        waiting, working = list(enumerate(self.runs))[::-1], list[_Member]()
        try:
            while waiting or working:
                while waiting and len(working) < most:
                    working.append(self._start(*waiting.pop()))
                told = [reference for member in working for reference in member.references]
                self._ray.wait(told, timeout=NEWS_S)
                working = [member for member in working if not self._ended(member)]
        finally:
            # Killing is safe, because a run can be resumed from any moment.
            for member in working:
                self._kill(member)
        return [self._outcomes[number] for number in range(len(self.runs))]

    def _start(self, number: int, run: GridRun) -> _Member:
        # Told and worked at the same time.
        made = self._ray.remote(num_cpus=1, num_gpus=self.cluster.gpus, max_concurrency=2)(
            RunWorker
        )
        environment = {name: os.environ[name] for name in CARRIED if name in os.environ}
        level = logging.getLogger("chronofed").getEffectiveLevel()
        actor = made.remote(str(Path.cwd()), sys.path, environment, level)
        data = None if self.data is None else self.data.absolute()
        absolute = replace(run, path=run.path.absolute())
        return _Member(number, actor, actor.run.remote(absolute, data), actor.news.remote())

    def _ended(self, member: _Member) -> bool:
        """Pass on what a worker tells; tell if its run has ended, and nothing is left to tell."""
        ready, _ = self._ray.wait(member.references, num_returns=len(member.references), timeout=0)
        ended = member.outcome in ready
        if member.news in ready:
            told = self._told(member)
            # Once it has ended, the first empty answer is the last.
            member.news = (
                None if told is None or (ended and not told) else member.actor.news.remote()
            )
        if not ended or member.news is not None:
            return False
        outcome = self._outcomes[member.number] = self._outcome(member)
        self._kill(member)
        self.on_end(member.number, outcome)
        return True

    def _told(self, member: _Member) -> int | None:
        """Pass on the news of a worker and return how many there were; ``None`` if it died."""
        try:
            found = self._ray.get(member.news)
        except self._ray.exceptions.RayError:
            return None
        for news in found:
            if isinstance(news, logging.LogRecord):
                logging.getLogger(news.name).handle(news)
            else:
                self.on_round(member.number, news)
        return len(found)

    def _outcome(self, member: _Member) -> RunOutcome:
        path = self.runs[member.number].path
        try:
            outcome: RunOutcome = self._ray.get(member.outcome)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            return ChronofedError(
                f"the worker of a run died ({in_one_line(error)[:200]}); resume it"
            )
        if isinstance(outcome, ChronofedError) or RunDirectory(path).exists:
            return outcome
        return ChronofedError(
            f"{path}: written on another machine only; choose a folder that all machines share"
        )

    def _kill(self, member: _Member) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(member.actor)
