"""The comparison table in the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

from chronofed.reports.view import Group


@dataclass(frozen=True, slots=True)
class Column:
    """A number of the summary and how to show it."""

    key: str
    heading: str
    scale: float
    digits: int
    better: Literal["more", "less"] = "more"


COLUMNS = (  # the most important first: where there is no room, the last go
    Column("best5", "best-5 %", 100, 2),
    Column("last", "last %", 100, 2),
    Column("anytime", "anytime %", 100, 2),
    Column("last_forgetting", "forgetting %", 100, 2, "less"),
    Column("seconds", "seconds", 1, 1, "less"),
    Column("last_test_loss", "test loss", 1, 3, "less"),
    Column("last_seen_loss", "seen loss", 1, 3, "less"),
    Column("last_information_loss", "information loss", 1, 3, "less"),
    Column("traffic", "traffic MB", 1e-6, 1, "less"),
)


def cell(group: Group, column: Column) -> str:
    """Mean and deviation over runs as text."""
    found = group.mean_and_deviation(column.key)
    if found is None:
        return "-"
    mean, deviation = (f"{column.scale * value:.{column.digits}f}" for value in found)
    return f"{mean} ± {deviation}" if len(group.runs) > 1 else mean


def comparison(groups: Sequence[Group], title: str = "", width: int = 200) -> Table:
    """Mean and deviation over seeds, a row an experiment, the best in bold; as wide as there is room."""
    table = Table(title=title or None, title_justify="left", header_style="bold")
    table.add_column("experiment", overflow="fold")
    table.add_column("runs x rounds", justify="right", no_wrap=True)
    columns = _fitting(groups, width)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    best = max(_accuracy(group) for group in groups)
    for group in groups:
        rounds = max(run.summary.get("rounds", 0) for run in group.runs)
        cells = (cell(group, column) for column in columns)
        style = "bold" if len(groups) > 1 and _accuracy(group) == best else ""
        table.add_row(Text(_name(group)), f"{len(group.runs)} x {rounds}", *cells, style=style)
    return table


def _fitting(groups: Sequence[Group], width: int) -> list[Column]:
    """The first columns that leave room for the names, or for 20 characters of them."""
    left = width - min(20, max(len(_name(group)) for group in groups)) - len("runs x rounds") - 7
    columns = []
    for column in COLUMNS:
        left -= 3 + max(len(column.heading), *(len(cell(group, column)) for group in groups))
        if left < 0:
            break
        columns.append(column)
    return columns


def _accuracy(group: Group) -> float:
    found = group.mean_and_deviation("best5")
    return found[0] if found else float("-inf")


def _name(group: Group) -> str:
    unfinished = sum(run.state != "finished" for run in group.runs)
    return f"{group.name} ({unfinished} unfinished)" if unfinished else group.name
