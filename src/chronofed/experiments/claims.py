"""What is claimed about a recipe's results."""

from typing import Annotated

import msgspec

from chronofed.config import Kind, NonNegative, Positive

Some = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Claim(Kind, kw_only=True):
    """Base of what is claimed about results.

    Attributes:
        says: The claim in words.
        measure: The number of the summaries that it is about.
        factor: What that is multiplied by.
        less: Whether less of it is better.
        columns: Where it is claimed; by default in all columns.
    """

    says: str
    measure: str = "best5"
    factor: float = 100.0
    less: bool = False
    columns: tuple[str, ...] = ()


class Beats(Claim, tag="beats"):
    """Every one of some rows is better than every one of others.

    Attributes:
        better: The better rows.
        worse: The others.
        by: Least mean difference.
    """

    better: Some
    worse: Some
    by: NonNegative = 0.0


class Ordered(Claim, tag="ordered"):
    """Each row is better than the next.

    Attributes:
        rows: Best first.
    """

    rows: Some


class Grows(Claim, tag="grows"):
    """What a row gains over another is larger in one column than in another.

    Attributes:
        better: The row.
        worse: The other row.
        more: The column with the larger gain.
        fewer: The one with the smaller gain.
    """

    better: str
    worse: str
    more: str
    fewer: str


class Alike(Claim, tag="alike"):
    """Two numbers of a run are nearly the same.

    Attributes:
        rows: In which rows.
        other: The number beside ``measure``.
        within: The largest mean difference that is nearly none.
    """

    rows: Some
    other: str
    within: Positive


class Refused(Claim, tag="refused"):
    """Some rows cannot be run at all, and are refused.

    Attributes:
        rows: Which.
    """

    rows: Some
