"""Sums of features over the samples of a client, by class: what CCVR and heads are computed from."""

import torch
from torch import Tensor

from chronofed.core.types import Objective, Samples, Vector


def features_at(
    objective: Objective, params: Vector, buffers: Vector, samples: Samples, layer: str | None
) -> Tensor:
    """Return the inputs of a layer in double precision, ``(n, k)``; the model's buffers stay as they are."""
    trained = objective.buffers
    objective.buffers = buffers
    found = objective.features(params, samples.x, layer)
    objective.buffers = trained
    return found.double()


def sums_by_class(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Add up features by class, ``(classes, k)``."""
    zeros = features.new_zeros(classes, features.shape[1])
    return zeros.index_add_(0, labels, features)


def packed(products: Tensor) -> Tensor:
    """Return the upper triangle of symmetric matrices, row by row: ``(..., k, k)`` to ``(..., k (k + 1) / 2)``.

    >>> packed(torch.tensor([[1, 2], [2, 3]])).tolist()
    [1, 2, 3]
    """
    rows, columns = torch.triu_indices(*products.shape[-2:])
    return products[..., rows, columns]


def unpacked(upper: Tensor, k: int) -> Tensor:
    """Return symmetric matrices from their upper triangles: the inverse of :func:`packed`.

    >>> unpacked(torch.tensor([1, 2, 3]), 2).tolist()
    [[1, 2], [2, 3]]
    """
    rows, columns = torch.triu_indices(k, k)
    square = upper.new_zeros(*upper.shape[:-1], k, k)
    square[..., rows, columns] = upper
    return square + square.triu(1).mT
