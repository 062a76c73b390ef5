"""Scales: how far the numbers of every period lie from those that the scaling was fitted on."""

import msgspec

from chronofed.core.config import Config, Natural, NonNegative, Number


class Scale(Config):
    r"""The numbers of one feature, in every period that has some of its training rows.

    With the fitted mean :math:`\mu` and deviation :math:`\sigma`, and mean :math:`\mu_k` and deviation
    :math:`\sigma_k` of period *k*.

    Attributes:
        name: Name of the column.
        periods: Positions of the periods in :attr:`Scales.periods`.
        rows: Training rows with a number, by period.
        shift: :math:`(\mu_k - \mu) / \sigma`, by period.
        ratio: :math:`\sigma_k / \sigma`, by period.
    """

    name: str
    periods: tuple[Natural, ...] = ()
    rows: tuple[Natural, ...] = ()
    shift: tuple[Number, ...] = ()
    ratio: tuple[NonNegative, ...] = ()


class Scales(Config):
    """The scales of all features that are scaled numbers.

    Attributes:
        periods: Names of all periods.
        fitted: Number of first periods that the scaling was fitted on.
        features: The features in their order.
    """

    periods: tuple[str, ...] = ()
    fitted: Natural = 0
    features: tuple[Scale, ...] = ()

    def to_json(self) -> bytes:
        """Write it as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=-1) + b"\n"
