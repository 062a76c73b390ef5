"""Local training of many clients as one: the loop of :mod:`chronofed.local` on ``(clients, d)``."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from chronofed.backbones import Backbone
from chronofed.backbones.wrapper import Wrapper, parts
from chronofed.engines.quadratics import Quadratics
from chronofed.errors import IncompatibleError
from chronofed.local import Local, descend
from chronofed.protocol import Trained
from chronofed.stacking import works_stacked
from chronofed.surrogate import Quadratic, Surrogate
from chronofed.tasks.batched_loop import Pull
from chronofed.tasks.batched_mlp import BatchedMlp, Course
from chronofed.types import Batch, Record, Vector

Matrix: TypeAlias = Tensor  # (clients, d)
Draw: TypeAlias = tuple[Tensor, Tensor]  # which samples, and their weights


@dataclass(frozen=True, slots=True)
class Trainee:
    """A client before its training: what the backbone keeps on it, and what it can compute."""

    state: Record
    local: Local

    @property
    def shape(self) -> Hashable:
        """Clients train as one if this is the same."""
        past = self.local.past
        if type(past) is not Surrogate or type(past.quadratic) not in (Quadratic, type(None)):
            raise IncompatibleError(
                "engine batched: the memory's surrogate is of a type of its own"
            )
        spans = past.quadratic and tuple((s.start, s.stop) for s in past.quadratic.spans)
        return spans, frozenset((name, tensor.shape) for name, tensor in self.state.items())


@dataclass(frozen=True, slots=True)
class Group:
    """Clients that were trained as one.

    Attributes:
        members: Their places among all.
        params: Their models, ``(clients, d)``; only until the kernel is used for other clients.
        trained: What is left of the training of each; its ``params`` are a row of these.
    """

    members: list[int]
    params: Matrix
    trained: list[Trained]


def train_together(
    backbone: Backbone, server: Record, trainees: Sequence[Trainee], kernel: BatchedMlp
) -> Iterator[Group]:
    """Train clients as one, as far as they are alike.

    Yields:
        Those who were alike.
    """
    groups: dict[Hashable, list[int]] = {}
    for i in sorted(range(len(trainees)), key=lambda i: -trainees[i].local.steps):
        groups.setdefault(trainees[i].shape, []).append(i)
    for number, group in enumerate(groups.values()):
        alike = [trainees[i] for i in group]
        stack = Stack([one.local for one in alike], kernel, number)
        yield Group(group, *_train_alike(backbone, server, alike, stack))


class Feed:
    """The mini-batches of clients that are sorted by their number of steps, the most first.

    Each client draws as if it were alone. Where it draws less than others, it is padded with samples of
    weight zero; when it has done its steps, it is left out.
    """

    def __init__(self, locals_: Sequence[Local], kernel: BatchedMlp) -> None:
        pools = [local.pool for local in locals_]
        pieces = [piece for pool in pools for piece in pool.pieces]
        self._locals, self._kernel = locals_, kernel
        self._x = torch.cat([piece.x for piece in pieces]).flatten(1)  # (n, features)
        self._y = torch.cat([piece.y for piece in pieces])
        first = [0, *accumulate(map(len, pools[:-1]))]
        self._first = torch.tensor(first)[:, None]  # where each client's samples begin

    def draw(self) -> list[list[Draw]]:
        """All that the clients draw in this round."""
        return [[local.draw() for _ in range(local.steps)] for local in self._locals]

    def batches(self, drawn: list[list[Draw]]) -> Iterator[Batch]:
        """One batch for every step: ``(active clients, b, ...)``; the next one overwrites its samples."""
        for rows, y, weight in self.together(drawn).steps if _alike(drawn) else self._padded(drawn):
            yield Batch(self._gather(rows), y, weight)

    def together(self, drawn: list[list[Draw]]) -> Course:
        """All steps at once, of clients that draw as many samples in each."""
        rows = torch.cat([pick for mine in drawn for pick, _ in mine]).view(len(drawn), -1)
        rows += self._first
        y, weight = self._y[rows].unsqueeze(2), _weights(drawn).to(self._kernel.form.dtype)
        return Course(self._x, rows, y, weight.unsqueeze(2), [len(pick) for pick, _ in drawn[0]])

    def _padded(self, drawn: list[list[Draw]]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The same for clients that draw differently, step by step."""
        for k in range(len(drawn[0])):
            step = [mine[k] for mine in drawn if k < len(mine)]
            rows = _below([pick for pick, _ in step]) + self._first[: len(step)]
            weights = _below([weight for _, weight in step]).to(self._kernel.form.dtype)
            yield rows, self._y[rows], weights

    def _gather(self, rows: Tensor) -> Tensor:
        """Samples as the first layer sees them, ``(clients, b, features)``."""
        form, space = self._kernel.form, self._kernel.space
        shape = rows.numel(), self._x.shape[1]
        raw = space.take("raw", *shape, dtype=self._x.dtype)
        torch.index_select(self._x, 0, rows.reshape(-1), out=raw)
        if raw.dtype == form.dtype:
            return raw.view(*rows.shape, -1)
        x = space.take("x", *shape, dtype=form.dtype)
        form.encode_(raw, x)
        return x.view(*rows.shape, -1)


