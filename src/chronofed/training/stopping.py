"""Early stopping: end a run when validation rows say that it no longer improves."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from chronofed.core.config import Config, Count, NonNegative
from chronofed.core.errors import SpecError
from chronofed.core.types import Samples
from chronofed.training.summary import Measures


class Stop(Config):
    """When a run ends before its last round.

    The decision is made on validation rows alone, which no client trains on; test rows have no part in it. The
    model of the run is that of its last round.

    Attributes:
        patience: Evaluations in a row without a better value after which the run ends.
        measure: The value, on the validation rows.
        min_delta: Least change that counts as better.
    """

    patience: Count
    measure: Literal["validation_loss", "validation_accuracy"] = "validation_loss"
    min_delta: NonNegative = 0.0

    def check(self, validation: Samples | None, classified: bool, follows: bool) -> None:
        """Refuse to stop without validation rows.

        Args:
            validation: The validation rows.
            classified: True if there are classes.
            follows: True if the run is evaluated on the next period, and so follows the data to their end.

        Raises:
            SpecError: If there are none, or the measure is not that of the task.
        """
        if follows:
            msg = "stop: a run that is evaluated on the next period follows the data to their end"
            raise SpecError(f"{msg}; leave it out, or set evaluate.protocol = 'holdout'")
        if self.measure == "validation_accuracy" and not classified:
            raise SpecError("stop.measure: numbers have no accuracy; use validation_loss")
        if validation is None or not len(validation):
            raise SpecError("stop: needs validation rows; hold some out: data.validation = 0.1")


@dataclass(slots=True)
class EarlyStopping:
    """Follows the evaluations of a run; a pure function of them, so that a resumed run stops at the same round.

    Attributes:
        settings: When to stop; ``None`` for never.
        not_before: Rounds that the run must reach in any case: a deletion that is still due takes effect first.
    """

    settings: Stop | None
    not_before: int = 0
    _best: float | None = None
    _since: int = 0
    _round: int = 0

    def absorb(self, history: Iterable[Measures]) -> None:
        """Take over evaluations in order."""
        for measures in history:
            self._add(measures)

    def _add(self, measures: Measures) -> None:
        settings = self.settings
        if settings is None or settings.measure not in measures:
            return
        self._round = int(measures["round"])
        sign = -1.0 if settings.measure == "validation_loss" else 1.0
        value = sign * measures[settings.measure]
        if self._best is None or value > self._best + settings.min_delta:
            self._best, self._since = value, 0
        else:
            self._since += 1

    @property
    def reason(self) -> str | None:
        """The reason to stop now, for a reader; ``None`` to go on."""
        settings = self.settings
        if settings is None or self._since < settings.patience or self._round < self.not_before:
            return None
        name = settings.measure.replace("_", " ")
        return f"stopped early after round {self._round}: no better {name} for {self._since} evaluations"

    def outcome(self, rounds: int) -> dict[str, int | str]:
        """Return what the summary says of a run with so many planned rounds; empty if all were done."""
        reason = self.reason if self._round < rounds else None
        return {} if reason is None else {"rounds": self._round, "stopped_early": reason}
