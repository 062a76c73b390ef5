"""Live progress on standard error: rounds, accuracy or error, time left."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from chronofed.cli.output import note
from chronofed.runs import runner
from chronofed.runs.spec import FOREVER
from chronofed.training.measure import MeasureDisplay, placed
from chronofed.training.measures import MEASURES, headline_text
from chronofed.training.summary import Measures

# Evaluations in the table.
LINES = 6


@contextmanager
def progress(quiet: bool) -> Iterator["Bars"]:
    """Show a bar for each run of one command, and the latest evaluations; silent without a terminal."""
    console = Console(stderr=True)
    bars = Latest(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[headline]}"),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    with bars:
        yield Bars(bars)


class Latest(Progress):
    """Bars with a table of the latest evaluations below them."""

    evaluations: tuple[tuple[str, Measures], ...] = ()
    measures: tuple[MeasureDisplay, ...] = MEASURES

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bars, and the table once it has a line."""
        yield self.make_tasks_table(self.tasks)
        if self.evaluations:
            yield latest_table(self.evaluations, self.measures)

    def add_evaluation(self, name: str, measures: Measures) -> None:
        """Add a line to the table, and drop the oldest."""
        self.evaluations = (*self.evaluations, (name, measures))[-LINES:]
        self.refresh()


def latest_table(
    evaluations: Sequence[tuple[str, Measures]], measures: Sequence[MeasureDisplay] = MEASURES
) -> Table:
    """Tabulate evaluations, the latest last, with those measures that they have."""
    recorded = {key for _, values in evaluations for key in values}
    shown = [measure for measure in placed("progress", measures) if measure.key in recorded]
    several = len({name for name, _ in evaluations}) > 1
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for heading in (*["run"] * several, "round", *(m.progress_heading for m in shown)):
        table.add_column(escape(heading), justify="left" if heading == "run" else "right")
    for name, values in evaluations:
        cells = [m.progress_text(values[m.key]) if m.key in values else "" for m in shown]
        table.add_row(*[Text(name)] * several, str(values["round"]), *cells)
    return table


class Bars:
    """One bar for each run."""

    def __init__(self, bars: Latest) -> None:
        self._bars = bars

    def watch(self, name: str, own: Sequence[MeasureDisplay] = ()) -> runner.OnRound:
        """Add a bar for a run with some measures of its own, and return the function that moves it."""
        self._bars.measures = (
            *self._bars.measures,
            *(m for m in own if m not in self._bars.measures),
        )
        task = self._bars.add_task(name, total=None, headline="")

        def move(progress: runner.Progress) -> None:
            total = None if progress.rounds == FOREVER else progress.rounds
            self._bars.update(task, completed=progress.round, total=total)
            if progress.measures is not None:
                self._bars.update(task, headline=headline_text(progress.measures))
                self._bars.add_evaluation(name, progress.measures)

        return move


@contextmanager
def overall(quiet: bool) -> Iterator["Overall"]:
    """Show one bar for many runs; without a terminal, print a line for every run that ends."""
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
        """Set the number of runs."""
        self._runs = runs
        self._bars.update(self._task, description=f"0 of {runs} runs")

    def drop(self, number: int) -> None:
        """Count one run fewer, because it was refused."""
        self._at.pop(number, None)
        self._runs -= 1

    def move(self, number: int, name: str, at: runner.Progress) -> None:
        """Note the progress of one run."""
        self._at[number] = at
        ended = sum(each.round == each.rounds for each in self._at.values())
        done = sum(each.round for each in self._at.values())
        known = sum(each.rounds for each in self._at.values())
        # The others will be about as long.
        total = known / len(self._at) * self._runs
        text = f"{ended} of {self._runs} runs"
        self._bars.update(self._task, description=text, completed=done, total=total)
        if at.measures is not None:
            last = f"{name}: {headline_text(at.measures).removeprefix('accuracy ')}"
            self._bars.update(self._task, last=last)
            if self._lines and at.round == at.rounds:
                note(f"{text}; {last}")
