"""The columns of results in the order in which a reader needs them, the same in every table."""

from collections.abc import Sequence
from dataclasses import replace

from chronofed.reports.groups import Group, measures_of
from chronofed.training.measure import HEADLINE, HEADLINES, Column
from chronofed.training.measures import columns

# The rest follows in the order of the registry.
_FIRST = ("last", "anytime", "last_forgetting", "best5")


def result_columns(groups: Sequence[Group]) -> list[Column]:
    """Return the columns of some experiments: the headline and forgetting first.

    Where the headline is measured on the next period, the headings say so.
    """
    measures = measures_of(groups)
    headline = next((m for m in measures if m.key == HEADLINE), None)
    period = headline is not None and headline.name.startswith("next-period")
    found = [_named(column) if period else column for column in columns(measures)]
    return sorted(found, key=_rank)


def measured(groups: Sequence[Group]) -> list[Column]:
    """Return those columns that some experiment has a number for."""
    return [c for c in result_columns(groups) if any(g.spread(c.key) for g in groups)]


def _named(column: Column) -> Column:
    if column.key in ("last", "anytime", "best5"):
        return replace(column, heading=column.heading.replace(" %", " next-period %"))
    return column


def _rank(column: Column) -> int:
    stem = column.key
    for key in HEADLINES.values():
        stem = stem.removesuffix(f"_{key}")
    return _FIRST.index(stem) if stem in _FIRST else len(_FIRST)
