"""Weights that learn their constants from the clients' reports."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec
import torch
from torch import Tensor

from chronofed.core.config import Count
from chronofed.core.types import Record
from chronofed.methods.weighting.base import RoundWeights, Timeline, Weights
from chronofed.methods.weighting.correlated import Correlated
from chronofed.methods.weighting.drift_estimates import (
    Cohort,
    add_round,
    estimate_drifts,
    faded,
    mean,
)
from chronofed.methods.weighting.optimal import Optimal
from chronofed.methods.weighting.simple import Merged


@dataclass(frozen=True, slots=True)
class DriftEstimates:
    r"""Estimates of the constants of the gradient noise model.

    Attributes:
        client_drift_sq: Client drift :math:`G^2`; 0 if no client was seen twice.
        time_drift_sq: Time drift :math:`D^2`, at most the sum of both drifts. If no client was seen twice it is
            their sum, which is what the weights of stateless clients need.
        correlation: Correlation :math:`\alpha` of time drifts one round apart; 0 if that may be
            chance.
        information_loss_sq: Information loss :math:`R^2`.
    """

    client_drift_sq: float
    time_drift_sq: float
    correlation: float
    information_loss_sq: float


class Adaptive(RoundWeights, tag="adaptive"):
    r"""The theorem's weights, with drifts and information loss estimated during training.

    Every round each client reports a sketch of its present gradient at the server's model, and the
    information loss of what it keeps; both over the parameters that the memory covers. The drifts follow from
    the gradients of whichever clients take part (:mod:`~chronofed.methods.weighting.drift_estimates`).

    What cannot be estimated is replaced: during the warm-up all samples have equal weight. Until a client is
    seen again all drifts count as time drift. A correlation counts once it is larger than twice its standard
    error; until then, or if no client is there again after one or two rounds, drifts are independent. If
    rounds have a single client, successive gradients are compared. Reports that are not finite are left out.

    Attributes:
        discount: Factor per round on older contributions to the estimates; 1 averages over the whole run.
        cohort_aware: Whether to use :math:`D^2/S`, the time drift of the mean over the S clients.
        warm_up: Rounds before the estimates are used.
    """

    probes: ClassVar[bool] = True

    discount: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.98
    cohort_aware: bool = False
    warm_up: Count = 3

    def __call__(self, timeline: Timeline) -> Weights:
        """Return the weights of the warm-up."""
        return Merged()(timeline)

    def init(self) -> Record:
        """Start with no rounds."""
        return {"rounds": torch.zeros((), dtype=torch.int64)}

    def update(self, state: Record, reports: Mapping[int, Record], round_: int) -> Record:
        """Add a round's reports to the running sums."""
        clients, gradients, losses = _usable(reports)
        if not len(clients):
            return state
        # Rounds without reports count too.
        fade = self.discount ** (round_ - int(state["round"])) if "round" in state else 1.0
        return {
            "rounds": state["rounds"] + 1,
            "round": torch.tensor(round_),
            "cohort": torch.tensor(len(clients)),
            "information_loss_sq": faded(
                state, "information_loss_sq", fade, [float(losses.sum()), len(losses)]
            ),
            **add_round(state, Cohort(round_, clients, gradients), fade, self.discount),
        }

    def resolve(self, state: Record) -> RoundWeights:
        """Return the theorem's weights with the current estimates."""
        if int(state["rounds"]) < self.warm_up:
            return Merged()
        found = self.estimate(state)
        drift, loss = found.time_drift_sq, found.information_loss_sq
        cohort = int(state["cohort"]) if self.cohort_aware else 1
        if found.correlation > 0:
            return Correlated(drift, loss, found.correlation, cohort=cohort)
        return Optimal(drift, loss, cohort=cohort)

    def report(self, state: Record) -> dict[str, float]:
        """Return the estimates; information loss as a norm, like the measured one."""
        if not int(state["rounds"]):
            return {}
        found = self.estimate(state)
        return {
            "estimated_client_drift_sq": found.client_drift_sq,
            "estimated_time_drift_sq": found.time_drift_sq,
            "estimated_correlation": found.correlation,
            "estimated_information_loss": math.sqrt(found.information_loss_sq),
        }

    def estimate(self, state: Record) -> DriftEstimates:
        """Estimate the constants from the running sums."""
        return DriftEstimates(*estimate_drifts(state), mean(state, "information_loss_sq") or 0.0)


def _usable(reports: Mapping[int, Record]) -> tuple[Tensor, Tensor, Tensor]:
    """Return clients ``(S,)``, gradients ``(S, m)`` and losses ``(S,)`` of all reports that are finite."""
    clients = torch.tensor(sorted(reports), dtype=torch.int64)
    if not reports:
        return clients, clients, clients
    gradients, losses = (
        torch.stack([reports[i][name] for i in clients.tolist()])
        for name in ("gradient", "information_loss_sq")
    )
    finite = gradients.isfinite().all(1) & losses.isfinite()
    return clients[finite], gradients[finite], losses[finite]
