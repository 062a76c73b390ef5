"""Local training of one client in one round: its objective, its data, and gradient descent."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Literal, Protocol

import msgspec
import torch
from torch import Generator, Tensor

from chronofed.core.config import Config, Count, Decay, Fraction, NonNegative, Positive
from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Batch, Objective, Record, Samples, Vector
from chronofed.methods.optimizers import State, adamw_, adamw_state, clip_, sgd_, sgd_state
from chronofed.methods.schedules import LearningRateSchedule, StepsSchedule
from chronofed.methods.surrogate import LossTerms, Pool, Surrogate, lone_samples
from chronofed.methods.teaching import check_teachers, distil_

# Samples per pass of a full gradient. It bounds memory and does not change the result: where samples depend on
# their batch, the batches of training are used instead.
FULL_GRADIENT_SAMPLES = 256


class Train(Config):
    """Settings of local training.

    Attributes:
        lr: Local learning rate.
        batch_size: Samples in a mini-batch. ``full``: every step uses all samples, including replayed ones,
            each with its own weight; an epoch is then one step. With BatchNorm, a single sample that is left at
            the end of an epoch joins the mini-batch before it.
        epochs: Passes over the data; ignored if ``steps`` is given.
        steps: Number of local steps K.
        momentum: Momentum of the local steps of ``sgd``.
        weight_decay: Weight of the l2 penalty; ``adamw`` decouples it from the gradient.
        epoch: Length of one pass. ``present``: as many steps as the present data alone would take, so that
            methods with and without a memory do the same work. ``union``: replayed samples count too.
        slow: Probability that a client is slow in a round. A slow client does only a part of its steps, any
            number from 1 to K with equal probability.
        nesterov: Nesterov's momentum, as PyTorch defines it.
        optimizer: Rule of the local steps: ``sgd``, or ``adamw``.
        betas: Decays of AdamW's running means of the gradient and of its square.
        eps: Term that AdamW adds to the denominator.
        optimizer_state: Fate of momentum or of AdamW's running means at the end of a round. ``reset``: every
            round starts anew. ``keep``: they stay on the client until it comes back, and are sent nowhere.
        clip_norm: Largest l2 norm of every stochastic gradient of the present and the remembered past. Longer
            ones are scaled down, before a backbone's own terms, weight decay and momentum.
        schedule: Learning rate over rounds; by default ``lr`` in every round.
        steps_schedule: Number of local steps over rounds; by default that of ``steps`` or ``epochs`` in every
            round.
    """

    lr: Positive = 0.05
    batch_size: Count | Literal["full"] = 32
    epochs: Positive = 1.0
    steps: Count | None = None
    momentum: Decay = 0.0
    weight_decay: NonNegative = 0.0
    epoch: Literal["present", "union"] = "present"
    slow: Fraction = 0.0
    nesterov: bool = False
    optimizer: Literal["sgd", "adamw"] = "sgd"
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Positive = 1e-8
    optimizer_state: Literal["reset", "keep"] = "reset"
    clip_norm: Positive | None = None
    schedule: LearningRateSchedule | None = None
    steps_schedule: StepsSchedule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        adamw = self.optimizer == "adamw"
        if adamw and (self.momentum or self.nesterov):
            raise ValueError("momentum and nesterov are for optimizer = 'sgd'; adamw has betas")
        if not adamw and (self.betas, self.eps) != ((0.9, 0.999), 1e-8):
            raise ValueError("betas and eps are for optimizer = 'adamw'")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum above 0, such as momentum = 0.9")
        if self.keeps_state and not adamw and not self.momentum:
            raise ValueError(
                "optimizer_state = 'keep': plain sgd has none; set momentum, or leave it out"
            )

    @property
    def keeps_state(self) -> bool:
        """True if clients keep the state of their optimiser between rounds."""
        return self.optimizer_state == "keep"

    def at(self, round_: int) -> "Train":
        """Return the settings of a round: with its learning rate and its steps, and no schedules."""
        if self.schedule is None and self.steps_schedule is None:
            return self
        factor = 1.0 if self.schedule is None else self.schedule.multiplier(round_)
        few = None if self.steps_schedule is None else self.steps_schedule.steps(round_)
        return msgspec.structs.replace(
            self,
            # Many falls may leave nothing, but a rate is above 0.
            lr=max(self.lr * factor, math.ulp(0.0)),
            steps=self.steps if few is None else few,
            schedule=None,
            steps_schedule=None,
        )

    def first_state(self, params: Tensor) -> State:
        """Return the optimiser's state before the first step, for ``(d,)`` or ``(clients, d)``."""
        if self.optimizer == "adamw":
            return adamw_state(params)
        return sgd_state(params, self.momentum)

    def step_(self, params: Tensor, direction: Tensor, state: State) -> None:
        """Take one step in place, on ``(d,)`` or ``(clients, d)``; ``direction`` is modified."""
        if self.optimizer == "adamw":
            adamw_(params, direction, state, self.lr, self.weight_decay, self.betas, self.eps)
        else:
            rest = self.weight_decay, self.momentum, self.nesterov
            sgd_(params, direction, state, self.lr, *rest)

    def count(self, present: int, union: int, least: int = 1) -> int:
        """Return the number of local steps for the given numbers of samples.

        A last mini-batch of fewer than ``least`` samples joins the one before it, and is no step of its own.
        """
        if self.steps is not None:
            return self.steps
        samples = present if self.epoch == "present" else union
        if self.batch_size == "full":
            return math.ceil(self.epochs)
        samples -= lone_samples(samples, self.batch_size, least)
        return max(1, math.ceil(self.epochs * samples / self.batch_size))

    def pace(self, generator: Generator) -> float:
        """Draw the share of its steps that a client completes this round, in (0, 1]."""
        slow, share = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        return 1.0 - share if slow < self.slow else 1.0


