"""Verdicts on claims: each says what was tested, and no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chronofed.studies.claims import Claim
from chronofed.training.paired import SIGNIFICANCE, Paired, holm

Verdict = Literal["holds", "does not hold", "not resolved", "not run"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One difference that a claim is about.

    Attributes:
        what: The difference in words.
        found: The paired difference in the direction of the claim; ``None`` without runs.
        margin: The difference is claimed to be larger than this.
        tolerance: The difference is claimed to be at most this large, in either direction; ``None`` for a
            claim about a margin.
    """

    what: str
    found: Paired | None
    margin: float = 0.0
    tolerance: float | None = None

    @property
    def p_for(self) -> float:
        """The p-value of what is claimed; 1 where the mean is on the other side."""
        if self.found is None:
            return 1.0
        if self.tolerance is not None:
            return self.found.p_within(self.tolerance)
        return self.found.p(self.margin) if self.found.mean > self.margin else 1.0

    @property
    def p_against(self) -> float:
        """The p-value of the opposite; 1 where the mean is on the side of the claim."""
        if self.found is None:
            return 1.0
        if self.tolerance is None:
            return self.found.p(self.margin) if self.found.mean < self.margin else 1.0
        if abs(self.found.mean) <= self.tolerance:
            return 1.0
        return self.found.p(self.tolerance if self.found.mean > 0 else -self.tolerance)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a claim.

    Attributes:
        claim: The claim.
        verdict: The verdict.
        comparisons: The differences behind it.
        words: The result in words, where it is not a difference.
    """

    claim: Claim
    verdict: Verdict
    comparisons: tuple[Comparison, ...] = ()
    words: str = ""


def judge(claim: Claim, comparisons: Sequence[Comparison]) -> Finding:
    """Judge a claim about one or several differences.

    It *holds* if every difference is as claimed with p < 0.05. Nothing is corrected for this: all must pass,
    which makes a wrong verdict less likely with every difference (an intersection-union test, Berger 1982).
    It *does not hold* if one difference is the opposite. The more there are, the likelier one is so by chance;
    so these p-values are corrected (:func:`~chronofed.training.paired.holm`).
    """
    verdict: Verdict = "not resolved"
    if not comparisons or any(one.found is None for one in comparisons):
        verdict = "not run"
    elif all(one.p_for < SIGNIFICANCE for one in comparisons):
        verdict = "holds"
    elif min(holm([one.p_against for one in comparisons])) < SIGNIFICANCE:
        verdict = "does not hold"
    return Finding(claim, verdict, tuple(comparisons))


def multiplicity(findings: Sequence[Finding]) -> str:
    """Say how many claims were tested, and how many chance alone would decide; empty if fewer than two."""
    tested = sum(one.verdict != "not run" and bool(one.comparisons) for one in findings)
    if tested < 2:
        return ""
    return (
        f"{tested} claims were tested, each by itself at p < {SIGNIFICANCE:g}, without a correction between "
        "claims: if no difference were real, chance alone would decide up to "
        f"{SIGNIFICANCE * tested:.1f} of them."
    )
