"""The pictures of docs/howto/heads.md, from the images that come with the package; takes some minutes.

    python benchmarks/head_pictures.py [--rounds 100] [--folder docs/_static]

One federation (examples/demo.toml without a memory, seed 0) is trained by FedAvg. Neither the mean of models nor a head
changes how it trains, so the curves of a picture belong to the same rounds.
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch

from chronofed import (
    Averaged,
    Classification,
    FedAvg,
    Frozen,
    Gaussian,
    Method,
    Mlp,
    Subsets,
    Train,
    load_data,
    run,
)
from chronofed.methods.backbones.base import SERVED
from chronofed.methods.heads.base import last_layer
from chronofed.methods.heads.sums import Sums

TRAIN = Train(lr=0.05, steps=5)
DECAYS = (0.3, 0.95, 1.0)
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#888888"


class Federation:
    """The demo's federation, and accuracies on its test images."""

    def __init__(self) -> None:
        self.data = load_data("fashion-mnist-mini")
        self.task = Classification(self.data, Mlp())
        self.scenario = Subsets(clients=7, subsets=30, client_alpha=0.1, time_alpha=0.1).on(
            self.data, seed=0
        )
        self.objective = self.task.objective()

    def snapshots(self, method, rounds, scenario=None):
        chosen = scenario or self.scenario
        return run(method, chosen, self.task, rounds=rounds, train=TRAIN)

    def predicted(self, params):
        """Return the predicted class of every test image."""
        return self.objective.logits(params, self.data.test.x).argmax(1)

    def accuracy(self, params):
        return 100 * float((self.predicted(params) == self.data.test.y).double().mean())

    def best_last_layer(self, params):
        """Return the accuracy of the features with a last layer fitted to all clients' training images."""
        rows = self.data.train
        f = self.objective.features(params, rows.x).double()
        targets = torch.nn.functional.one_hot(rows.y, 10).double()
        state = {"head_seen": targets.sum(0)}
        sums = Sums.of(Sums.vector(targets, f, 1.0), (10, f.shape[1]))
        head = Gaussian(decay=1.0, prior="seen")
        weight, bias = head.solve(sums, float(len(rows)), state)
        found = self.objective.features(params, self.data.test.x).double() @ weight.mT + bias
        return 100 * float((found.argmax(1) == self.data.test.y).double().mean())


def save(figure, folder, name):
    figure.tight_layout()
    figure.savefig(folder / f"heads-{name}.png", dpi=110)
    plt.close(figure)


def curves(lines, title):
    """Draw accuracies over rounds; lines are label, colour and values."""
    figure, axes = plt.subplots(figsize=(7, 3.2))
    for label, colour, values in lines:
        axes.plot(range(1, len(values) + 1), values, color=colour, label=label, linewidth=1.4)
    axes.set(xlabel="round", ylabel="test accuracy %", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    return figure


def swing(found, folder):
    """Draw how often each class is predicted, and the accuracy that the features allow."""
    figure, (shares, accuracy) = plt.subplots(1, 2, figsize=(10, 3.4))
    counts = np.array([np.bincount(p, minlength=10) for p in found["classes"]]) / 10
    shares.imshow(100 * counts.T / counts.sum(1), aspect="auto", cmap="Blues", vmin=0, vmax=40)
    shares.set(xlabel="round", ylabel="class", title="How often FedAvg's model predicts a class")
    rounds = range(1, len(found["last"]) + 1)
    accuracy.plot(rounds, found["best"], color=GREEN, label="its features, best last layer")
    accuracy.plot(rounds, found["last"], color=GREY, label="its own last layer")
    accuracy.set(xlabel="round", ylabel="test accuracy %", title="Features stay good")
    accuracy.grid(alpha=0.3)
    accuracy.legend(loc="lower right", frameon=False)
    save(figure, folder, "swing")


def follow(here, rounds):
    """Train once; return what the pictures need of every round."""
    found = {name: [] for name in ("last", "mean", "head", "best", "classes")}
    for snapshot in here.snapshots(Method(Averaged(FedAvg()), head=Gaussian()), rounds):
        server = snapshot.server
        found["classes"].append(here.predicted(server["params"]).numpy())
        found["last"].append(here.accuracy(server["params"]))
        found["mean"].append(here.accuracy(server["averaged"]))
        found["head"].append(here.accuracy(server[SERVED]))
        found["best"].append(here.best_last_layer(server["params"]))
    return found


def decays(here, rounds, folder):
    lines = []
    for decay, colour in zip(DECAYS, (GREY, BLUE, ORANGE), strict=True):
        method = Method(FedAvg(), head=Gaussian(decay=decay, samples="all"))
        values = [here.accuracy(s.params) for s in here.snapshots(method, rounds)]
        lines.append((f"decay {decay:g}", colour, values))
    save(curves(lines, "Heads on the last model, by decay"), folder, "decay")


class Without:
    """A scenario without one client."""

    def __init__(self, inner, client) -> None:
        self._inner, self._client = inner, client

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def at(self, round_):
        plan = self._inner.at(round_)
        plan.visits.pop(self._client)
        return plan


def forgetting(here, folder, client=3):
    """Draw the head of a frozen body before and after a client is forgotten, against one that never saw it."""
    method = Method(Frozen(), head=Gaussian(decay=1.0, prior="seen", by_client=True))
    *_, with_it = here.snapshots(method, 10)
    *_, never = here.snapshots(method, 10, Without(here.scenario, client))
    after = method.serve(method.composed.forget(with_it.server, [client]))[SERVED]
    layer = last_layer(here.objective, None)
    span = slice(layer.weight.start, layer.weight.stop)
    want = never.params[span]
    figure, axes = plt.subplots(figsize=(4.6, 3.6))
    for params, colour, label in (
        (with_it.params, GREY, "before"),
        (after, BLUE, "after forgetting"),
    ):
        axes.plot(want, params[span], ".", color=colour, markersize=2, label=label)
    axes.set(xlabel="weights of a model that never saw the client", ylabel="weights of the model")
    axes.legend(frameon=False, markerscale=4)
    axes.grid(alpha=0.3)
    save(figure, folder, "forgetting")
    print("largest difference:", float((after[span] - want).abs().max()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("docs/_static"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    here = Federation()
    found = follow(here, options.rounds)
    swing(found, options.folder)
    last, mean, head = (found[name] for name in ("last", "mean", "head"))
    figure = curves([("last model", GREY, last), ("mean of models", BLUE, mean)], "Mean of models")
    save(figure, options.folder, "mean")
    lines = [("mean of models", BLUE, mean), ("its features with a head from sums", ORANGE, head)]
    save(curves([("last model", GREY, last), *lines], "A head from sums"), options.folder, "sums")
    forgetting(here, options.folder)
    decays(here, options.rounds, options.folder)
    for name, values in (*found.items(),):
        if name != "classes":
            print(name, f"anytime {np.mean(values):.1f}, last {values[-1]:.1f}")


if __name__ == "__main__":
    main()
