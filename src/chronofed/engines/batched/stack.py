"""Local training of many clients as one: the loop of :mod:`chronofed.methods.local` on ``(clients, d)``."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from chronofed.clients.client import Trained
from chronofed.core.errors import IncompatibleError
from chronofed.core.stacking import works_stacked
from chronofed.core.types import Batch, Record, Samples, Vector
from chronofed.engines.batched.kernel import BatchedMlp
from chronofed.engines.batched.loop import QuadraticTerm
from chronofed.engines.batched.objective import BatchedObjective
from chronofed.engines.batched.quadratics import Quadratics
from chronofed.engines.batched.sampler import BatchSampler, equally_sized
from chronofed.engines.batched.support import check_local, follows_gradient
from chronofed.methods.backbones import Backbone
from chronofed.methods.local import ClientLocal, descend, named_states
from chronofed.methods.optimizers import State, clip_
from chronofed.methods.wrappers.base import parts

Matrix: TypeAlias = Tensor  # (clients, d)


@dataclass(frozen=True, slots=True)
class Trainee:
    """A client before training: the state of its backbone, and its local problem."""

    state: Record
    local: ClientLocal

    @property
    def shape(self) -> Hashable:
        """Clients with the same shape train as one."""
        check_local(self.local)
        quadratic = self.local.past.quadratic
        spans = quadratic and tuple((s.start, s.stop) for s in quadratic.spans)
        return spans, frozenset((name, tensor.shape) for name, tensor in self.state.items())


@dataclass(frozen=True, slots=True)
class Group:
    """Clients that were trained as one.

    Attributes:
        members: Their positions among all trainees.
        params: Their models, ``(clients, d)``; valid until the kernel is used for other clients.
        trained: The outcome of each client; its ``params`` are a row of these.
    """

    members: list[int]
    params: Matrix
    trained: list[Trained]


def train_together(
    backbone: Backbone, server: Record, trainees: Sequence[Trainee], kernel: BatchedMlp
) -> Iterator[Group]:
    """Train clients as one, as far as they are alike.

    Yields:
        Groups of clients that were alike.
    """
    groups: dict[Hashable, list[int]] = {}
    for i in sorted(range(len(trainees)), key=lambda i: -trainees[i].local.steps):
        groups.setdefault(trainees[i].shape, []).append(i)
    for number, group in enumerate(groups.values()):
        alike = [trainees[i] for i in group]
        local = StackedLocal([one.local for one in alike], kernel, number)
        yield Group(group, *_train_alike(backbone, server, alike, local))


class StackedLocal:
    """The :class:`~chronofed.methods.local.Local` of many clients that train as one.

    A backbone's stacked methods (:func:`~chronofed.core.stacking.stacked`) get it instead of that of a single
    client. Gradients that it returns are overwritten by the next ones.

    Attributes:
        train: How the clients train.
        objective: Their objectives, as far as these work on many clients.
    """

    def __init__(self, locals_: Sequence[ClientLocal], kernel: BatchedMlp, number: int = 0) -> None:
        self.train = locals_[0].train
        self.objective = BatchedObjective(kernel, len(locals_))
        # The most first.
        self._steps = [local.steps for local in locals_]
        self._locals = locals_
        self._descents: list[State] = []
        self._kernel = kernel
        self._sampler = BatchSampler(locals_, kernel)
        self._quadratic = Quadratics.of([local.past.quadratic for local in locals_])
        self._batches: Iterator[Batch] = iter(())
        self._buffer = f"params{number}"
        # Whether the current step has still to draw its mini-batch.
        self._may_draw = False

    @property
    def steps(self) -> int:
        """Refuse: every client has its own number of steps."""
        raise _single("steps")

    @property
    def samples(self) -> Samples:
        """Refuse: every client has its own samples."""
        raise _single("samples")

    @property
    def key(self) -> int:
        """Refuse: every client has its own data set."""
        raise _single("key")

    @property
    def scratch(self) -> dict[str, Tensor]:
        """Refuse: every client has its own notes."""
        raise _single("scratch")

    def stochastic_gradient(self, params: Matrix, offset: Tensor | None = None) -> Matrix:
        """Every client's gradient on its next mini-batch."""
        (gradient,) = self.stochastic_gradients(params, offset=offset)
        return gradient

    def stochastic_gradients(self, *points: Tensor, offset: Tensor | None = None) -> list[Matrix]:
        """The same mini-batches' gradients at several points, ``(clients, d)`` or one ``(d,)`` for all."""
        if offset is not None:
            raise _single("stochastic_gradient with an offset")
        if not self._may_draw:
            raise IncompatibleError(
                "engine batched: the backbone draws several mini-batches per step; "
                "remove @stacked from its gradient"
            )
        self._may_draw, batch = False, next(self._batches)
        return [self._gradient(number, point, batch) for number, point in enumerate(points)]

    def full_gradient(self, params: Tensor, offset: Tensor | None = None) -> Tensor:
        """Refuse: there are no full gradients of many clients."""
        raise _single("full_gradient")

    def descend(self, start: Tensor, direction: Callable[[Matrix], Matrix]) -> Matrix:
        """Take every client's steps from ``start``, ``(clients, d)`` or one ``(d,)`` for all."""

        def one_step(params: Matrix) -> Matrix:
            self._may_draw = True
            return direction(params)

        params = self._copies(start)
        self._batches = self._sampler.batches(self._sampler.draw())
        state = self._first_states(params)
        for active, steps in self._stages():
            some = {name: rows[:active] for name, rows in state.items()}
            descend(params[:active], one_step, self.train, steps, some)
        self._descents.append(state)
        return params

    def descents(self, i: int) -> list[State]:
        """Return the optimiser's state after each descent of one client."""
        return [{name: rows[i].clone() for name, rows in each.items()} for each in self._descents]

    def kept_state(self, i: int) -> Record:
        """Return what one client keeps of its optimisers; empty if they are reset."""
        return named_states(self.descents(i)) if self.train.keeps_state else {}

    def _first_states(self, params: Matrix) -> State:
        """Return every client's state of the optimiser: what it kept, or a new one."""
        state, number = self.train.first_state(params), len(self._descents)
        for i, local in enumerate(self._locals):
            for name, kept in local.earlier_state(number).items():
                state[name][i] = kept
        return state

    def descend_plainly(self, start: Tensor) -> Matrix:
        """Take the same steps along the gradient itself: each is fused into one product."""
        params, train, drawn = self._copies(start), self.train, self._sampler.draw()
        if equally_sized(drawn):
            schedule, term = self._sampler.schedule(drawn), self._quadratic_term(len(params))
            self._kernel.descend_(params, schedule, train.lr, train.weight_decay, term)
            return params
        batches = self._sampler.batches(drawn)
        for active, steps in self._stages():
            some, term = params[:active], self._quadratic_term(active)
            for _ in range(steps):
                self._kernel.step_(some, next(batches), train.lr, train.weight_decay, term)
        return params

    @property
    def plain(self) -> bool:
        """True if nothing is added to the samples' gradient but a quadratic of whole weights and biases."""
        quadratic, layout, train = self._quadratic, self._kernel.layout, self.train
        other_steps = train.momentum or train.optimizer != "sgd" or train.clip_norm is not None
        return not other_steps and (quadratic is None or layout.aligned(quadratic.spans))

    def _quadratic_term(self, active: int) -> QuadraticTerm | None:
        """Return what the quadratic adds to the steps of the first clients."""
        if self._quadratic is None:
            return None
        train, first = self.train, self._quadratic.first(active)
        return first.term(self._kernel.layout, train.lr, 1 - train.lr * train.weight_decay)

    def _copies(self, start: Tensor) -> Matrix:
        """Copy the start to a buffer that the next clients will use again."""
        # A second descent must not overwrite the end of the first.
        self._buffer += "+"
        shape = len(self._steps), self._kernel.layout.size
        copies = self._kernel.workspace.rows(self._buffer, *shape, dtype=start.dtype)
        return copies.copy_(start)

    def _stages(self) -> Iterator[tuple[int, int]]:
        """Yield how many clients continue, and for how many steps, until the next of them are done."""
        done = 0
        for steps in sorted(set(self._steps)):
            yield sum(mine >= steps for mine in self._steps), steps - done
            done = steps

    def _gradient(self, number: int, point: Tensor, batch: Batch) -> Matrix:
        params, workspace = point.expand(len(batch.y), -1), self._kernel.workspace
        out = workspace.rows(f"gradient{number}", len(params), params.shape[1], dtype=params.dtype)
        self._kernel.gradient(params, batch, out)
        if self._quadratic is not None:
            self._quadratic.first(len(out)).add_gradient_(out, params)
        if self.train.clip_norm is not None:
            clip_(out, self.train.clip_norm)
        return out


