r"""Measures of classification beyond accuracy and loss, all from the outputs of one evaluation.

With :math:`p_{ic}` the chance that the model gives sample *i* for class *c*. A measure that is not defined,
such as the AUC where all samples are of one class, is absent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chronofed.training.measure import Compute, Measure

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 15
"""Bins of the calibration error."""
DEFAULT = ("macro_f1", "auc", "worst_client_accuracy")
"""Measures that the protocol ``next`` computes by default."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an evaluation, and what measures share.

    Attributes:
        logarithms: Logarithms of the chances, ``(n, classes)``.
        labels: Classes of the samples, ``(n,)``.
        client: Clients of the samples, ``(n,)``; ``None`` if unknown.
    """

    logarithms: Floats
    labels: Ints
    client: Ints | None = None

    @classmethod
    def of(cls, logits: "Tensor", labels: "Tensor", client: Ints | None) -> "Outcome | None":
        """Take over the outputs of a model; ``None`` if they are not finite, or there are none."""
        outputs = logits.double().numpy()
        if not len(outputs) or not np.isfinite(outputs).all():
            return None
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return cls(logarithms, labels.numpy().astype(np.int64), client)

    @cached_property
    def chances(self) -> Floats:
        """Chances of the classes, ``(n, classes)``."""
        return np.exp(self.logarithms)

    @cached_property
    def predicted(self) -> Ints:
        """The most probable classes, ``(n,)``."""
        return np.asarray(self.logarithms.argmax(axis=1))

    @cached_property
    def by_class(self) -> Floats:
        """Precision, recall, F1 and number of samples of every class, ``(classes, 4)``; 0 where undefined."""
        kinds = self.logarithms.shape[1]
        support, answers = (np.bincount(c, minlength=kinds) for c in (self.labels, self.predicted))
        hits = np.bincount(self.labels[self.predicted == self.labels], minlength=kinds)
        precision, recall = hits / np.maximum(answers, 1), hits / np.maximum(support, 1)
        f1 = 2 * hits / np.maximum(answers + support, 1)
        return np.stack([precision, recall, f1, support.astype(np.float64)], axis=1)

    @cached_property
    def by_client(self) -> Floats:
        """Client, number of samples and accuracy of every client that has samples, ``(clients, 3)``."""
        if self.client is None:
            return np.zeros((0, 3))
        rows = np.bincount(self.client)
        right = np.bincount(self.client, weights=self.predicted == self.labels)
        who = np.flatnonzero(rows)
        return np.stack([who, rows[who], right[who] / rows[who]], axis=1)

    @property
    def positives(self) -> "list[tuple[Floats, NDArray[np.bool_]]]":
        """Score and truth of every class against the rest, if there are samples of both; of two, the second."""
        kinds = range(1, 2) if self.logarithms.shape[1] == 2 else range(self.logarithms.shape[1])
        pairs = [(self._score(c), self.labels == c) for c in kinds]
        return [(score, truth) for score, truth in pairs if truth.any() and not truth.all()]

    def _score(self, label: int) -> Floats:
        """Rank samples by the chance of a class; of two, by its odds, which do not saturate at 1."""
        if self.logarithms.shape[1] == 2:
            return self.logarithms[:, label] - self.logarithms[:, 1 - label]
        return self.chances[:, label]


def macro_f1(outcome: Outcome) -> float | None:
    """Average F1 over the classes that samples or answers have."""
    present = np.unique(np.concatenate([outcome.labels, outcome.predicted]))
    return float(outcome.by_class[present, 2].mean())


def balanced_accuracy(outcome: Outcome) -> float | None:
    """Average the recall over the classes that samples have."""
    return float(outcome.by_class[np.unique(outcome.labels), 1].mean())


def auc(outcome: Outcome) -> float | None:
    """Area under the ROC curve: the chance that a positive sample ranks above a negative one; a tie is half."""
    return _mean([_auc(*pair) for pair in outcome.positives])


def average_precision(outcome: Outcome) -> float | None:
    """Area under the curve of precision over recall, without interpolation."""
    return _mean([_average_precision(*pair) for pair in outcome.positives])


def log_loss(outcome: Outcome) -> float | None:
    """Average the negative logarithm of the chance of the true class."""
    return float(-outcome.logarithms[np.arange(len(outcome.labels)), outcome.labels].mean())


def brier(outcome: Outcome) -> float | None:
    """Average the squared distance of the chances from the truth; of two classes, that of one of them."""
    kinds = outcome.logarithms.shape[1]
    truth = outcome.labels[:, None] == np.arange(kinds)
    squares = np.square(outcome.chances - truth).sum(axis=1).mean()
    return float(squares / 2 if kinds == 2 else squares)


def calibration_error(outcome: Outcome) -> float | None:
    r""":math:`\sum_b \frac{n_b}{n} |\text{accuracy}_b - \text{confidence}_b|` over 15 bins of confidence."""
    confidence = outcome.chances.max(axis=1)
    # Bins are closed above, as usual.
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    excess = (outcome.predicted == outcome.labels) - confidence
    return float(np.abs(np.bincount(bins, weights=excess)).sum() / len(excess))


def worst_client_accuracy(outcome: Outcome) -> float | None:
    """Lowest accuracy of a client."""
    found = outcome.by_client[:, 2]
    return float(found.min()) if len(found) else None


def client_accuracy_deviation(outcome: Outcome) -> float | None:
    """Sample standard deviation of the accuracies of clients."""
    found = outcome.by_client[:, 2]
    return float(found.std(ddof=1)) if len(found) > 1 else None


def _mean(numbers: list[float]) -> float | None:
    return float(np.mean(numbers)) if numbers else None


def _auc(score: Floats, truth: NDArray[np.bool_]) -> float:
    """Sum the ranks of the positives (Mann and Whitney 1947); tied samples share their mean rank."""
    _, code, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    positives = int(truth.sum())
    above = rank[code][truth].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(truth) - positives)))


def _average_precision(score: Floats, truth: NDArray[np.bool_]) -> float:
    r""":math:`\sum_k (R_k - R_{k-1}) P_k` over the distinct scores, the highest first."""
    _, code = np.unique(-score, return_inverse=True)
    hits = np.cumsum(np.bincount(code, weights=truth))
    answers = np.cumsum(np.bincount(code))
    return float((np.diff(hits, prepend=0.0) * hits / answers).sum() / truth.sum())


def _of(read: Callable[[Outcome], float | None]) -> Compute:
    return lambda evaluation: None if evaluation.outcome is None else read(evaluation.outcome)


def _measure(read: Callable[[Outcome], float | None], title: str, **options: Any) -> Measure:
    """Make an entry whose key is the function's name and whose description is its docstring."""
    about = (read.__doc__ or "").partition("\n")[0].rstrip(".")
    shown = {"progress": 50, "curves": 50, "summary": 50}
    given = {"unit": "fraction", "better": "higher", "shown": shown} | options
    key, words = read.__name__, about[:1].lower() + about[1:] if about[:2] != ":m" else about
    return Measure(
        key=key,
        title=title,
        description=words,
        compute=_of(read),
        summary=("last", "anytime"),
        **given,
    )


_ONE_CLASS = "all evaluated samples are of one class"
_NO_CLIENTS = "the evaluated samples do not name their clients"
_IN_TABLE = {"progress": 50, "table": 35, "curves": 50, "summary": 50}

CLASSIFICATION: tuple[Measure, ...] = (
    _measure(macro_f1, "Macro F1", label="macro F1", shown=_IN_TABLE),
    _measure(balanced_accuracy, "Balanced accuracy"),
    _measure(
        auc,
        "Area under the ROC curve",
        label="AUC",
        absent=_ONE_CLASS,
        shown=_IN_TABLE | {"table": 36},
    ),
    _measure(average_precision, "Average precision", absent=_ONE_CLASS),
    _measure(log_loss, "Log loss", unit="number", better="lower"),
    _measure(brier, "Brier score", label="Brier score", unit="number", better="lower"),
    _measure(calibration_error, "Expected calibration error", better="lower"),
    _measure(worst_client_accuracy, "Accuracy of the worst client", absent=_NO_CLIENTS),
    _measure(
        client_accuracy_deviation,
        "Standard deviation of the accuracy over clients",
        better="lower",
        absent=_NO_CLIENTS,
    ),
)
"""Measures that ``evaluate.measures`` can name."""
