"""Write a memory of your own: prototypes, the mean of every class, instead of a core set.

Run: python examples/own_memory.py
"""

import numpy as np
import torch

from chronofed import (
    Classification,
    Forget,
    Memory,
    Method,
    Mlp,
    Pool,
    Samples,
    Subsets,
    Surrogate,
    Timeline,
    Train,
    load_data,
    run,
)


class Prototypes(Memory):
    """Keeps the mean of every class of a data set on the client, and replays the means."""

    location = "client"

    def observe(self, objective, params, samples, generator):
        """Return what to keep of the present data set."""
        classes = samples.y.unique()
        inputs = objective.encode(samples.x)  # bytes as numbers
        means = torch.stack([inputs[samples.y == each].mean(0) for each in classes])
        return {"x": objective.decode(means, like=samples.x), "y": classes}

    def recall(self, kept, weights, moment):
        """Return the past objectives: every kept data set with the weight of its round."""
        past = [item for item in kept if item.key != moment.key]
        sizes = tuple(len(item.record["y"]) for item in past)
        rounds = tuple(item.round for item in past)
        *shares, present = weights(Timeline(rounds, sizes, moment.round, moment.size))
        if not past:
            return Surrogate()
        pieces = [Samples(item.record["x"], item.record["y"]) for item in past]
        each = np.repeat(np.divide(shares, sizes), sizes)  # (prototypes,)
        return Surrogate(float(present), Pool(pieces, torch.from_numpy(each)))


def main() -> None:
    """Compare it with no memory, on clients whose classes change from round to round."""
    data = load_data("fashion-mnist-mini")
    scenario = Subsets(clients=5, subsets=10, client_alpha=0.1).on(data, seed=0)
    task = Classification(data, Mlp(hidden=(32,)))
    for memory in (Forget(), Prototypes()):
        *_, last = run(Method(memory=memory), scenario, task, rounds=8, train=Train(steps=10))
        score = task.score(task.objective(), last.params, last.buffers, data.test)
        print(f"{type(memory).__name__}: accuracy {score.accuracy:.3f}")


if __name__ == "__main__":
    main()
