"""A table of the user's own runs: rows by what differs, mean and deviation over seeds, leads beyond chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronofed.core.atomic import write_atomic
from chronofed.core.errors import RunError, SpecError
from chronofed.reports.best import best_rows
from chronofed.reports.groups import Group, differences, measures_of
from chronofed.reports.notes import notes
from chronofed.reports.tables import TextTable
from chronofed.training.measure import Column
from chronofed.training.measures import columns

MOST_SETTINGS = 4
"""Columns of settings; experiments that differ in more are told apart by their names."""
FORMATS = (".md", ".csv", ".tex")


@dataclass(frozen=True, slots=True)
class UserTable:
    """Finished experiments, and the columns to show of them.

    Attributes:
        groups: One row each.
        shown: Columns of measures.
    """

    groups: tuple[Group, ...]
    shown: tuple[Column, ...]

    def text(self, title: str = "", most: int | None = None) -> TextTable:
        """Write the table; with ``most``, only as many columns of measures."""
        shown = self.shown[:most]
        labels = _labels(self.groups)
        rows = [
            [
                *(values[k] for values in labels.values()),
                str(len(group.runs)),
                *_cells(group, shown),
            ]
            for k, group in enumerate(self.groups)
        ]
        leads = best_rows(self.groups, shown)
        first = len(labels) + 1
        best = {(leads[c.key], first + k) for k, c in enumerate(shown) if c.key in leads}
        headings = [*labels, "seeds", *(column.heading for column in shown)]
        caption = "\n".join(notes(self.groups, shown, leads))
        return TextTable(title, headings, rows, frozenset(best), len(labels), caption)

    def fitting(self, width: int) -> int:
        """Return the number of first columns that fit into a width; at least one."""
        for count in range(len(self.shown), 1, -1):
            table = self.text(most=count)
            cells = zip(*[table.headings, *table.rows], strict=True)
            if sum(max(map(len, column)) + 3 for column in cells) < width:
                return count
        return 1

    def write(self, path: Path, title: str) -> None:
        """Write the table to a file; its extension says how.

        Raises:
            StorageError: If it cannot be written.
        """
        table = self.text(title)
        if path.suffix == ".csv":
            content = table.csv()
        elif path.suffix == ".tex":
            below = "".join(f"% {line}\n" for line in table.caption.splitlines())
            content = table.latex() + below
        else:
            below = "".join(f"\n{line}\n" for line in table.caption.splitlines())
            content = table.markdown() + below
        write_atomic(path, content.encode())


def check_format(path: Path) -> None:
    """Refuse a file whose extension is not one of a table.

    Raises:
        SpecError: With the extensions.
    """
    if path.suffix not in FORMATS:
        raise SpecError(f"-o {path}: unknown extension {path.suffix!r}; use {', '.join(FORMATS)}")


def user_table(found: Sequence[Group], keys: Sequence[str] = ()) -> UserTable:
    """Make the table of all finished experiments.

    Args:
        found: Experiments, finished or not.
        keys: Numbers of the summary to show, in order; by default all that were measured.

    Raises:
        RunError: If none is finished.
        SpecError: If there is no number of that name.
    """
    finished = tuple(group for group in found if group.finished)
    if not finished:
        raise RunError("none of these runs is finished; continue them with: chronofed resume RUN")
    known = {
        column.key: column
        for column in columns(measures_of(finished))
        if any(group.spread(column.key) is not None for group in finished)
    }
    keys = [key if key in known else f"last_{key}" for key in keys]
    unknown = [key.removeprefix("last_") for key in keys if key not in known]
    if unknown:
        raise SpecError(
            f"--measures: no {unknown[0]!r} in these runs; there are: {', '.join(known)}"
        )
    return UserTable(finished, tuple(known[key] for key in (keys or known)))


def _cells(group: Group, shown: Sequence[Column]) -> list[str]:
    return [group.text(column) for column in shown]


def _labels(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the columns that tell rows apart: settings, or names where there are too many."""
    found = {key: values for key, values in differences(groups).items() if not _implied(values)}
    if not 0 < len(found) <= MOST_SETTINGS:
        return {"experiment": [group.name for group in groups]}
    return {
        _short(key, found): [_shown(value) for value in values] for key, values in found.items()
    }


def _implied(values: Sequence[Any]) -> bool:
    """Tell if a setting is the same wherever it exists, so that another one says as much."""
    known = [value for value in values if value is not None]
    return len(known) < len(values) and all(value == known[0] for value in known)


def _short(key: str, keys: Mapping[str, Any]) -> str:
    """Shorten a key to its last part, where that tells all keys apart; a kind is named by its table."""
    names = {each: each.removesuffix(".kind").split(".") for each in keys}
    last = [parts[-1] for parts in names.values()]
    parts = names[key]
    return parts[-1] if last.count(parts[-1]) == 1 else ".".join(parts)


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
