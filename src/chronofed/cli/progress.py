"""Live progress on standard error: rounds, accuracy, time left."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chronofed.experiments import runner


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
            self._bars.update(task, completed=progress.round, total=progress.rounds)
            if progress.measures is not None:
                accuracy = f"accuracy {progress.measures['test_accuracy']:.1%}"
                self._bars.update(task, accuracy=accuracy)

        return move
