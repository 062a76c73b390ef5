"""Short forms of vectors: the largest entries, or a few bits for every entry."""

import math

import torch
from torch import Generator, Tensor

from chronofed.core.types import Record, Vector

BYTE = 8


def top(vector: Vector, ratio: float) -> Record:
    """Return the entries of largest absolute value, a share of all, with their positions.

    >>> {n: t.tolist() for n, t in top(torch.tensor([1.0, -3.0, 0.5, 2.0]), ratio=0.5).items()}
    {'values': [-3.0, 2.0], 'positions': [1, 3]}
    """
    chosen = vector.abs().topk(math.ceil(ratio * len(vector))).indices.sort().values
    return {"values": vector[chosen], "positions": chosen.to(torch.int32)}


def spread(short: Record, length: int) -> Vector:
    """Return the vector of :func:`top`: zeros but for what was kept; positions beyond the end move to it."""
    vector = short["values"].new_zeros(length)
    vector[short["positions"].long().clamp(0, length - 1)] = short["values"]
    return vector


def quantise(vector: Vector, bits: int, generator: Generator) -> Record:
    r"""Round every entry at random to a few levels, so that the mean of the result is the vector.

    .. math:: Q(v)_k = \frac{\|v\|_\infty}{s}\, \mathrm{sign}(v_k)\, \big\lfloor |v_k|\, s / \|v\|_\infty + U_k
        \big\rfloor, \qquad s = 2^{b-1} - 1, \quad U_k \sim \mathcal U[0, 1)

    Args:
        vector: Any vector.
        bits: Bits *b* of an entry: 2, 4 or 8.
        generator: Source of the random numbers.

    Returns:
        ``scale`` and ``codes``, of which several share a byte.
    """
    levels, scale = _levels(bits), vector.abs().amax()
    share = torch.where(scale > 0, vector.double() * levels / scale.double(), 0.0)
    random = torch.rand(len(vector), generator=generator, dtype=torch.float64)
    whole = (share.abs() + random).floor_().clamp_(max=levels) * share.sign()
    return {"scale": scale, "codes": _packed((whole + levels).to(torch.uint8), bits)}


def restore(short: Record, bits: int, length: int) -> Vector:
    """Return the vector of :func:`quantise`; entries that only fill the last byte are 0, or cut off."""
    levels = _levels(bits)
    whole = _unpacked(short["codes"], bits)[:length].to(short["scale"]) - levels
    return whole * (short["scale"] / levels)


def _levels(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def _shifts(bits: int) -> Tensor:
    return torch.arange(0, BYTE, bits, dtype=torch.uint8)


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Put several codes into a byte; the last byte is filled with the code of 0."""
    shifts = _shifts(bits)
    rest = codes.new_full((-len(codes) % len(shifts),), _levels(bits))
    rows = torch.cat([codes, rest]).view(-1, len(shifts))
    return (rows << shifts).sum(1).to(torch.uint8)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    return ((packed[:, None] >> _shifts(bits)) & ((1 << bits) - 1)).flatten()