class Local(Protocol):
    """Everything that a backbone may use of a client in a round.

    A method declared :func:`~chronofed.core.stacking.stacked` may get many clients at once: parameters and
    gradients are then ``(clients, d)``, and what only a single client can compute raises an error.
    """

    @property
    def objective(self) -> Objective:
        """The model as a function of a flat vector."""
        ...

    @property
    def train(self) -> Train:
        """Settings of training."""
        ...

    @property
    def steps(self) -> int:
        """Number of local steps in this round."""
        ...

    @property
    def samples(self) -> Samples:
        """The present data."""
        ...

    @property
    def key(self) -> int:
        """Number of the present data set on its client: the same number means the same samples."""
        ...

    @property
    def scratch(self) -> dict[str, Tensor]:
        """Notes of one exchange, which are thrown away after it: ``gradient`` writes, ``finish`` reads.

        It is for variables that move with every local step. A method that uses it is not declared ``stacked``.
        """
        ...

    def stochastic_gradient(self, params: Vector, offset: Tensor | None = None) -> Vector:
        r"""Unbiased gradient of :math:`p_t f_t + \sum_\tau p_\tau \tilde f_\tau` at ``params``.

        ``offset``, ``(classes,)``, is added to the logits of all samples before the loss.
        """
        ...

    def stochastic_gradients(self, *points: Vector, offset: Tensor | None = None) -> list[Vector]:
        """The same mini-batch's gradient at several points; only the first counts for the buffers."""
        ...

    def full_gradient(self, params: Vector, offset: Tensor | None = None) -> Vector:
        r"""Gradient of the whole local objective, the mean of :meth:`stochastic_gradient` over an epoch.

        It is exact where samples do not depend on each other. With BatchNorm the objective of local steps
        depends on the batch size, since every mini-batch is normalised by its own statistics. The correction
        :math:`g(w) - g(w_t) + \nabla f_i(w_t)` of Mime, and :math:`g - c_i + c` of SCAFFOLD, need the mean of
        just these gradients: it is taken over mini-batches of the size of training, in an order that depends on
        the number of samples only. Running statistics would give the gradient of another function. The model's
        buffers stay as they are.
        """
        ...

    def descend(self, start: Vector, direction: Callable[[Vector], Vector]) -> Vector:
        r"""Take K steps :math:`w \gets w - \eta_l\, d(w)` from ``start``, or those of another optimiser.

        The result of ``direction`` is modified in place and must not be aliased. Every call in a round has an
        optimiser state of its own.
        """
        ...


