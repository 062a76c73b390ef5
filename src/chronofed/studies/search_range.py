"""The values that a sweep tries for one setting."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    import optuna

LOG_SCALE_RATIO = 10
"""A range whose ends differ by at least this factor is searched on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class SearchRange:
    """The values to search for one setting: a list of options, or a range of numbers.

    Attributes:
        key: The setting's place in the specification, such as ``train.lr``.
        options: The options as text; empty if there is a range.
        low: Least value of the range.
        high: Largest value of the range.
        integer: Whether the range holds integers only.
    """

    key: str
    options: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    integer: bool = False

    @classmethod
    def parse(cls, text: str) -> "SearchRange":
        """Parse ``KEY=LOW:HIGH`` or ``KEY=A,B,C``.

        >>> SearchRange.parse("train.lr=0.01:0.3").logarithmic
        True
        >>> SearchRange.parse("model.kind=linear,mlp").options
        ('linear', 'mlp')

        Raises:
            SpecError: If it is neither.
        """
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise SpecError(f"--vary {text}: expected KEY=LOW:HIGH or KEY=A,B,C")
        low, colon, high = values.partition(":")
        if not colon:
            return cls(key, tuple(values.split(",")))
        try:
            ends = float(low), float(high)
        except ValueError:
            raise SpecError(f"--vary {text}: expected numbers, LOW:HIGH") from None
        if not ends[0] < ends[1] or not all(map(math.isfinite, ends)):
            raise SpecError(f"--vary {text}: expected the lower number first")
        return cls(key, (), *ends, low.isdecimal() and high.isdecimal())

    @property
    def logarithmic(self) -> bool:
        """True if the range is searched on a logarithmic scale."""
        return self.low > 0 and self.high / self.low >= LOG_SCALE_RATIO

    @property
    def extremes(self) -> tuple[str, ...]:
        """All options, or both ends of the range, as text."""
        ends = (self.low, self.high)
        return self.options or tuple(repr(int(end) if self.integer else end) for end in ends)

    def suggest(self, trial: "optuna.Trial") -> str:
        """Let a trial choose a value; return it as text."""
        if self.options:
            return str(trial.suggest_categorical(self.key, self.options))
        if self.integer:
            ends = int(self.low), int(self.high)
            return str(trial.suggest_int(self.key, *ends, log=self.logarithmic))
        return repr(trial.suggest_float(self.key, self.low, self.high, log=self.logarithmic))
