"""Live progress on standard error: rounds, accuracy, time left."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chronofed.cli.output import note
from chronofed.experiments import runner
from chronofed.experiments.spec import FOREVER


@contextmanager
def progress(quiet: bool) -> Iterator["Bars"]:
    """Bars for the runs of one command; silent where nobody looks."""
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    with bars:
        yield Bars(bars)


class Bars:
    """One bar a run."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    def watch(self, name: str) -> runner.Watch:
        """A new bar, and the function that moves it."""
        task = self._bars.add_task(name, total=None, accuracy="")

        def move(progress: runner.Progress) -> None:
            total = None if progress.rounds == FOREVER else progress.rounds
            self._bars.update(task, completed=progress.round, total=total)
            if progress.measures is not None:
                accuracy = f"accuracy {progress.measures['test_accuracy']:.1%}"
                self._bars.update(task, accuracy=accuracy)

        return move


@contextmanager
def overall(quiet: bool) -> Iterator["Overall"]:
    """One bar for many runs; where there is no terminal, a line for every run that ends."""
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[last]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    with bars:
        yield Overall(bars, lines=not quiet and not console.is_terminal)


class Overall:
    """A bar that counts the rounds of all runs together."""

    def __init__(self, bars: Progress, lines: bool) -> None:
        self._bars, self._lines = bars, lines
        self._task = bars.add_task("", total=None, last="")
        self._at: dict[int, runner.Progress] = {}
        self._runs = 0

    def begin(self, runs: int) -> None:
        """So many runs are to come."""
        self._runs = runs
        self._bars.update(self._task, description=f"0 of {runs} runs")

    def move(self, number: int, name: str, at: runner.Progress) -> None:
        """A run has got so far."""
        self._at[number] = at
        ended = sum(each.round == each.rounds for each in self._at.values())
        done = sum(each.round for each in self._at.values())
        known = sum(each.rounds for each in self._at.values())
        total = known / len(self._at) * self._runs  # others will be about as long
        text = f"{ended} of {self._runs} runs"
        self._bars.update(self._task, description=text, completed=done, total=total)
        if at.measures is not None:
            accuracy = f"{name}: {at.measures['test_accuracy']:.1%}"
            self._bars.update(self._task, last=accuracy)
            if self._lines and at.round == at.rounds:
                note(f"{text}; {accuracy}")
