"""Profile every column of a table: its kind, its gaps, and whether it can be a feature."""

from dataclasses import dataclass

import numpy as np

from chronofed.core.errors import DataError
from chronofed.data.columns import Categorical, Column, Columns, missing
from chronofed.data.fitting import CATEGORIES, FEW_CATEGORIES

CLASSES = 20
"""More different whole numbers are amounts, not classes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A column.

    Attributes:
        name: Its name.
        kind: ``numbers``, ``dates``, ``text``, or ``neither`` if its cells do not fit together.
        rows: Number of rows.
        distinct: Number of different values.
        gaps: Number of missing cells.
        whole: True if all numbers are whole.
        rising: True if every number is larger than the one before.
        shares: Share of every class, the most frequent first, if it can be classes.
    """

    name: str
    kind: str
    rows: int
    distinct: int = 0
    gaps: int = 0
    whole: bool = False
    rising: bool = False
    shares: tuple[tuple[str, float], ...] = ()

    @property
    def unused(self) -> str:
        """Reason why it is no feature; empty if it can be one."""
        many = self.kind == "text" and self.distinct > min(
            CATEGORIES, max(FEW_CATEGORIES, self.rows // 2)
        )
        reasons = {
            "cells that do not fit together": self.kind == "neither",
            "no values": self.distinct == 0,
            "a single value": self.distinct == 1,
            "dates": self.kind == "dates",
            f"{self.distinct} different texts: names or prose": many,
            "numbers every row: an identifier": self._counts_rows,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    @property
    def _counts_rows(self) -> bool:
        full = self.distinct == self.rows > CLASSES
        return self.kind == "numbers" and self.whole and self.rising and full

    @property
    def about(self) -> str:
        """A few words: its kind, and its gaps."""
        kind = f"{self.distinct} categories" if self.kind == "text" else self.kind
        return f"{kind}, {self.gaps / self.rows:.1%} missing" if self.gaps else kind


def profile(columns: Columns, name: str) -> Profile:
    """Look at a column."""
    held = columns[name]
    if len(held.shape) > 1:
        return Profile(name, "numbers", held.shape[0], distinct=2)
    try:
        values = columns.values(name)
    except DataError:
        return Profile(name, "neither", held.shape[0])
    known = values[~missing(values)]
    gaps = len(values) - len(known)
    kind = {"f": "numbers", "M": "dates"}.get(known.dtype.kind, "text")
    # Text by its codes: sorting many texts takes long.
    cells = held.codes[~missing(values)] if isinstance(held, Categorical) else known
    distinct = len(np.unique(cells))
    numbers = kind == "numbers"
    whole = numbers and not (known % 1).any()
    rising = numbers and bool((np.diff(known) > 0).all())
    classes = distinct <= (CATEGORIES if kind == "text" else CLASSES if whole else 0)
    shares = _shares(known) if classes and len(known) else ()
    return Profile(name, kind, len(values), distinct, gaps, whole, rising, shares)


def _shares(known: Column) -> tuple[tuple[str, float], ...]:
    names, counts = np.unique(known, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    texts = [name if isinstance(name, str) else str(int(name)) for name in names.tolist()]
    return tuple((texts[k], float(counts[k] / len(known))) for k in order.tolist())
