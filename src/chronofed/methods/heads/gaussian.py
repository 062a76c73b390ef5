"""Gaussian."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import SERVED
from chronofed.methods.heads.base import DISCOUNT, PLACE, PRIORS, SEEN, TOTALS, Head, Solution
from chronofed.methods.heads.shrinking import factor, oas, shrunk
from chronofed.methods.heads.sums import Sums

PRIOR_NAMES = ("seen", "uniform", "recent")
# Samples that a class that nobody has had yet is worth.
SMOOTHING = 0.5


class Gaussian(Head, tag="gaussian"):
    r"""Linear discriminant analysis of the features: classes are normal with one covariance.

    .. math::
        \mu_c = \frac{s_c}{N_c}, \quad S_w = \frac1N \Big(S - \sum_c N_c \mu_c \mu_c^\top\Big), \quad
        S_\rho = (1 - \rho) S_w + \rho \frac{\operatorname{tr} S_w}{k} I, \quad
        W_c = S_\rho^{-1} \mu_c, \quad b_c = -\tfrac12 \mu_c^\top S_\rho^{-1} \mu_c + \log \pi_c

    with the decayed sums :math:`N_c`, :math:`s_c` and :math:`S`. Where features stand still and ``decay`` is 1,
    it is the discriminant analysis of all data pooled. A row that all classes share is taken off *W* and *b*:
    that changes no probability. A class that nobody has had lies at the mean of all features and has the prior
    of half a sample.

    It helps where a client has few classes: then the last layer swings from round to round towards those that
    were there, while features stay good. A client sends :math:`C + C k + k (k + 1) / 2 + 2` more numbers for
    *C* classes and *k* features and computes the features once; the server solves a system of size *k*, for
    every decay that it follows.

    Attributes:
        decay: Weight :math:`\gamma` of sums relative to the next; ``auto``: by evidence.
        shrinkage: Share :math:`\rho` of the identity; ``oas``: by formula.
        body: The model whose features count: the one that is ``served``, or the one that is ``trained``.
        write_back: Put the head into the model that clients train, too, scaled to the norm of the old one.
        by_client: Keep the sums of every client on the server, so that a client can be forgotten exactly.
        every: Most rounds from one in which clients send sums to the next. ``auto``: 8; 1 if ``decay`` is 1.
        samples: Most samples of a client's data set that are added up. ``auto``: one for every eight that local
            training passes over in ``every`` rounds; all, if ``decay`` is 1.
        bound: Largest l2 norm of a client's sums, which ``clipped`` and ``private`` need.
        layer: Name of the last layer; by default the last one whose weights are a matrix.
        prior: The prior :math:`\pi_c`. ``seen``: the shares of the classes in all rounds. ``recent``: those
            with the decay. ``uniform``: equal for all classes that were seen. ``auto``: the one under which
            the class counts of every next round were most likely.
        personal: Give every client a model of its own as well, with the prior of its present data set: the same
            weights with another bias. ``personal_accuracy`` measures it. Nothing is sent or kept for it.
    """

    reference: ClassVar[str] = (
        "Fisher (1936), The Use of Multiple Measurements in Taxonomic Problems; with decayed sums over a body "
        "that trains: this package"
    )
    task: ClassVar[Literal["classification", "regression"] | None] = "classification"

    prior: Literal["auto", "seen", "uniform", "recent"] = "auto"
    personal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by_client and self.prior not in ("seen", "uniform"):
            raise ValueError(
                "Gaussian.by_client: evidence for a prior cannot be taken back; set prior = 'seen' or 'uniform'"
            )

    def solve(self, sums: Sums, effective: float, state: Record) -> Solution:
        """Return the discriminant functions."""
        means = class_means(sums)
        root = factor(self.covariance(sums, effective))
        weight = torch.cholesky_solve(means.mT, root).mT
        bias = self.log_prior(sums, state) - (weight * means).sum(1) / 2
        return weight - weight.mean(0), bias - bias.mean()

    def covariance(self, sums: Sums, effective: float) -> Tensor:
        """Return the shrunk covariance within classes, ``(k, k)``."""
        within = within_covariance(sums)
        share = oas(within, effective) if self.shrinkage == "oas" else self.shrinkage
        return shrunk(within, share)

    def log_prior(self, sums: Sums, state: Record) -> Tensor:
        """Return the logarithms of the prior, ``(classes,)``."""
        if self.prior != "auto":
            return _log_prior(self.prior, sums.counts, state[SEEN])
        scores = state[PRIORS].tolist()
        return _log_prior(PRIOR_NAMES[scores.index(max(scores))], sums.counts, state[SEEN])

    def personalised(self, server: Record, counts: Tensor) -> Vector | None:
        """Return the model that is served with a client's own prior.

        Args:
            server: The server's state.
            counts: Number of samples of every class in the client's data set, ``(classes,)``.

        Returns:
            ``None`` before there is a head.
        """
        if not self.personal or SERVED not in server:
            return None
        k = self.best(server)
        sums = Sums.of(server[TOTALS][k], self._shape(server))
        own = counts.double() + SMOOTHING
        change = (own / own.sum()).log() - self.log_prior(sums, server)
        first, last = server[PLACE].tolist()[2:4]
        params: Vector = server[SERVED].clone()
        params[first:last] += change.to(params)
        return params

    def score(self, before: Sums, effective: float, state: Record, new: Sums) -> float:
        """Return the log-likelihood of a round's features given their classes, per sample."""
        means, root = class_means(before), factor(self.covariance(before, effective))
        cross = new.features.mT @ means
        spread = new.products - cross - cross.mT + (means.mT * new.counts) @ means
        distance = float((torch.cholesky_inverse(root) * spread).sum())
        log_determinant = 2 * float(root.diagonal().log().sum())
        return -(distance / new.size + log_determinant) / 2

    def report(self, server: Record) -> dict[str, float]:
        """Return decay and shrinkage that are used."""
        chosen = super().report(server)
        k = self.best(server)
        sums = Sums.of(server[TOTALS][k], self._shape(server))
        if sums.size <= 0:
            return chosen
        share = self.shrinkage
        if share == "oas":
            share = oas(within_covariance(sums), self._effective(server, k))
        return {**chosen, "head_shrinkage": share}

    def _priors_scored(self, state: Record, counts: Tensor) -> Tensor:
        scores: Tensor = state[PRIORS]
        size = float(counts.sum())
        if self.prior != "auto" or size <= 0 or float(state[SEEN].sum()) <= 0:
            return scores
        recent = Sums.counts_in(state[TOTALS][self.best(state)], len(counts))
        found = [
            float(counts @ _log_prior(name, recent, state[SEEN])) / size for name in PRIOR_NAMES
        ]
        return scores * DISCOUNT + torch.tensor(found, dtype=torch.float64)


def class_means(sums: Sums) -> Tensor:
    """Return the mean of every class, ``(classes, k)``; of one without samples that of all."""
    overall = sums.features.sum(0) / sums.size
    known = sums.counts > 0
    counts = sums.counts.where(known, torch.ones_like(sums.counts))
    return (sums.features / counts[:, None]).where(known[:, None], overall)


def within_covariance(sums: Sums) -> Tensor:
    """Return the covariance within classes, ``(k, k)``."""
    means, counts = class_means(sums), sums.counts.clamp(min=0)
    found = (sums.products - (means.mT * counts) @ means) / sums.size
    return (found + found.mT) / 2


def _log_prior(name: str, recent: Tensor, seen: Tensor) -> Tensor:
    """Return the logarithms of a prior; a class without samples is worth half of one."""
    counts = (recent if name == "recent" else seen).clamp(min=0)
    known = counts > 0
    if not known.any():
        return torch.full_like(counts, 1 / len(counts)).log()
    shares = known.double() / known.sum() if name == "uniform" else counts / counts.sum()
    rare = min(SMOOTHING / float(counts.sum()), float(shares[known].min()) / 2)
    return shares.masked_fill(~known, rare).log()
