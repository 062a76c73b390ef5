"""Merging models that are alike, by complete linkage."""

from collections.abc import Mapping
from itertools import combinations


def distances(scores: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    r"""Return the distance of every pair of models.

    .. math:: D_{ij} = \max(A_{ij} - A_{ii},\; A_{ji} - A_{jj},\; 0)

    Args:
        scores: :math:`A_{ij}`, the score of model *i* on the data of model *j*'s clients; less is better.

    >>> distances({(0, 0): 0.1, (0, 1): 0.3, (1, 0): 0.2, (1, 1): 0.2})
    {(0, 1): 0.19999999999999998}
    """
    models = sorted({i for i, _ in scores})
    return {
        (i, j): max(scores[i, j] - scores[i, i], scores[j, i] - scores[j, j], 0.0)
        for i, j in combinations(models, 2)
    }


def linked(between: Mapping[tuple[int, int], float], limit: float) -> list[list[int]]:
    """Join the nearest groups of models as long as no two members of a group are further apart than a limit.

    >>> linked({(0, 1): 0.1, (0, 2): 0.9, (1, 2): 0.2}, limit=0.5)
    [[0, 1], [2]]
    """
    groups = [[model] for model in sorted({model for pair in between for model in pair})]

    def apart(pair: tuple[int, int]) -> float:
        one, other = (groups[k] for k in pair)
        return max(between[min(i, j), max(i, j)] for i in one for j in other)

    while len(groups) > 1:
        nearest = min(combinations(range(len(groups)), 2), key=apart)
        if apart(nearest) > limit:
            break
        one, other = nearest
        groups[one] += groups.pop(other)
    return groups
