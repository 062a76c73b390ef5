"""Differences between experiments, seed by seed: what is resolved, and what is not."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from chronofed.reports.groups import Group
from chronofed.reports.result_columns import result_columns
from chronofed.reports.runs import method_of, remembers
from chronofed.reports.spread import rounded
from chronofed.training.measure import Column
from chronofed.training.paired import SIGNIFICANCE, Paired, holm, paired

# Settings that two experiments must share, so that their seeds are pairs.
_WORLD = ("data", "scenario", "deletions")
# Numbers about training samples are no result.
_NO_RESULT = ("last_seen_",)
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One number of an experiment minus that of the reference.

    Attributes:
        column: The number.
        row: The experiment's place.
        reference: The reference's place.
        found: The differences of the seeds that both have.
        p: The p-value, corrected for the experiments that are compared in this column (Holm).
        by_seed: The differences by seed.
    """

    column: Column
    row: int
    reference: int
    found: Paired
    p: float
    by_seed: tuple[tuple[int, float], ...]

    @property
    def resolved(self) -> bool:
        """True if chance does not explain the difference."""
        return self.p < SIGNIFICANCE

    @property
    def better(self) -> bool:
        """True if the experiment is better than the reference, resolved or not."""
        return (self.found.mean < 0) == (self.column.better == "lower") and self.found.mean != 0

    @property
    def size(self) -> str:
        """The mean without its sign, in points where the numbers are per cent."""
        text = rounded(abs(self.found.mean), self.digits, self.column.scale)
        return f"{text} points" if self.points else text

    @property
    def signed(self) -> str:
        """The mean with its sign."""
        mean = self.found.mean
        return f"{'+' if mean > 0 else MINUS if mean < 0 else ''}{self.size}"

    @property
    def points(self) -> bool:
        """True if the difference is one of percentages."""
        return self.column.heading.endswith("%")

    @property
    def digits(self) -> int:
        """Decimals of a difference: one of a point, else those of the column."""
        return 1 if self.points else self.column.digits

    @property
    def p_text(self) -> str:
        """The p-value as it is written everywhere."""
        if self.p < 0.001:
            return "p < 0.001"
        return f"p = {self.p:.3f}" if round(self.p, 2) <= SIGNIFICANCE else f"p = {self.p:.2f}"


def comparable(groups: Sequence[Group]) -> list[int]:
    """Return the places of the finished experiments that differ in the method or its training alone.

    Data, scenario and number of rounds must be equal; of several such sets the largest is compared.
    """
    worlds: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        if group.finished and group.runs and any(run.history for run in group.runs):
            spec = group.runs[0].spec
            world = {key: spec.get(key) for key in _WORLD}
            world |= {"rounds": group.rounds, "protocol": spec.get("evaluate", {}).get("protocol")}
            worlds.setdefault(json.dumps(world, sort_keys=True, default=str), []).append(place)
    return max(worlds.values(), key=len, default=[])


def reference_of(groups: Sequence[Group], places: Sequence[int]) -> int:
    """Choose what the others are compared with: plain FedAvg, else the only one that remembers nothing.

    Where neither is there, or there are several, it is the first.
    """
    plain = [k for k in places if method_of(groups[k].runs[0].spec) == "fedavg"]
    forgetful = [k for k in places if not remembers(groups[k].runs[0].spec)]
    return next((found[0] for found in (plain, forgetful) if len(found) == 1), places[0])


def differences_to(groups: Sequence[Group]) -> list[Difference]:
    """Compare every experiment with the reference, in every number that has a better direction.

    Numbers that add up over rounds, such as traffic, are a price and not a result: they are left out.
    """
    places = comparable(groups)
    if len(places) < 2:
        return []
    reference = reference_of(groups, places)
    wanted = [
        c
        for c in result_columns(groups)
        if c.better is not None and not c.cumulative and not c.key.startswith(_NO_RESULT)
    ]
    return [
        found
        for column in wanted
        for found in _in_column(groups, column, [k for k in places if k != reference], reference)
    ]


def _in_column(
    groups: Sequence[Group], column: Column, rows: Sequence[int], reference: int
) -> list[Difference]:
    against = groups[reference].by_seed(column.key)
    pairs = {row: _pairs(groups[row].by_seed(column.key), against) for row in rows}
    known = {row: both for row, both in pairs.items() if both}
    found = {row: paired(*zip(*both.values(), strict=True)) for row, both in known.items()}
    corrected = dict(zip(found, holm([one.p() for one in found.values()]), strict=True))
    return [
        Difference(
            column,
            row,
            reference,
            one,
            corrected[row],
            tuple((seed, first - second) for seed, (first, second) in known[row].items()),
        )
        for row, one in found.items()
    ]


def _pairs(first: dict[int, float], second: dict[int, float]) -> dict[int, tuple[float, float]]:
    return {
        seed: (first[seed], second[seed])
        for seed in sorted(first.keys() & second.keys())
        if math.isfinite(first[seed]) and math.isfinite(second[seed])
    }
