"""The summary of a run: a few numbers from all evaluations."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from chronofed.training.measure import MeasureDisplay, Statistic, placed
from chronofed.training.measures import MEASURES

Measures = Mapping[str, float | int]
BEST = 5
# A drop by more than this counts as a fall.
FALL = 0.02


def summarise(
    history: Sequence[Measures], own: Sequence[MeasureDisplay] = ()
) -> dict[str, float | int]:
    """Summarise a run: the statistics that every measure asks for.

    Of the test accuracy these are ``best5``, the mean of the five best evaluations (the paper's figure;
    optimistic, since it is chosen on the test set), ``last``, ``anytime``, the mean over all evaluations (what
    a user of the model met while it was being trained), and falls.

    Args:
        history: All evaluations, in order; at least one.
        own: The user's own measures.

    >>> accuracies = enumerate([0.1, 0.5, 0.3])
    >>> summary = summarise([{"round": r, "test_accuracy": a, "test_loss": 1.0} for r, a in accuracies])
    >>> summary["best5"], summary["last"], summary["anytime"], summary["falls"]
    (0.3, 0.3, 0.3, 1)
    """
    summary: dict[str, float | int] = {"rounds": int(history[-1]["round"])}
    for measure in placed("summary", (*MEASURES, *own)):
        for statistic in measure.summary:
            summary |= _statistic(measure, statistic, history)
    return summary


def summary_keys(own: Sequence[MeasureDisplay] = ()) -> list[str]:
    """List the numbers that a summary may have.

    >>> "anytime" in summary_keys()
    True
    """
    measures = placed("summary", (*MEASURES, *own))
    keys = [measure.summary_key(each) for measure in measures for each in measure.summary]
    falls = [key.replace("falls", "recovery_rounds", 1) for key in keys if key.startswith("falls")]
    return [*keys, *falls]


def _statistic(
    measure: MeasureDisplay, statistic: Statistic, history: Sequence[Measures]
) -> dict[str, float | int]:
    """Compute one statistic; empty where the measure is absent."""
    key = measure.summary_key(statistic)
    if statistic == "last":
        return {key: history[-1][measure.key]} if measure.key in history[-1] else {}
    curve = [(int(m["round"]), float(m[measure.key])) for m in history if measure.key in m]
    if not curve:
        return {}
    if statistic == "falls":
        suffix = key.removeprefix("falls")
        return {f"{name}{suffix}": value for name, value in recovery(curve).items()}
    values = [value for _, value in curve]
    if statistic == "best5":
        values = sorted(values, reverse=measure.better != "lower")[:BEST]
    return {key: sum(values) / len(values)}


def recovery(curve: Sequence[tuple[int, float]]) -> dict[str, float | int]:
    """Count the falls of the accuracy, and the mean number of rounds until it recovers.

    A fall is a drop of more than two points from one evaluation to the next. It is over when the accuracy
    before it is reached again; one that is not over by the end counts until then.

    >>> recovery([(0, 0.5), (10, 0.4), (20, 0.45), (30, 0.5), (40, 0.6)])
    {'falls': 1, 'recovery_rounds': 20.0}
    """
    lengths: list[int] = []
    start, level = -1, 0.0
    for (_, high), (now, value) in pairwise(curve):
        if start >= 0:
            if value >= level:
                lengths.append(now - start)
                start = -1
        elif value < high - FALL:
            start, level = now, high
    if start >= 0:
        lengths.append(curve[-1][0] - start)
    if not lengths:
        return {"falls": 0}
    return {"falls": len(lengths), "recovery_rounds": sum(lengths) / len(lengths)}
