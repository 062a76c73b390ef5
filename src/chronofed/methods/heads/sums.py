"""Sums over samples in one vector, as clients send them."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from chronofed.methods.class_sums import unpacked


@dataclass(frozen=True, slots=True)
class Sums:
    r"""Sums over samples with features :math:`f` and targets :math:`y`.

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
        2731
        """
        return 1 + columns + columns * k + k * (k + 1) // 2

    @classmethod
    def of(cls, vector: Tensor, shape: tuple[int, int]) -> Self:
        """Read a vector; ``shape`` is the number of columns, and that of features."""
        columns, k = shape
        counts, features, products = torch.split(
            vector[1:], [columns, columns * k, k * (k + 1) // 2]
        )
        return cls(float(vector[0]), counts, features.view(columns, k), unpacked(products, k))
