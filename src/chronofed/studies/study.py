"""Studies: the runs of recipes in one folder, shared by all recipes that need them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from chronofed.core.atomic import make_folder, write_atomic
from chronofed.core.errors import ChronofedError, IncompatibleError
from chronofed.engines.cluster import Cluster
from chronofed.runs.directory import RunDirectory
from chronofed.runs.spec import Experiment, directory_name
from chronofed.studies.grid import run_all
from chronofed.studies.one_run import GridRun, OnEnd, OnRound, RunOutcome
from chronofed.studies.recipe import RecipeCell


@dataclass(slots=True)
class StudyOutcome:
    """The cells of a study by outcome: done, refused as incompatible, or failed."""

    done: list[RecipeCell] = field(default_factory=list)
    refused: list[tuple[RecipeCell, str]] = field(default_factory=list)
    failed: list[tuple[RecipeCell, ChronofedError]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Study:
    """A folder of runs; a run's directory is named by the fingerprint of its experiment.

    Attributes:
        folder: The folder.
        data: Folder of data files.
        named: Whether directories also have the names and seeds of experiments.
    """

    folder: Path
    data: Path | None = None

    named: bool = False

    def path(self, experiment: Experiment) -> Path:
        """Return the directory of an experiment's run."""
        name = directory_name(experiment) if self.named else experiment.fingerprint()
        return self.folder / name

    def refusal(self, experiment: Experiment) -> str | None:
        """Return why an experiment was refused; ``None`` if it was not."""
        path = self._refusal_path(experiment)
        return path.read_text(encoding="utf-8") if path.exists() else None

    def note_refusal(self, experiment: Experiment, why: str) -> None:
        """Write down that an experiment was refused, and why."""
        path = self._refusal_path(experiment)
        make_folder(path.parent)
        write_atomic(path, why.encode())

    def pending(self, cells: Iterable[RecipeCell]) -> list[RecipeCell]:
        """Return the cells that are not finished, each experiment once."""
        return [cell for path, cell in self._distinct(cells).items() if not _finished(path)]

    def run(
        self,
        cells: Iterable[RecipeCell],
        jobs: int | None,
        on_round: OnRound = lambda number, progress: None,
        on_end: OnEnd = lambda number, outcome: None,
        cluster: Cluster | None = None,
    ) -> StudyOutcome:
        """Run the pending cells; can be stopped at any moment and called again.

        Args:
            cells: The cells; equal experiments are run once.
            jobs: Runs at a time; by default one for each core.
            on_round: Called after every round with a number among the pending cells and the run's progress.
            on_end: Called with the number of a cell and its outcome.
            cluster: Machines that share the runs.

        Returns:
            The outcome of every cell; one that fails does not stop the others.
        """
        distinct = self._distinct(cells)
        pending = self.pending(distinct.values())
        runs = [GridRun(cell.experiment, self.path(cell.experiment)) for cell in pending]
        waiting = {run.path for run in runs}
        outcome = StudyOutcome([cell for path, cell in distinct.items() if path not in waiting])
        ends = run_all(runs, jobs, self.data, on_round, on_end, cluster)
        for cell, end in zip(pending, ends, strict=True):
            self._sort(cell, end, outcome)
        return outcome

    def _distinct(self, cells: Iterable[RecipeCell]) -> dict[Path, RecipeCell]:
        return {self.path(cell.experiment): cell for cell in cells}

    def _sort(self, cell: RecipeCell, end: RunOutcome, outcome: StudyOutcome) -> None:
        """Add a cell to the outcome; record a refusal, which leaves no run directory."""
        started = RunDirectory(self.path(cell.experiment)).exists
        if not isinstance(end, ChronofedError):
            outcome.done.append(cell)
        elif isinstance(end, IncompatibleError) and not started:
            self.note_refusal(cell.experiment, str(end))
            outcome.refused.append((cell, str(end)))
        else:
            outcome.failed.append((cell, end))

    def _refusal_path(self, experiment: Experiment) -> Path:
        return self.folder / "refused" / f"{experiment.fingerprint()}.txt"


def _finished(path: Path) -> bool:
    return RunDirectory(path).state == "finished"
