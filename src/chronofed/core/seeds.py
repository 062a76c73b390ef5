"""Independent random generators derived from one seed, without global state.

A generator is named by its purpose and place, such as ``("train", round, client)``. Every purpose has its own
generator, so results depend neither on the number of workers nor on the order of their answers, and a resumed
run needs no random state.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

# Torch has one global generator for all threads.
_ONE_AT_A_TIME = RLock()


def entropy(seed: int, *place: str | int) -> int:
    """Hash a seed and a place to a 63-bit number.

    >>> entropy(0, "train", 3, 1) == entropy(0, "train", 3, 1) != entropy(0, "train", 31)
    True
    """
    text = "/".join([str(seed), *map(str, place)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def torch_generator(seed: int, *place: str | int) -> torch.Generator:
    """Return the torch generator of one place in the run."""
    return torch.Generator().manual_seed(entropy(seed, *place))


def numpy_generator(seed: int, *place: str | int) -> np.random.Generator:
    """Return the NumPy generator of one place in the run."""
    return np.random.default_rng(entropy(seed, *place))


@contextmanager
def global_torch_seed(seed: int, *place: str | int) -> Iterator[None]:
    """Seed torch's global generator inside the block only, for code that takes no generator.

    Layer initialisers and dropout draw from the global generator. Its state is restored afterwards. Other
    threads wait at such a block until this one ends.
    """
    with _ONE_AT_A_TIME:
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(entropy(seed, *place))
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


@contextmanager
def torch_state_restored() -> Iterator[None]:
    """Give torch's global generator back as it was, but never while another thread has seeded it."""
    with _ONE_AT_A_TIME:
        state = torch.default_generator.get_state()
    try:
        yield
    finally:
        with _ONE_AT_A_TIME:
            torch.default_generator.set_state(state)
