"""FedDrift on SINE and CIRCLE with the authors' change points; makes the table in docs/related.md.

    python benchmarks/feddrift.py [--seeds 3] [--rounds 20]

Ten clients, each with 500 new samples in every one of ten steps. The concept of a client's samples is in CHANGES. An
assignment is right at a step if two clients follow the same model just when they have the same concept. `own` is the
accuracy after a step on other samples of its own concepts, `next` on the samples of the next step, before anybody trains
on them; each client is judged by the model that it follows. Settings are those of the authors' code (microsoft/FedDrift),
but for the rounds of a step, of which that has 200, and the width of the model.
"""

import argparse
import statistics

import numpy as np
import torch

from chronofed import (
    Classification,
    Clusters,
    Dataset,
    FedAvg,
    LossJump,
    Method,
    Mlp,
    Periods,
    Samples,
    Scores,
    Train,
    run,
)
from chronofed.data.dataset import Origin
from chronofed.methods.clusters.table import followed

# The concept of every client (column) in every step (row): changepoints/A.cp of the authors' code.
CHANGES = np.array([
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 1, 0, 0, 0, 0, 0, 1, 0, 0],
    [0, 1, 1, 1, 0, 1, 0, 1, 0, 0],
    [0, 1, 1, 1, 0, 1, 0, 1, 1, 0],
    [1, 0, 1, 1, 0, 1, 1, 0, 1, 0],
    [1, 0, 0, 1, 0, 0, 1, 0, 1, 0],
    [1, 0, 0, 0, 1, 0, 1, 0, 1, 1],
    [1, 0, 0, 0, 1, 0, 1, 0, 0, 1],
    [1, 0, 0, 0, 1, 0, 1, 0, 0, 1],
    [1, 0, 0, 0, 1, 0, 1, 0, 0, 1],
])  # fmt: skip
STEPS, CLIENTS = len(CHANGES) - 1, CHANGES.shape[1]
# Centres and radii of the two circles.
CIRCLES = ((0.2, 0.5, 0.15), (0.6, 0.5, 0.25))
THRESHOLDS = {"sine": 0.2, "circle": 0.1}
TRAIN = Train(lr=0.01, batch_size="full", steps=5, optimizer="adamw", weight_decay=0.0)


def labels(name, x, concept):
    """SINE: below the curve or above it, and the reverse. CIRCLE: outside of one circle, and of another."""
    if name == "sine":
        return (x[:, 1] <= np.sin(x[:, 0])).astype(np.int64) ^ concept
    a, b, radius = CIRCLES[concept]
    return (np.hypot(x[:, 0] - a, x[:, 1] - b) > radius).astype(np.int64)


def samples(name, size, seed):
    """The same number of samples of every client and step, step after step."""
    rng = np.random.default_rng(seed)
    x = rng.random((CHANGES.size, size, 2))
    y = [labels(name, some, int(c)) for some, c in zip(x, CHANGES.flat, strict=True)]
    return Samples(torch.from_numpy(x.reshape(-1, 2)).float(), torch.from_numpy(np.concatenate(y)))


def dataset(name, seed, size=500):
    """Training and test samples with their clients and steps."""
    step, client = (np.repeat(code.ravel(), size) for code in np.indices(CHANGES.shape))
    codes = (client, step, client, step)
    origin = Origin(*(tuple(map(str, range(n))) for n in (CLIENTS, STEPS + 1)), *codes)
    train, test = (samples(name, size, [seed, purpose]) for purpose in (0, 1))
    return Dataset(name, train, test, ("0", "1"), origin)


def methods(name):
    """One model, and the two forms of several."""
    detector = LossJump(THRESHOLDS[name])
    eager = Scores("error", detector)
    drift = Scores("error", detector, eager=False, merge=detector.threshold)
    return {
        "FedAvg": Method(FedAvg()),
        "FedDrift-Eager": Method(Clusters(models=4, assign=eager)),
        "FedDrift": Method(Clusters(models=2 * CLIENTS, assign=drift)),
    }


def assignment(snapshot):
    """The parameters of every client's model, and its number."""
    found = followed(snapshot.server)
    if found is None:
        return [snapshot.params] * CLIENTS, [0] * CLIENTS
    models, places, numbers = found
    return [models[places[i]] for i in range(CLIENTS)], [numbers[places[i]] for i in range(CLIENTS)]


def is_right(numbers, concepts):
    """Tell if two clients follow the same model just when they have the same concept."""
    together = np.equal.outer(numbers, numbers)
    return bool((together == np.equal.outer(concepts, concepts)).all())


def accuracy(task, params, samples_, step):
    """The mean over clients of the accuracy on their samples of a step."""
    origin, found, objective = task.data.origin, [], task.objective()
    for i in range(CLIENTS):
        rows = torch.from_numpy((origin.train_client == i) & (origin.train_period == step))
        some = samples_[rows]
        found.append(
            float((objective.logits(params[i], some.x).argmax(1) == some.y).double().mean())
        )
    return statistics.fmean(found)


def judge(method, data, rounds, seed, model=None, train=TRAIN):
    """Train, and return by step: whether the assignment is right, the numbers, and the two accuracies."""
    task = Classification(data, model or Mlp((32,)))
    scenario, lines = Periods(rounds_per_period=rounds).on(data, seed), []
    for snapshot in run(method, scenario, task, rounds=STEPS * rounds, train=train, seed=seed):
        step, rest = divmod(snapshot.round, rounds)
        if rest:
            continue
        params, numbers = assignment(snapshot)
        own = accuracy(task, params, data.test, step - 1)
        ahead = accuracy(task, params, data.train, step)
        lines.append((is_right(numbers, CHANGES[step - 1]), numbers, own, ahead))
    return lines


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print(
        "| data | method | right steps of 10, by seed | models | own % | next % |\n|---|---|---|---|---|---|"
    )
    for name in THRESHOLDS:
        for label, method in methods(name).items():
            runs = [
                judge(method, dataset(name, seed), options.rounds, seed)
                for seed in range(options.seeds)
            ]
            right = ", ".join(str(sum(line[0] for line in lines)) for lines in runs)
            used = ", ".join(str(len({n for line in lines for n in line[1]})) for lines in runs)
            cells = []
            for k in (2, 3):
                means = [100 * statistics.fmean(line[k] for line in lines) for lines in runs]
                spread = statistics.stdev(means) if len(means) > 1 else 0.0
                cells.append(f"{statistics.fmean(means):.1f} ± {spread:.1f}")
            print(f"| {name} | {label} | {right} | {used} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
