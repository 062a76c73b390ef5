"""Messages between server and client."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chronofed.core.types import Record, Vector
from chronofed.methods.local import Train
from chronofed.methods.surrogate import Surrogate
from chronofed.methods.weighting import RoundWeights

Exchange: TypeAlias = Literal["prepare", "train"]
"""The two exchanges of a round. Only backbones with two phases use ``prepare``."""


@dataclass(frozen=True, slots=True)
class Order:
    """Server to client: train from this model, with this past.

    Attributes:
        round: Number of the round, from 0.
        client: The client that the order is for.
        server: The backbone's server state.
        buffers: The model's buffers.
        weights: Round weights, with all constants known.
        past: Surrogate of the past, if the memory lives on the server.
        train: Settings of local training.
        seed: Root of the run's randomness.
    """

    round: int
    client: int
    server: Record
    buffers: Vector
    weights: RoundWeights
    past: Surrogate | None
    train: Train
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """Client to server.

    Attributes:
        client: The client that answers.
        key: Identifies the data set that it trained on.
        size: Number of present samples.
        upload: Tensors that the backbone sends.
        buffers: The model's buffers after training.
        record: Record for a memory on the server; otherwise empty.
        probe: Record for round weights that learn their constants; otherwise empty.
    """

    client: int
    key: int
    size: int
    upload: Record
    buffers: Vector
    record: Record = field(default_factory=dict)
    probe: Record = field(default_factory=dict)


def shares(results: list[Result], average: Literal["samples", "clients"]) -> dict[int, float]:
    """Return the weight of every client in the round's mean, before normalisation."""
    return {r.client: float(r.size) if average == "samples" else 1.0 for r in results}
