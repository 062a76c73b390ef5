r"""Drifts and information loss as the paper defines them, in a simulation that still has the past data.

For the latest data sets of every client, at the same parameters *w*:

* client drift :math:`G^2`: how far the clients' mean gradients lie from the global mean;
* time drift :math:`D^2`: how far a client's gradients lie from its own mean;
* information loss: :math:`\frac{1}{n}\sum \|\nabla f_{\tau,i}(w) - \nabla\tilde f_{\tau,i}(w)\|` over what
  is kept (``information loss definition``).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from chronofed.flat import take
from chronofed.loop import Snapshot
from chronofed.memories import Keepsake, Memory
from chronofed.scenarios.base import Scenario
from chronofed.tasks.classification import Classification
from chronofed.tasks.objective import TorchObjective
from chronofed.types import Batch

Key = tuple[int, int]  # client and key


def past_measures(
    task: Classification,
    scenario: Scenario,
    memory: Memory,
    objective: TorchObjective,
    snapshot: Snapshot,
    most: int,
) -> dict[str, float]:
    """Client drift, time drift and information loss of a snapshot, on ``most`` data sets a client."""
    objective.buffers = snapshot.buffers
    everything = (slice(0, len(snapshot.params)),)

    def gradient(round_: int, client: int) -> Tensor:
        samples = task.samples(scenario.at(round_).visits[client].indices)
        return objective.loss_gradient(snapshot.params, Batch.mean(samples), everything)

    latest = _latest_visits(scenario, snapshot.round, most)
    gradients = {pair: gradient(round_, pair[0]) for pair, round_ in latest.items()}

    def loss(keepsake: Keepsake) -> float:
        truth = gradients.get((keepsake.client, keepsake.key))
        if truth is None:
            truth = gradient(keepsake.round, keepsake.client)
        spans, approximation = memory.approximate(objective, snapshot.params, keepsake)
        return float((take(truth, spans) - approximation).norm())

    lost = [(_latest_first(k), loss(k)) for k in _latest_keepsakes(snapshot, most)]
    lost.sort(key=lambda pair: pair[0])  # the sum depends on the order
    measures = _drifts(gradients)
    return measures | (
        {"information_loss": sum(value for _, value in lost) / len(lost)} if lost else {}
    )


def _latest_visits(scenario: Scenario, rounds: int, most: int) -> dict[Key, int]:
    """For every client its latest ``most`` different data sets, and when it held them."""
    found: dict[Key, int] = {}
    count: dict[int, int] = {}
    for round_ in range(rounds - 1, max(-1, rounds - 1 - 10 * most), -1):
        for client, visit in scenario.at(round_).visits.items():
            if (client, visit.key) not in found and count.get(client, 0) < most:
                found[client, visit.key] = round_
                count[client] = count.get(client, 0) + 1
    return found


def _latest_keepsakes(snapshot: Snapshot, most: int) -> Iterator[Keepsake]:
    """The latest keepsakes of every client that stand for one data set; client after client."""
    past: dict[int, list[Keepsake]] = {}
    for keepsake in snapshot.past:
        past.setdefault(keepsake.client, []).append(keepsake)
    for client in sorted({*past, *snapshot.lockers}):
        own = snapshot.lockers[client].kept if client in snapshot.lockers else ()
        known = [k for k in (*past.get(client, ()), *own) if k.key >= 0]
        yield from sorted(known, key=_latest_first)[:most]


def _latest_first(keepsake: Keepsake) -> tuple[int, int]:
    return -keepsake.round, keepsake.client


def _drifts(gradients: dict[Key, Tensor]) -> dict[str, float]:
    r"""Analysis of variance of the gradients by client; unbiased for equal numbers of data sets.

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
    return {"client_drift": max(spread - time * share, 0.0), "time_drift": time}
