"""A run in a few numbers."""

from collections.abc import Mapping, Sequence

Measures = Mapping[str, float | int]
BEST = 5


def summarise(history: Sequence[Measures]) -> dict[str, float | int]:
    """Best-5 mean (the paper's figure), last and anytime mean of the test accuracy.

    ``best5`` is the mean of the five best evaluations: optimistic, since it is chosen on the test set.
    ``anytime`` is the mean over all evaluations: what a user of the model met while it was being trained.

    >>> summarise([{"round": r, "test_accuracy": a, "test_loss": 1.0} for r, a in enumerate([0.1, 0.5, 0.3])])
    {'rounds': 2, 'best5': 0.3, 'last': 0.3, 'anytime': 0.3, 'last_loss': 1.0}
    """
    accuracy = [float(measures["test_accuracy"]) for measures in history]
    best = sorted(accuracy, reverse=True)[:BEST]
    last = history[-1]
    summary: dict[str, float | int] = {
        "rounds": int(last["round"]),
        "best5": sum(best) / len(best),
        "last": accuracy[-1],
        "anytime": sum(accuracy) / len(accuracy),
        "last_loss": float(last["test_loss"]),
    }
    if "seen_loss" in last:
        summary["last_seen_loss"] = float(last["seen_loss"])
    return summary
