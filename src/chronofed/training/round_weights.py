"""Round weights of the present and of each remembered round, as clients really used them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from chronofed.methods.memories import MemoryItem
from chronofed.methods.method import Method
from chronofed.methods.weighting import Timeline, Weights
from chronofed.training.loop import Snapshot

# Clients whose weights are averaged; their states may have to be read from disk.
CLIENTS = 8
# Remembered rounds listed one by one; the rest is summed up.
AGES = 40
DIGITS = 5


def round_weights(method: Method, snapshot: Snapshot) -> dict[str, Any]:
    """Average the round weights after a round; empty where nothing is remembered.

    For a memory on the clients these are the weights of their last visit, averaged over at most eight clients;
    for one on the server those of the next round.

    Returns:
        ``round``, ``present`` (the weight of the present), ``past`` (one remembered data set after the other,
        newest first) and ``older`` (the sum of what is not listed).
    """
    found = list(_timelines(method, snapshot))
    if not found:
        return {}
    resolved = method.weights.resolve(snapshot.weighting_state)
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
    """Yield the rounds to weigh, oldest first, for the server or for each of some clients."""
    if method.memory.location == "server" and snapshot.past:
        sizes = [item.size for item in snapshot.past]
        typical = round(sum(sizes) / len(sizes))
        rounds = tuple(item.round for item in snapshot.past)
        yield Timeline(rounds, tuple(sizes), snapshot.round, typical)
    if method.memory.location == "client":
        for client in sorted(snapshot.client_states)[:CLIENTS]:
            kept = sorted(snapshot.client_states[client].items, key=lambda item: item.round)
            if kept:
                *past, present = kept
                sizes = [_size(item) for item in past]
                rounds = tuple(item.round for item in past)
                yield Timeline(rounds, tuple(sizes), present.round, present.size)


def _size(item: MemoryItem) -> int:
    """Count the samples that stand for a data set: those kept, or those seen."""
    return len(item.record["y"]) if "y" in item.record else item.size
