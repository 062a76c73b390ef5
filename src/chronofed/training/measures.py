"""The registry of measures: everything that is computed after a round, and how it is shown.

A measure is one entry of :data:`MEASURES`. The progress line, the terminal table, ``summary.json``, the report,
the live page and the documentation all follow from it. A user's own measure is one more :class:`Measure`, named
in a specification as ``evaluate.measures = ["package.module:NAME"]``. The part of it that readers need is
written to ``measures.json`` in the run directory, so that a reader can show it without the user's module.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chronofed.core.errors import SpecError
from chronofed.training.measure import (
    Column,
    Compute,
    Measure,
    MeasureDisplay,
    load_measure,
    placed,
)

if TYPE_CHECKING:
    from chronofed.models.classification import Score


def seen(read: "Callable[[Score], float]") -> Compute:
    """A number of the score on training samples seen so far."""
    return lambda evaluation: None if evaluation.seen is None else read(evaluation.seen)


def validation(read: "Callable[[Score], float]") -> Compute:
    """A number of the score on the validation rows."""
    return lambda evaluation: None if evaluation.validation is None else read(evaluation.validation)


def reported(key: str) -> Compute:
    """A number that the method reports."""
    return lambda evaluation: evaluation.reported.get(key)


def drift(key: str) -> Compute:
    """A number that needs the past data."""
    return lambda evaluation: evaluation.drift.get(key)


def _traffic(summary: Mapping[str, Any]) -> float | None:
    sent = [summary.get(f"last_bytes_{way}") for way in ("down", "up")]
    known = [float(number) for number in sent if number is not None]
    return sum(known) if known else None


MEASURES: tuple[Measure, ...] = (
    Measure(
        key="test_accuracy",
        title="Accuracy on the test set",
        description="accuracy on the global test set",
        unit="fraction",
        better="higher",
        label="test accuracy",
        summary=("best5", "last", "anytime", "falls"),
        shown={"progress": 1, "table": 10, "curves": 1, "summary": 0},
        compute=lambda evaluation: evaluation.test.accuracy,
    ),
    Measure(
        key="test_loss",
        title="Loss on the test set",
        description="loss on the global test set",
        better="lower",
        label="test loss",
        shown={"progress": 2, "table": 60, "curves": 4, "summary": 1},
        compute=lambda evaluation: evaluation.test.loss,
    ),
    Measure(
        key="validation_loss",
        title="Loss on the validation rows",
        description="loss on the validation rows, by which ``stop`` ends a run",
        better="lower",
        label="validation loss",
        shown={"progress": 41, "curves": 41, "summary": 41},
        compute=validation(lambda score: score.loss),
    ),
    Measure(
        key="validation_accuracy",
        title="Accuracy on the validation rows",
        description="accuracy on the validation rows, beside ``validation_loss``",
        unit="fraction",
        better="higher",
        label="validation accuracy",
        shown={"progress": 42, "curves": 42, "summary": 42},
        compute=validation(lambda score: score.accuracy),
    ),
    Measure(
        key="bytes_down",
        title="Traffic to clients",
        description="bytes of tensors sent to clients so far",
        unit="bytes",
        better="lower",
        cumulative=True,
        shown={"summary": 14},
        compute=lambda evaluation: evaluation.snapshot.traffic.down_bytes,
    ),
    Measure(
        key="bytes_up",
        title="Traffic from clients",
        description="bytes of tensors sent by clients so far",
        unit="bytes",
        better="lower",
        cumulative=True,
        shown={"summary": 15},
        compute=lambda evaluation: evaluation.snapshot.traffic.up_bytes,
    ),
    Measure(
        key="seen_accuracy",
        title="Accuracy on training data seen so far",
        description="accuracy on training samples that some client has held so far",
        unit="fraction",
        better="higher",
        label="seen accuracy",
        absent="evaluate.seen = 0, or the clients are remote",
        shown={"progress": 3, "curves": 2},
        compute=seen(lambda score: score.accuracy),
    ),
    Measure(
        key="seen_loss",
        title="Loss on training data seen so far",
        description="loss on those samples",
        better="lower",
        label="seen loss",
        absent="evaluate.seen = 0, or the clients are remote",
        shown={"table": 70, "curves": 5, "summary": 2},
        compute=seen(lambda score: score.loss),
    ),
    Measure(
        key="seen_samples",
        title="Training samples evaluated",
        description="the number of those samples that were used, at most ``evaluate.seen``",
        shown={},
        compute=seen(lambda score: len(score.correct)),
    ),
    Measure(
        key="personal_accuracy",
        title="Accuracy of personal models",
        description="accuracy of personal models on their own clients' mix of classes",
        unit="fraction",
        better="higher",
        shown={"curves": 12, "summary": 11},
        compute=lambda evaluation: evaluation.personal.get("personal_accuracy"),
    ),
    Measure(
        key="client_accuracy",
        title="Accuracy of the global model on clients' own classes",
        description="accuracy of the global model on the same mix, where there are personal models",
        unit="fraction",
        better="higher",
        shown={"curves": 13, "summary": 12},
        compute=lambda evaluation: evaluation.personal.get("client_accuracy"),
    ),
    Measure(
        key="estimated_client_drift_sq",
        title="Client drift, estimated while training",
        description=r":math:`G^2` as ``adaptive`` round weights estimate it",
        shown={"curves": 10, "summary": 8},
        compute=reported("estimated_client_drift_sq"),
    ),
    Measure(
        key="estimated_time_drift_sq",
        title="Time drift, estimated while training",
        description=r":math:`D^2` as ``adaptive`` round weights estimate it",
        shown={"curves": 11, "summary": 9},
        compute=reported("estimated_time_drift_sq"),
    ),
    Measure(
        key="estimated_correlation",
        title="Correlation of time drifts, estimated while training",
        description="correlation of successive time drifts as ``adaptive`` round weights estimate it",
        shown={},
        compute=reported("estimated_correlation"),
    ),
    Measure(
        key="estimated_information_loss",
        title="Information loss, estimated while training",
        description="information loss, a norm, as ``adaptive`` round weights estimate it",
        better="lower",
        shown={"curves": 9, "summary": 10},
        compute=reported("estimated_information_loss"),
    ),
    Measure(
        key="epsilon",
        title="Privacy loss ε",
        description="privacy loss so far at the backbone's ``delta``, with the backbone ``private``",
        better="lower",
        cumulative=True,
        shown={"summary": 13},
        compute=reported("epsilon"),
    ),
    Measure(
        key="client_drift_sq",
        title="Client drift G²",
        description=r":math:`G^2` at the present model, with ``evaluate.past``",
        shown={"curves": 7, "summary": 6},
        compute=drift("client_drift_sq"),
    ),
    Measure(
        key="time_drift_sq",
        title="Time drift D²",
        description=r":math:`D^2` at the present model, with ``evaluate.past``",
        shown={"curves": 8, "summary": 7},
        compute=drift("time_drift_sq"),
    ),
    Measure(
        key="information_loss",
        title="Information loss",
        description=r"mean of :math:`\|\nabla f_\tau - \nabla\tilde f_\tau\|` over what is kept, "
        "with ``evaluate.past``",
        better="lower",
        absent="evaluate.past = 0, or nothing is remembered",
        shown={"progress": 5, "table": 80, "curves": 6, "summary": 5},
        compute=drift("information_loss"),
    ),
    Measure(
        key="forgetting",
        title="Forgetting",
        description="best accuracy so far minus the present one, mean over the pairs of client and data set "
        "that are followed",
        unit="fraction",
        better="lower",
        absent="clients do not come back or are remote, evaluate.periods = 'off', or no test rows are theirs",
        shown={"progress": 4, "table": 40, "curves": 3, "summary": 3},
        compute=lambda evaluation: evaluation.by_period.get("forgetting"),
    ),
    Measure(
        key="backward_transfer",
        title="Backward transfer",
        description="present accuracy minus the first one after a data set was seen, mean over the earlier "
        "ones that are followed",
        unit="fraction",
        better="higher",
        absent="clients do not come back or are remote, evaluate.periods = 'off', or no test rows are theirs",
        shown={"summary": 4},
        compute=lambda evaluation: evaluation.by_period.get("backward_transfer"),
    ),
    Measure(
        key="followed_pairs",
        title="Pairs of client and data set that are followed",
        description="the number of pairs that forgetting and backward transfer are means over",
        shown={"summary": 16},
        compute=lambda evaluation: evaluation.by_period.get("followed_pairs"),
    ),
    Measure(
        key="seen_pairs",
        title="Pairs of client and data set seen so far",
        description="the number of pairs seen so far; if more than are followed, those are a random sample",
        shown={"summary": 17},
        compute=lambda evaluation: evaluation.by_period.get("seen_pairs"),
    ),
    Measure(
        key="seconds",
        title="Wall-clock time",
        description="wall-clock time of the run",
        unit="seconds",
        better="lower",
        label="",
        summary=(),
        cumulative=True,
        shown={"table": 50},
    ),
    Measure(
        key="traffic",
        title="Traffic",
        description="bytes of tensors sent both ways",
        unit="bytes",
        better="lower",
        summary=(),
        cumulative=True,
        shown={"table": 90},
        from_summary=_traffic,
    ),
)
"""All measures of the package, in the order of the keys in ``metrics.jsonl``."""

BY_KEY = {measure.key: measure for measure in MEASURES}


def columns(measures: Iterable[MeasureDisplay] = MEASURES) -> list[Column]:
    """The columns of a table, the most important first."""
    return [column for measure in placed("table", measures) for column in measure.columns()]


def load_measures(names: Sequence[str]) -> tuple[Measure, ...]:
    """Import a user's own measures.

    Args:
        names: Where each is, as ``package.module:NAME``.

    Raises:
        SpecError: If one cannot be imported, or its key is taken.
    """
    found: dict[str, Measure] = {}
    for name in names:
        measure = load_measure(name)
        if measure.key in {"round", *BY_KEY, *found}:
            msg = f"evaluate.measures: {name!r}: the key {measure.key!r} is taken; choose another"
            raise SpecError(msg)
        found[measure.key] = measure
    return tuple(found.values())
