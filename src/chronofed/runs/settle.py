"""Settings that are left open: how a run is evaluated follows from its data and its scenario."""

from math import ceil

import msgspec

from chronofed.core.errors import SpecError
from chronofed.data.dataset import Dataset
from chronofed.runs.spec import Experiment
from chronofed.training.classification_measures import DEFAULT
from chronofed.training.next_period import NEEDS_PERIODS

TUNING_SHARE = 0.5
"""Share of the periods, the first ones, that settings are chosen by with the protocol ``next``."""


def settle(experiment: Experiment) -> Experiment:
    """Choose the protocol of evaluation, and with it the share of test rows, where they are left open.

    Raises:
        SpecError: If the model cannot be evaluated on the next period.
    """
    data, scenario, evaluate = experiment.data, experiment.scenario, experiment.evaluate
    protocol = evaluate.protocol
    if protocol == "auto":
        protocol = "next" if data.timed and scenario.follows_periods else "holdout"
    if protocol == "next" and not scenario.follows_periods:
        raise SpecError(f"{NEEDS_PERIODS}; use 'holdout'")
    if protocol == "next":
        data = data.holding_out(0.0)
    evaluate = msgspec.structs.replace(evaluate, protocol=protocol)
    return msgspec.structs.replace(experiment, data=data, evaluate=evaluate)


def settle_measures(experiment: Experiment, dataset: Dataset) -> Experiment:
    """Choose the measures, where they are left open."""
    evaluate = experiment.evaluate
    if evaluate.measures is not None:
        return experiment
    usual = DEFAULT if evaluate.protocol == "next" and dataset.classes else ()
    return msgspec.structs.replace(
        experiment, evaluate=msgspec.structs.replace(evaluate, measures=usual)
    )


def tuning_periods(dataset: Dataset) -> int:
    """Return the number of first periods that settings are chosen by.

    Half of them; two at least, and not fewer than scaling and categories were fitted on.
    """
    periods = len(dataset.origin.periods) if dataset.origin else 0
    fitted = len(dataset.preparation.periods) if dataset.preparation else 0
    return min(periods, max(2, fitted, ceil(TUNING_SHARE * periods)))
