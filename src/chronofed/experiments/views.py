"""How a recipe's results are shown."""

from chronofed.config import Count, Kind


class View(Kind):
    """Base of the ways to show a recipe's results."""


class TableView(View, tag="table"):
    """A table: mean and deviation over seeds in every cell.

    Attributes:
        measure: A number of the runs' summaries.
        factor: What it is multiplied by.
        digits: Decimals.
    """

    measure: str = "best5"
    factor: float = 100.0
    digits: int = 2


class CurvesView(View, tag="curves"):
    """Curves over rounds: a panel a column, a line a row, mean and band over seeds.

    Attributes:
        measure: A number of every evaluation.
        label: What is written beside it.
        factor: What it is multiplied by.
        window: Evaluations in the moving mean; 1 for none.
        zoom: First and last round of a second picture of every panel.
    """

    measure: str = "test_accuracy"
    label: str = "test accuracy, %"
    factor: float = 100.0
    window: Count = 1
    zoom: tuple[int, int] | None = None


class TwoAxesView(View, tag="two-axes"):
    """Two numbers of the summary over the rows, whose names are numbers; an axis each.

    Attributes:
        left: The one on the left, in blue.
        right: The one on the right, in red.
        label: What the rows are.
        labels: What is written beside left and right.
        factors: What they are multiplied by.
    """

    left: str
    right: str
    label: str
    labels: tuple[str, str]
    factors: tuple[float, float] = (1.0, 1.0)


class PairsView(View, tag="pairs"):
    """Loss and accuracy on test data beside those on training data seen so far, a line a row and kind."""


class ApplicabilityView(View, tag="applicability"):
    """Which methods can serve which scenarios, by what they declare to need; nothing is trained."""


class CommandView(View, tag="command"):
    """What other commands of chronofed print and draw; nothing is trained.

    Attributes:
        commands: Their arguments; ``SPEC`` stands for a file with the recipe's base.
        figure: Whether the first of them draws.
    """

    commands: tuple[tuple[str, ...], ...]
    figure: bool = False
