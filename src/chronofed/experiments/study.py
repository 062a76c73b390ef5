"""Carrying out recipes: every cell is a run of its own in one folder, shared by all recipes that need it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chronofed.errors import ChronofedError, IncompatibleError
from chronofed.experiments import runner
from chronofed.experiments.grid import Watch, proceed_all
from chronofed.experiments.recipe import Cell
from chronofed.experiments.spec import Experiment
from chronofed.records import RunDirectory
from chronofed.records.atomic import make_folder, write_atomic


@dataclass(frozen=True, slots=True)
class Study:
    """A folder of runs, found again by what decides their results.

    Attributes:
        folder: Where the runs are.
        data: Folder of data files.
    """

    folder: Path
    data: Path | None = None

    def path(self, experiment: Experiment) -> Path:
        """Where a run is, or will be."""
        return self.folder / experiment.fingerprint()

    def refusal(self, experiment: Experiment) -> str | None:
        """Why an experiment cannot be run at all, if that was found out."""
        note = self._refusal(experiment)
        return note.read_text(encoding="utf-8") if note.exists() else None

    def carry_out(
        self,
        cells: Iterable[Cell],
        jobs: int,
        watch: Watch = lambda number, progress: None,  # noqa: ARG005
        say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
        announce: Callable[[Sequence[Cell]], None] = lambda cells: None,  # noqa: ARG005
    ) -> "Outcome":
        """Do what is not done yet; can be stopped at any moment and called again.

        Args:
            cells: What is wanted; the same experiment is run once.
            jobs: Runs at a time.
            watch: Told of every round, with the number of the run among those that were announced.
            say: Told, in one line, of anything unusual.
            announce: Told which runs there are, before the first begins.

        Returns:
            What became of it; a run that fails does not stop the others.
        """
        outcome = Outcome()
        wanted: list[tuple[Cell, RunDirectory]] = []
        for cell in {self.path(cell.experiment): cell for cell in cells}.values():
            directory = self._open(cell, outcome)
            if directory is None:
                continue
            if directory.state == "finished":
                outcome.done.append(cell)
            else:
                wanted.append((cell, directory))
        announce([cell for cell, _ in wanted])
        ends = proceed_all([run for _, run in wanted], jobs, self.data, watch, say)
        for (cell, _), end in zip(wanted, ends, strict=True):
            if isinstance(end, ChronofedError):
                outcome.failed.append((cell, end))
            else:
                outcome.done.append(cell)
        return outcome

    def open(self, experiment: Experiment) -> RunDirectory:
        """The directory of an experiment's run, begun or not.

        Raises:
            ChronofedError: If the experiment cannot work.
        """
        path = self.path(experiment)
        if (path / "spec.toml").exists():
            return RunDirectory.open(path)
        return runner.start(experiment, path, self.data)

    def _open(self, cell: Cell, outcome: "Outcome") -> RunDirectory | None:
        """The directory of a cell's run, if it can be run."""
        try:
            return self.open(cell.experiment)
        except IncompatibleError as error:
            note = self._refusal(cell.experiment)
            make_folder(note.parent)
            write_atomic(note, str(error).encode())
            outcome.refused.append((cell, str(error)))
        except ChronofedError as error:
            outcome.failed.append((cell, error))
        return None

    def _refusal(self, experiment: Experiment) -> Path:
        return self.folder / "refused" / f"{experiment.fingerprint()}.txt"


@dataclass(slots=True)
class Outcome:
    """What became of cells: done, refused because they cannot work, failed."""

    done: list[Cell] = field(default_factory=list)
    refused: list[tuple[Cell, str]] = field(default_factory=list)
    failed: list[tuple[Cell, ChronofedError]] = field(default_factory=list)
