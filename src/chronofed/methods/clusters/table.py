"""Assignment of clients to several models: the server's table, and a working copy of it.

A model has a place in the table, ``0 .. models - 1``, and a number that no other model of the run ever has. A
place without a model has the number -1. A client that follows no model has the place -1; it gets the main
model, the one with most followers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from chronofed.core.types import Record, Vector

MODEL = "model_"
"""Start of the names of the inner backbone's server states, stacked by place."""
TABLE = "cluster_"
"""Start of the names of the table's own entries."""
OWN = "assign_"
"""Start of the names of an assignment's entries."""
NOBODY = -1


def place_of(server: Record, client: int) -> int:
    """Return the place of the model that a client follows, or is sent as long as it follows none."""
    following = server[f"{TABLE}of"]
    place = int(following[client]) if client < len(following) else NOBODY
    return int(server[f"{TABLE}main"]) if place == NOBODY else place


def model_state(server: Record, place: int) -> Record:
    """Return the inner backbone's server state of one model."""
    return {n.removeprefix(MODEL): t[place] for n, t in server.items() if n.startswith(MODEL)}


def used(server: Record) -> list[int]:
    """Return the places that have a model."""
    return (server[f"{TABLE}number"] != NOBODY).nonzero().flatten().tolist()


def resized(tensor: Tensor, length: int, fill: float) -> Tensor:
    """Return a tensor with another number of rows; new ones are filled."""
    kept = tensor[:length]
    return torch.cat([kept, kept.new_full((length - len(kept), *kept.shape[1:]), fill)])


@dataclass(slots=True)
class Table:
    """A working copy of the server's state.

    Attributes:
        round: The current round.
        asked: True once clients were assigned in this round.
        models: The inner backbone's server state at every place.
        number: Number of the model at every place; -1 for none.
        steps: Data sets of clients behind every model, by which merged models are weighed.
        last: Round in which a client last followed the model.
        following: Place of every client's model; -1 for none.
        upcoming: Number of the next new model.
        own: The assignment's entries.
        written: Place whose state was stored last; all have its entries, and what it lacks is not kept.
    """

    round: int
    asked: bool
    models: list[Record]
    number: list[int]
    steps: list[int]
    last: list[int]
    following: list[int]
    upcoming: int
    own: dict[str, Tensor]
    written: int = 0

    @classmethod
    def first(cls, state: Record, places: int, clients: int, own: Record) -> "Table":
        """Return a table with one model, which nobody follows yet."""
        rest = places - 1
        counts = [0, *[NOBODY] * rest]
        nobody = [NOBODY] * clients
        return cls(
            0, False, [state] * places, counts, [0] * places, [NOBODY] * places, nobody, 1, {**own}
        )

    @classmethod
    def unpack(cls, server: Record) -> "Table":
        """Read the server's state."""
        names = ("number", "steps", "last", "of")
        number, steps, last, following = (server[TABLE + name].tolist() for name in names)
        own = {n.removeprefix(OWN): t.clone() for n, t in server.items() if n.startswith(OWN)}
        models = [model_state(server, place) for place in range(len(number))]
        round_, asked, upcoming = (int(server[TABLE + n]) for n in ("round", "asked", "next"))
        return cls(round_, bool(asked), models, number, steps, last, following, upcoming, own)

    def pack(self) -> Record:
        """Write the server's state; its model is the main one."""
        numbers = {
            "round": self.round,
            "asked": int(self.asked),
            "next": self.upcoming,
            "main": self.main,
            "number": self.number,
            "steps": self.steps,
            "last": self.last,
            "of": self.following,
        }
        like = self.models[self.written]
        return {
            "params": self.models[self.main]["params"].clone(),
            **{MODEL + name: self._stacked(name, first) for name, first in like.items()},
            **{TABLE + n: torch.tensor(v, dtype=torch.int64) for n, v in numbers.items()},
            **{OWN + name: tensor for name, tensor in self.own.items()},
        }

    @property
    def main(self) -> int:
        """The place with most followers; among equals the most trained and then the oldest model."""
        places = [place for place, number in enumerate(self.number) if number != NOBODY]
        count = self.following.count
        return max(places, key=lambda p: (count(p), self.steps[p], -self.number[p]))

    def followers(self, place: int) -> list[int]:
        """Return the clients that follow the model at a place."""
        return [client for client, found in enumerate(self.following) if found == place]

    def follow(self, client: int, place: int) -> None:
        """Let a client follow a model in this round."""
        self.following[client] = place
        self.last[place] = self.round

    def store(self, place: int, state: Record) -> None:
        """Replace the state of the model at a place."""
        self.models[place], self.written = state, place

    def put(self, place: int, state: Record) -> None:
        """Put a new model at a place; who followed the former one follows none."""
        for client in self.followers(place):
            self.following[client] = NOBODY
        self.store(place, state)
        self.number[place], self.upcoming = self.upcoming, self.upcoming + 1
        self.steps[place], self.last[place] = 0, self.round

    def free(self, idle: int) -> int | None:
        """Return a place for a new model: an empty one, or that of the model that was used least recently.

        A model that a client of this round follows is not given up, and one that only others follow not before
        it was idle for so many rounds. ``None`` if there is no place.
        """
        if NOBODY in self.number:
            return self.number.index(NOBODY)
        since = self.round - idle
        left = [
            place
            for place, last in enumerate(self.last)
            if last < self.round and (last < since or place not in self.following)
        ]
        return min(left, key=lambda p: (self.last[p], self.number[p]), default=None)

    def merge(self, places: Iterable[int]) -> None:
        """Merge models into the oldest: the mean of their states by the data sets behind each."""
        base, *others = sorted(places, key=self.number.__getitem__)
        total = self.steps[base]
        for place in others:
            total += self.steps[place]
            share = self.steps[place] / total if total else 0.0
            self.models[base] = _mean(self.models[base], self.models[place], share)
            for client in self.followers(place):
                self.following[client] = base
            self.last[base] = max(self.last[base], self.last[place])
            self.number[place], self.steps[place] = NOBODY, 0
        self.steps[base] = total

    def _stacked(self, name: str, first: Tensor) -> Tensor:
        return torch.stack([state.get(name, torch.zeros_like(first)) for state in self.models])

    def enrol(self, clients: int, change: Callable[[Record], Record]) -> None:
        """Take over another number of clients, of whom the new ones follow none; change every state."""
        self.following = resized(torch.tensor(self.following), clients, NOBODY).tolist()
        self.models = [change(state) for state in self.models]


def _mean(one: Record, other: Record, share: float) -> Record:
    """Return the mean of two states; whole numbers are the first's."""
    return {
        name: tensor.lerp(other[name], share) if tensor.is_floating_point() else tensor
        for name, tensor in one.items()
    }


def followed(server: Record) -> tuple[Tensor, Mapping[int, int], list[int]] | None:
    """Return the models, the place of every client that follows one, and the models' numbers.

    ``None`` if there is only one global model.
    """
    if f"{TABLE}of" not in server:
        return None
    places = dict(enumerate(server[f"{TABLE}of"].tolist()))
    known = {client: place for client, place in places.items() if place != NOBODY}
    return server[f"{MODEL}params"], known, server[f"{TABLE}number"].tolist()


def params_of(server: Record, places: list[int]) -> Vector:
    """Return the models at some places, ``(places, d)``."""
    return server[f"{MODEL}params"][places]
