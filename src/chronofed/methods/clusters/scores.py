"""Scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from chronofed.core.config import Count, NonNegative
from chronofed.core.errors import SpecError
from chronofed.core.types import Batch, Record, Vector
from chronofed.methods.backbones.base import Uploads
from chronofed.methods.clusters.base import Assignment, NewState
from chronofed.methods.clusters.detection import detector_states, store_states
from chronofed.methods.clusters.merging import distances, linked
from chronofed.methods.clusters.table import (
    NOBODY,
    OWN,
    TABLE,
    Table,
    params_of,
    place_of,
    resized,
    used,
)
from chronofed.methods.detectors import Detector, LossJump
from chronofed.methods.local import Local

# A score of 0 is sent as 1, so that 0 means: not measured.
MEASURED = 1.0


@dataclass(frozen=True, slots=True)
class _Look:
    """A client's findings on new data: its weight, its data set, and the score of every model by place."""

    weight: float
    key: int
    scores: Mapping[int, float]


class Scores(Assignment, tag="scores"):
    r"""By the score of every model on a client's new data, with new models for data that none of them fits.

    When a client comes with another data set (another key), it measures all models on it before training, and
    follows the best one. If the best score is a change by the ``detector``, which compares it with the best
    scores before, the client gets a new model, a copy of that best one. FedDrift-Eager (``eager``): all clients
    that changed in the same round share one. FedDrift (``eager = false``): each gets its own, which nobody else
    may join until that client comes with its next data set, and every client of the first round begins with its
    own model, too. So ``models`` should be above the number of clients.

    With ``merge``, models are merged whose distance is at most this, by complete linkage:

    .. math:: D_{ij} = \max(A_{ij} - A_{ii},\; A_{ji} - A_{jj},\; 0)

    where :math:`A_{ij}` is the mean score of model *i* on the new data of the clients that follow *j*. The mean
    of merged models is weighted by the data sets that were trained on each. A model that nobody follows stays,
    since its concept may come back, until a new one needs its place.

    A client that comes for the first time joins the best model. Its first score to compare with is that after
    training, as after a change. In the authors' code it is that of the model before, which hides a change that
    comes right after. That code also merges by scores on all earlier data, which here nobody keeps. In a table
    that is full a client that changed joins the best model, if none can be given up.

    The score cannot tell why data changed. Where data sets differ in their classes alone, a low threshold gives
    clients with other classes other models, none of which learns all classes.

    All models travel to a client that may have new data: in the extra exchange of every ``every`` rounds. Do
    not combine it with a memory on the client: that is not told of models, and would replay to a new model the
    data that it was made to forget.

    Attributes:
        score: Measure of a model on a data set, less is better: its mean ``loss``, or the share of samples with
            a wrong class, ``error``, as in the authors' code.
        detector: Finds a rise of a client's best score. In the authors' code the threshold is 0.04 (SEA), 0.1
            (CIRCLE, MNIST) or 0.2 (SINE), of ``error``.
        eager: Whether clients that change in the same round share a new model.
        merge: Largest distance of models that are merged; none are by default. FedDrift has the detector's
            threshold.
        every: Rounds between exchanges of all models, as many as a data set stays; strangers are asked at once.
        idle: Rounds after which the model of clients that stay away may be given up.
    """

    asks: ClassVar[bool] = True
    upload_keys: ClassVar[tuple[str, ...]] = ("scores", "baseline")
    reference: ClassVar[str] = (
        "Jothimurugesan et al. (2023), Federated Learning under Distributed Concept Drift"
    )

    score: Literal["loss", "error"] = "loss"
    detector: Detector = LossJump()
    eager: bool = True
    merge: NonNegative | None = None
    every: Count = 1
    idle: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eager and self.merge is None:
            raise ValueError(
                "Scores.merge: every client that changes gets its own model (eager = false), so that models "
                "must be merged; set merge to the detector's threshold"
            )
        if self.detector.finds != "rise":
            raise ValueError(
                f"Scores.detector: {type(self.detector).__name__} finds numbers that fall, and the scores of a "
                "change rise; use another detector, such as LossJump"
            )

    def init(self, models: int, clients: int) -> Record:
        """Return a table without a data set, a look, a baseline to measure and an owner."""
        nobody = torch.full((clients,), NOBODY)
        own = {
            "key": nobody,
            "looked": nobody.clone(),
            "fresh": torch.zeros(clients, dtype=torch.bool),
            "owner": torch.full((models,), NOBODY),
        }
        store_states(own, [self.detector.init()] * clients)
        return own

    def enrol(self, own: dict[str, Tensor], clients: int) -> None:
        """Add new clients, of whom nothing is known."""
        states = detector_states(own)[:clients]
        for name in ("key", "looked", "fresh"):
            own[name] = resized(own[name], clients, 0 if name == "fresh" else NOBODY)
        store_states(own, [*states, *[self.detector.init()] * (clients - len(states))])

    def forget(self, own: dict[str, Tensor], client: int) -> None:
        """Make a client a stranger; its own model is open to others."""
        own["key"][client] = own["looked"][client] = NOBODY
        own["fresh"][client] = False
        own["owner"][own["owner"] == client] = NOBODY
        states = detector_states(own)
        states[client] = self.detector.init()
        store_states(own, states)

    def question(self, server: Record, client: int) -> Record:
        """Send all other models, if it is time to look at them, and the data set that is known."""
        due, others = self._due(server, client), list[int]()
        if due:
            others = [place for place in used(server) if place != place_of(server, client)]
        known = server[f"{OWN}key"][client]
        if int(server[f"{TABLE}of"][client]) == NOBODY:
            known = torch.full_like(known, NOBODY)
        return {
            "cluster_others": params_of(server, others),
            "cluster_known": known,
            "cluster_due": torch.tensor(due),
        }

    def answer(self, server: Record, local: Local, models: int) -> Record:
        """Return the number of the data set and, if it is new, the score of every model."""
        scores = torch.zeros(models, dtype=torch.float64)
        if bool(server["cluster_due"]) and local.key != int(server["cluster_known"]):
            for k, params in enumerate([server["params"], *server["cluster_others"]]):
                scores[k] = MEASURED + self._measure(params, local)
        return {"key": torch.tensor(local.key), "scores": scores}

    def decide(self, table: Table, uploads: Uploads, new_state: NewState) -> None:
        """Assign the clients that came with new data; the others follow the same model as before."""
        looks, before = self._looks(table, uploads), list(table.number)
        founders = [] if self.eager or any(table.steps) else list(looks)[1:]
        for upload in uploads:
            if table.following[upload.client] != NOBODY:
                table.follow(upload.client, table.following[upload.client])
        owner = table.own["owner"]
        for client in looks:
            owner[owner == client] = NOBODY
        known = [place for place, number in enumerate(table.number) if number != NOBODY]
        opened = [place for place in known if int(owner[place]) == NOBODY] or known
        best = {c: min(opened, key=lambda p: (look.scores[p], p)) for c, look in looks.items()}
        for client, place in best.items():
            table.follow(client, place)
        states = detector_states(table.own)
        changed = [c for c, look in looks.items() if self._changed(table, states, c, look, best[c])]
        store_states(table.own, states)
        self._found(table, changed or founders, best, new_state)
        for client in looks:
            table.steps[table.following[client]] += 1
        if self.merge is not None:
            # A score is that of the model which was at a place before.
            self._merge(table, looks, [p for p in opened if table.number[p] == before[p]])

    def told(self, server: Record, client: int) -> Record:
        """Tell the client if its score after training is wanted."""
        return {"cluster_fresh": server[f"{OWN}fresh"][client]}

    def report(self, params: Vector, server: Record, local: Local) -> Record:
        """Return the score after training, if it is wanted."""
        wanted = bool(server["cluster_fresh"])
        score = MEASURED + self._measure(params, local) if wanted else 0.0
        return {"baseline": torch.tensor(score, dtype=torch.float64)}

    def learn(self, table: Table, uploads: Uploads) -> None:
        """Take the scores after training as those to compare with."""
        states = detector_states(table.own)
        for upload in uploads:
            baseline = float(upload[1]["baseline"])
            if baseline and bool(table.own["fresh"][upload.client]):
                value = torch.tensor([baseline - MEASURED], dtype=torch.float64)
                states[upload.client], _ = self.detector.update(self.detector.init(), value)
        store_states(table.own, states)

    def _measure(self, params: Vector, local: Local) -> float:
        samples, objective = local.samples, local.objective
        if self.score == "loss":
            return float(objective.losses(params, Batch.mean(samples)).double().mean())
        if samples.y.is_floating_point():
            raise SpecError("method.backbone.assign.score: 'error' needs classes; use 'loss'")
        wrong = objective.logits(params, samples.x).argmax(1) != samples.y
        return float(wrong.double().mean())

    def _due(self, server: Record, client: int) -> bool:
        looked, now = int(server[f"{OWN}looked"][client]), int(server[f"{TABLE}round"])
        unknown = int(server[f"{TABLE}of"][client]) == NOBODY
        return unknown or looked // self.every != now // self.every

    def _looks(self, table: Table, uploads: Uploads) -> dict[int, _Look]:
        """Return what clients found that came with new data, by client."""
        found = {}
        main = table.main
        for upload in uploads:
            client, (weight, record) = upload.client, upload
            scores = record["scores"]
            table.own["looked"][client] = table.round
            if float(scores[0]) == 0.0:
                continue
            mine = table.following[client] if table.following[client] != NOBODY else main
            rest = [p for p, number in enumerate(table.number) if number != NOBODY and p != mine]
            values = scores.nan_to_num(nan=torch.inf).sub(MEASURED).tolist()
            by_place = dict(zip([mine, *rest], values, strict=False))
            found[client] = _Look(weight, int(record["key"]), by_place)
        return found

    def _changed(
        self, table: Table, states: list[Record], client: int, look: _Look, best: int
    ) -> bool:
        """Tell if a client's data changed; note its data set and the score to compare with next."""
        own, change = table.own, None
        first = int(own["key"][client]) == NOBODY
        if not first:
            value = torch.tensor([look.scores[best]], dtype=torch.float64)
            states[client], change = self.detector.update(states[client], value)
        if change is not None:
            states[client] = self.detector.init()
        own["key"][client] = look.key
        own["fresh"][client] = first or change is not None
        return change is not None

    def _found(
        self, table: Table, changed: list[int], best: Mapping[int, int], new_state: NewState
    ) -> None:
        """Give clients whose data changed a new model, or one each, as far as there are places."""
        groups = [changed] if self.eager and changed else [[client] for client in changed]
        for group in groups:
            place = table.free(self.idle)
            if place is None:
                return
            table.put(place, new_state(table.models[best[group[0]]]))
            table.own["owner"][place] = NOBODY if self.eager else group[0]
            for client in group:
                table.follow(client, place)

    def _merge(self, table: Table, looks: Mapping[int, _Look], opened: list[int]) -> None:
        """Merge models that were there before, and whose clients brought new data."""
        limit = self.merge or 0.0
        groups = {p: [c for c in looks if table.following[c] == p] for p in opened}
        known = [place for place, clients in groups.items() if clients]
        scores = {
            (i, j): _mean([(looks[c].weight, looks[c].scores[i]) for c in groups[j]])
            for i in known
            for j in known
        }
        for group in linked(distances(scores), limit):
            if len(group) > 1:
                table.merge(group)


def _mean(weighted: list[tuple[float, float]]) -> float:
    return sum(w * x for w, x in weighted) / sum(w for w, _ in weighted)
