r"""Weights that learn their constants from the clients' reports.

The gradient of client *i* in round *t* is modelled as (``Gradient Noise in CFL``)

.. math:: \nabla f_{t,i}(w_t) = \nabla f(w_t) + \delta_i + \xi_{t,i}, \qquad
    E\|\delta\|^2 = G^2, \quad E\langle \xi_{t,i}, \xi_{s,i}\rangle = \alpha^{|t-s|} D^2.

Subtracting the cohort's mean removes :math:`\nabla f(w_t)`. The remainders of one client in two rounds that are
*k* apart have the inner product :math:`C_k = G^2 + \alpha^k D^2`, up to a factor for the centring. Three lags
give the correlation and the time drift; all pairs of rounds give the client drift.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from chronofed.core.config import Count
from chronofed.core.types import Record
from chronofed.methods.weighting.base import RoundWeights, Timeline, Weights
from chronofed.methods.weighting.correlated import Correlated
from chronofed.methods.weighting.optimal import Optimal
from chronofed.methods.weighting.simple import Merged

LAGS = (1, 2)


@dataclass(frozen=True, slots=True)
class DriftEstimates:
    r"""Estimates of the constants of the gradient noise model.

    Attributes:
        client_drift_sq: Client drift :math:`G^2`; 0 if no client was seen twice.
        time_drift_sq: Time drift :math:`D^2`; if no client was seen twice, the sum of both drifts, which is
            what the weights of stateless clients need.
        correlation: Correlation :math:`\alpha` of time drifts one round apart.
        information_loss_sq: Information loss :math:`R^2`.
    """

    client_drift_sq: float
    time_drift_sq: float
    correlation: float
    information_loss_sq: float


class Adaptive(RoundWeights, tag="adaptive"):
    """The theorem's weights, with drifts and information loss estimated during training.

    Every round each client reports a sketch of its present gradient at the server's model, and the
    information loss of what it keeps. During the warm-up all samples have equal weight.

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

    def update(self, state: Record, reports: Mapping[int, Record]) -> Record:
        """Add a round's reports to the running sums."""
        if not reports:
            return state
        clients = torch.tensor(sorted(reports), dtype=torch.int64)
        gradients = torch.stack([reports[int(i)]["gradient"] for i in clients])  # (S, m)
        losses = torch.stack([reports[int(i)]["information_loss_sq"] for i in clients])
        round_ = _Round(clients, gradients - gradients.mean(0))
        fade = self.discount
        new: dict[str, Tensor] = {
            "rounds": state["rounds"] + 1,
            "cohort": torch.tensor(len(clients)),
            "information_loss_sq": _faded(
                state, "information_loss_sq", fade, losses.sum(), len(clients)
            ),
            "lag0": _faded(state, "lag0", fade, round_.centred.square().sum(), len(clients) - 1),
        }
        if len(clients) == 1:
            # There is no cohort to compare with: compare two rounds in a row instead.
            new["alone"] = gradients
            if "alone" in state:
                change = (gradients - state["alone"]).square().sum()
                new["lag0"] = _faded(state, "lag0", fade, change, 2.0)
        before = _previous(state)
        for lag in LAGS:
            products, weight = round_.products(before[lag]) if lag in before else (0.0, 0.0)
            new[f"lag{lag}"] = _faded(state, f"lag{lag}", fade, products, weight)
        new |= _all_pairs(state, round_, fade)
        for lag, earlier in {
            1: round_,
            **{k + 1: r for k, r in before.items() if k + 1 in LAGS},
        }.items():
            new[f"clients{lag}"], new[f"centred{lag}"] = earlier.clients, earlier.centred
        return new

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
        lag0, lag1, lag2 = (_mean(state, f"lag{k}") for k in (0, *LAGS))
        loss = _mean(state, "information_loss_sq") or 0.0
        if lag0 is None:
            # A single client was seen once.
            return DriftEstimates(0.0, 0.0, 0.0, loss)
        if lag1 is None:
            # No client was seen twice.
            return DriftEstimates(0.0, lag0, 0.0, loss)
        correlation = 0.0
        if lag2 is not None and lag0 > lag1 > lag2:
            correlation = min((lag1 - lag2) / (lag0 - lag1), 0.99)
        pairs = _mean(state, "pairs")
        shared = _mean_correlation(correlation, int(state["rounds"]), self.discount)
        if pairs is None or correlation > 0.9:
            # All pairs are nearly alike, so only the lags tell the drifts apart.
            time = max(lag0 - lag1, 0.0) / (1 - correlation)
        else:
            time = max(lag0 - pairs, 0.0) / (1 - shared)
        return DriftEstimates(max(lag0 - time, 0.0), time, correlation, loss)


