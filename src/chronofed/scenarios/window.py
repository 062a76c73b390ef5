"""A sliding window: data sets of consecutive rounds overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from chronofed.core.errors import SpecError
from chronofed.data.dataset import Dataset
from chronofed.scenarios.base import Indices, ResidentStream, Scenario, Visit
from chronofed.scenarios.partition import subset_size
from chronofed.scenarios.settings import TwoLevel

Overlap = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Window(TwoLevel, tag="window"):
    """A window slides along each client's subsets, so that consecutive data sets overlap.

    Attributes:
        overlap: Share of its samples that a client keeps from one round to the next.
    """

    overlap: Overlap = 0.5

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Split the training samples and concatenate each client's subsets."""
        size = subset_size(len(dataset.train), self.clients, self.subsets)
        step = round((1 - self.overlap) * size)
        if not step:
            msg = (
                f"overlap = {self.overlap} of a window of {size} samples is all of it, so the data "
                "would never change: lower the overlap or use fewer subsets"
            )
            raise SpecError(msg)
        tracks = [np.concatenate(own) for own in self._subsets(dataset.labels, seed)]
        return self._scenario(WindowStream(tracks, size, step), seed)


@dataclass(frozen=True, slots=True, eq=False)
class WindowStream(ResidentStream):
    """A window slides along each client's samples and wraps around at the end.

    Windows of consecutive rounds share ``size - step`` samples (none if that is negative), also
    across the end of the track, if the track has at least ``size + step`` samples.

    Attributes:
        tracks: Each client's samples in time order.
        size: Samples in the window.
        step: Samples by which it moves in a round. The start of the window is the visit's key.
    """

    tracks: Sequence[Indices]
    size: int
    step: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.step < 1:
            msg = f"window of {self.size} samples, step of {self.step}: both must be at least 1"
            raise SpecError(msg)
        shortest = min(map(len, self.tracks), default=self.size)
        if shortest < self.size:
            msg = f"window of {self.size} samples, but a client has only {shortest}: shorten it"
            raise SpecError(msg)

    @property
    def clients(self) -> int:
        """Number of clients that exist at the same time."""
        return len(self.tracks)

    def visit(self, client: int, round_: int) -> Visit:
        """Return the client's window in this round."""
        track = self.tracks[client]
        start = round_ * self.step % len(track)
        return Visit(track[(start + np.arange(self.size)) % len(track)], start)
