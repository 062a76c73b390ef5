"""The registry of measures: everything that is computed after a round, and how it is shown.

A measure is one entry of :data:`MEASURES`. The progress line, the terminal table, ``summary.json``, the report,
the live page and the documentation all follow from it. A user's own measure is one more :class:`Measure`, named
in a specification as ``evaluate.measures = ["package.module:NAME"]``. The part of it that readers need is
written to ``measures.json`` in the run directory, so that a reader can show it without the user's module.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chronofed.core.errors import SpecError
from chronofed.training.classification_measures import CLASSIFICATION
from chronofed.training.measure import (
    HEADLINES,
    Column,
    Compute,
    Measure,
    MeasureDisplay,
    TaskName,
    headline_of,
    load_measure,
    placed,
)
from chronofed.training.regression_measures import REGRESSION_MEASURES

if TYPE_CHECKING:
    from chronofed.models.supervised import Score


def seen(read: "Callable[[Score], float | None]") -> Compute:
    """A number of the score on training samples seen so far."""
    return lambda evaluation: None if evaluation.seen is None else read(evaluation.seen)


def accuracy(score: "Score") -> float | None:
    """The accuracy of a classification."""
    return score.accuracy if score.classified else None


def validation(read: "Callable[[Score], float | None]") -> Compute:
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


_NO_PAIRS = (
    "clients do not come back or are remote, evaluate.periods = 'off', or no test rows are theirs "
    "(data.test)"
)

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
        task="classification",
        compute=lambda evaluation: accuracy(evaluation.test),
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
        key="test_samples",
        title="Samples evaluated on",
        description="the number of samples of the next period, with ``evaluate.protocol = 'next'``; or of test "
        "rows, with ``evaluate.sample``",
        shown={},
        compute=lambda evaluation: len(evaluation.rows.samples) if evaluation.counted else None,
    ),
    Measure(
        key="test_period",
        title="Period evaluated on",
        description="its number, counted from 0, with ``evaluate.protocol = 'next'``; its name is in "
        "``breakdown.jsonl``",
        shown={},
        compute=lambda evaluation: evaluation.rows.period,
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
        task="classification",
        compute=validation(accuracy),
    ),
    Measure(
        key="bytes_down",
        title="Traffic to clients",
        description="bytes of tensors sent to clients so far",
        unit="bytes",
        better="lower",
        cumulative=True,
        shown={"curves": 61, "summary": 14},
        compute=lambda evaluation: evaluation.snapshot.traffic.down_bytes,
    ),
    Measure(
        key="bytes_up",
        title="Traffic from clients",
        description="bytes of tensors sent by clients so far",
        unit="bytes",
        better="lower",
        cumulative=True,
        shown={"curves": 60, "summary": 15},
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
        task="classification",
        compute=seen(accuracy),
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
        compute=seen(len),
    ),
    Measure(
        key="personal_accuracy",
        title="Accuracy of personal models",
        description="accuracy of personal models on their own clients' mix of classes",
        unit="fraction",
        better="higher",
        shown={"curves": 12, "summary": 11},
        task="classification",
        compute=lambda evaluation: evaluation.personal.get("personal_accuracy"),
    ),
    Measure(
        key="client_accuracy",
        title="Accuracy of the global model on clients' own classes",
        description="accuracy of the global model on the same mix, where there are personal or several models",
        unit="fraction",
        better="higher",
        shown={"curves": 13, "summary": 12},
        task="classification",
        compute=lambda evaluation: (evaluation.clusters | evaluation.personal).get(
            "client_accuracy"
        ),
    ),
    Measure(
        key="cluster_accuracy",
        title="Accuracy of the models that clients follow",
        description="accuracy of several global models, each on the mix of classes of its own clients",
        unit="fraction",
        better="higher",
        shown={"curves": 51, "summary": 51},
        task="classification",
        compute=lambda evaluation: evaluation.clusters.get("cluster_accuracy"),
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
        shown={"curves": 62, "summary": 13},
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
        absent=_NO_PAIRS,
        shown={"progress": 4, "table": 40, "curves": 3, "summary": 3},
        task="classification",
        compute=lambda evaluation: evaluation.by_period.get("forgetting"),
    ),
    Measure(
        key="backward_transfer",
        title="Backward transfer",
        description="present accuracy minus the first one after a data set was seen, mean over the earlier "
        "ones that are followed",
        unit="fraction",
        better="higher",
        absent=_NO_PAIRS,
        shown={"curves": 16, "summary": 4},
        task="classification",
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
    *REGRESSION_MEASURES,
)
"""All measures that are always computed, in the order of the keys in ``metrics.jsonl``."""

OPTIONAL: tuple[Measure, ...] = CLASSIFICATION
"""Measures that are computed if ``evaluate.measures`` names them, after those."""

BY_KEY = {measure.key: measure for measure in (*MEASURES, *OPTIONAL)}
BY_NAME = {measure.key: measure for measure in OPTIONAL}


def columns(measures: Iterable[MeasureDisplay] = MEASURES) -> list[Column]:
    """The columns of a table, the most important first."""
    return [column for measure in placed("table", measures) for column in measure.columns()]


def of_tasks(tasks: Collection[TaskName]) -> tuple[Measure, ...]:
    """The measures that runs of these tasks may have."""
    return tuple(measure for measure in MEASURES if measure.task is None or measure.task in tasks)


def task_of(recorded: Collection[str]) -> TaskName:
    """The task of a run, from the keys of its evaluations."""
    headline = headline_of(recorded)
    return next(task for task, key in HEADLINES.items() if key == headline)


def headline_text(measures: Mapping[str, float]) -> str:
    """The headline of an evaluation in a few words, such as ``accuracy 81.2%``; empty if there is none.

    >>> headline_text({"round": 3, "test_accuracy": 0.8123}), headline_text({"rmse": 3.14159})
    ('accuracy 81.2%', 'rmse 3.142')
    """
    measure = BY_KEY[headline_of(measures)]
    if measure.key not in measures:
        return ""
    return f"{measure.name.removeprefix('test ')} {measure.progress_text(measures[measure.key])}"


def load_measures(names: Sequence[str]) -> tuple[Measure, ...]:
    """Find measures by name, and import a user's own.

    Args:
        names: A key of :data:`OPTIONAL`, or where a measure is, as ``package.module:NAME``.

    Raises:
        SpecError: If there is none, it cannot be imported, or its key is taken.
    """
    found: dict[str, Measure] = {}
    for name in names:
        measure = _known(name) if ":" not in name else load_measure(name)
        if measure.key in {"round", *BY_KEY.keys() - {name}, *found}:
            msg = f"evaluate.measures: {name!r}: the key {measure.key!r} is taken; choose another"
            raise SpecError(msg)
        found[measure.key] = measure
    return tuple(found.values())


def next_period_displays() -> list[dict[str, Any]]:
    """Describe the accuracy and the loss of the protocol ``next``, which are not those of a test set."""
    words = {"test_accuracy": "accuracy", "test_loss": "loss"}
    return [
        BY_KEY[key].display()
        | {"title": f"{word.capitalize()} on the next period", "label": f"next-period {word}"}
        for key, word in words.items()
    ]


def _known(name: str) -> Measure:
    if name in BY_NAME:
        return BY_NAME[name]
    close = difflib.get_close_matches(name, BY_NAME, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    msg = (
        f"evaluate.measures: {name!r} is not a measure; {hint}use 'package.module:NAME' or one of "
    )
    raise SpecError(f"{msg}{', '.join(BY_NAME)}")
