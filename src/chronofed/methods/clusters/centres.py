"""Centres."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from chronofed.core.config import Count, NonNegative, Positive
from chronofed.core.seeds import entropy, torch_generator
from chronofed.core.types import Record
from chronofed.methods.backbones.base import Upload, Uploads, weighted_mean
from chronofed.methods.clusters.base import Assignment, NewState
from chronofed.methods.clusters.table import NOBODY, OWN, Table
from chronofed.methods.local import Local
from chronofed.scenarios.cycles import Diurnal

# Deviation of the first centres, as in the authors' code.
FIRST = 0.1


class Centres(Assignment, tag="centres"):
    r"""By the distance of features to centres, with a prior for the time of day: FedTKM.

    Of a client's samples each votes for the centre nearest to its features, where the distance to the first
    centre is multiplied by :math:`s`. The client follows the model with most votes, and sends its mean feature.
    The server moves each centre to the mean of its clients' and, with the share :math:`r_t` of clients that
    follow the first model, :math:`s \gets s\, e^{\eta (r_t - q(t))}`. The expected share :math:`q(t)` is that
    of the membership ``diurnal``. Without a ``period`` it is federated k-means, :math:`s = 1`.

    In the publication models share all layers but the last (``layers = ["fc.*"]`` of ``clusters``). Otherwise
    every client's features are those of the model that it follows.

    It differs from the authors' code: features are those of the model that arrives, where that code measures
    centres after local training; and a client does not train the other branch towards uniform outputs.

    Attributes:
        layer: Module of the model whose inputs are the features; by default the last linear layer.
        period: Rounds of one day and night; no prior by default.
        shape: Form of the change of :math:`q`.
        power: Exponent of :math:`q`.
        rate: Step :math:`\eta` of the factor (0.01 to 0.1 in the authors' code).
    """

    asks: ClassVar[bool] = True
    upload_keys: ClassVar[tuple[str, ...]] = ("votes", "feature")
    reference: ClassVar[str] = (
        "Zhu et al. (2022), Diurnal or Nocturnal? Federated Learning of Multi-branch Networks from "
        "Periodically Shifting Distributions"
    )

    layer: str | None = None
    period: Count | None = None
    shape: Literal["linear", "cosine"] = "linear"
    power: Positive = 1.0
    rate: NonNegative = 0.05

    def init(self, models: int, clients: int) -> Record:
        """Return no centres yet, since the length of features is not known, and a factor of 1."""
        return {
            "centres": torch.empty(models, 0, dtype=torch.float64),
            "scale": torch.ones((), dtype=torch.float64),
            "seed": torch.zeros((), dtype=torch.int64),
        }

    def draw(self, own: dict[str, Tensor], seed: int) -> None:
        """Note the seed of the first centres."""
        own["seed"] = torch.tensor(entropy(seed, "centres"))

    def question(self, server: Record, client: int) -> Record:
        """Send the centres and the factor of the first distance."""
        return {f"cluster_{name}": server[OWN + name] for name in ("centres", "scale")}

    def answer(self, server: Record, local: Local, models: int) -> Record:
        """Return the share of samples that vote for each centre, and their mean feature."""
        x, centres = local.samples.x, server["cluster_centres"]
        features = local.objective.features(server["params"], x, self.layer).double()
        votes = torch.zeros(models, dtype=torch.float64)
        if centres.shape[1]:
            nearest = _distances(features, centres, float(server["cluster_scale"])).argmin(1)
            votes = nearest.bincount(minlength=models).double() / len(x)
        return {"votes": votes, "feature": features.mean(0)}

    def decide(self, table: Table, uploads: Uploads, new_state: NewState) -> None:
        """Let every client follow its votes, and move the centres and the factor."""
        own, first = table.own, not table.own["centres"].shape[1]
        if first:
            shape = len(table.number), len(uploads[0][1]["feature"])
            generator = torch_generator(int(own["seed"]), "first")
            own["centres"] = FIRST * torch.randn(shape, generator=generator, dtype=torch.float64)
        groups: dict[int, list[Upload]] = {}
        for upload in uploads:
            votes = upload[1]["votes"]
            if first:
                votes = -_distances(upload[1]["feature"][None], own["centres"], 1.0)[0]
            groups.setdefault(int(votes.argmax()), []).append(upload)
        for place, some in groups.items():
            self._join(table, place, some, new_state)
        if self.period is not None:
            share = len(groups.get(0, ())) / len(uploads)
            own["scale"] = own["scale"] * math.exp(self.rate * (share - self._prior(table.round)))

    def learn(self, table: Table, uploads: Uploads) -> None:
        """Learn nothing after training."""

    def _join(self, table: Table, place: int, some: list[Upload], new_state: NewState) -> None:
        if table.number[place] == NOBODY:
            table.put(place, new_state(table.models[place]))
        for upload in some:
            table.follow(upload.client, place)
        table.steps[place] += len(some)
        table.own["centres"][place] = weighted_mean(some, "feature")

    def _prior(self, round_: int) -> float:
        period = self.period or 1
        return Diurnal(period=period, shape=self.shape, power=self.power).share(round_)


def _distances(features: Tensor, centres: Tensor, scale: float) -> Tensor:
    """Return the distances of features to centres, ``(n, centres)``, the first multiplied by ``scale``."""
    distances = torch.cdist(features, centres, compute_mode="donot_use_mm_for_euclid_dist")
    distances[:, 0] *= scale
    return distances
