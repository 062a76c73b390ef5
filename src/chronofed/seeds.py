"""One seed, a tree of independent generators, no global state.

A generator is named by its purpose and place, e.g. ``("train", round, client)``. Nothing is ever drawn
from a generator of another purpose, so results depend neither on the number of workers nor on the order
in which they answer, and a resumed run needs no random state.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

_ONE_AT_A_TIME = RLock()  # torch has one global generator for all threads


def entropy(seed: int, *place: str | int) -> int:
    """A 63-bit number that belongs to ``seed`` and ``place`` alone.

    >>> entropy(0, "train", 3, 1) == entropy(0, "train", 3, 1) != entropy(0, "train", 31)
    True
    """
    text = "/".join([str(seed), *map(str, place)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def torch_generator(seed: int, *place: str | int) -> torch.Generator:
    """Torch's generator of one place in the run."""
    return torch.Generator().manual_seed(entropy(seed, *place))


def numpy_generator(seed: int, *place: str | int) -> np.random.Generator:
    """NumPy's generator of one place in the run."""
    return np.random.default_rng(entropy(seed, *place))


@contextmanager
def global_torch_seed(seed: int, *place: str | int) -> Iterator[None]:
    """Seed torch's global generator inside the block only, for code that takes no generator.

    Layer initialisers and dropout draw from the global generator; its state is put back afterwards.
    Other threads that want such a block wait for this one to end.
    """
    with _ONE_AT_A_TIME:
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(entropy(seed, *place))
        try:
            yield
        finally:
            torch.default_generator.set_state(state)
