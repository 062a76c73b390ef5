"""A scenario of clients whose data change for good: kind ``tests.helpers.drifting:Drifting``."""

import numpy as np

from chronofed import ScenarioSettings, Visit


class Labels:
    """Clients that hold one class each; each one's class changes at rounds of its own."""

    def __init__(self, labels, clients, rounds):
        self.by_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        self.clients, self.rounds, self.persistent = clients, rounds, True

    def candidates(self, round_):
        """Everybody takes part."""
        return np.arange(self.clients)

    def visit(self, client, round_):
        """Return the samples of the present class."""
        phase = (round_ + 5 * client) // (13 + 4 * client)
        rows = self.by_class[(client + phase) % len(self.by_class)]
        return Visit(rows[20 * client : 20 * client + 20], key=1000 * client + phase)


class Drifting(ScenarioSettings, tag="drifting"):
    """Clients whose labels change for good.

    Attributes:
        clients: Number of clients.
        rounds: Number of rounds.
    """

    clients: int = 3
    rounds: int | None = None

    def on(self, dataset, seed):
        """Make the scenario."""
        labels = dataset.train.y.numpy()
        return self._scenario(Labels(labels, self.clients, self.rounds), seed)