@dataclass(frozen=True, slots=True)
class ClientLocal:
    """One client in one round: the :class:`Local` of a single client.

    Attributes:
        objective: The model as a function of a flat vector.
        samples: The present data.
        past: The remembered objectives.
        train: Settings of local training.
        generator: Random generator of this visit.
        pace: Share of the steps that the client completes.
        optimizer_state: What the client kept of its optimisers, by the number of the descent in a round.
        key: Number of the present data set.
        scratch: Notes of a backbone during this exchange.
        buffers: The model's buffers at the beginning of the round; ``None`` if it has none.
        terms: What the method changes about the loss, if anything; its teachers are among those of the past.
    """

    objective: Objective
    samples: Samples
    past: Surrogate
    train: Train
    generator: Generator
    pace: float = 1.0
    optimizer_state: Record = field(default_factory=dict)
    key: int = 0
    scratch: dict[str, Tensor] = field(default_factory=dict)
    buffers: Vector | None = None
    terms: LossTerms | None = None
    pool: Pool = field(init=False)
    steps: int = field(init=False)
    _draws: Iterator[tuple[Tensor, Tensor]] = field(init=False, repr=False)
    descents: list[State] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        pool = self.past.pool(self.samples)
        object.__setattr__(self, "pool", pool)
        least, size = self._least, self.train.batch_size
        steps = math.ceil(self.pace * self.train.count(len(self.samples), len(pool), least))
        object.__setattr__(self, "steps", steps)
        draws = _whole(pool) if size == "full" else pool.draws(size, self.generator, least)
        object.__setattr__(self, "_draws", draws)
        check_teachers(self.past.teachers, self.objective)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw the next mini-batch: positions in the pool, and weights."""
        return next(self._draws)

    def next_batch(self) -> Batch:
        """Draw the next mini-batch, augmented."""
        drawn = self.draw()
        batch = self.pool.whole() if self.train.batch_size == "full" else self.pool.at(*drawn)
        return replace(batch, x=self.objective.augment(batch.x, self.generator))

    def stochastic_gradient(self, params: Vector, offset: Tensor | None = None) -> Vector:
        r"""Compute an unbiased gradient of :math:`p_t f_t + \sum_\tau p_\tau \tilde f_\tau` at ``params``."""
        (gradient,) = self.stochastic_gradients(params, offset=offset)
        return gradient

    def stochastic_gradients(self, *points: Vector, offset: Tensor | None = None) -> list[Vector]:
        """Compute one mini-batch's gradient at several points; only the first updates the buffers."""
        same = replace(self.next_batch(), offset=offset)
        if len(points) == 1:
            return [self.batch_gradient(points[0], same)]
        state = torch.default_generator.get_state()
        gradients = [self.batch_gradient(points[0], same)]
        buffers = self.objective.buffers
        for params in points[1:]:
            # All points see the same dropout.
            torch.default_generator.set_state(state)
            gradients.append(self.batch_gradient(params, same))
        self.objective.buffers = buffers
        return gradients

    def full_gradient(self, params: Vector, offset: Tensor | None = None) -> Vector:
        """Compute the gradient of the whole local objective; the model's buffers do not change."""
        buffers = self.objective.buffers
        total = torch.zeros_like(params)
        for batch in self._epoch():
            shaped = self._shaped(replace(batch, offset=offset))
            total.add_(self.objective.gradient(params, shaped))
        self.objective.buffers = buffers
        self.past.add_gradient_(total, params)
        for batch in self._epoch() if self.past.teachers or self.past.keep else ():
            self._distil_(total, params, batch)
            self._keep_(total, params, batch)
        return total

    @property
    def _least(self) -> int:
        """Least samples of a last mini-batch: a single one has no statistics."""
        return 2 if self.objective.uses_batch_statistics else 1

    def _epoch(self) -> Iterator[Batch]:
        """Yield all samples once, in the mini-batches of training if these matter."""
        if not self.objective.uses_batch_statistics:
            return self.pool.parts(FULL_GRADIENT_SAMPLES)
        size = self.train.batch_size
        return self.pool.shuffled_parts(len(self.pool) if size == "full" else size, self._least)

    def batch_gradient(self, params: Vector, batch: Batch) -> Vector:
        """Compute a mini-batch's gradient with that of the remembered past, clipped if training says so."""
        gradient = self.objective.gradient(params, self._shaped(batch))
        self.past.add_gradient_(gradient, params)
        self._distil_(gradient, params, batch)
        self._keep_(gradient, params, batch)
        if self.train.clip_norm is not None:
            clip_(gradient, self.train.clip_norm)
        return gradient

    def _shaped(self, batch: Batch) -> Batch:
        return batch if self.terms is None else self.terms.applied(batch)

    def _distil_(self, gradient: Vector, params: Vector, batch: Batch) -> None:
        """Add the gradients of the teachers' distillation losses in place."""
        total = float(self.pool.weight.abs().sum()) if self.past.teachers else 0.0
        if not total:
            return
        shares = Batch(batch.x, batch.y, batch.weight.abs() / total)
        distil_(gradient, params, shares, self.past.teachers, self.objective)

    def _keep_(self, gradient: Vector, params: Vector, batch: Batch) -> None:
        """Add the gradient of the loss that keeps the outputs of replayed samples in place."""
        if not self.past.keep or batch.outputs is None:
            return
        kept = batch.outputs.isnan().any(1)
        weight = batch.weight.masked_fill(kept.to(batch.weight.device), 0.0)
        outputs, samples = batch.outputs.nan_to_num(), Batch(batch.x, batch.y, weight)
        found = self.objective.distilled(params, samples, outputs, form="logits")
        gradient.add_(found, alpha=self.past.keep)

    def descend(self, start: Vector, direction: Callable[[Vector], Vector]) -> Vector:
        r"""Take K steps :math:`w \gets w - \eta_l\, d(w)` from ``start``, or those of another optimiser.

        The result of ``direction`` is modified in place, so it must not be aliased.
        """
        params = start.clone()
        state = {**self.train.first_state(params), **self.earlier_state(len(self.descents))}
        descend(params, direction, self.train, self.steps, state)
        self.descents.append(state)
        return params

    def earlier_state(self, number: int) -> State:
        """Return a copy of what the client kept of its optimiser in the descent of this number."""
        start = f"{number}."
        return {
            name.removeprefix(start): tensor.clone()
            for name, tensor in self.optimizer_state.items()
            if name.startswith(start)
        }

    def kept_state(self) -> Record:
        """Return what the client keeps of its optimisers; empty if they are reset."""
        return named_states(self.descents) if self.train.keeps_state else {}


