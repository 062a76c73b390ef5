"""Preparation: how the cells of a table become numbers, as plain data that never change again.

The numbers of a row must not depend on later rows, nor on the rows of other clients. So scaling, categories,
the rule for missing values and the classes are fixed once: fitted on the first periods of a table
(:mod:`chronofed.data.fitting`), or written down in the settings of a client. They are then applied unchanged
to all rows (:mod:`chronofed.data.encoding`), here and on clients elsewhere, and are kept with the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from chronofed.core.config import Config, Natural
from chronofed.core.errors import DataError

LARGEST = 1e39
"""Beyond the largest float32; features are float32."""

Finite = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Spread = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]


class Feature(Config):
    """A column that is used as a feature, and how it becomes numbers.

    An array with several axes may have a list of numbers for each entry of its last axis, its channels.

    Attributes:
        name: Name of the column.
        mean: Subtracted from every number.
        deviation: Every number is divided by it; 0 makes every number 0.
        fill: Number that a gap becomes before it is scaled; by default the mean, so that a gap becomes 0.
        categories: For text: one 0/1 column for each category; all are 0 for a gap.
        gaps: Add a 0/1 column that marks gaps; of an array, one for each channel, or for the channels listed.
        other: For text: add a 0/1 column for all texts that are not listed as categories; without it they are
            an error. A gap counts as such a text unless ``gaps`` marks it.
    """

    name: str
    mean: Finite | tuple[Finite, ...] = 0.0
    deviation: Spread | tuple[Spread, ...] = 1.0
    fill: Finite | tuple[Finite, ...] = ()
    categories: tuple[str, ...] = ()
    gaps: bool | tuple[Natural, ...] = False
    other: bool = False

    @property
    def plain(self) -> bool:
        """True if numbers stay as they are."""
        return self == Feature(self.name)

    @property
    def text(self) -> bool:
        """True if the cells are categories."""
        return bool(self.categories) or self.other


class Target(Config):
    r"""A number to predict, and its scale: a model sees :math:`y = (t - \mu)/s` of a cell *t*.

    Attributes:
        name: Name of the column.
        mean: The mean :math:`\mu`, which is subtracted.
        deviation: The deviation :math:`s`, by which it is then divided.
    """

    name: str = "y"
    mean: Finite = 0.0
    deviation: Annotated[float, msgspec.Meta(gt=0, le=LARGEST)] = 1.0


class Preparation(Config):
    """All that was fitted on the first periods of a table.

    Attributes:
        features: The features in their order.
        classes: Names of the classes; a code is a position here. Empty for a regression.
        periods: Names of the periods that it was fitted on.
        rows: Number of training rows that it was fitted on.
        target: Of a regression, the target's scale, by which predictions are turned back.
    """

    features: tuple[Feature, ...]
    classes: tuple[str, ...]
    periods: tuple[str, ...] = ()
    rows: Natural = 0
    target: Target | None = None

    def to_json(self) -> bytes:
        """Write it as JSON; numbers keep all digits."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def other_features(self, names: Sequence[str]) -> str:
        """Say which feature is new or missing among some columns; empty if they are those it prepares."""
        known = [feature.name for feature in self.features]
        for name in (*names, *known):
            if (name in names) != (name in known):
                what = "is new" if name in names else "is missing"
                return f"feature {name!r} {what}; the model was trained on {', '.join(known)}"
        return ""

    @classmethod
    def from_json(cls, content: bytes, where: str = "preparation.json") -> "Preparation":
        """Read what :meth:`to_json` wrote.

        Raises:
            DataError: If it is damaged.
        """
        try:
            return msgspec.json.decode(content, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DataError(f"{where}: damaged ({error})") from None


@dataclass(frozen=True, slots=True)
class Settled:
    """Choices of earlier training about a table, which later rows must not change.

    Attributes:
        preparation: How columns became features and classes; by default it is fitted.
        periods: Names of the periods to read; rows of all others are left out. By default all are read.
    """

    preparation: Preparation | None = None
    periods: tuple[str, ...] = ()
