"""Claims with their verdicts: a table, the differences behind them, and the power of the seeds."""

from collections.abc import Sequence
from pathlib import Path

from chronofed.core.atomic import write_atomic
from chronofed.reports.figures.forest import draw_forest, lines
from chronofed.reports.tables import TextTable
from chronofed.studies.verdicts import Comparison, Finding, corrected, multiplicity
from chronofed.training.paired import SIGNIFICANCE, Paired, holm

PICTURES = ("png", "svg")
POINTS = 100.0
"""Factor of the claims whose differences are percentage points."""


def write_claims(findings: Sequence[Finding], folder: Path) -> None:
    """Write the page of all claims, which begins with a plot of the headline claims' differences.

    Raises:
        StorageError: If something cannot be written.
    """
    first = [one for one in findings if one.claim.headline and one.claim.factor == POINTS]
    shown = lines(first)
    page = "# Claim by claim\n\n"
    if shown:
        for kind in PICTURES:
            draw_forest(shown, "difference, percentage points", folder / f"claims.{kind}")
        page += (
            "![Differences behind the headline claims](claims.png)\n\nMean differences over seeds with "
            "intervals of 95 %, and the paper's. A tick stands where a claim has a margin.\n\n"
        )
    write_atomic(folder / "claims.md", (page + claims_page(findings)).encode())


def claims_page(findings: Sequence[Finding]) -> str:
    """Write the table of claims, how far its p-values can be trusted together, and its power, in Markdown."""
    notes = [note for note in (multiplicity(findings), power_note(findings)) if note]
    return findings_table(findings).markdown() + "".join(f"\n{note}\n" for note in notes)


def findings_table(findings: Sequence[Finding]) -> TextTable:
    """Tabulate the claims with verdicts and numbers."""
    rows = [
        [
            one.claim.says,
            one.verdict,
            evidence(one),
            "-" if p is None else _p_value(p),
            power_text(one),
        ]
        for one, p in zip(findings, corrected(findings), strict=True)
    ]
    headings = ["claim", "verdict", "mean difference over seeds", "p, Holm", "could resolve"]
    return TextTable("Claims", headings, rows, words=3, caption=multiplicity(findings))


def power_text(finding: Finding) -> str:
    """Write the difference that the seeds could have resolved; for an open claim the seeds it would take."""
    if finding.resolvable is None:
        return "-"
    text = f"{finding.resolvable:.2g}" if finding.resolvable < 1 else f"{finding.resolvable:.1f}"
    if finding.verdict != "not resolved":
        return text
    seeds = finding.seeds_needed
    return f"{text}; takes {'over 1000' if seeds is None else f'about {seeds}'} seeds"


def power_note(findings: Sequence[Finding]) -> str:
    """Say what the last columns mean; empty if nothing was tested."""
    if all(one.p is None for one in findings):
        return ""
    return (
        "*p, Holm*: of the whole claim, corrected for the number of claims in this table. *Could resolve*: the "
        "difference, in the unit of the claim and beyond its margin, that these seeds resolve with a chance of "
        "80 %, at the deviations that they show; and for an open claim the seeds that would decide it if the "
        "differences are as large as they seem. Both are rough, because so few seeds hardly know a deviation."
    )


def evidence(finding: Finding) -> str:
    """Describe the differences behind a verdict; of many, the least and the most favourable."""
    if finding.words:
        return finding.words
    corrected = holm([one.p_against for one in finding.comparisons])
    found = [
        (one.found.mean, _words(one, one.found, finding, p))
        for one, p in zip(finding.comparisons, corrected, strict=True)
        if one.found is not None
    ]
    found.sort(key=lambda entry: entry[0])
    texts = [text for _, text in found]
    if len(texts) > 3:
        return f"{texts[0]}; {texts[-1]} ({len(texts)} differences)"
    return "; ".join(texts)


def _words(one: Comparison, found: Paired, finding: Finding, corrected: float) -> str:
    """Describe a difference, its test, and the corrected p-value where one of several is the opposite."""
    sign = -1 if finding.claim.lower_is_better else 1
    size = f"{one.what}: {sign * found.mean:+.2f}"
    if found.deviation is None:
        return f"{size} (1 pair, no test)"
    against = f", against {sign * one.margin:g}" if one.margin else ""
    p = f"p {_p_text(found.p(one.margin))}"
    if one.tolerance is not None:
        within = one.p_against == 1.0
        against = f", {'within' if within else 'beyond'} ± {one.tolerance:g}"
        p = f"p {_p_text(found.p_within(one.tolerance) if within else one.p_against)}"
    if len(finding.comparisons) > 1 and one.p_against < 1.0:
        p += f", Holm {_p_text(corrected)}"
    return f"{size} ± {found.deviation:.2f} ({found.pairs} pairs{against}, {p})"


def _p_value(p: float) -> str:
    return _p_text(p).removeprefix("= ")


def _p_text(p: float) -> str:
    """Write a p-value with three decimals; with four if three would hide on which side of the limit it is."""
    if p < 0.001:
        return "< 0.001"
    close = f"{p:.3f}" == f"{SIGNIFICANCE:.3f}"
    return f"= {p:.4f}" if close else f"= {p:.3f}"
