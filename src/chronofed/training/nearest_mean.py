r"""The nearest-mean-of-exemplars classifier of iCaRL.

A sample has the class :math:`\arg\max_c \langle \bar\phi(x), \bar\mu_c \rangle`, with its features divided by
their norm, :math:`\bar\phi`, and the mean :math:`\mu_c` of those of the class's kept samples, divided by its
norm in turn. That is the nearest mean, as all have norm one. Features are the inputs of the last linear layer.
"""

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor
from torch.nn.functional import normalize

from chronofed.clients.state import ClientState
from chronofed.core.errors import SpecError
from chronofed.core.types import Samples, Vector
from chronofed.models.objective import TorchObjective
from chronofed.models.supervised import Score

# The output of a class without kept samples: below every cosine.
UNKNOWN = -2.0
NO_SAMPLES = (
    "evaluate.classifier: 'nearest-mean' finds no samples that clients keep; choose a memory that keeps some, "
    "such as core-set, and clients on this machine"
)


def class_means(
    objective: TorchObjective, params: Vector, states: Iterable[ClientState], classes: int
) -> Tensor:
    """Return the mean of every class, ``(classes, k)``, of all clients' samples alike; 0 without samples.

    Raises:
        SpecError: If clients keep no samples at all.
    """
    total: Tensor | None = None
    for state in states:
        for record in (item.record for item in state.items if {"x", "y"} <= set(item.record)):
            features = normalize(objective.features(params, record["x"]).double())
            if total is None:
                total = features.new_zeros(classes, features.shape[1])
            total.index_add_(0, record["y"].to(features.device), features)
    if total is None:
        raise SpecError(NO_SAMPLES)
    return normalize(total)


def nearest_mean(
    score: Score, objective: TorchObjective, params: Vector, samples: Samples, means: Tensor
) -> Score:
    """Return a score with cosines in place of outputs, and the nearest class as prediction; the loss stays."""
    features = normalize(objective.features(params, samples.x).double())
    cosines = (features @ means.T).cpu()
    cosines[:, ~means.any(1).cpu()] = UNKNOWN
    return replace(score, values=(cosines.argmax(1) == samples.y.cpu()).numpy(), outputs=cosines)
