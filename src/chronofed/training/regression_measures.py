r"""Measures of a regression, in the units of the target.

With errors :math:`e_j = f(x_j) - t_j` of *n* test rows,

.. math::
    \mathrm{MAE} = \frac1n \sum_j |e_j|, \qquad \mathrm{RMSE} = \sqrt{\frac1n \sum_j e_j^2}, \qquad
    R^2 = 1 - \frac{\sum_j e_j^2}{\sum_j (t_j - \bar t)^2}, \qquad
    \mathrm{pinball} = \frac1n \sum_j \max(-q\,e_j,\ (1 - q)\,e_j),

where *q* is that of the loss ``quantile``, else one half.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chronofed.training.measure import Compute, Measure

if TYPE_CHECKING:
    from chronofed.training.evaluation import EvaluationContext

Errors = NDArray[np.float64]


def of_errors(read: Callable[[Errors], float]) -> Compute:
    """A number of the errors on the test set."""
    return lambda evaluation: None if evaluation.test.classified else read(evaluation.test.errors)


def of_seen(read: Callable[[Errors], float]) -> Compute:
    """A number of the errors on training samples seen so far."""
    return lambda evaluation: (
        None
        if evaluation.seen is None or evaluation.seen.classified
        else read(evaluation.seen.errors)
    )


def mean_absolute(errors: Errors) -> float:
    """Return the mean absolute error."""
    return float(np.abs(errors).mean())


def root_mean_squared(errors: Errors) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(np.square(errors).mean()))


def pinball(errors: Errors, q: float) -> float:
    """Return the mean pinball loss at a quantile.

    >>> pinball(np.array([-1.0, 1.0]), 0.9)
    0.5
    """
    return float(np.maximum(-q * errors, (1 - q) * errors).mean())


def _r2(evaluation: "EvaluationContext") -> float | None:
    """Return the share of the test targets' variance that is explained; nothing if they do not vary."""
    if evaluation.test.classified:
        return None
    scale = evaluation.task.data.scaling.deviation
    targets = evaluation.labels.double().numpy() * scale
    total = float(np.square(targets - targets.mean()).sum())
    return 1 - float(np.square(evaluation.test.errors).sum()) / total if total > 0 else None


def _pinball(evaluation: "EvaluationContext") -> float | None:
    if evaluation.test.classified:
        return None
    q = getattr(evaluation.task.loss, "q", 0.5)
    return pinball(evaluation.test.errors, q)


ABSENT = "the target has classes"
NO_PAIRS = (
    "clients do not come back or are remote, evaluate.periods = 'off', or no test rows are theirs"
)

REGRESSION_MEASURES: tuple[Measure, ...] = (
    Measure(
        key="rmse",
        title="Root mean squared error on the test set",
        description="root mean squared error on the global test set, in the target's units",
        unit="target",
        better="lower",
        task="regression",
        summary=("best5", "last", "anytime"),
        shown={"progress": -3, "table": 15, "curves": -6, "summary": 20},
        absent=ABSENT,
        compute=of_errors(root_mean_squared),
    ),
    Measure(
        key="mae",
        title="Mean absolute error on the test set",
        description="mean absolute error on the global test set, in the target's units",
        unit="target",
        better="lower",
        task="regression",
        shown={"progress": -2, "table": 25, "curves": -5, "summary": 21},
        absent=ABSENT,
        compute=of_errors(mean_absolute),
    ),
    Measure(
        key="r2",
        title="Explained variance R² on the test set",
        description=":math:`R^2`, the share of the test targets' variance that is explained; below 0 the model "
        "is worse than their mean",
        better="higher",
        label="R²",
        task="regression",
        shown={"progress": -1, "table": 30, "curves": -4, "summary": 22},
        absent="the target has classes, or does not vary in the test set",
        compute=_r2,
    ),
    Measure(
        key="pinball",
        title="Pinball loss on the test set",
        description="pinball loss at the quantile of the loss, else at one half, in the target's units",
        unit="target",
        better="lower",
        task="regression",
        shown={"table": 32, "curves": -3, "summary": 23},
        absent=ABSENT,
        compute=_pinball,
    ),
    Measure(
        key="seen_rmse",
        title="Root mean squared error on training data seen so far",
        description="root mean squared error on training samples that some client has held so far",
        unit="target",
        better="lower",
        label="seen rmse",
        task="regression",
        absent="evaluate.seen = 0, or the clients are remote",
        shown={"progress": 6, "curves": -2, "summary": 24},
        compute=of_seen(root_mean_squared),
    ),
    Measure(
        key="personal_mae",
        title="Mean absolute error of personal models",
        description="mean absolute error of personal models on their own clients' test rows",
        unit="target",
        better="lower",
        task="regression",
        shown={"curves": 14, "summary": 25},
        compute=lambda evaluation: evaluation.personal.get("personal_mae"),
    ),
    Measure(
        key="client_mae",
        title="Mean absolute error of the global model on clients' own test rows",
        description="mean absolute error of the global model on the same rows, where there are personal or "
        "several models",
        unit="target",
        better="lower",
        task="regression",
        shown={"curves": 15, "summary": 26},
        compute=lambda evaluation: (evaluation.clusters | evaluation.personal).get("client_mae"),
    ),
    Measure(
        key="cluster_mae",
        title="Mean absolute error of the models that clients follow",
        description="mean absolute error of several global models, each on its own clients' test rows",
        unit="target",
        better="lower",
        task="regression",
        shown={"curves": 52, "summary": 52},
        compute=lambda evaluation: evaluation.clusters.get("cluster_mae"),
    ),
    Measure(
        key="forgetting_mae",
        title="Forgetting: rise of the mean absolute error",
        description="present mean absolute error minus the least so far, mean over the pairs of client and "
        "data set that are followed",
        unit="target",
        better="lower",
        label="forgetting",
        task="regression",
        absent=NO_PAIRS,
        shown={"progress": 7, "table": 45, "curves": -1, "summary": 27},
        compute=lambda evaluation: evaluation.by_period.get("forgetting_mae"),
    ),
    Measure(
        key="backward_transfer_mae",
        title="Backward transfer: fall of the mean absolute error",
        description="mean absolute error first after a data set was seen minus the present one, mean over the "
        "earlier ones that are followed",
        unit="target",
        better="higher",
        label="backward transfer",
        task="regression",
        absent=NO_PAIRS,
        shown={"summary": 28},
        compute=lambda evaluation: evaluation.by_period.get("backward_transfer_mae"),
    ),
)
"""Measures that only a regression has."""
