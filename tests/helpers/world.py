"""The small world that tests train in: its data, and a comparison of two runs."""

import torch

from chronofed import Dataset, Samples, Snapshot
from chronofed.methods.clusters.table import followed
from chronofed.runs.checkpoint import encode


def blobs(seed: int = 0, dtype: torch.dtype = torch.float32) -> Dataset:
    """Gaussian blobs, one a class."""
    generator = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(3, 5, generator=generator, dtype=torch.float64)

    def draw(n: int) -> Samples:
        y = torch.randint(3, (n,), generator=generator)
        noise = torch.randn(n, 5, generator=generator, dtype=torch.float64)
        return Samples((centres[y] + noise).to(dtype), y)

    return Dataset("blobs", draw(1200), draw(300), ("a", "b", "c"))


def same(a: Snapshot, b: Snapshot) -> bool:
    """Compare bit for bit: server, buffers, client states, the server's past, learned weights, traffic."""
    return encode(a) == encode(b)


def slopes(seed: int = 0, dtype: torch.dtype = torch.float32) -> Dataset:
    """A linear target with a little noise, scaled: a regression."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.tensor([0.8, -0.4, 0.3, 0.2, -0.2], dtype=torch.float64)

    def draw(n: int) -> Samples:
        x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
        noise = torch.randn(n, generator=generator, dtype=torch.float64)
        return Samples(x.to(dtype), (x @ weights + 0.1 * noise).to(dtype))

    return Dataset("slopes", draw(1200), draw(300), ())


def scores_of(task, scenario, snapshot: Snapshot) -> list:
    """Score the model on the test set; of several models each client's on the data set that it trained on last.

    Where clients with other classes follow other models, none of these learns all classes.
    """
    several = followed(snapshot.server)
    if several is None:
        pairs = [(snapshot.params, task.data.test)]
    else:
        models, places, _ = several
        visits = scenario.at(snapshot.round - 1).visits
        pairs = [(models[places[i]], task.samples(v.indices)) for i, v in visits.items()]
    objective = task.objective()
    return [task.score(objective, params, snapshot.buffers, some) for params, some in pairs]
