"""A run in a few numbers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

Measures = Mapping[str, float | int]
BEST = 5
FALL = 0.02  # a loss of accuracy that counts as a fall
LAST = (
    "test_loss",
    "seen_loss",
    "forgetting",
    "backward_transfer",
    "information_loss",
    "client_drift",
    "time_drift",
    "estimated_client_drift",
    "estimated_time_drift",
    "estimated_information_loss",
    "personal_accuracy",
    "client_accuracy",
    "epsilon",
    "bytes_down",
    "bytes_up",
)


def summarise(history: Sequence[Measures]) -> dict[str, float | int]:
    """Best-5 mean (the paper's figure), last and anytime mean of the test accuracy, and what explains them.

    ``best5`` is the mean of the five best evaluations: optimistic, since it is chosen on the test set.
    ``anytime`` is the mean over all evaluations: what a user of the model met while it was being trained.

    >>> accuracies = enumerate([0.1, 0.5, 0.3])
    >>> summary = summarise([{"round": r, "test_accuracy": a, "test_loss": 1.0} for r, a in accuracies])
    >>> summary["best5"], summary["last"], summary["anytime"], summary["falls"]
    (0.3, 0.3, 0.3, 1)
    """
    accuracy = [float(measures["test_accuracy"]) for measures in history]
    best = sorted(accuracy, reverse=True)[:BEST]
    last = history[-1]
    summary: dict[str, float | int] = {
        "rounds": int(last["round"]),
        "best5": sum(best) / len(best),
        "last": accuracy[-1],
        "anytime": sum(accuracy) / len(accuracy),
    }
    summary |= recovery([(int(m["round"]), float(m["test_accuracy"])) for m in history])
    return summary | {f"last_{key}": last[key] for key in LAST if key in last}


def recovery(curve: Sequence[tuple[int, float]]) -> dict[str, float | int]:
    """Falls of the accuracy, and how many rounds it took to come back from one, on average.

    A fall is a loss of more than two points from one evaluation to the next; it is over when the accuracy
    before it is reached again. One that is not over by the end counts until then.

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
