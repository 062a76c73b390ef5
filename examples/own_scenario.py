"""Write a scenario of your own: every client holds one class, and all move on to the next class together.

Run: python examples/own_scenario.py
"""

from dataclasses import dataclass

import numpy as np

from chronofed import (
    Classification,
    CoreSet,
    Dataset,
    Everyone,
    Forget,
    Linear,
    Method,
    Scenario,
    Train,
    Visit,
    load_data,
    run,
)


@dataclass(frozen=True)
class OneClassAtATime:
    """A stream: pure functions of the client and the round, so any round can be asked for in any order."""

    labels: np.ndarray
    clients: int
    length: int  # rounds until the next class
    rounds = None  # no end
    persistent = True  # clients come back

    def candidates(self, round_: int) -> np.ndarray:
        """All clients exist in every round."""
        return np.arange(self.clients)

    def visit(self, client: int, round_: int) -> Visit:
        """Return the positions of the client's samples; the class is the key of its data set."""
        kind = (client + round_ // self.length) % (self.labels.max() + 1)
        return Visit(np.flatnonzero(self.labels == kind)[:200], int(kind))


def moving(data: Dataset) -> Scenario:
    """Return three clients that change their class every second round."""
    return Scenario(OneClassAtATime(data.labels, clients=3, length=2), Everyone())


def main() -> None:
    """Show that a core set keeps old classes, and that forgetting loses them."""
    data = load_data("fashion-mnist-mini")
    scenario, task = moving(data), Classification(data, Linear())
    for memory in (Forget(), CoreSet(size=20)):
        *_, last = run(Method(memory=memory), scenario, task, rounds=20, train=Train(steps=5))
        score = task.score(task.objective(), last.params, last.buffers, data.test)
        print(f"{type(memory).__name__}: accuracy {score.accuracy:.3f}")


if __name__ == "__main__":
    main()
