"""The paper's experiment on the noisy quadratic model: best learning rates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chronofed.theory.nqm.model import ALGORITHMS, PAPER, PRESETS, Algorithm, Array, Model, settings
from chronofed.theory.nqm.reduction import simulate

# The paper's learning rates are multiples of 0.01, at most 0.35.
LRS = np.arange(1, 41) / 100
# The last fifth of the rounds decides.
TAIL = 5
# Times the best loss.
TOLERATED = 2.0
NEAR = 1.1
# Quantiles of the choices of single seeds, and of the losses of a curve.
LIKELY = (0.05, 0.95)
BAND = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Cell:
    """One algorithm in one setting, at its best learning rate.

    Attributes:
        setting: Name of the setting.
        algorithm: Name of the algorithm.
        lr: The learning rate with the least mean loss in the last fifth of the rounds.
        likely: Range of the learning rates that single seeds choose by their final loss: 5 % lie below it, 5 %
            above.
        loss: Mean loss of the last fifth.
        final: Loss after the last round, mean over seeds.
        deviation: Its sample standard deviation over seeds; ``None`` for a single seed.
        variation: Quadratic variation of the loss in the last fifth, mean over seeds; less is smoother.
        tolerated: Largest learning rate of the grid with at most twice the best loss.
        stable: Largest learning rate of the grid that ends below the loss at the start.
        paper: The paper's learning rate, if it has one.
        excess: Loss at the paper's learning rate divided by the best loss; ``None`` if it is not in the grid.
        curve: Quantiles of the loss over seeds, before the first and after every round, ``(3, T + 1)``.
    """

    setting: str
    algorithm: str
    lr: float
    likely: tuple[float, float]
    loss: float
    final: float
    deviation: float | None
    variation: float
    tolerated: float
    stable: float
    paper: float | None
    excess: float | None
    curve: Array

    @property
    def agreement(self) -> str:
        """``likely`` if a single seed may well choose the paper's, ``near`` if its loss is near the best."""
        if self.paper is None:
            return ""
        if self.likely[0] <= self.paper <= self.likely[1]:
            return "likely"
        return "near" if self.excess is not None and self.excess <= NEAR else "no"


def sweep(
    models: Mapping[str, Model] | None = None,
    algorithms: Sequence[Algorithm] = ALGORITHMS,
    lrs: Sequence[float] | Array = LRS,
    seeds: int | Sequence[int] = 100,
) -> Iterator[Cell]:
    """Run all settings x algorithms x learning rates x seeds.

    Args:
        models: Settings by name; by default the paper's eight with preset P1.
        algorithms: Algorithms to compare.
        lrs: Learning rates to choose from.
        seeds: Seeds of the runs, or their number.

    Yields:
        A cell for every setting and algorithm.

    >>> from chronofed.theory import nqm
    >>> easy = {"BRD-SL-SC": nqm.Model(rounds=40)}
    >>> [(cell.algorithm, cell.lr) for cell in nqm.sweep(easy, nqm.ALGORITHMS[:3:2], [0.02, 0.1, 0.3], seeds=8)]
    [('FedAvg', 0.1), ('CFL', 0.3)]
    """
    rates = np.asarray(lrs, dtype=np.float64)
    models = settings(PRESETS["p1"]) if models is None else models
    for setting, model in models.items():
        for algorithm in algorithms:
            losses = simulate(model, algorithm, rates, seeds)
            # Differences of infinite losses are not numbers: all learning rates may diverge.
            with np.errstate(invalid="ignore"):
                cell = _cell(setting, algorithm.name, rates, losses)
            yield cell


def _cell(setting: str, algorithm: str, lrs: Array, losses: Array) -> Cell:
    """Evaluate the losses ``(lrs, seeds, T + 1)`` of one algorithm in one setting."""
    rounds = losses.shape[2] - 1
    last = max(1, rounds // TAIL)
    tail = losses[:, :, -last:].mean(axis=(1, 2))
    best, paper = int(tail.argmin()), paper_lr(setting, algorithm)
    choices = lrs[losses[:, :, -1].argmin(axis=0)]
    low, high = np.quantile(choices, LIKELY, method="nearest").tolist()
    runs = losses[best]
    grid = np.flatnonzero(np.isclose(lrs, np.nan if paper is None else paper))
    return Cell(
        setting,
        algorithm,
        lr=float(lrs[best]),
        likely=(low, high),
        loss=float(tail[best]),
        final=float(runs[:, -1].mean()),
        deviation=float(runs[:, -1].std(ddof=1)) if len(runs) > 1 else None,
        variation=float((np.diff(runs[:, -last - 1 :]) ** 2).sum(-1).mean()),
        tolerated=float(lrs[tail <= TOLERATED * tail[best]].max()),
        stable=float(lrs[losses[:, :, -1].mean(1) < losses[:, :, 0].mean()].max(initial=0.0)),
        paper=paper,
        excess=float(tail[grid[0]] / tail[best]) if len(grid) else None,
        curve=np.quantile(runs, BAND, axis=0),
    )


def paper_lr(setting: str, algorithm: str) -> float | None:
    """Return the learning rate of the paper's table; ``None`` if it has none."""
    names = list(settings(PRESETS["p1"]))
    known = algorithm in PAPER and setting in names
    return PAPER[algorithm][names.index(setting)] if known else None
