"""Draw a figure for a paper: test accuracy over rounds, mean and range of three seeds.

Needs matplotlib: pip install 'chronofed[plot]'. Run: python examples/figure.py [FILE]
"""

import sys

import numpy as np
from matplotlib.figure import Figure

from chronofed import Classification, CoreSet, Dataset, Method, Mlp, Subsets, Train, load_data, run

METHODS = {"FedAvg": Method(), "FedAvg + core set": Method(memory=CoreSet(size=20))}
ROUNDS, SEEDS = 6, 3


def accuracies(method: Method, data: Dataset, seed: int) -> list[float]:
    """Return the test accuracy after every round."""
    scenario = Subsets(clients=5, subsets=10, client_alpha=0.1).on(data, seed=seed)
    task = Classification(data, Mlp(hidden=(32,)))
    objective = task.objective()
    train = Train(lr=0.05, steps=5)
    return [
        task.score(objective, snapshot.params, snapshot.buffers, data.test).accuracy
        for snapshot in run(method, scenario, task, rounds=ROUNDS, train=train, seed=seed)
    ]


def main(path: str = "accuracy.pdf") -> None:
    """Draw one line a method into ``path``; its ending chooses the format."""
    data = load_data("fashion-mnist-mini")
    figure = Figure(figsize=(3.3, 2.2), layout="constrained")
    axes = figure.subplots()
    rounds = np.arange(1, ROUNDS + 1)
    for name, method in METHODS.items():
        curves = np.array(
            [accuracies(method, data, seed) for seed in range(SEEDS)]
        )  # (seeds, rounds)
        axes.plot(rounds, curves.mean(0), label=name)
        axes.fill_between(rounds, curves.min(0), curves.max(0), alpha=0.2)
    axes.set(xlabel="round", ylabel="test accuracy")
    axes.legend(frameon=False)
    figure.savefig(path)
    print(f"figure: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
