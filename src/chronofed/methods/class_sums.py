"""Sums of features over the samples of a client, by class: what CCVR and heads are computed from."""

from functools import lru_cache

import torch
from torch import Tensor

from chronofed.core.types import Objective, Samples, Vector


def features_at(
    objective: Objective, params: Vector, buffers: Vector, samples: Samples, layer: str | None
) -> Tensor:
    """Return the inputs of a layer, ``(n, k)``; the model's buffers stay as they are."""
    trained = objective.buffers
    objective.buffers = buffers
    found = objective.features(params, samples.x, layer)
    objective.buffers = trained
    return found


def sums_by_class(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Add up features by class, ``(classes, k)``."""
    zeros = features.new_zeros(classes, features.shape[1])
    return zeros.index_add_(0, labels, features)


def packed(products: Tensor) -> Tensor:
    """Return the upper triangle of symmetric matrices, row by row: ``(..., k, k)`` to ``(..., k (k + 1) / 2)``.

    >>> packed(torch.tensor([[1, 2], [2, 3]])).tolist()
    [1, 2, 3]
    """
    return products.flatten(-2).index_select(-1, _upper(products.shape[-1])[0])


def unpacked(upper: Tensor, k: int) -> Tensor:
    """Return symmetric matrices from their upper triangles: the inverse of :func:`packed`.

    >>> unpacked(torch.tensor([1, 2, 3]), 2).tolist()
    [[1, 2], [2, 3]]
    """
    return upper.index_select(-1, _upper(k)[1]).view(*upper.shape[:-1], k, k)


@lru_cache(maxsize=8)
def _upper(k: int) -> tuple[Tensor, Tensor]:
    """Return the places of the upper triangle in the square, and those of the square in the triangle."""
    rows, columns = torch.triu_indices(k, k)
    places = torch.zeros(k, k, dtype=torch.int64)
    places[rows, columns] = places[columns, rows] = torch.arange(len(rows))
    return rows * k + columns, places.flatten()
