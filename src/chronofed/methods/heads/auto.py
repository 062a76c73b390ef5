"""Auto."""

from typing import ClassVar

import torch
from torch import Tensor

from chronofed.core.types import Objective, Record, Samples, Vector
from chronofed.methods.backbones.base import SERVED
from chronofed.methods.class_sums import features_at
from chronofed.methods.heads.base import (
    BODY,
    DISCOUNT,
    JUDGED,
    PLACE,
    SOLVED,
    Head,
    Solution,
    last_layer,
)
from chronofed.methods.heads.gaussian import Gaussian
from chronofed.methods.heads.ridge import Ridge
from chronofed.methods.heads.sums import Sums

CANDIDATES = ("the last model", "the mean of models", "the head")
# Rounds of evidence before the choice may be another than the mean of models.
LEAST_ROUNDS = 3


class Auto(Head, tag="auto"):
    r"""The last model, the mean of models, or a head: what new data say is best is evaluated and saved.

    Before they train, clients test three models on their present data, which none of them has seen in this
    round: the model that they train, the mean of models (with ``averaged``), and the mean with a head
    (``gaussian``, of a regression ``ridge``). They report the accuracy of each, or minus the mean squared
    error. The server averages over clients and recent rounds, and serves the best. Test data have no
    part in it.

    ``method = "auto"`` is this head, and what goes with it: ``averaged`` around ``fedavg``, a core set where
    clients come back, and round weights that learn their constants. A client is sent the mean of models and a
    last layer besides the model, and three forward passes of its data come on top. Refused in ``private``.

    Attributes:
        decay: Weight of sums relative to the next; ``auto``: by evidence.
        shrinkage: Share of the identity in the covariance; ``oas``: by formula.
        body: Always ``served``.
        write_back: Put the head into the model that clients train, too, scaled to the norm of the old one.
        by_client: Keep the sums of every client on the server.
        every: Most rounds from one in which clients send sums to the next. ``auto``: 8; 1 if ``decay`` is 1.
        samples: Most samples of a client's data set that are added up. ``auto``: one for every eight that local
            training passes over in ``every`` rounds; all, if ``decay`` is 1.
        bound: Unused.
        layer: Name of the last layer; by default the last one whose weights are a matrix.
    """

    judges: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "Dawid (1984), Present Position and Potential Developments: The Prequential Approach"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.body != "served":
            raise ValueError(
                "Auto.body: it compares heads on the model that is served; leave it out"
            )

    def solve(self, sums: Sums, effective: float, state: Record) -> Solution:
        """Return the head of the task."""
        return self._of(state).solve(sums, effective, state)

    def score(self, before: Sums, effective: float, state: Record, new: Sums) -> float:
        """Say how well sums predict those of a new round, as the head of the task."""
        return self._of(state).score(before, effective, state, new)

    def init(self, objective: Objective, clients: int) -> Record:
        """Return what the server knows, without evidence."""
        none = torch.zeros(len(CANDIDATES) + 2, dtype=torch.float64)
        return {**super().init(objective, clients), JUDGED: none}

    def sent(self, server: Record) -> Record:
        """Return the last layer that clients are to test; before there is a head, the model's own."""
        start, stop, first, last = server[PLACE].tolist()[:4]
        found = self.solution(server)
        params: Vector = server["params"]
        own = params[start:stop], params[first:last]
        parts = own if found is None else (part.reshape(-1).to(params) for part in found)
        return {SOLVED: torch.cat(tuple(parts))}

    def judge(
        self, objective: Objective, sent: Record, buffers: Vector, samples: Samples
    ) -> Tensor:
        """Return how good the candidates are on a client's present data, ``(candidates,)``."""
        layer = last_layer(objective, self.layer)
        params, body = sent["params"], sent.get(BODY, sent["params"])
        trained = objective.buffers
        objective.buffers = buffers
        parts = torch.split(samples.x, 256)
        outputs = [torch.cat([objective.logits(p, x) for x in parts]) for p in (params, body)]
        objective.buffers = trained
        outputs, count = [each.cpu() for each in outputs], layer.outputs
        f = features_at(objective, body, buffers, samples, layer.name or None).double().cpu()
        bias, weight = sent[SOLVED][-count:], sent[SOLVED][:-count].view(count, -1)
        outputs.append(f @ weight.double().cpu().mT + bias.double().cpu())
        return torch.stack([_good(each, samples.y.cpu()) for each in outputs]).double()

    def judged(self, state: Record, found: Tensor) -> Record:
        """Return the evidence with that of a round; the last two numbers are its weight and its rounds."""
        new = torch.cat([found, found.new_ones(1)])
        old = state[JUDGED]
        return {JUDGED: torch.cat([old[:-1] * DISCOUNT + new, old[-1:] + 1])}

    def serve(self, server: Record) -> Record:
        """Return the server's state with the best candidate as the model to evaluate."""
        choice = self.choice(server)
        if choice == 0:
            return {name: t for name, t in server.items() if name != SERVED}
        return super().serve(server) if choice == 2 else server

    def choice(self, server: Record) -> int:
        """Return the number of the best candidate; of equal ones the last."""
        *scores, _, rounds = server[JUDGED].tolist()
        if rounds < LEAST_ROUNDS:
            return 1
        return max(range(len(scores)), key=lambda k: (scores[k], k))

    def report(self, server: Record) -> dict[str, float]:
        """Return the scores of the candidates, and what was chosen."""
        *scores, weight, _ = server[JUDGED].tolist()
        names = ("last", "mean", "head")
        found = {f"auto_{n}": s / weight for n, s in zip(names, scores, strict=True) if weight}
        return {**super().report(server), "auto_choice": float(self.choice(server)), **found}

    def why(self, server: Record) -> dict[str, object]:
        """Return the choice in words."""
        *scores, weight, rounds = server[JUDGED].tolist()
        served = CANDIDATES[self.choice(server)]
        if rounds < LEAST_ROUNDS:
            return {"served": served, "why": f"until there are {LEAST_ROUNDS} rounds of evidence"}
        pairs = zip(CANDIDATES, scores, strict=True)
        listed = ", ".join(f"{name} {score / weight:.4f}" for name, score in pairs)
        return {"served": served, "why": f"on data before they were trained on: {listed}"}

    def _of(self, state: Record) -> Head:
        """Return the head of the task: a regression has one output."""
        kind = Ridge if int(state[PLACE][4]) == 1 else Gaussian
        return kind(decay=self.decay, shrinkage=self.shrinkage, layer=self.layer)

    def _priors_scored(self, state: Record, counts: Tensor) -> Tensor:
        return self._of(state)._priors_scored(state, counts)


def _good(outputs: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return -(outputs[:, 0].double() - y.double()).square().mean()
    return (outputs.argmax(1) == y).double().mean()
