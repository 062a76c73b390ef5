"""Notes below a table of experiments: what is left out, what is a sample, and what was not measured."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from chronofed.reports.groups import Group
from chronofed.training.measure import Column
from chronofed.training.paired import SIGNIFICANCE


def counted(number: int, word: str) -> str:
    """Count something.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def notes(groups: Sequence[Group], columns: Sequence[Column], best: Mapping[str, int]) -> list[str]:
    """Write what a reader must know to read the numbers of a table."""
    return [
        *_best(groups, columns, best),
        *_left_out(groups),
        *_stopped(groups),
        *_samples(groups),
        *_not_measured(groups, columns),
    ]


def _best(
    groups: Sequence[Group], columns: Sequence[Column], best: Mapping[str, int]
) -> Iterator[str]:
    if len(groups) > 1:
        leads = _leads(groups, columns, best)
        yield f"{leads} over the second is beyond chance (paired by seed, p < {SIGNIFICANCE:g})"


def _leads(groups: Sequence[Group], columns: Sequence[Column], best: Mapping[str, int]) -> str:
    """Name the numbers in bold, which a file or a screen reader does not show."""
    leads: dict[int, list[str]] = {}
    for column in columns:
        if column.key in best:
            leads.setdefault(best[column.key], []).append(column.heading.removesuffix(" %"))
    if not leads:
        return "no lead"
    named = "; ".join(f"{groups[k].name} in {', '.join(names)}" for k, names in leads.items())
    return f"bold: {named}: the lead"


def _left_out(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        if group.finished and group.seeds is not None and len(group.runs) < group.seeds:
            counts = f"{len(group.runs)} of {group.seeds} seeds"
            yield f"{group.name}: {counts} are finished; the others are not averaged in"
        for copy in group.copies:
            yield f"{copy.path}: left out, because another run has the same settings and seed"


def _stopped(groups: Sequence[Group]) -> Iterator[str]:
    for run in (run for group in groups for run in group.runs):
        if "stopped_early" in run.summary:
            yield f"{run.label}: {run.summary['stopped_early']}"


def _samples(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        followed, seen = (group.spread(f"last_{key}_pairs") for key in ("followed", "seen"))
        if followed and seen and followed.mean < seen.mean:
            share = f"{followed.mean:.0f} of {seen.mean:.0f} pairs of client and data set"
            yield f"{group.name}: forgetting is measured on a random sample, {share}"


def _not_measured(groups: Sequence[Group], columns: Iterable[Column]) -> Iterator[str]:
    if any(not run.history for group in groups for run in group.runs):
        yield "-: a run without an evaluation has no numbers"
    evaluated = [group for group in groups if any(run.history for run in group.runs)]
    for column in columns:
        if column.absent and any(group.spread(column.key) is None for group in evaluated):
            yield f"-: {column.heading.removesuffix(' %')} was not measured: {column.absent}"
