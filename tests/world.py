"""The data of the small world that tests train in."""

import torch

from chronofed import Dataset, Samples


def blobs(seed: int = 0, dtype: torch.dtype = torch.float32) -> Dataset:
    """Gaussian blobs, one a class."""
    generator = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(3, 5, generator=generator, dtype=torch.float64)

    def draw(n: int) -> Samples:
        y = torch.randint(3, (n,), generator=generator)
        noise = torch.randn(n, 5, generator=generator, dtype=torch.float64)
        return Samples((centres[y] + noise).to(dtype), y)

    return Dataset("blobs", draw(1200), draw(300), ("a", "b", "c"))
