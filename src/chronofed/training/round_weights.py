"""Round weights of the present and of each remembered round, as clients really used them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from chronofed.methods.memories import Moment, timeline
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
    for one on the server those of the next round. Where that visit took samples of earlier data sets away (a
    reservoir, a limit), those that are left count.

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
    memory = method.memory
    if memory.location == "server" and snapshot.past:
        sizes = [item.size for item in snapshot.past]
        moment = Moment(snapshot.round, None, round(sum(sizes) / len(sizes)))
        yield timeline(memory.recalled(snapshot.past, moment), moment)
    if memory.location == "client":
        for client in sorted(snapshot.client_states)[:CLIENTS]:
            kept = snapshot.client_states[client].items
            if kept:
                present = max(kept, key=lambda item: item.round)
                moment = Moment(present.round, present.key, present.size)
                past = tuple(item for item in kept if item is not present)
                yield timeline(memory.recalled(past, moment), moment)
