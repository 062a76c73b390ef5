"""Memberships that repeat: day and night, and blocks of clients one after the other."""

import math
from typing import Literal

import numpy as np

from chronofed.core.config import Count, Natural, Positive
from chronofed.core.errors import SpecError
from chronofed.core.seeds import numpy_generator
from chronofed.scenarios.base import Indices
from chronofed.scenarios.membership import Membership, check_names


class Diurnal(Membership, tag="diurnal"):
    r"""Day and night: who is asked moves smoothly from one group of clients to the other, and back.

    Of the ``per_round`` clients of round *t* a binomial number with probability :math:`q(x)^p` are of the day,
    the others of the night, all without replacement, with :math:`x = (t \bmod T)/T` and

    .. math:: \text{linear:}\; q = 2\,|x - \tfrac12|, \qquad \text{cosine:}\; q = \tfrac12 (1 + \cos 2\pi x).

    Round 0 is all day, round *T*/2 all night. Reference: Zhu et al. (2022), Diurnal or Nocturnal? Federated
    Learning of Multi-branch Networks from Periodically Shifting Distributions.

    Attributes:
        per_round: Number of clients in a round; each group must have as many.
        period: Rounds :math:`T` of one day and night (32 and 256 in the publication).
        shape: Form of the change.
        power: The exponent :math:`p`; above 1 the night is longer, below 1 the day.
        day: Clients of the day; by default the first half.
    """

    per_round: Count = 10
    period: Count = 32
    shape: Literal["linear", "cosine"] = "linear"
    power: Positive = 1.0
    day: tuple[Natural, ...] | None = None

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """Draw from both groups."""
        rng = numpy_generator(seed, "diurnal", round_)
        by_day = int(rng.binomial(self.per_round, self.share(round_)))
        numbers = (by_day, self.per_round - by_day)
        groups = zip(self._groups(candidates), numbers, strict=True)
        drawn = [rng.choice(group, min(n, len(group)), replace=False) for group, n in groups]
        return np.sort(np.concatenate(drawn))

    def share(self, round_: int) -> float:
        """Return the probability that a client of this round is of the day.

        >>> [Diurnal(period=8).share(t) for t in (0, 2, 4, 6, 8)]
        [1.0, 0.5, 0.0, 0.5, 1.0]
        """
        x = (round_ % self.period) / self.period
        q = 2 * abs(x - 0.5) if self.shape == "linear" else (1 + math.cos(2 * math.pi * x)) / 2
        return float(q**self.power)

    def most(self, clients: int) -> int:
        """Number of clients in a round."""
        return min(self.per_round, clients)

    def check(self, clients: int) -> None:
        """Check that the named clients exist, and that both groups are large enough."""
        check_names("diurnal", max(self.day or (0,)), clients)
        for name, group in zip(("day", "night"), self._groups(np.arange(clients)), strict=True):
            if len(group) < self.per_round:
                msg = (
                    f"membership 'diurnal' asks {self.per_round} clients a round, but the {name} has "
                    f"{len(group)}: lower per_round, or use more clients"
                )
                raise SpecError(msg)

    def _groups(self, candidates: Indices) -> tuple[Indices, Indices]:
        if self.day is None:
            half = (len(candidates) + 1) // 2
            return candidates[:half], candidates[half:]
        inside = np.isin(candidates, self.day)
        return candidates[inside], candidates[~inside]


class Blocks(Membership, tag="blocks"):
    r"""Blocks of clients take turns: only block :math:`\lfloor t/L \rfloor \bmod B` is there in round *t*.

    This is the sampling of semi-cyclic SGD. The blocks are clients with neighbouring numbers, as equal in size
    as possible. Reference: Eichner et al. (2019), Semi-Cyclic Stochastic Gradient Descent.

    Attributes:
        blocks: Number of blocks :math:`B`.
        length: Rounds :math:`L` that a block stays.
    """

    blocks: Count = 2
    length: Count = 1

    def present(self, candidates: Indices, round_: int, seed: int) -> Indices:
        """The clients of one block."""
        return self._split(candidates)[round_ // self.length % self.blocks]

    def most(self, clients: int) -> int:
        """Clients of the largest block."""
        return -(-clients // self.blocks)

    def check(self, clients: int) -> None:
        """Check that every block has a client."""
        if clients < self.blocks:
            msg = (
                f"membership 'blocks' has {self.blocks} blocks, but there are {clients} clients: "
                "lower blocks"
            )
            raise SpecError(msg)

    def _split(self, candidates: Indices) -> list[Indices]:
        """Split into parts whose sizes differ by at most one, the larger first."""
        return list(np.array_split(candidates, self.blocks))
