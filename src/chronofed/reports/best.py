"""The best of several experiments, where chance does not explain its lead."""

import statistics
from collections.abc import Mapping, Sequence

from chronofed.reports.groups import Group
from chronofed.training.measure import Column
from chronofed.training.paired import SIGNIFICANCE, paired


def best_row(values: Sequence[Mapping[int, float]], lower: bool = False) -> int | None:
    """Find the row whose lead over the second is resolved by the paired test; ``None`` if there is none.

    Args:
        values: For every row, a number for each seed.
        lower: Whether lower is better.

    >>> best_row([{0: 1.0, 1: 2.0, 2: 3.1}, {0: 4.0, 1: 5.1, 2: 6.0}, {}])
    1
    >>> best_row([{0: 1.0, 1: 9.0}, {0: 4.0, 1: 7.0}]) is None
    True
    """
    means = {k: statistics.fmean(row.values()) for k, row in enumerate(values) if row}
    ranked = sorted(means, key=lambda k: means[k] if lower else -means[k])
    if len(ranked) < 2:
        return None
    first, second = (values[k] for k in ranked[:2])
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    found = paired([first[s] for s in seeds], [second[s] for s in seeds])
    ahead = found.mean < 0 if lower else found.mean > 0
    return ranked[0] if ahead and found.p() < SIGNIFICANCE else None


def best_rows(groups: Sequence[Group], columns: Sequence[Column]) -> dict[str, int]:
    """Find the best row of every column whose lead is resolved, by the column's key.

    Rows that are not finished do not compete. What adds up over rounds, such as traffic, is compared only if
    all rows have the same number of rounds: less training is not a better method.
    """
    places = [k for k, group in enumerate(groups) if group.finished]
    same_length = len({groups[k].rounds for k in places}) == 1
    best = {}
    for column in columns:
        if column.better is not None and (same_length or not column.cumulative):
            values = [groups[k].by_seed(column.key) for k in places]
            found = best_row(values, column.better == "lower")
            if found is not None:
                best[column.key] = places[found]
    return best
