"""The contract of a head: a last layer in closed form, from sums that clients send."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Generator, Tensor

from chronofed.core.config import Count, Fraction, Kind, Positive
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.types import Objective, Record, Samples, Vector
from chronofed.methods.backbones.base import SERVED
from chronofed.methods.class_sums import features_at
from chronofed.methods.heads.sums import Sums
from chronofed.methods.layers import Layer, matrix_layers
from chronofed.methods.local import Train

SUMS = "head_sums"
"""The entry of an upload with a client's sums."""
BODY = "head_body"
"""Entry that clients are sent besides the model that they train: the model whose features count."""
JUDGED = "head_judged"
"""Entry in which clients answer about the models that could be served."""
SOLVED = "head_solved"
"""The last layer that clients are sent to test."""
ASKED = "head_asked"
"""Entry that clients are sent in the rounds in which they add up their sums."""
WHEN_ASKED = (ASKED, BODY, SOLVED)
"""Entries that clients are sent in these rounds alone."""
CLOCK = "head_clock"
"""The rounds so far, and the round in which the server asks next."""
SOLUTION = "head_solution"
"""The last layer for the sums so far."""
PLACE, SQUARES, SCORES, SEEN = "head_place", "head_squares", "head_scores", "head_seen"
TOTALS, PRIORS, BY_CLIENT = "head_totals", "head_priors", "head_by_client"
ROUNDS = "head_rounds"
OWN = (ROUNDS, CLOCK, PLACE, SQUARES, SCORES, SEEN, TOTALS, PRIORS, BY_CLIENT, JUDGED, SOLUTION)
"""The entries of the server's state that are a head's."""

DECAYS = (0.95, 0.98, 1.0, 0.9, 0.8, 0.6, 0.3)
"""The decays that ``auto`` chooses among; the first until there is evidence."""
SCORED_EVERY = 32
"""Most sums from one comparison of decays to the next: each takes a system of equations for every decay."""
EVERY = 8
"""Most rounds from one in which clients add up sums to the next."""
OF_THE_PAST = 16
"""Sums are asked for again after a share of all rounds: one of so many."""
COST = 8
"""Samples that local training passes over, for each one whose features are computed."""
DISCOUNT = 0.9
"""Share of earlier evidence that counts when there is more."""

Solution: TypeAlias = tuple[Tensor, Tensor]
"""Weights ``(outputs, k)`` and bias ``(outputs,)``."""


