"""Crops and flips of a batch equal those of one image after the other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from chronofed.models.augment import crop_and_flip


def one_by_one(x: Tensor, generator: torch.Generator, padding: int) -> Tensor:
    """The slow version: pad, crop and flip each image on its own."""
    shifts = torch.randint(2 * padding + 1, (2, len(x), 1), generator=generator)
    flips = torch.randint(2, (len(x), 1), generator=generator)
    out = torch.empty_like(x)
    for at, image in enumerate(x):
        down, right = int(shifts[0, at]), int(shifts[1, at])
        padded = functional.pad(image, [padding] * 4)
        crop = padded[:, down : down + image.shape[1], right : right + image.shape[2]]
        out[at] = crop.flip(2) if flips[at] else crop
    return out


@given(
    shape=st.tuples(st.integers(0, 6), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)),
    padding=st.integers(0, 4),
    dtype=st.sampled_from([torch.uint8, torch.int64, torch.float32, torch.float64]),
    seed=st.integers(0, 2**32),
)
def test_equals_the_slow_version(shape, padding, dtype, seed):
    x = torch.randint(256, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    before = x.clone()
    fast = crop_and_flip(x, torch.Generator().manual_seed(seed), padding)
    slow = one_by_one(x, torch.Generator().manual_seed(seed), padding)
    assert fast.dtype == dtype
    assert torch.equal(fast, slow)
    assert torch.equal(x, before)


def test_the_generator_alone_decides():
    x = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    torch.manual_seed(1)
    first = crop_and_flip(x, torch.Generator().manual_seed(5))
    torch.manual_seed(2)
    assert torch.equal(first, crop_and_flip(x, torch.Generator().manual_seed(5)))
    assert not torch.equal(first, crop_and_flip(x, torch.Generator().manual_seed(6)))


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_every_shift_and_flip_occurs_and_no_other(padding):
    # One bright pixel left of the middle tells the shift and the flip apart.
    x = torch.zeros(4000, 1, 9, 9)
    x[:, 0, 4, 3] = 1
    out = crop_and_flip(x, torch.Generator().manual_seed(0), padding)
    seen = {(row, column) for _, _, row, column in out.nonzero().tolist()}
    shifts = range(-padding, padding + 1)
    assert seen == {
        (4 + down, base + right) for down in shifts for right in shifts for base in (3, 5)
    }
    assert out.sum() == 4000


def test_a_flip_is_as_likely_as_none():
    x = torch.tensor([1.0, 0.0]).expand(4000, 1, 1, 2)
    flipped = crop_and_flip(x, torch.Generator().manual_seed(0), padding=0)[:, 0, 0, 1].mean()
    assert abs(float(flipped) - 0.5) < 4 * 0.5 / 4000**0.5