def _alike(drawn: list[list[Draw]]) -> bool:
    """Whether all clients take as many steps, with as many samples in each."""
    sizes = [[len(pick) for pick, _ in mine] for mine in drawn]
    return all(own == sizes[0] for own in sizes)


def _weights(drawn: list[list[Draw]]) -> Tensor:
    """All weights of clients that draw alike, ``(clients, total)``; equal ones are often the same tensors."""
    first, *others = ([weight for _, weight in mine] for mine in drawn)
    if all(one is same for mine in others for one, same in zip(mine, first, strict=True)):
        return torch.cat(first).expand(len(drawn), -1)
    return torch.cat([weight for mine in (first, *others) for weight in mine]).view(len(drawn), -1)


def _below(rows: list[Tensor]) -> Tensor:
    """Rows below each other, with zeros at the end of those that are shorter."""
    if all(row.shape == rows[0].shape for row in rows):
        return torch.stack(rows)  # much faster
    return pad_sequence(rows, batch_first=True)


@dataclass(slots=True)
class Unbuffered:
    """Stands for the objective where only its buffers are asked for: these models have none."""

    buffers: Tensor  # (clients, 0)


class Stack:
    """Clients that train as one: what :class:`~chronofed.local.Local` is to a single client.

    A backbone's stacked methods (:func:`~chronofed.backbones.base.stacked`) see it in the place of a
    ``Local``. Gradients that it returns are overwritten by the next ones.

    Attributes:
        train: How the clients train.
        objective: For the sake of its buffers.
    """

    def __init__(self, locals_: Sequence[Local], kernel: BatchedMlp, number: int = 0) -> None:
        self.train = locals_[0].train
        self.objective = Unbuffered(torch.empty(len(locals_), 0))
        self._steps = [local.steps for local in locals_]  # the most first
        self._kernel = kernel
        self._feed = Feed(locals_, kernel)
        self._quadratic = Quadratics.of([local.past.quadratic for local in locals_])
        self._batches: Iterator[Batch] = iter(())
        self._place = f"params{number}"
        self._due = False  # whether there is a mini-batch left to draw in this step

    def stochastic_gradient(self, params: Matrix) -> Matrix:
        """Every client's gradient on its next mini-batch."""
        (gradient,) = self.stochastic_gradients(params)
        return gradient

    def stochastic_gradients(self, *points: Tensor) -> list[Matrix]:
        """The same mini-batches' gradients at several points, ``(clients, d)`` or one ``(d,)`` for all."""
        if not self._due:
            raise IncompatibleError(
                "engine batched: the backbone draws several mini-batches a step"
            )
        self._due, batch = False, next(self._batches)
        return [self._gradient(number, point, batch) for number, point in enumerate(points)]

    def descend(self, start: Tensor, direction: Callable[[Matrix], Matrix]) -> Matrix:
        """Take every client's steps from ``start``, of each or of all."""

        def one_step(params: Matrix) -> Matrix:
            self._due = True
            return direction(params)

        params = self._copies(start)
        self._batches = self._feed.batches(self._feed.draw())
        velocity = torch.zeros_like(params) if self.train.momentum else None
        for active, steps in self._stages():
            fast = None if velocity is None else velocity[:active]
            descend(params[:active], one_step, self.train, steps, fast)
        return params

    def descend_plainly(self, start: Vector) -> Matrix:
        """The same along the gradient itself, where nothing else is asked for: steps are one product."""
        params, train, drawn = self._copies(start), self.train, self._feed.draw()
        if _alike(drawn):
            course, pull = self._feed.together(drawn), self._pull(len(params))
            self._kernel.descend_(params, course, train.lr, train.weight_decay, pull)
            return params
        batches = self._feed.batches(drawn)
        for active, steps in self._stages():
            some, pull = params[:active], self._pull(active)
            for _ in range(steps):
                self._kernel.step_(some, next(batches), train.lr, train.weight_decay, pull)
        return params

    @property
    def plain(self) -> bool:
        """Whether there is nothing to add to the gradient of the samples but a quadratic of whole layers."""
        quadratic, form = self._quadratic, self._kernel.form
        return not self.train.momentum and (quadratic is None or form.whole(quadratic.spans))

    def _pull(self, active: int) -> Pull | None:
        """What the quadratic adds to the steps of the first clients."""
        if self._quadratic is None:
            return None
        train, first = self.train, self._quadratic.first(active)
        return first.pull(self._kernel.form, train.lr, 1 - train.lr * train.weight_decay)

    def _copies(self, start: Tensor) -> Matrix:
        """Where to descend from, in memory that will be used again for the next clients."""
        self._place += "+"  # a second descent must leave the first one's end alone
        shape = len(self._steps), self._kernel.form.size
        place = self._kernel.space.rows(self._place, *shape, dtype=start.dtype)
        return place.copy_(start)

    def _stages(self) -> Iterator[tuple[int, int]]:
        """How many clients go on, and for how many steps, until the next of them have done theirs."""
        done = 0
        for steps in sorted(set(self._steps)):
            yield sum(own >= steps for own in self._steps), steps - done
            done = steps

    def _gradient(self, number: int, point: Tensor, batch: Batch) -> Matrix:
        params, space = point.expand(len(batch.y), -1), self._kernel.space
        out = space.rows(f"gradient{number}", len(params), params.shape[1], dtype=params.dtype)
        self._kernel.gradient(params, batch, out)
        if self._quadratic is not None:
            self._quadratic.first(len(out)).add_gradient_(out, params)
        return out


