"""Ridge."""

from typing import ClassVar

import torch

from chronofed.core.types import Record
from chronofed.methods.heads.base import PLACE, Head, Solution
from chronofed.methods.heads.shrinking import factor, oas, shrunk
from chronofed.methods.heads.sums import Sums


class Ridge(Head, tag="ridge"):
    r"""Ridge regression of the targets on the features, from the same sums.

    .. math::
        W = C_{yf} \big((1 - \rho) C_{ff} + \rho \tfrac{\operatorname{tr} C_{ff}}{k} I\big)^{-1}, \qquad
        b = \bar y - W \bar f

    with the covariances of features and targets. For numbers it is the head of a regression. For classes the
    target is 1 for the sample's class and 0 for others: the largest output is the class, but outputs are no
    logits, so the cross-entropy of the test set says little; ``gaussian`` has probabilities.

    Attributes:
        decay: Weight of sums relative to the next; ``auto``: the one with the smallest squared error of the
            next round.
        shrinkage: Share :math:`\rho` of the identity; ``oas``: by formula.
        body: The model whose features count: the one that is ``served``, or the one that is ``trained``.
        write_back: Put the head into the model that clients train, too, scaled to the norm of the old one.
        by_client: Keep the sums of every client on the server, so that a client can be forgotten exactly.
        every: Most rounds from one in which clients send sums to the next. ``auto``: 8; 1 if ``decay`` is 1.
        samples: Most samples of a client's data set that are added up. ``auto``: one for every eight that local
            training passes over in ``every`` rounds; all, if ``decay`` is 1.
        bound: Largest l2 norm of a client's sums, which ``clipped`` and ``private`` need.
        layer: Name of the last layer; by default the last one whose weights are a matrix.
    """

    reference: ClassVar[str] = (
        "Hoerl and Kennard (1970), Ridge Regression: Biased Estimation for Nonorthogonal Problems"
    )

    def solve(self, sums: Sums, effective: float, state: Record) -> Solution:
        """Return the coefficients."""
        # The first column of a regression counts samples.
        regression = int(state[PLACE][4]) == 1
        features = sums.features[0] if regression else sums.features.sum(0)
        targets, products = (
            (sums.counts[1:], sums.features[1:]) if regression else (sums.counts, sums.features)
        )
        mean, target = features / sums.size, targets / sums.size
        covariance = sums.products / sums.size - mean[:, None] * mean
        share = oas(covariance, effective) if self.shrinkage == "oas" else self.shrinkage
        cross = products / sums.size - target[:, None] * mean
        root = factor(shrunk((covariance + covariance.mT) / 2, share))
        weight = torch.cholesky_solve(cross.mT, root).mT
        return weight, target - weight @ mean

    def score(self, before: Sums, effective: float, state: Record, new: Sums) -> float:
        """Return the negative squared error per sample, up to the square of the targets."""
        weight, bias = self.solve(before, effective, state)
        regression = len(bias) == 1
        features = new.features[0] if regression else new.features.sum(0)
        targets, products = (
            (new.counts[1:], new.features[1:]) if regression else (new.counts, new.features)
        )
        square = (weight @ new.products * weight).sum() + 2 * bias @ (weight @ features)
        square = square + new.size * bias.square().sum()
        cross = (weight * products).sum() + bias @ targets
        return -float(square - 2 * cross) / new.size
