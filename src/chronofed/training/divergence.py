"""A run that diverged: its loss is beyond anything that learning produces."""

from chronofed.core.errors import DivergedError
from chronofed.training.summary import Measures

LARGEST_FACTOR = 1000
"""A model whose loss is so many times that of guessing has diverged; overconfident ones reach about 50."""


def check_loss(measures: Measures | None, guess: float, key: str = "test_loss") -> None:
    """Refuse to go on once the loss exceeds 1000 times that of guessing, or is no number.

    Args:
        measures: An evaluation; ``None`` if there was none.
        guess: The loss of a model that has learned nothing.
        key: The loss: on the test set, or on data seen so far where those to come may be outliers.

    Raises:
        DivergedError: If the loss is too large.
    """
    loss = None if measures is None else measures.get(key)
    if measures is None or loss is None:
        return
    largest = LARGEST_FACTOR * guess
    if not loss <= largest:
        msg = (
            f"round {measures['round']}: training diverged: the {key.replace('_', ' ')} is {loss:.3g}, "
            f"more than {LARGEST_FACTOR} times that of guessing; try a smaller train.lr"
        )
        raise DivergedError(msg)
