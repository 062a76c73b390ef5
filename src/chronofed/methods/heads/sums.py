"""Sums over samples in one vector, as clients send them."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from chronofed.methods.class_sums import packed, unpacked


@dataclass(frozen=True, slots=True)
class Sums:
    r"""Sums over samples, or over those that stand for more, with features :math:`f` and targets :math:`y`.

    Of classes, a target has a 1 in the column of the class. Of a regression, it has a column of ones, and the
    number.

    Attributes:
        size: Number of samples.
        counts: :math:`\sum_j y_j`, ``(columns,)``.
        features: :math:`\sum_j y_j f_j^\top`, ``(columns, k)``.
        products: :math:`\sum_j f_j f_j^\top`, ``(k, k)``.
    """

    size: float
    counts: Tensor
    features: Tensor
    products: Tensor

    @staticmethod
    def length(columns: int, k: int) -> int:
        """Return how many numbers the vector has.

        >>> Sums.length(10, 64)
        2732
        """
        return 2 + columns + columns * k + k * (k + 1) // 2

    @staticmethod
    def counts_in(vector: Tensor, columns: int) -> Tensor:
        """Read the counts alone."""
        return vector[1 : 1 + columns]

    @staticmethod
    def vector(targets: Tensor, features: Tensor, share: float) -> Tensor:
        r"""Add up samples, each of the same weight; the last number is the sum of squares of their weights.

        Args:
            targets: Of every sample, ``(n, columns)``.
            features: Of every sample, ``(n, k)``.
            share: The weight of a sample.
        """
        parts = targets.sum(0), (targets.mT @ features).view(-1), packed(features.mT @ features)
        size = len(targets) * share
        ends = targets.new_tensor([size, size * share])
        return torch.cat([ends[:1], torch.cat(parts) * share, ends[1:]])

    @classmethod
    def of(cls, vector: Tensor, shape: tuple[int, int]) -> Self:
        """Read a vector; ``shape`` is the number of columns, and that of features."""
        columns, k = shape
        counts, features, products = torch.split(
            vector[1:-1], [columns, columns * k, k * (k + 1) // 2]
        )
        return cls(float(vector[0]), counts, features.view(columns, k), unpacked(products, k))
