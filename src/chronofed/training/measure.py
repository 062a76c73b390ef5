"""A measure: a number that is computed after a round, and how it is shown.

This module needs no torch: commands that only read runs import it, too.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from chronofed.core.errors import RunError, SpecError
from chronofed.core.user_code import import_name, user_code

if TYPE_CHECKING:
    from chronofed.training.evaluation import EvaluationContext

    Compute = Callable[[EvaluationContext], float | None]
else:
    # The context needs torch; tools that read annotations must not miss its name.
    Compute = Callable[[Any], float | None]

UnitName = Literal["fraction", "bytes", "seconds", "number", "target"]
TaskName = Literal["classification", "regression"]
Statistic = Literal["best5", "last", "anytime", "falls"]
Place = Literal["progress", "table", "curves", "summary"]
Better = Literal["higher", "lower"]
M = TypeVar("M", bound="MeasureDisplay")

HEADLINE = "test_accuracy"
"""The measure that ranks experiments; its statistics have no suffix: ``best5``, ``last``, ``anytime``."""

HEADLINES: dict[TaskName, str] = {"classification": HEADLINE, "regression": "rmse"}
"""The measure that ranks the experiments of a task; of ``rmse`` the statistics are ``best5_rmse``, ..."""

STATISTICS: dict[Statistic, str] = {
    "best5": "mean of best 5",
    "last": "last",
    "anytime": "anytime",
}
"""Statistics that a table has room for, with their headings."""

EVERYWHERE: dict[Place, int] = {"progress": 50, "table": 35, "curves": 50, "summary": 50}
"""Positions of a new measure: after ours, but in the table directly after the accuracies."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as people read it.

    Attributes:
        symbol: What follows the number.
        scale: Factor from the recorded number to the one shown.
        digits: Decimals in tables; a negative number stands for so many significant digits.
        progress_digits: Decimals while a run trains, likewise.
    """

    symbol: str
    scale: float
    digits: int
    progress_digits: int


UNITS: dict[UnitName, Unit] = {
    "fraction": Unit("%", 100.0, 2, 1),
    "bytes": Unit("MB", 1e-6, 1, 1),
    "seconds": Unit("seconds", 1.0, 1, 1),
    "number": Unit("", 1.0, 3, 3),
    "target": Unit("", 1.0, -4, -4),
}


def decimals(value: float, digits: int) -> int:
    """Return the number of decimals; a negative ``digits`` asks for so many significant digits.

    >>> decimals(1234.5, -4), decimals(0.00123, -4), decimals(7.0, 2)
    (0, 6, 2)
    """
    if digits >= 0:
        return digits
    size = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return min(12, max(0, -digits - 1 - size))


def headline_of(recorded: Collection[str]) -> str:
    """Return the headline of a run, from the keys of its evaluations.

    >>> headline_of({"round": 1, "rmse": 0.5}), headline_of({"round": 1, "test_accuracy": 0.5})
    ('rmse', 'test_accuracy')
    """
    return next((key for key in HEADLINES.values() if key in recorded), HEADLINE)


class MeasureDisplay(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a measure that readers of a run need; plain data, stored in ``measures.json``.

    Attributes:
        key: Its name in ``metrics.jsonl``.
        title: The title of its curve.
        description: Its meaning, for the documentation.
        unit: The unit of the recorded number: a ``fraction`` is shown in per cent, ``bytes`` in megabytes;
            ``target`` is the unit of a target that is a number.
        better: The direction that is better; ``None`` if neither is.
        label: A short name for tables; by default the key.
        digits: Decimals; by default those of the unit.
        summary: Statistics over the run: ``best5`` (mean of the five best evaluations), ``last``, ``anytime``
            (mean over all evaluations), ``falls`` (drops of the curve and the rounds until it recovers).
        shown: Where it is shown, and its position there; the lowest comes first.
        cumulative: Whether it adds up over rounds, so that only runs of the same length can be compared.
        absent: Why it may not be measured, for the reader who finds a dash.
        task: The task that has it; ``None`` for all. Where no run has that task, it is not shown at all.
    """

    key: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]
    title: str
    description: str = ""
    unit: UnitName = "number"
    better: Better | None = None
    label: str | None = None
    digits: int | None = None
    summary: tuple[Statistic, ...] = ("last",)
    shown: dict[Place, int] = msgspec.field(default_factory=lambda: dict(EVERYWHERE))
    cumulative: bool = False
    absent: str = ""
    task: TaskName | None = None

    @property
    def name(self) -> str:
        """The short name."""
        return self.key.replace("_", " ") if self.label is None else self.label

    @property
    def symbol(self) -> str:
        """The unit's symbol."""
        return UNITS[self.unit].symbol

    @property
    def scale(self) -> float:
        """Factor from the recorded number to the one shown."""
        return UNITS[self.unit].scale

    @property
    def progress_heading(self) -> str:
        """The heading of its column while a run trains; per cent is written beside every number."""
        name = self.name.removeprefix("test ")
        return name if self.unit == "fraction" else f"{name} {self.symbol}".strip()

    def progress_text(self, value: float) -> str:
        """The value as it is shown while a run trains.

        >>> Measure(key="share", title="Share", unit="fraction").progress_text(0.123)
        '12.3%'
        """
        unit = UNITS[self.unit]
        digits = unit.progress_digits if self.digits is None else self.digits
        if self.unit == "fraction":
            return f"{value:.{digits}%}"
        return f"{unit.scale * value:.{decimals(unit.scale * value, digits)}f}"

    def summary_key(self, statistic: Statistic) -> str:
        """The name of a statistic in ``summary.json``."""
        return statistic if self.key == HEADLINE else f"{statistic}_{self.key}"

    def columns(self) -> "list[Column]":
        """Its columns in tables: one for every statistic; a number of the whole run has one."""
        digits = UNITS[self.unit].digits if self.digits is None else self.digits
        name = "" if self.key == HEADLINE else self.name
        found = [(self.summary_key(s), STATISTICS[s]) for s in self.summary if s in STATISTICS]
        if len(found) < 2:
            found = [(key, "") for key, _ in found] or [(self.key, "")]
        return [
            Column(
                key,
                " ".join(filter(None, (word, name, self.symbol))),
                self.scale,
                digits,
                self.better,
                self.cumulative,
                self.absent,
            )
            for key, word in found
        ]


