"""Views: ways to show a recipe's results."""

from typing import Annotated

import msgspec

from chronofed.core.config import Count, Kind, Natural, Number

# More decimals than a float has mean nothing.
Digits = Annotated[int, msgspec.Meta(ge=0, le=17)]


class View(Kind):
    """Base of all views."""


class SummaryTable(View, tag="summary-table"):
    """A table with mean and deviation over seeds in every cell.

    Attributes:
        measure: A number of the runs' summaries.
        factor: Factor to multiply it by.
        digits: Decimals.
    """

    measure: str = "best5"
    factor: Number = 100.0
    digits: Digits = 2


class Curves(View, tag="curves"):
    """Curves over rounds: a panel per column, a line per row, mean and band over seeds.

    Attributes:
        measure: A number of every evaluation.
        label: Label of the axis.
        factor: Factor to multiply it by.
        window: Evaluations in the moving mean; 1 for none.
        zoom: First and last round of an enlarged copy of every panel.
    """

    measure: str = "test_accuracy"
    label: str = "test accuracy, %"
    factor: Number = 100.0
    window: Count = 1
    zoom: tuple[Natural, Natural] | None = None


class TwoAxes(View, tag="two-axes"):
    """Two numbers of the summary over the rows, whose names are numbers, each with its own axis.

    Attributes:
        left: The number of the left axis, in blue.
        right: The number of the right axis, in red.
        label: Label of the rows.
        labels: Labels of the left and the right axis.
        factors: Factors to multiply them by.
    """

    left: str
    right: str
    label: str
    labels: tuple[str, str]
    factors: tuple[Number, Number] = (1.0, 1.0)


class Pairs(View, tag="pairs"):
    """Loss and accuracy on test data beside those on training data seen so far."""


class Applicability(View, tag="applicability"):
    """A table of the scenarios that each method can serve, by what it declares; trains nothing."""


class Commands(View, tag="commands"):
    """The output and figures of other chronofed commands; trains nothing.

    Attributes:
        commands: Arguments of each command; ``SPEC`` stands for a file with the recipe's base.
        figure: Whether the first command draws a figure.
    """

    commands: tuple[tuple[str, ...], ...]
    figure: bool = False
