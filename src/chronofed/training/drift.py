r"""Drifts and information loss as the paper defines them, for a simulation that still has the past data.

For the latest data sets of every client, at the same parameters *w*:

* client drift :math:`G^2`: mean squared distance of the clients' mean gradients from the global mean;
* time drift :math:`D^2`: mean squared distance of a client's gradients from its own mean;
* information loss: :math:`\frac{1}{n}\sum \|\nabla f_{\tau,i}(w) - \nabla\tilde f_{\tau,i}(w)\|` over what
  is kept (``information loss definition``).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from chronofed.core.flat import take
from chronofed.core.types import Batch
from chronofed.methods.memories import Memory, MemoryItem
from chronofed.models.objective import TorchObjective
from chronofed.models.supervised import SupervisedTask
from chronofed.scenarios.base import Scenario
from chronofed.training.loop import Snapshot

# client and key of a data set
Pair = tuple[int, int]


def drift_measures(
    task: SupervisedTask,
    scenario: Scenario,
    memory: Memory,
    objective: TorchObjective,
    snapshot: Snapshot,
    most: int,
) -> dict[str, float]:
    """Compute squared drifts and information loss of a snapshot, on ``most`` data sets of every client."""
    objective.buffers = snapshot.buffers
    everything = (slice(0, len(snapshot.params)),)

    def gradient(round_: int, client: int) -> Tensor:
        samples = task.samples(scenario.at(round_).visits[client].indices)
        return objective.loss_gradient(snapshot.params, Batch.mean(samples), everything)

    latest = _latest_visits(scenario, snapshot.round, most)
    gradients = {pair: gradient(round_, pair[0]) for pair, round_ in latest.items()}

    def loss(item: MemoryItem) -> float:
        truth = gradients.get((item.client, item.key))
        if truth is None:
            truth = gradient(item.round, item.client)
        spans, approximation = memory.approximate(objective, snapshot.params, item)
        return float((take(truth, spans) - approximation).norm())

    lost = [(_latest_first(k), loss(k)) for k in _latest_items(snapshot, most)]
    # The sum depends on the order in the last bits.
    lost.sort(key=lambda pair: pair[0])
    measures = _drifts(gradients)
    if lost:
        measures["information_loss"] = sum(value for _, value in lost) / len(lost)
    return measures


def _latest_visits(scenario: Scenario, rounds: int, most: int) -> dict[Pair, int]:
    """Find the latest ``most`` different data sets of every client, and the round of each."""
    found: dict[Pair, int] = {}
    count: dict[int, int] = {}
    for round_ in range(rounds - 1, max(-1, rounds - 1 - 10 * most), -1):
        for client, visit in scenario.at(round_).visits.items():
            if (client, visit.key) not in found and count.get(client, 0) < most:
                found[client, visit.key] = round_
                count[client] = count.get(client, 0) + 1
    return found


def _latest_items(snapshot: Snapshot, most: int) -> Iterator[MemoryItem]:
    """Yield the latest items of every client that stand for one data set, client after client."""
    past: dict[int, list[MemoryItem]] = {}
    for item in snapshot.past:
        past.setdefault(item.client, []).append(item)
    for client in sorted({*past, *snapshot.client_states}):
        own = snapshot.client_states[client].items if client in snapshot.client_states else ()
        known = [k for k in (*past.get(client, ()), *own) if k.key >= 0 and k.size]
        yield from sorted(known, key=_latest_first)[:most]


def _latest_first(item: MemoryItem) -> tuple[int, int]:
    return -item.round, item.client


def _drifts(gradients: dict[Pair, Tensor]) -> dict[str, float]:
    r"""Estimate squared drifts by an analysis of variance by client; unbiased for equal numbers of data sets.

    With *m* data sets of each of *n* clients, the mean square within clients estimates :math:`D^2`, and that
    of the clients' means :math:`G^2 + D^2/m`.
    """
    by_client: dict[int, list[Tensor]] = {}
    for (client, _), gradient in gradients.items():
        by_client.setdefault(client, []).append(gradient.double())
    groups = [torch.stack(rows) for rows in by_client.values()]
    repeated = [group for group in groups if len(group) > 1]
    if len(groups) < 2 or not repeated:
        return {}
    freedom = sum(len(group) - 1 for group in repeated)
    time = sum(float((g - g.mean(0)).square().sum()) for g in repeated) / freedom
    means = torch.stack([group.mean(0) for group in groups])
    spread = float((means - means.mean(0)).square().sum()) / (len(groups) - 1)
    share = sum(1 / len(group) for group in groups) / len(groups)
    return {"client_drift_sq": max(spread - time * share, 0.0), "time_drift_sq": time}
