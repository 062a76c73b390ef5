"""How much the present and each remembered round count: the weights that clients really used."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from chronofed.loop import Snapshot
from chronofed.memories import Keepsake
from chronofed.protocol import Method
from chronofed.weights import Timeline, Weights

CLIENTS = 8  # clients whose weights are averaged; their lockers may have to be read from disk
AGES = 40  # remembered rounds listed one by one; the rest is summed up
DIGITS = 5


def round_weights(method: Method, snapshot: Snapshot) -> dict[str, Any]:
    """Mean round weights after a round; empty where nothing is remembered.

    For a memory on the clients these are the weights of their last visit, averaged over at most eight clients;
    for one on the server those of the next round.

    Returns:
        ``round``, ``present`` (the weight of the present), ``past`` (one remembered data set after the other,
        newest first) and ``older`` (the sum of what is not listed).
    """
    found = list(_timelines(method, snapshot))
    if not found:
        return {}
    resolved = method.weights.resolve(snapshot.weights)
    every: list[Weights] = [resolved(timeline) for timeline in found]
    past = np.zeros(max(len(p) for p in every) - 1)
    for p in every:
        past[: len(p) - 1] += p[-2::-1] / len(every)
    return {
        "round": snapshot.round,
        "present": round(float(np.mean([p[-1] for p in every])), DIGITS),
        "past": [round(float(p), DIGITS) for p in past[:AGES]],
        "older": round(float(past[AGES:].sum()), DIGITS),
    }


def _timelines(method: Method, snapshot: Snapshot) -> Iterator[Timeline]:
    """What there is to weigh, oldest first."""
    if method.memory.home == "server" and snapshot.past:
        sizes = [keepsake.size for keepsake in snapshot.past]
        typical = round(sum(sizes) / len(sizes))
        rounds = tuple(keepsake.round for keepsake in snapshot.past)
        yield Timeline(rounds, tuple(sizes), snapshot.round, typical)
    if method.memory.home == "client":
        for client in sorted(snapshot.lockers)[:CLIENTS]:
            kept = sorted(snapshot.lockers[client].kept, key=lambda keepsake: keepsake.round)
            if kept:
                *past, present = kept
                sizes = [_size(keepsake) for keepsake in past]
                rounds = tuple(keepsake.round for keepsake in past)
                yield Timeline(rounds, tuple(sizes), present.round, present.size)


def _size(keepsake: Keepsake) -> int:
    """Samples that stand for a data set: those kept, or those seen."""
    return len(keepsake.record["y"]) if "y" in keepsake.record else keepsake.size
