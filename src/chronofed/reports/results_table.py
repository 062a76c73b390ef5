"""The table of results as text, for files: the same numbers as in the terminal and on pages."""

from collections.abc import Sequence

from chronofed.reports.best import best_rows
from chronofed.reports.groups import Group
from chronofed.reports.references import references
from chronofed.reports.result_columns import measured
from chronofed.reports.tables import TextTable


def results_table(groups: Sequence[Group], title: str = "Results") -> TextTable:
    """Tabulate all measured numbers: a row for every experiment, then the baselines that all share."""
    columns = measured(groups)
    best = best_rows(groups, columns)
    rows = [
        [group.name, group.size, *(group.text(column) for column in columns)] for group in groups
    ]
    rows += [
        [one.title, "baseline", *(one.text(column) for column in columns)]
        for one in references(groups)
    ]
    return TextTable(
        title,
        ("experiment", "runs x rounds", *(column.heading for column in columns)),
        rows,
        frozenset((best[c.key], k + 2) for k, c in enumerate(columns) if c.key in best),
    )
