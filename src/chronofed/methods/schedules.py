"""Schedules of learning rates and local steps over rounds: pure functions, which the server applies."""

import math
from abc import abstractmethod
from typing import Annotated

import msgspec

from chronofed.core.config import Count, Kind, Natural

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class LearningRateSchedule(Kind, kw_only=True):
    """The factor of ``train.lr`` in every round.

    The server applies it when it makes its orders, so that every client gets the rate of the round. It does not
    depend on the length of the run: a run that is extended goes on as if it had always been longer.

    Attributes:
        warmup_rounds: Rounds over which the rate rises in equal steps to ``lr``; the schedule itself starts
            after them.
    """

    warmup_rounds: Natural = 0

    def multiplier(self, round_: int) -> float:
        """Return the factor in a round, counted from 0.

        >>> [Constant(warmup_rounds=4).multiplier(t) for t in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
        """
        if round_ < self.warmup_rounds:
            return (round_ + 1) / self.warmup_rounds
        return self.after(round_ - self.warmup_rounds)

    @abstractmethod
    def after(self, round_: int) -> float:
        """Return the factor so many rounds after the warm-up."""


class Constant(LearningRateSchedule, tag="constant"):
    """The same learning rate in every round, after the warm-up."""

    def after(self, round_: int) -> float:
        """Return 1."""
        return 1.0


class Step(LearningRateSchedule, tag="step"):
    r"""A learning rate that falls at regular intervals: :math:`\gamma^{\lfloor t / T \rfloor}`.

    Attributes:
        every: Rounds :math:`T` between two falls.
        factor: Factor :math:`\gamma` of every fall.
    """

    every: Count
    factor: Share = 0.1

    def after(self, round_: int) -> float:
        r"""Return :math:`\gamma^{\lfloor t / T \rfloor}`.

        >>> [Step(every=2, factor=0.5).after(t) for t in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
        """
        return float(self.factor ** (round_ // self.every))


class Cosine(LearningRateSchedule, tag="cosine"):
    r"""A learning rate that falls along half a cosine, and stays at its last value.

    .. math:: \phi + (1 - \phi) \frac{1 + \cos(\pi\, \min(t, T) / T)}{2}

    Attributes:
        rounds: Rounds :math:`T` from the end of the warm-up until it has fallen. It is a key of its own, so
            that a run without end can have one, and a run that is extended keeps the rates of its first rounds.
        final: Share :math:`\phi` of ``lr`` at the end, above 0, so that a longer run goes on learning.
    """

    rounds: Count
    final: Share = 0.01

    def after(self, round_: int) -> float:
        r"""Return the factor.

        >>> [round(Cosine(rounds=4, final=0.2).after(t), 3) for t in (0, 2, 4, 9)]
        [1.0, 0.6, 0.2, 0.2]
        """
        fallen = (1 + math.cos(math.pi * min(round_, self.rounds) / self.rounds)) / 2
        return self.final + (1 - self.final) * fallen


class StepsSchedule(Kind, kw_only=True):
    """The number of local steps in every round.

    The server applies it when it makes its orders, so that all clients take it from there.
    """

    @abstractmethod
    def steps(self, round_: int) -> int | None:
        """Return the number of local steps in a round, counted from 0; ``None`` for that of ``train``."""


class PostLocal(StepsSchedule, tag="post-local"):
    """Post-local SGD: few local steps at first, and those of ``train`` later.

    With one step at first it is mini-batch SGD across clients, and from then on local SGD. The publication
    changes over when the learning rate falls for the first time; ``schedule = {kind = "step", every = ...}``
    with as many rounds does that.

    Reference: Lin et al. (2020), Don't Use Large Mini-Batches, Use Local SGD.

    Attributes:
        rounds: Number of rounds with few steps.
        first_steps: Number of local steps in them.
    """

    rounds: Count
    first_steps: Count = 1

    def steps(self, round_: int) -> int | None:
        """Return ``first_steps`` in the first rounds.

        >>> [PostLocal(rounds=2).steps(t) for t in range(4)]
        [1, 1, None, None]
        """
        return self.first_steps if round_ < self.rounds else None