@dataclass(frozen=True, slots=True)
class _Round:
    """The centred gradients of one round's clients."""

    clients: Tensor  # (S,) ascending
    centred: Tensor  # (S, m)

    def products(self, other: "_Round") -> tuple[Tensor, float]:
        """Sum the inner products of clients that were in both rounds; return the sum and its divisor.

        Centring removes a share of the drift: for cohorts of S and S' clients with B in both, the expectation
        of one product is that of the drifts times :math:`1 - 1/S - 1/S' + B/(S S')`.
        """
        here = torch.isin(self.clients, other.clients)
        there = torch.isin(other.clients, self.clients)
        both, sizes = int(here.sum()), (len(self.clients), len(other.clients))
        factor = 1 - 1 / sizes[0] - 1 / sizes[1] + both / (sizes[0] * sizes[1])
        return (self.centred[here] * other.centred[there]).sum(), both * factor


def _previous(state: Record) -> dict[int, _Round]:
    return {
        lag: _Round(state[f"clients{lag}"], state[f"centred{lag}"])
        for lag in LAGS
        if f"clients{lag}" in state
    }


def _faded(state: Record, name: str, fade: float, value: Tensor | float, weight: float) -> Tensor:
    """Update a discounted sum and its divisor."""
    before = state.get(name, torch.zeros(2, dtype=torch.float64))
    return fade * before + torch.tensor([float(value), weight], dtype=torch.float64)


def _mean(state: Record, name: str) -> float | None:
    total, weight = state[name].tolist() if name in state else (0.0, 0.0)
    return total / weight if weight > 0 else None


def _all_pairs(state: Record, round_: _Round, fade: float) -> dict[str, Tensor]:
    r"""Update every client's discounted sum of centred gradients, and the mean product of two of its rounds.

    :math:`\sum_{s \ne t} \langle e_s, e_t \rangle = \|\sum_t e_t\|^2 - \sum_t \|e_t\|^2`
    """
    known = torch.unique(torch.cat([state.get("known", round_.clients[:0]), round_.clients]))
    width = round_.centred.shape[1]
    total = torch.zeros(len(known), width, dtype=torch.float64)
    # Sums of squares, of weights, and of squared weights.
    tally = torch.zeros(len(known), 3, dtype=torch.float64)
    if "known" in state:
        old = torch.searchsorted(known, state["known"])
        fades = torch.tensor([fade**2, fade, fade**2], dtype=torch.float64)
        total[old], tally[old] = fade * state["total"], state["tally"] * fades
    here = torch.searchsorted(known, round_.clients)
    total[here] += round_.centred
    ones = torch.ones(len(here), dtype=torch.float64)
    tally[here] += torch.stack([round_.centred.square().sum(1), ones, ones], dim=1)
    products = total.square().sum(1) - tally[:, 0]
    weights = tally[:, 1].square() - tally[:, 2]
    factor = 1 - 1 / len(round_.clients)
    pairs = torch.stack([products.sum(), factor * weights.clamp(min=0).sum()])
    return {"known": known, "total": total, "tally": tally, "pairs": pairs}


def _mean_correlation(correlation: float, rounds: int, fade: float) -> float:
    """Average ``correlation ** |s - t|`` over pairs of different rounds, weighted like the sums."""
    if correlation == 0 or rounds < 2:
        return 0.0
    age = np.arange(min(rounds, 500))
    weight = fade ** (age[:, None] + age[None, :])
    np.fill_diagonal(weight, 0.0)
    return float((weight * correlation ** np.abs(age[:, None] - age[None, :])).sum() / weight.sum())