class Measure(MeasureDisplay, frozen=True, kw_only=True):
    """A number that is computed after a round, and how it is shown.

    Attributes:
        compute: Computes it from a :class:`~chronofed.training.evaluation.EvaluationContext`; ``None`` as a
            result means that there is nothing to measure. Without it the method reports the number
            (``report`` of a backbone or of round weights), or it belongs to the run as a whole.
        from_summary: Computes a number of the whole run from its summary.

    >>> wrong = Measure(key="errors", title="Wrong answers", compute=lambda e: (~e.test.correct).sum())
    >>> [column.heading for column in wrong.columns()]
    ['errors']
    """

    compute: Compute | None = None
    from_summary: Callable[[Mapping[str, Any]], float | None] | None = None

    def __post_init__(self) -> None:
        try:
            msgspec.convert(self.display(), MeasureDisplay)
        except msgspec.ValidationError as error:
            raise SpecError(f"measure {self.key!r}: {error}") from None

    def display(self) -> dict[str, Any]:
        """The part that readers need, as plain data."""
        fields = {name: getattr(self, name) for name in MeasureDisplay.__struct_fields__}
        return fields | {"summary": list(self.summary)}


@dataclass(frozen=True, slots=True)
class Column:
    """A number of the summary and how a table shows it.

    Attributes:
        key: The number's name in ``summary.json``.
        heading: The column's heading.
        scale: Factor from the recorded number to the one shown.
        digits: Decimals.
        better: The direction that is better; ``None`` if neither is.
        cumulative: Whether it adds up over rounds.
        absent: Why it may not be measured.
    """

    key: str
    heading: str
    scale: float
    digits: int
    better: Better | None = "higher"
    cumulative: bool = False
    absent: str = ""


def placed(place: Place, measures: Iterable[M]) -> list[M]:
    """The measures that are shown at a place, in their order there."""
    shown = [measure for measure in measures if place in measure.shown]
    return sorted(shown, key=lambda measure: measure.shown[place])


def load_measure(name: str) -> Measure:
    """Import a measure.

    Args:
        name: ``package.module:NAME`` of a :class:`Measure`, or of a function or class that makes one.

    Raises:
        SpecError: If there is no such measure.
    """
    found = import_name(name, "evaluate.measures")
    if not isinstance(found, Measure) and not callable(found):
        raise SpecError(f"evaluate.measures: {name!r} is a {type(found).__name__}, not a Measure")
    with user_code(f"evaluate.measures: cannot make {name!r}"):
        made = found if isinstance(found, Measure) else found()
    if not isinstance(made, Measure):
        raise SpecError(f"evaluate.measures: {name!r} is a {type(made).__name__}, not a Measure")
    return made


def read_displays(records: object) -> tuple[MeasureDisplay, ...]:
    """The user's own measures of a run, from its ``measures.json``.

    Raises:
        RunError: If they are damaged.
    """
    try:
        return msgspec.convert(records, tuple[MeasureDisplay, ...])
    except msgspec.ValidationError as error:
        raise RunError(f"measures.json is damaged: {error}") from error
