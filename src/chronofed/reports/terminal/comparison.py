"""The comparison table in the terminal."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chronofed.reports.runs import Group, measures_of
from chronofed.training.measure import Column
from chronofed.training.measures import columns


def cell(group: Group, column: Column) -> str:
    """Format mean and deviation over runs."""
    found = group.mean_and_deviation(column.key)
    if found is None:
        return "-"
    mean, deviation = (f"{column.scale * value:.{column.digits}f}" for value in found)
    return f"{mean} ± {deviation}" if len(group.runs) > 1 else mean


def comparison(groups: Sequence[Group], title: str = "", width: int = 200) -> Table:
    """Compare experiments: a row each with mean and deviation over seeds, the best in bold.

    Columns that do not fit into ``width`` are left out, the least important first.
    """
    table = Table(title=title or None, title_justify="left", header_style="bold")
    table.add_column("experiment", overflow="fold")
    table.add_column("runs x rounds", justify="right", no_wrap=True)
    fitting = _fitting(groups, width)
    for column in fitting:
        table.add_column(escape(column.heading), justify="right", no_wrap=True)
    best = max(_accuracy(group) for group in groups)
    for group in groups:
        rounds = max(run.summary.get("rounds", 0) for run in group.runs)
        cells = (cell(group, column) for column in fitting)
        style = "bold" if len(groups) > 1 and _accuracy(group) == best else ""
        table.add_row(Text(_name(group)), f"{len(group.runs)} x {rounds}", *cells, style=style)
    return table


def _fitting(groups: Sequence[Group], width: int) -> list[Column]:
    """Choose the first columns that leave room for the names, or for 20 characters of them."""
    left = width - min(20, max(len(_name(group)) for group in groups)) - len("runs x rounds") - 7
    fitting = []
    for column in columns(measures_of(groups)):
        left -= 3 + max(len(column.heading), *(len(cell(group, column)) for group in groups))
        if left < 0:
            break
        fitting.append(column)
    return fitting


def _accuracy(group: Group) -> float:
    found = group.mean_and_deviation("best5")
    return found[0] if found else float("-inf")


def _name(group: Group) -> str:
    unfinished = sum(run.state != "finished" for run in group.runs)
    return f"{group.name} ({unfinished} unfinished)" if unfinished else group.name