def _single(name: str) -> IncompatibleError:
    return IncompatibleError(
        f"engine batched: local.{name} works on one client at a time; "
        "remove @stacked from the method that uses it"
    )


def _train_alike(
    backbone: Backbone, server: Record, trainees: Sequence[Trainee], local: StackedLocal
) -> tuple[Matrix, list[Trained]]:
    states = [trainee.state for trainee in trainees]
    state = {name: torch.stack([each[name] for each in states]) for name in states[0]}

    def direction(params: Matrix) -> Matrix:
        client = {name: tensor[: len(params)] for name, tensor in state.items()}
        gradient = backbone.gradient(params, server, local)
        return backbone.direction(gradient, params, server, client)

    start = backbone.start(server, state, local)
    if local.plain and follows_gradient(backbone):
        params = local.descend_plainly(start)
    else:
        params = local.descend(start, direction)
    if all(works_stacked(part.finish) for part in parts(backbone)):
        upload, after = backbone.finish(params, server, state, local)
        # Uploads are for this round only, so that rows of them will do.
        sent = clone_views(upload, params)
        return params, [
            Trained({n: t[i] for n, t in sent.items()}, _row(after, i), w, local.kept_state(i))
            for i, w in enumerate(params)
        ]
    for i, one in enumerate(trainees):
        # Where a client goes on by itself, its next descent is not the first.
        one.local.descents.extend(local.descents(i))
    both = zip(trainees, params, strict=True)
    return params, [_finished(backbone, server, one, w) for one, w in both]


def _finished(backbone: Backbone, server: Record, one: Trainee, params: Vector) -> Trained:
    upload, after = backbone.finish(params, server, one.state, one.local)
    kept = one.local.kept_state()
    return Trained(clone_views(upload, params), clone_views(after, params), params, kept)


def clone_views(record: Record, params: Vector) -> Record:
    """Copy the tensors of a record that are views of ``params``, whose memory will be used again."""
    block = params.untyped_storage().data_ptr()
    return {
        name: tensor.clone() if tensor.untyped_storage().data_ptr() == block else tensor
        for name, tensor in record.items()
    }


def _row(record: Record, i: int) -> Record:
    """Return one client's part; a copy, because it may be kept longer than the others'."""
    return {name: tensor[i].clone() for name, tensor in record.items()}
