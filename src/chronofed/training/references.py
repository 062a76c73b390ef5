"""The verdict on a run: its predictions of the next period beside those of the baselines, in words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from chronofed.training.baselines import BaselineName, BaselineScores
from chronofed.training.measure import HEADLINES
from chronofed.training.paired import SIGNIFICANCE, holm, paired
from chronofed.training.summary import Measures

TITLES: dict[BaselineName, str] = {
    "majority": "majority class",
    "persistence": "persistence",
    "last_period": "last period's model",
    "local": "local models",
    "pooled": "all data pooled",
}
ENOUGH_PERIODS = 6
"""Periods from which on differences are tested."""
ACCURACY = "test_accuracy"
MEAN = "mean so far"
"""The title of the majority where the target is a number."""
_CALENDAR = ("day", "week", "month", "quarter", "year")


def headline(classes: Sequence[str]) -> str:
    """Return the measure that baselines are compared by: accuracy, or for numbers the ``rmse``."""
    return HEADLINES["classification" if classes else "regression"]


def compare(
    history: Sequence[Measures],
    found: Mapping[BaselineName, BaselineScores],
    key: str,
    period: str = "",
) -> dict[str, Any]:
    """Compare a run with its baselines, paired by period.

    Args:
        history: The evaluations of the run.
        found: The scores of the baselines.
        key: The measure that is compared.
        period: The setting of the table that splits time, for a word such as ``month``.

    Returns:
        ``measure``, ``mean`` of the run, ``periods``, ``references`` (for each baseline its ``title``,
        ``mean``, the mean ``difference`` of the run to it, and ``p`` from six periods on) and ``words``.
    """
    own = {int(line["round"]): float(line[key]) for line in history if key in line}
    references = {
        name: reference
        for name, scores in found.items()
        if (reference := _reference(own, name, scores)) is not None
    }
    if key != ACCURACY and "majority" in references:
        references["majority"]["title"] = MEAN
    tested = [one for one in references.values() if one["p"] is not None]
    for one, p in zip(tested, holm([one["p"] for one in tested]), strict=True):
        one["p"] = p
    mean = sum(own.values()) / len(own) if own else None
    about = {"measure": key, "mean": mean, "periods": len(own), "references": references}
    return about | {"words": _words(about, period)}


def _reference(
    own: Mapping[int, float], name: BaselineName, scores: BaselineScores
) -> dict[str, Any] | None:
    known = zip(scores.rounds, scores.scores, strict=True)
    pairs = [(own[r], score) for r, score in known if r in own and score is not None]
    if not pairs:
        return None
    difference = paired(*zip(*pairs, strict=True))
    return {
        "title": TITLES[name],
        "mean": sum(score for _, score in pairs) / len(pairs),
        "difference": difference.mean,
        "p": difference.p() if len(pairs) >= ENOUGH_PERIODS else None,
    }


def _words(about: Mapping[str, Any], period: str) -> str:
    if about["mean"] is None or not about["references"]:
        return ""
    unit = period if period in _CALENDAR else "period"
    accuracy = about["measure"] == ACCURACY
    name, scale, sign = ("accuracy", 100, " %") if accuracy else ("root-mean-square error", 1, "")
    digits = 1 if accuracy else 3
    parts = ", ".join(_parts(about["references"].values(), scale, digits))
    value = f"{scale * about['mean']:.{digits}f}{sign}"
    lower = "" if accuracy else " (lower is better)"
    return f"next-{unit} {name} {value}{lower}: {parts}; {_test(about)}"


def _parts(references: Iterable[Mapping[str, Any]], scale: float, digits: int) -> Iterator[str]:
    """Yield ``above A (61.2) and B (65.3)``, ``level with ...``, ``below ...``, by the means."""
    groups: dict[str, list[str]] = {"above": [], "level with": [], "below": []}
    for one in references:
        side = "above" if one["difference"] > 0 else "below" if one["difference"] else "level with"
        groups[side].append(f"{one['title']} ({scale * one['mean']:.{digits}f})")
    for side, names in groups.items():
        if names:
            yield f"{side} {_listed(names)}"


def _test(about: Mapping[str, Any]) -> str:
    """Name the differences that chance does not explain."""
    periods, references = about["periods"], about["references"].values()
    if periods < ENOUGH_PERIODS:
        return f"means over {periods} {'period' if periods == 1 else 'periods'}, too few for a test"
    clear = [one["title"] for one in references if one["p"] is not None and one["p"] < SIGNIFICANCE]
    which = f"from {_listed(clear)}" if clear else "from none"
    return (
        f"means over {periods} periods; different beyond chance {which} (Student's paired test over periods, "
        f"taken as independent, Holm's correction, p < {SIGNIFICANCE:g})"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