class Head(Kind):
    r"""A last layer that the server computes from sums over all clients' samples.

    Clients send, of the features :math:`f` (the inputs of the last layer) at the model that they received, the
    number of samples, :math:`\sum_j y_j`, :math:`\sum_j f_j y_j^\top` and the upper triangle of
    :math:`\sum_j f_j f_j^\top`, where :math:`y` is 1 for the sample's class and 0 for others. Replayed samples
    do not count: they were sent when they were new. The server adds up and lets older sums fade,
    :math:`S \gets \gamma S + S_t`. Features change ever less from one round to the next, so it asks for sums in
    every round at first, and later after a sixteenth of the rounds so far, at most ``every``.

    The head is part of the model that is evaluated and saved. Clients do not start from it, so training is the
    backbone's, unless ``write_back`` is set.

    Attributes:
        decay: :math:`\gamma`, the weight of sums relative to the next. ``auto``: the one of a few under which
            the sums of a round were predicted best by those before. If features stand still that is 1, and
            less the faster they move.
        shrinkage: Share :math:`\rho` of the shrunk covariance that is a multiple of the identity. ``oas``: by
            the formula of Chen et al. (2010), from the covariance and the number of samples.
        body: The model whose features count. ``served``: the one that is evaluated, such as the mean of
            ``averaged``, which is then sent to clients as well. ``trained``: the one that clients train.
        write_back: Put the head into the model that clients train, too, scaled to the norm of the old one.
        by_client: Keep the sums of every client on the server, so that a client can be forgotten exactly.
        every: Most rounds from one in which clients send sums to the next. ``auto``: 8; 1 if ``decay`` is 1.
        samples: Most samples of a client's data set that are added up, drawn anew; the sums are scaled, so that
            they stand for all. ``auto``: one for every eight that local training passes over in ``every``
            rounds, so that a head takes little time; all, if ``decay`` is 1 or with ``by_client``.
        bound: Largest l2 norm of a client's sums, which ``clipped`` and ``private`` need.
        layer: Name of the last layer, such as ``fc``; by default the last one whose weights are a matrix.
    """

    reference: ClassVar[str] = ""
    """The paper that introduced it."""
    task: ClassVar[Literal["classification", "regression"] | None] = None
    """The task that it is made for; ``None`` for both."""

    judges: ClassVar[bool] = False
    """True if clients test several models before they train (:meth:`judge`)."""

    decay: Fraction | Literal["auto"] = "auto"
    shrinkage: Fraction | Literal["oas"] = "oas"
    body: Literal["served", "trained"] = "served"
    write_back: bool = False
    by_client: bool = False
    every: Count | Literal["auto"] = "auto"
    samples: Count | Literal["auto", "all"] = "auto"
    bound: Positive | None = None
    layer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by_client and self.decay != 1.0:
            name = type(self).__name__
            raise ValueError(f"{name}.by_client: sums can be taken back only with decay = 1.0")
        if self.by_client and isinstance(self.samples, int):
            name = type(self).__name__
            raise ValueError(f"{name}.samples: with by_client all count; leave it out")
        if self.by_client and self.every not in ("auto", 1):
            name = type(self).__name__
            raise ValueError(f"{name}.every: with by_client all rounds count; leave it out")

    @abstractmethod
    def solve(self, sums: Sums, effective: float, state: Record) -> Solution:
        """Return the head for some sums.

        Args:
            sums: Sums over the samples so far.
            effective: Number of samples that they are worth, as older ones count less.
            state: All that the server knows for the head.
        """

    @abstractmethod
    def score(self, before: Sums, effective: float, state: Record, new: Sums) -> float:
        """Say how well sums so far predict those of a new round, per sample; more is better."""

    @property
    def decays(self) -> tuple[float, ...]:
        """The decays that are followed."""
        return DECAYS if self.decay == "auto" else (self.decay,)

    @property
    def period(self) -> int:
        """Most rounds from one in which clients send sums to the next."""
        if self.every != "auto":
            return self.every
        return 1 if self.by_client or self.decay == 1.0 else EVERY

    def asks(self, server: Record) -> bool:
        """Tell if clients are to send sums in this round."""
        rounds, due = server[CLOCK].tolist()
        return bool(rounds == due)

    def ticked(self, clock: Tensor) -> Tensor:
        """Return the clock after a round."""
        rounds, due = clock.tolist()
        if rounds == due:
            due += min(max(1, (rounds + 1) // OF_THE_PAST), self.period)
        return torch.tensor([rounds + 1, due])

    def init(self, objective: Objective, clients: int) -> Record:
        """Return what the server knows before the first round.

        Raises:
            IncompatibleError: If the model's last layer is not linear with a bias.
        """
        layer = last_layer(objective, self.layer)
        assert layer.bias is not None
        spans = (layer.weight.start, layer.weight.stop, layer.bias.start, layer.bias.stop)
        columns = max(2, layer.outputs)
        numbers = Sums.length(columns, layer.shape[1])
        rows = clients if self.by_client else 0
        zeros = torch.zeros(len(self.decays), numbers, dtype=torch.float64)
        return {
            PLACE: torch.tensor([*spans, *layer.shape]),
            TOTALS: zeros,
            SQUARES: zeros[:, 0].clone(),
            ROUNDS: torch.tensor(0),
            CLOCK: torch.tensor([0, 0]),
            SCORES: zeros[:, 0].clone(),
            SEEN: torch.zeros(columns, dtype=torch.float64),
            PRIORS: torch.zeros(3, dtype=torch.float64),
            BY_CLIENT: zeros.new_zeros(rows, numbers),
        }

    def drawn(self, samples: Samples, train: Train, generator: Generator) -> Samples:
        """Return the samples of a client that are added up in a round."""
        most = self._most(len(samples), train)
        if most >= len(samples):
            return samples
        return samples[torch.randperm(len(samples), generator=generator)[:most].sort().values]

    def _most(self, size: int, train: Train) -> int:
        if isinstance(self.samples, int):
            return self.samples
        if self.samples == "all" or self.by_client or self.decay == 1.0:
            return size
        return math.ceil(self.period * _passes(train, size) / COST)

    def observe(
        self,
        objective: Objective,
        sent: Record,
        buffers: Vector,
        samples: Samples,
        average: bool,
        size: int | None = None,
    ) -> Tensor:
        """Return a client's sums, in one vector.

        Args:
            objective: The client's model.
            sent: What the server sent.
            buffers: The buffers that it sent.
            samples: The present data, or some of them.
            average: Divide by the number of samples, because clients count equally.
            size: Number of samples that these stand for; by default their own.

        Raises:
            IncompatibleError: If the head is for another task.
        """
        y = samples.y
        self.check_task(regression=y.is_floating_point())
        layer = last_layer(objective, self.layer)
        params = sent.get(BODY, sent["params"])
        f = features_at(objective, params, buffers, samples, layer.name or None).cpu()
        # What is sent in single precision needs no more within a client; the server adds up in double.
        f = f.double() if self.by_client else f
        if y.is_floating_point():
            columns = torch.stack([torch.ones_like(y), y], 1).to(f)
        else:
            columns = torch.nn.functional.one_hot(y, max(2, layer.outputs)).to(f)
        return Sums.vector(columns, f, (1 if average else size or len(y)) / len(y))

    def sent(self, server: Record) -> Record:
        """Return what clients are sent besides the model, if they judge."""
        return {}

    def judge(
        self, objective: Objective, sent: Record, buffers: Vector, samples: Samples
    ) -> Tensor:
        """Return how good the models that could be served are on a client's present data."""
        raise NotImplementedError

    def judged(self, state: Record, found: Tensor) -> Record:
        """Return the evidence with that of a round, a mean over clients."""
        raise NotImplementedError

    def update(self, state: Record, new: Tensor) -> Record:
        """Return what the server knows with the sums of a round, added up over clients."""
        new = new.double()
        counts = Sums.counts_in(new, len(state[SEEN]))
        decay = torch.tensor(self.decays, dtype=torch.float64)
        return {
            TOTALS: torch.addcmul(new, state[TOTALS], decay[:, None]),
            SQUARES: state[SQUARES] * decay.square() + new[-1],
            ROUNDS: state[ROUNDS] + 1,
            SCORES: self._scored(state, new),
            SEEN: state[SEEN] + counts,
            PRIORS: self._priors_scored(state, counts),
        }

    def forget(self, state: Record, clients: Sequence[int]) -> Record:
        """Take back what single clients sent, if their sums were kept; otherwise it only fades."""
        some = [client for client in clients if client < len(state[BY_CLIENT])]
        if not some:
            return state
        kept = state[BY_CLIENT].clone()
        kept[some] = 0
        # The sum of what is left: nothing of what was taken back remains in its last digits.
        return {**_unsolved(state), BY_CLIENT: kept, **self._left(state, kept)}

    def take_back(self, state: Record, client: int, sums: Tensor) -> Record:
        """Take back some of what a client sent, if its sums were kept."""
        kept = state[BY_CLIENT].clone()
        kept[client] -= sums
        return {**_unsolved(state), BY_CLIENT: kept, **self._left(state, kept)}

    def _left(self, state: Record, kept: Tensor) -> Record:
        total = kept.sum(0)
        counts = Sums.counts_in(total, len(state[SEEN]))
        return {TOTALS: total[None].clone(), SQUARES: total[-1:].clone(), SEEN: counts.clone()}

    def best(self, state: Record) -> int:
        """Return the number of the decay with most evidence."""
        scores = state[SCORES].tolist()
        return scores.index(max(scores))

    def solution(self, server: Record) -> Solution | None:
        """Return the head of the server's state; ``None`` before there are sums."""
        if SOLUTION in server:
            known = server[SOLUTION]
            return known[:, :-1], known[:, -1]
        k = self.best(server)
        sums = Sums.of(server[TOTALS][k], self._shape(server))
        if sums.size <= 0:
            return None
        return self.solve(sums, self._effective(server, k), server)

    def serve(self, server: Record) -> Record:
        """Return the server's state with a model to evaluate that has this head."""
        found = self.solution(server)
        if found is None:
            return server
        base = server["params"] if self.body == "trained" else server.get(SERVED, server["params"])
        start, stop, first, last = server[PLACE].tolist()[:4]
        weight, bias = (part.reshape(-1).to(base) for part in found)
        served = base.clone()
        served[start:stop], served[first:last] = weight, bias
        solution = torch.cat([found[0], found[1][:, None]], 1)
        server = {**server, SERVED: served, SOLUTION: solution}
        if not self.write_back:
            return server
        params = server["params"].clone()
        old = math.hypot(float(params[start:stop].norm()), float(params[first:last].norm()))
        new = math.hypot(float(weight.norm()), float(bias.norm()))
        scale = old / new if new else 0.0
        params[start:stop], params[first:last] = weight * scale, bias * scale
        return {**server, "params": params}

    def report(self, server: Record) -> dict[str, float]:
        """Return what was chosen, as measures of an evaluation."""
        k = self.best(server)
        return {"head_decay": self.decays[k]}

    def personalised(self, server: Record, counts: Tensor) -> Vector | None:
        """Return a client's own model from the class counts of its data; ``None`` if it has none."""
        return None

    def why(self, server: Record) -> dict[str, object]:
        """Return what was chosen and why, in words; empty if nothing was."""
        return {}

    def check_task(self, regression: bool) -> None:
        """Refuse another task than it is made for.

        Raises:
            IncompatibleError: If it does not fit.
        """
        found = "regression" if regression else "classification"
        if self.task not in (None, found):
            raise IncompatibleError(
                f"method.head: {type(self).__name__} is for {self.task}, and this is a {found}; choose ridge"
            )

    def _shape(self, state: Record) -> tuple[int, int]:
        """Return the number of columns of the targets, and that of features."""
        return len(state[SEEN]), int(state[PLACE][5])

    def _effective(self, state: Record, k: int) -> float:
        squares = float(state[SQUARES][k])
        return float(state[TOTALS][k, 0]) ** 2 / squares if squares > 0 else 0.0

    def _scored(self, state: Record, new: Tensor) -> Tensor:
        """Add a round's evidence for each decay: what it predicted of the round before it came."""
        scores: Tensor = state[SCORES]
        empty = float(new[0]) <= 0 or float(state[TOTALS][0, 0]) <= 0
        if len(scores) == 1 or empty or not _due(int(state[ROUNDS])):
            return scores
        found, now = [], Sums.of(new, self._shape(state))
        for k in range(len(scores)):
            before = Sums.of(state[TOTALS][k], self._shape(state))
            found.append(self.score(before, self._effective(state, k), state, now))
        return scores * DISCOUNT + torch.tensor(found, dtype=torch.float64)

    def _priors_scored(self, state: Record, counts: Tensor) -> Tensor:
        """Add the evidence of a round's counts for each prior; by default there is none to choose."""
        return state[PRIORS]


def _unsolved(state: Record) -> Record:
    """Return the state without the last layer, because the sums change."""
    return {name: tensor for name, tensor in state.items() if name != SOLUTION}


def last_layer(objective: Objective, name: str | None) -> Layer:
    """Return the last layer.

    Raises:
        IncompatibleError: If it is not linear with a bias.
        SpecError: If there is no layer of this name.
    """
    layers = matrix_layers(objective)
    chosen = [layer for layer in layers if name is None or layer.name == name]
    if name is not None and not chosen:
        known = ", ".join(layer.name for layer in layers) or "none"
        raise SpecError(f"method.head.layer: the model has no layer {name!r}; known: {known}")
    if not chosen or len(chosen[-1].shape) != 2 or chosen[-1].bias is None:
        raise IncompatibleError(
            "method.head: the model's last layer is not linear with a bias; name one with method.head.layer, "
            "or choose another model"
        )
    return chosen[-1]


def _due(rounds: int) -> bool:
    """Decide whether decays are compared after so many sums: early ones tell more than late ones.

    >>> [t for t in range(50) if _due(t)]
    [1, 2, 4, 8, 16, 32]
    """
    return rounds > 0 and (rounds % SCORED_EVERY == 0 or rounds & (rounds - 1) == 0)


def _passes(train: Train, size: int) -> int:
    """Return the number of samples that local training passes over, about."""
    batch = size if train.batch_size == "full" else min(train.batch_size, size)
    whole = train.epoch == "present" and train.steps is None and train.batch_size != "full"
    return math.ceil(train.epochs * size) if whole else train.count(size, size) * batch
