"""Write round weights of your own: a past round counts less the longer ago it was.

Run: python examples/own_round_weights.py
"""

import numpy as np

from chronofed import (
    Classification,
    CoreSet,
    Method,
    Mlp,
    RoundWeights,
    Timeline,
    Train,
    Uniform,
    Window,
    load_data,
    run,
)


class Fading(RoundWeights):
    """Weights that decay geometrically with age.

    Attributes:
        rate: Weight of a round, relative to the round after it.
    """

    rate: float = 0.8

    def __call__(self, timeline: Timeline) -> np.ndarray:
        """Return weights that sum to one, the present last."""
        rounds = np.array([*timeline.rounds, timeline.now])
        weights = self.rate ** (timeline.now - rounds)
        return weights / weights.sum()


def main() -> None:
    """Print the weights, and compare them with equal weights on a sliding window."""
    timeline = Timeline(rounds=(0, 1, 2), sizes=(20, 20, 20), now=3, size=50)
    print("weights:", Fading(rate=0.5)(timeline).round(3))

    data = load_data("fashion-mnist-mini")
    scenario = Window(clients=5, subsets=10, client_alpha=0.1, overlap=0.25).on(data, seed=0)
    task = Classification(data, Mlp(hidden=(32,)))
    for weights in (Uniform(), Fading()):
        method = Method(memory=CoreSet(size=20), weights=weights)
        *_, last = run(method, scenario, task, rounds=8, train=Train(steps=10))
        score = task.score(task.objective(), last.params, last.buffers, data.test)
        print(f"{type(weights).__name__}: accuracy {score.accuracy:.3f}")


if __name__ == "__main__":
    main()
