"""Claims about a recipe's results."""

from typing import Annotated

import msgspec

from chronofed.core.config import Kind, NonNegative, Number, Positive

Some = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Claim(Kind, kw_only=True):
    """Base of all claims.

    Attributes:
        says: The claim in words.
        measure: The number of the summaries that the claim is about.
        factor: Factor to multiply it by.
        lower_is_better: Whether a lower number is better.
        columns: The columns that the claim is about; by default all.
        headline: Whether it is one of the few that the page of claims begins with.
    """

    says: str
    measure: str = "best5"
    factor: Number = 100.0
    lower_is_better: bool = False
    columns: tuple[str, ...] = ()
    headline: bool = False


class Beats(Claim, tag="beats"):
    """Each of some rows is better than each of some others.

    Attributes:
        better: The better rows.
        worse: The others.
        margin: The difference is tested against this: each better row must lead by more, beyond chance.
    """

    better: Some
    worse: Some
    margin: NonNegative = 0.0


class Ordered(Claim, tag="ordered"):
    """Each row is better than the next.

    Attributes:
        rows: Best first.
    """

    rows: Some


class Grows(Claim, tag="grows"):
    """The gain of one row over another is larger in one column than in another.

    Attributes:
        better: The row.
        worse: The other row.
        larger_in: The column with the larger gain.
        smaller_in: The column with the smaller gain.
    """

    better: str
    worse: str
    larger_in: str
    smaller_in: str


class Alike(Claim, tag="alike"):
    """Two numbers of a run are nearly the same.

    Attributes:
        rows: The rows.
        other: The number to compare with ``measure``.
        tolerance: Largest difference, in either direction; two one-sided tests must exclude more than this.
    """

    rows: Some
    other: str
    tolerance: Positive


class Refused(Claim, tag="refused"):
    """Some rows are refused, because their method cannot serve the scenario.

    Attributes:
        rows: The rows.
    """

    rows: Some
