"""Verdicts on claims: each says what was tested, and no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chronofed.studies.claims import Claim
from chronofed.training.paired import SIGNIFICANCE, Paired, holm
from chronofed.training.power import pairs_needed, resolvable, tolerance_shown

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
        published: The paper's difference, in the direction of the claim, if it has one.
    """

    what: str
    found: Paired | None
    margin: float = 0.0
    tolerance: float | None = None
    published: float | None = None

    @property
    def resolvable(self) -> float | None:
        """The difference beyond the margin that these seeds resolve with a chance of 80 %.

        Of a claim that two numbers are alike, the tolerance that they could show. ``None`` with one pair.
        """
        if self.found is None:
            return None
        known = tolerance_shown if self.tolerance is not None else resolvable
        return known(self.found.deviation, self.found.pairs)

    def seeds_needed(self, p: float = SIGNIFICANCE) -> int | None:
        """Return the seeds that resolve a difference as large as the mean with a chance of 80 %, either way.

        ``None`` for more than a thousand, with one pair, and for a claim that two numbers are alike.
        """
        if self.found is None or self.tolerance is not None:
            return None
        return pairs_needed(self.found.mean - self.margin, self.found.deviation, p)

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

    @property
    def p(self) -> float | None:
        """The p-value of the whole claim: the largest of its differences, since all must pass.

        ``None`` if nothing was tested.
        """
        if self.verdict == "not run" or not self.comparisons:
            return None
        return max(one.p_for for one in self.comparisons)

    @property
    def resolvable(self) -> float | None:
        """The difference that each comparison could have resolved: the largest of them."""
        known = [one.resolvable for one in self.comparisons]
        found = [size for size in known if size is not None]
        return max(found) if found and len(found) == len(known) else None

    @property
    def seeds_needed(self) -> int | None:
        """The seeds that would decide a claim which is open, if the differences are as large as they seem.

        If all lie on the claim's side, so many that every one is resolved; otherwise so many that the clearest
        one on the other side is, after a correction for the number of them all. ``None`` for more than a
        thousand.
        """
        if self.verdict != "not resolved":
            return None
        against = [one for one in self.comparisons if one.p_against < 1.0]
        p = SIGNIFICANCE / len(self.comparisons) if against else SIGNIFICANCE
        needed = [one.seeds_needed(p) for one in against or self.comparisons]
        known = [number for number in needed if number is not None]
        if against:
            return min(known, default=None)
        return max(known) if known and len(known) == len(needed) else None


def corrected(findings: Sequence[Finding]) -> list[float | None]:
    """Correct the p-values of several claims for their number (Holm); ``None`` for what was not tested."""
    p_values = [one.p for one in findings]
    found = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(found) for p in p_values]


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
        f"{tested} claims were tested, each by itself at p < {SIGNIFICANCE:g}: if no difference were real, "
        f"chance alone would decide up to {SIGNIFICANCE * tested:.1f} of them. {_surviving(findings)}"
    )


def _surviving(findings: Sequence[Finding]) -> str:
    """Say how many claims hold after a correction for their number."""
    both = list(zip(findings, corrected(findings), strict=True))
    holding = [p for one, p in both if one.verdict == "holds" and p is not None]
    left = sum(p < SIGNIFICANCE for p in holding)
    return f"After Holm's correction for their number, {left} of the {len(holding)} that hold still do."
