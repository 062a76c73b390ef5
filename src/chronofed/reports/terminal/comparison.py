"""The comparison table in the terminal."""

import textwrap
from collections.abc import Callable, Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chronofed.reports.best import best_rows
from chronofed.reports.groups import Group
from chronofed.reports.notes import notes
from chronofed.reports.references import references
from chronofed.reports.result_columns import measured, result_columns
from chronofed.reports.terminal.plain import as_ascii
from chronofed.training.measure import Column

RUNS = "runs x rounds"


def comparison(
    groups: Sequence[Group], title: str = "", width: int = 200, plain: bool = False
) -> Table:
    """Compare experiments: a row each with mean and deviation over seeds, and below it how to read them.

    A number is bold if its lead over the second is resolved. Columns that do not fit into ``width`` are left
    out, the least important first, and named below.

    Args:
        groups: The experiments.
        title: A line above the table.
        width: Characters in a line.
        plain: Whether the terminal shows ASCII alone.
    """
    text = as_ascii if plain else str
    fitting, broken = _fitting(groups, width)
    heading = _broken if broken else str
    every = [*fitting, *_omitted(groups, fitting)]
    best = best_rows(groups, every)
    below = [*_meaning(fitting), *notes(groups, every, best), *_no_room(every[len(fitting) :])]
    table = Table(
        title=text(title) or None,
        title_justify="left",
        header_style="bold",
        caption=escape(text("\n".join(below))),
        caption_justify="left",
    )
    table.add_column("experiment", overflow="fold")
    table.add_column(heading(RUNS), justify="right", no_wrap=True)
    for column in fitting:
        table.add_column(escape(heading(text(column.heading))), justify="right", no_wrap=True)
    for number, group in enumerate(groups):
        cells = [
            Text(text(group.text(column)), "bold" if best.get(column.key) == number else "")
            for column in fitting
        ]
        table.add_row(Text(text(group.name)), group.size, *cells)
    shown = {column.key for column in fitting}
    for reference in (one for one in references(groups) if one.key in shown):
        cells = [Text(text(reference.text(column))) for column in fitting]
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


def _omitted(groups: Sequence[Group], shown: Sequence[Column]) -> list[Column]:
    """Return the columns for which the terminal is too narrow."""
    keys = {column.key for column in shown}
    return [column for column in measured(groups) if column.key not in keys]


def _no_room(columns: Sequence[Column]) -> list[str]:
    named = ", ".join(column.heading for column in columns)
    return [f"no room for: {named}; widen the terminal, or use --json"] if columns else []


def _fitting(groups: Sequence[Group], width: int) -> tuple[list[Column], bool]:
    """Choose the first columns that leave room for the names, or for 20 characters of them.

    Where not all fit, headings are broken at their words.
    """
    known = {column.key for column in measured(groups)}
    # What was not measured comes last, with its reason below the table.
    every = sorted(result_columns(groups), key=lambda column: column.key not in known)
    whole = _first(groups, every, width, str)
    if len(whole) == len(every):
        return whole, False
    # Where there is room for two, they are the last value and forgetting.
    narrow = _first(groups, every, width, _broken)
    if len(narrow) == 2 and (forgetting := [c for c in every if c.key == "last_forgetting"]):
        pair = [every[0], *forgetting]
        narrow = pair if len(_first(groups, pair, width, _broken)) == 2 else narrow
    return narrow, True


def _first(
    groups: Sequence[Group], every: Sequence[Column], width: int, heading: Callable[[str], str]
) -> list[Column]:
    sizes = [_wide(heading(RUNS)), len("baseline"), *(len(group.size) for group in groups)]
    names = [*(group.name for group in groups), *(one.title for one in references(groups))]
    left = width - min(20, max(map(len, names))) - max(sizes) - 7
    fitting = []
    for column in every:
        cells = (len(group.text(column)) for group in groups)
        left -= 3 + max(_wide(heading(column.heading)), *cells)
        if left < 0:
            break
        fitting.append(column)
    return fitting


def _broken(heading: str) -> str:
    """Break a heading at its words, into lines of about eight characters.

    >>> _broken("mean of best 5 %").splitlines()
    ['mean of', 'best 5 %']
    """
    return "\n".join(textwrap.wrap(heading, 8, break_long_words=False, break_on_hyphens=False))


def _wide(text: str) -> int:
    return max(map(len, text.splitlines()))
