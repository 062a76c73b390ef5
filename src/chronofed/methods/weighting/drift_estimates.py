r"""Unbiased estimates of drifts from the gradients of whichever clients took part.

The gradient of client *i* in round *t* is modelled as (``Gradient Noise in CFL``)

.. math:: g_{t,i} = \nabla f(w_t) + \delta_i + \xi_{t,i}, \qquad
    E\|\delta_i\|^2 = G^2, \quad E\langle \xi_{s,i}, \xi_{t,i}\rangle = \alpha^{|s-t|} D^2

(``Time drift with correlation assumption: a special case``). Subtracting the mean of the round's :math:`S_t`
clients, :math:`e_{t,i} = g_{t,i} - \bar g_t`, removes :math:`\nabla f(w_t)`, and with it a part of the drifts:

.. math::
    E \sum_i \|e_{t,i}\|^2 &= (S_t - 1)(G^2 + D^2), \\
    E \sum_i \langle e_{s,i}, e_{t,i}\rangle &= n_{st}\,(G^2 + \alpha^{|s-t|} D^2), \qquad
    n_{st} = B \left(1 - \frac{1}{S_s} - \frac{1}{S_t} + \frac{B}{S_s S_t}\right),

where the second sum is over the *B* clients of both rounds. The first line gives :math:`G^2 + D^2`. The time
drift comes from the changes of a client's gradient, which do not contain :math:`\delta_i`; what the means of
different cohorts leave of it is a known share of :math:`G^2 + D^2`:

.. math::
    E \sum_i \tfrac12 \|e_{s,i} - e_{t,i}\|^2 = (m_{st} - n_{st})(G^2 + D^2) + n_{st}(1 - \alpha^{|s-t|}) D^2,
    \qquad m_{st} = B \left(1 - \frac{1}{2 S_s} - \frac{1}{2 S_t}\right).

Summed over all pairs of rounds this gives :math:`D^2` if :math:`\alpha` is known, and the pairs one and two
rounds apart then give :math:`\alpha`. If all *S* clients always take part, :math:`n_{st} = m_{st} = S - 1`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from chronofed.core.types import Record

# Pairs of rounds at most this far apart tell the correlation.
NEAR = 2
# A correlation counts beyond this many standard errors, from this many rounds on.
STANDARD_ERRORS = 2.0
MIN_ROUNDS = 10
MAX_CORRELATION = 0.99
# Rounds of less weight are forgotten.
NEGLIGIBLE = 1e-4
# A smaller share of the drifts is a rounding error.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Cohort:
    """The clients of one round.

    Attributes:
        round: The round.
        clients: Their numbers, ascending, ``(S,)``.
        gradients: A gradient of each, ``(S, m)``.
    """

    round: int
    clients: Tensor
    gradients: Tensor

    @property
    def size(self) -> int:
        """The number of clients."""
        return len(self.clients)

    @property
    def centred(self) -> Tensor:
        """The gradients less their mean, ``(S, m)``."""
        return self.gradients - self.gradients.mean(0)


@dataclass(frozen=True, slots=True)
class Changes:
    r"""Half squared changes of clients' gradients, summed over pairs of rounds, with their expectation.

    Attributes:
        total: The sum.
        leak: Factor of :math:`G^2 + D^2` in its expectation, :math:`\sum (m_{st} - n_{st})`.
        pairs: Factors of :math:`(1 - \alpha^k) D^2` for the lags *k* = 1, 2, ...: :math:`\sum n_{st}` by lag.
    """

    total: float
    leak: float
    pairs: NDArray[np.float64]

    def of_time(self, drifts: float) -> float:
        """Return the part that time drifts explain, given the sum of both drifts."""
        return self.total - self.leak * drifts

    def factor(self, correlation: float) -> float:
        """Return the factor of the time drift in the expectation of that part."""
        return float(self.pairs @ (1 - correlation ** np.arange(1, len(self.pairs) + 1)))

    def time_drift(self, drifts: float, correlation: float) -> float:
        """Estimate the time drift; it lies between 0 and the sum of both drifts."""
        found = self.of_time(drifts) / self.factor(correlation)
        return min(found, drifts) if found > ROUNDING * drifts else 0.0


def estimate_drifts(state: Record) -> tuple[float, float, float]:
    r"""Estimate :math:`G^2`, :math:`D^2` and :math:`\alpha` from the running sums.

    If no client was seen twice, all drifts count as time drift. If no round had two clients, gradients of
    successive rounds are compared, so that changes of the global gradient count as drift.
    """
    drifts = mean(state, "drifts")
    if drifts is None:
        return _estimate_alone(mean(state, "same"), mean(state, "other"))
    total, leak = state["changes"].tolist()
    changes = Changes(total, leak, state["pairs"].numpy())
    if changes.factor(0.0) <= 0:
        return 0.0, drifts, 0.0
    correlation = _correlation(state, changes, drifts)
    time = changes.time_drift(drifts, correlation)
    return drifts - time, time, correlation


def mean(state: Record, name: str) -> float | None:
    """Return a running sum divided by its weight; ``None`` if nothing was added."""
    total, weight = state[name].tolist() if name in state else (0.0, 0.0)
    return total / weight if weight > 0 else None


def _estimate_alone(same: float | None, other: float | None) -> tuple[float, float, float]:
    if same is None or other is None:
        return 0.0, same or other or 0.0, 0.0
    return max(other - same, 0.0), min(same, other), 0.0


def _correlation(state: Record, changes: Changes, drifts: float) -> float:
    r"""Find the :math:`\alpha` with which near pairs and all pairs agree; 0 if it may be chance.

    The larger :math:`\alpha`, the smaller the near changes that all pairs predict, so there is one solution.
    """
    total, leak, *pairs = state["near"].tolist()
    near = Changes(total, leak, np.array(pairs))
    independent = changes.time_drift(drifts, 0.0) * near.factor(0.0)
    if independent - near.of_time(drifts) <= STANDARD_ERRORS * _error(state, near, drifts):
        return 0.0
    low, high = 0.0, MAX_CORRELATION
    for _ in range(40):
        middle = (low + high) / 2
        predicted = changes.time_drift(drifts, middle) * near.factor(middle)
        low, high = (middle, high) if predicted > near.of_time(drifts) else (low, middle)
    return low


def _error(state: Record, near: Changes, drifts: float) -> float:
    """Return the standard error of the near changes, from their spread over rounds; infinite for few rounds."""
    products, count = state["near_products"].numpy(), near.factor(0.0)
    counts = np.array([0.0, 0.0] + [1.0] * NEAR)
    if count <= 0:
        return math.inf
    rounds = count**2 / float(counts @ products @ counts)
    if rounds < MIN_ROUNDS:
        return math.inf
    residual = np.array([1.0, -drifts] + [-near.of_time(drifts) / count] * NEAR)
    return math.sqrt(max(residual @ products @ residual, 0.0) * rounds / (rounds - 1))


def add_round(state: Record, cohort: Cohort, fade: float, discount: float) -> dict[str, Tensor]:
    """Return the running sums after one more round.

    Args:
        state: The sums so far.
        cohort: The round's clients.
        fade: Weight of the round before the present one.
        discount: Weight of a round whose age is one.
    """
    centred = cohort.centred
    visits = _visits(state, cohort.round, discount)
    near = _near(state, visits, cohort)
    overlap = _overlap(visits, cohort, discount)
    latest = torch.stack([torch.full_like(cohort.clients, cohort.round), cohort.clients], dim=1)
    recent = int((visits[:, 0] > cohort.round - NEAR).sum())
    before = state["centred"] if recent else centred[:0]
    return {
        "visits": torch.cat([visits, latest]),
        "centred": torch.cat([before[len(before) - recent :], centred]),
        "drifts": faded(state, "drifts", fade, [float(centred.square().sum()), cohort.size - 1]),
        "near": faded(state, "near", fade, near),
        "near_products": faded(state, "near_products", fade**2, torch.outer(near, near)),
        "pairs": faded(state, "pairs", fade**2, overlap),
        **_clients(state, cohort, fade, float(overlap.sum())),
        **_alone(state, cohort, fade),
    }


def faded(state: Record, name: str, fade: float, value: Tensor | list[float]) -> Tensor:
    """Return a discounted sum with one more summand; the shorter one is padded with zeros."""
    new = torch.as_tensor(value, dtype=torch.float64)
    if name not in state:
        return new
    old = fade * state[name]
    more = len(new) - len(old)
    if more:
        old, new = pad(old, (0, max(more, 0))), pad(new, (0, max(-more, 0)))
    return old + new


def _visits(state: Record, now: int, discount: float) -> Tensor:
    """Return round and client of all visits that still count, ``(visits, 2)``."""
    if "visits" not in state:
        return torch.zeros(0, 2, dtype=torch.int64)
    visits = state["visits"]
    if discount == 1:
        return visits
    return visits[visits[:, 0] >= now - math.log(NEGLIGIBLE) / math.log(discount)]


def _divisor(both: Tensor, here: Tensor | int, there: Tensor | int) -> Tensor:
    """Return :math:`n_{st}` for the clients of both rounds, and of each."""
    return both * (1 - 1 / here - 1 / there + both / (here * there))


def _overlap(visits: Tensor, cohort: Cohort, discount: float) -> Tensor:
    """Sum :math:`n_{st}` of the new round with all earlier ones, by lag, ``(lags,)``."""
    rounds, place, sizes = torch.unique(visits[:, 0], return_inverse=True, return_counts=True)
    back = torch.isin(visits[:, 1], cohort.clients)
    both = torch.bincount(place[back], minlength=len(rounds)).double()
    lags = cohort.round - rounds
    result = torch.zeros(int(lags.max()) if len(lags) else 0, dtype=torch.float64)
    result[lags - 1] = discount ** lags.double() * _divisor(both, cohort.size, sizes.double())
    return result


def _near(state: Record, visits: Tensor, cohort: Cohort) -> Tensor:
    """Return the changes since the rounds just before: total, leak and pairs by lag."""
    result = torch.zeros(2 + NEAR, dtype=torch.float64)
    for lag in range(1, NEAR + 1):
        then = visits[:, 0] == cohort.round - lag
        if then.any():
            earlier = state["centred"][then[len(then) - len(state["centred"]) :]]
            total, leak, pairs = _changes(cohort, visits[then, 1], earlier)
            result[:2] += torch.stack([total, leak])
            result[1 + lag] = pairs
    return result


def _changes(cohort: Cohort, clients: Tensor, earlier: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    here, there = torch.isin(cohort.clients, clients), torch.isin(clients, cohort.clients)
    total = (cohort.centred[here] - earlier[there]).square().sum() / 2
    both = here.sum().double()
    pairs = _divisor(both, cohort.size, len(clients))
    return total, both * (1 - 0.5 / cohort.size - 0.5 / len(clients)) - pairs, pairs


def _clients(state: Record, cohort: Cohort, fade: float, overlap: float) -> dict[str, Tensor]:
    r"""Update every client's sums over rounds, and the changes over all pairs of rounds.

    .. math:: \sum_s w_s \|e_t - e_s\|^2 = \|e_t\|^2 \sum_s w_s + \sum_s w_s \|e_s\|^2
        - 2 \langle e_t, \sum_s w_s e_s\rangle
    """
    clients, centred = cohort.clients, cohort.centred
    known = torch.unique(torch.cat([state.get("known", clients[:0]), clients]))
    total = torch.zeros(len(known), centred.shape[1], dtype=torch.float64)
    # Sums of weights, of squares, and of 1 - 1/S.
    tally = torch.zeros(len(known), 3, dtype=torch.float64)
    if "known" in state:
        old = torch.searchsorted(known, state["known"])
        total[old], tally[old] = fade * state["total"], fade * state["tally"]
    here = torch.searchsorted(known, clients)
    new = torch.ones(cohort.size, 3, dtype=torch.float64)
    new[:, 1], new[:, 2] = centred.square().sum(1), 1 - 1 / cohort.size
    squares, kept = (tally[here, 0] * new[:, k] + tally[here, k] for k in (1, 2))
    change = (squares.sum() - 2 * (centred * total[here]).sum()) / 2
    changes = faded(state, "changes", fade**2, [float(change), float(kept.sum()) / 2 - overlap])
    total[here] += centred
    tally[here] += new
    return {"known": known, "total": total, "tally": tally, "changes": changes}


def _alone(state: Record, cohort: Cohort, fade: float) -> dict[str, Tensor]:
    """Compare a client that is alone in its round with the one before; they have no cohort to compare with."""
    same, other = [0.0, 0.0], [0.0, 0.0]
    alone = {"alone": cohort.gradients[0]} if cohort.size == 1 else {}
    if alone and "alone" in state:
        change = float((cohort.gradients[0] - state["alone"]).square().sum()) / 2
        before = int(state["visits"][-1, 1])
        (same if int(cohort.clients[0]) == before else other)[:] = [change, 1.0]
    return {
        **alone,
        "same": faded(state, "same", fade, same),
        "other": faded(state, "other", fade, other),
    }
