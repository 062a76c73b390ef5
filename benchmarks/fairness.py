"""The spread of accuracy over clients with FedAvg, q-FFL and AFL; makes the table of docs/related.md.

    python benchmarks/fairness.py [--seeds 3] [--rounds 100]

Ten clients with class mixes of their own (alpha 0.2) of the images that come with the package, a linear model, clients
of equal weight. A client's accuracy is that of the last model on test images, in the mix of its classes.
"""

import argparse
from statistics import fmean, pstdev

import torch

from chronofed import (
    Afl,
    Classification,
    FedAvg,
    Linear,
    Method,
    QFfl,
    Subsets,
    Train,
    load_data,
    run,
)

METHODS = {
    "FedAvg": FedAvg(),
    "q-FFL, q = 1": QFfl(q=1.0),
    "q-FFL, q = 5": QFfl(q=5.0),
    "AFL": Afl(weights_lr=0.01),
}


def accuracies(backbone, seed, rounds, clients=10):
    """Train, and return the accuracy of every client, in percent."""
    data = load_data("fashion-mnist-mini")
    scenario = Subsets(clients=clients, subsets=1, client_alpha=0.2).on(data, seed=seed)
    task = Classification(data, Linear())
    method = Method(backbone, average="clients")
    train = Train(lr=0.05, steps=10)
    *_, last = run(method, scenario, task, rounds=rounds, train=train, seed=seed)
    hits = task.objective().logits(last.params, data.test.x).argmax(1) == data.test.y
    by_class = torch.stack([hits[data.test.y == c].double().mean() for c in range(10)])
    visits = scenario.at(0).visits.values()
    mixes = [data.train.y[torch.from_numpy(v.indices)].bincount(minlength=10) for v in visits]
    return [float(100 * (mix / mix.sum()).double() @ by_class) for mix in mixes]


def main():
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    print("| | deviation over clients | worst client | mean |\n|---|---|---|---|")
    for name, backbone in METHODS.items():
        runs = [accuracies(backbone, seed, options.rounds) for seed in range(options.seeds)]
        columns = [[measure(found) for found in runs] for measure in (pstdev, min, fmean)]
        cells = [
            f"{fmean(values):.1f} ({', '.join(f'{v:.1f}' for v in values)})" for values in columns
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