def _train_alike(
    backbone: Backbone, server: Record, trainees: Sequence[Trainee], stack: Stack
) -> tuple[Matrix, list[Trained]]:
    local = cast(Local, stack)  # all of it that stacked methods use
    states = [trainee.state for trainee in trainees]
    state = {name: torch.stack([each[name] for each in states]) for name in states[0]}

    def direction(params: Matrix) -> Matrix:
        client = {name: tensor[: len(params)] for name, tensor in state.items()}
        gradient = backbone.gradient(params, server, local)
        return backbone.direction(gradient, params, server, client)

    if stack.plain and _follows_the_gradient(backbone):
        params = stack.descend_plainly(server["params"])
    else:
        params = stack.descend(server["params"], direction)
    if all(works_stacked(part.finish) for part in parts(backbone)):
        upload, after = backbone.finish(params, server, state, local)
        sent = own(upload, params)  # for this round only: so rows of it will do
        return params, [
            Trained({n: t[i] for n, t in sent.items()}, _row(after, i), w)
            for i, w in enumerate(params)
        ]
    both = zip(trainees, params, strict=True)
    return params, [_finished(backbone, server, one, w) for one, w in both]


def _finished(backbone: Backbone, server: Record, one: Trainee, params: Vector) -> Trained:
    upload, after = backbone.finish(params, server, one.state, one.local)
    return Trained(own(upload, params), own(after, params), params)


def own(record: Record, params: Vector) -> Record:
    """A record with copies of what is only a view of ``params``, whose memory will be used again."""
    block = params.untyped_storage().data_ptr()
    return {
        name: tensor.clone() if tensor.untyped_storage().data_ptr() == block else tensor
        for name, tensor in record.items()
    }


def _follows_the_gradient(backbone: Backbone) -> bool:
    """Whether a local step is just the stochastic gradient."""
    own = {Backbone.gradient, Backbone.direction, Wrapper.gradient, Wrapper.direction}
    return all({type(part).gradient, type(part).direction} <= own for part in parts(backbone))


def _row(record: Record, i: int) -> Record:
    """One client's part; a copy, since it may be kept when the others' are gone."""
    return {name: tensor[i].clone() for name, tensor in record.items()}
