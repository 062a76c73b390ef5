"""The registry of records: what is written at every evaluation beside the measures.

A record is one entry of :data:`RECORDS`: its lines go to ``NAME.jsonl`` in the run directory. They are dropped
and written again if a run is resumed from an earlier round. The report and the live page read them by name.

This module needs no torch: commands that only read runs import it, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronofed.training.evaluation import EvaluationContext


@dataclass(frozen=True, slots=True)
class Record:
    """A file of JSON lines, one for each evaluation.

    Attributes:
        name: The name of the file without its ending.
        line: Computes the line; it has a key ``round``. Nothing is written for an empty one.
    """

    name: str
    line: Callable[["EvaluationContext"], Mapping[str, Any]]


def periods(evaluation: "EvaluationContext", entry: str) -> Mapping[str, Any]:
    """Return the values by client and data set: accuracies, or of a regression mean absolute errors."""
    return evaluation.periods if entry in evaluation.periods else {}


RECORDS = (
    Record("period_accuracy", lambda evaluation: periods(evaluation, "accuracy")),
    Record("period_error", lambda evaluation: periods(evaluation, "error")),
    Record("round_weights", lambda evaluation: evaluation.round_weights),
    Record("breakdown", lambda evaluation: evaluation.breakdown),
    Record("choices", lambda evaluation: evaluation.choices),
    Record("clusters", lambda evaluation: evaluation.followers),
)
