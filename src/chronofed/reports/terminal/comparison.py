"""The comparison table in the terminal."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chronofed.reports.best import best_rows
from chronofed.reports.groups import Group, measures_of
from chronofed.reports.notes import notes
from chronofed.reports.references import references
from chronofed.training.measure import Column
from chronofed.training.measures import columns


def comparison(groups: Sequence[Group], title: str = "", width: int = 200) -> Table:
    """Compare experiments: a row each with mean and deviation over seeds, and below it how to read them.

    A number is bold if its lead over the second is resolved. Columns that do not fit into ``width`` are left
    out, the least important first.
    """
    fitting = _fitting(groups, width)
    best = best_rows(groups, fitting)
    table = Table(
        title=title or None,
        title_justify="left",
        header_style="bold",
        caption=escape("\n".join([*_meaning(fitting), *notes(groups, fitting, best)])),
        caption_justify="left",
    )
    table.add_column("experiment", overflow="fold")
    table.add_column("runs x rounds", justify="right", no_wrap=True)
    for column in fitting:
        table.add_column(escape(column.heading), justify="right", no_wrap=True)
    for number, group in enumerate(groups):
        cells = [
            Text(group.text(column), "bold" if best.get(column.key) == number else "")
            for column in fitting
        ]
        table.add_row(Text(group.name), group.size, *cells)
    shown = {column.key for column in fitting}
    for reference in (one for one in references(groups) if one.key in shown):
        cells = [Text(reference.text(column)) for column in fitting]
        table.add_row(Text(reference.title), "baseline", *cells, style="dim")
    return table


def _meaning(shown: Sequence[Column]) -> list[str]:
    """Explain what reads as an error: the best may be below the last."""
    best = [column for column in shown if column.key.startswith("best5")]
    if not best:
        return []
    side = "above" if best[0].better == "lower" else "below"
    return [
        f"mean of best 5: the five best evaluations of a run, so it can lie {side} the last one"
    ]


def _fitting(groups: Sequence[Group], width: int) -> list[Column]:
    """Choose the first columns that leave room for the names, or for 20 characters of them."""
    sizes = max(len("runs x rounds"), *(len(group.size) for group in groups))
    names = [*(group.name for group in groups), *(one.title for one in references(groups))]
    left = width - min(20, max(map(len, names))) - sizes - 7
    fitting = []
    for column in columns(measures_of(groups)):
        left -= 3 + max(len(column.heading), *(len(group.text(column)) for group in groups))
        if left < 0:
            break
        fitting.append(column)
    return fitting
