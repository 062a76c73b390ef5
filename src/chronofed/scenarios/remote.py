"""Remote clients: their data are on their own machines."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chronofed.core.config import Count
from chronofed.data.dataset import Dataset
from chronofed.scenarios.base import ResidentStream, Scenario, Visit
from chronofed.scenarios.settings import ScenarioSettings


class Remote(ScenarioSettings, tag="remote"):
    """Clients on machines of their own, with data of their own; only their number is known here.

    It runs on Flower only, where every client names its own data source. The data of the specification are
    the server's test data.

    Attributes:
        clients: Number of clients, numbered from 0.
    """

    remote: ClassVar[bool] = True

    clients: Count

    def on(self, dataset: Dataset, seed: int) -> Scenario:
        """Return the scenario; the data set is for testing only."""
        return self._scenario(RemoteStream(self.clients), seed)


@dataclass(frozen=True, slots=True)
class RemoteStream(ResidentStream):
    """Streams that only the clients know.

    Attributes:
        number: Number of clients.
    """

    number: int

    @property
    def clients(self) -> int:
        """Number of clients that exist at the same time."""
        return self.number

    def visit(self, client: int, round_: int) -> Visit:
        """Return an empty visit: the samples are not known here."""
        return Visit(np.zeros(0, dtype=np.int64), 0)