def named_states(descents: Iterable[State]) -> Record:
    """Join the states of a round's descents in one record, as ``0.mean``."""
    return {
        f"{k}.{name}": tensor for k, state in enumerate(descents) for name, tensor in state.items()
    }


def one_client(local: Local) -> ClientLocal:
    """Return the local problem of a single client, with its samples and its past.

    Raises:
        IncompatibleError: For many clients at once.
    """
    if not isinstance(local, ClientLocal):
        msg = "engine batched: this works on one client at a time; remove @stacked from the method that uses it"
        raise IncompatibleError(msg)
    return local


def present_loss(params: Vector, local: Local) -> Tensor:
    """Compute the mean loss of the present samples, in double precision, with the buffers of the server."""
    one = one_client(local)
    trained = one.objective.buffers
    one.objective.buffers = trained if one.buffers is None else one.buffers
    losses = one.objective.losses(params, Batch.mean(one.samples))
    one.objective.buffers = trained
    return losses.double().mean()


def with_sources(known: Tensor, local: Local) -> Tensor:
    """Return the rows that a client's state was computed from, so that it can be deleted with them."""
    rows = one_client(local).samples.rows
    return known if rows is None else torch.unique(torch.cat([known, rows]))


def _whole(pool: Pool) -> Iterator[tuple[Tensor, Tensor]]:
    return repeat((torch.arange(len(pool)), pool.weight))


def descend(
    params: Vector,
    direction: Callable[[Vector], Vector],
    train: Train,
    steps: int,
    state: State,
) -> None:
    """Take steps in place, on ``(d,)`` or ``(clients, d)``; ``state`` is the optimiser's.

    This is the readable reference loop. ``chronofed.engines.batched`` has faster equivalents, and the laws in
    ``tests/laws/test_batched.py`` compare them with it.
    """
    for _ in range(steps):
        train.step_(params, direction(params), state)
