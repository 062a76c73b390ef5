"""The verdict on some experiments in words: the same in the report, the live page and the terminal.

Only differences that are resolved make the headline. What is not resolved is said below it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from chronofed.reports.comparisons import Difference, comparable, differences_to, reference_of
from chronofed.reports.groups import Group, tasks_of
from chronofed.reports.notes import counted, listed
from chronofed.reports.result_columns import result_columns
from chronofed.reports.runs import RunView
from chronofed.reports.spread import rounded
from chronofed.training.measure import HEADLINE, HEADLINES, Column
from chronofed.training.paired import SIGNIFICANCE

# Clauses of a headline: more is a table.
_CLAUSES = 2
_ORDER = ("last_forgetting", "anytime", "last")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings of a comparison.

    Attributes:
        headline: One sentence.
        clear: The resolved differences, with their p-values; empty if there are none.
        unresolved: The others.
        failures: The runs that failed, with the reason.
        remarks: Further experiments, runs that did not finish, and what was not compared.
        subject: The place of the experiment that the headline is about.
        reference: The place of the one that it is compared with.
        differences: All differences, resolved or not.
    """

    headline: str
    clear: str = ""
    unresolved: str = ""
    failures: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    subject: int | None = None
    reference: int | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def lines(self) -> list[str]:
        """All sentences, the headline first."""
        first = (self.headline, self.clear, self.unresolved)
        return [line for line in (*first, *self.failures, *self.remarks) if line]


def verdict(groups: Sequence[Group]) -> Verdict:
    """Judge some experiments."""
    return replace(_found(groups), failures=tuple(_failures(groups)))


def _found(groups: Sequence[Group]) -> Verdict:
    found = tuple(differences_to(groups))
    remarks = (*_unfinished(groups), *_not_compared(groups))
    if found:
        return _compared(groups, found, remarks)
    finished = [k for k, group in enumerate(groups) if group.finished and _evaluated(group)]
    if not finished:
        return Verdict(_nothing_finished(groups), remarks=remarks)
    if len(finished) > 1:
        names = listed([groups[k].name for k in finished[:3]])
        more = f" and {len(finished) - 3} more" if len(finished) > 3 else ""
        headline = f"No seeds of {names}{more} can be paired: their data, scenario or rounds differ"
        return Verdict(headline, remarks=remarks)
    place = finished[0]
    headline, about = _alone(groups[place])
    return Verdict(headline, clear=about, remarks=remarks, subject=place)


def _evaluated(group: Group) -> bool:
    return any(run.history for run in group.runs)


def _compared(
    groups: Sequence[Group], found: tuple[Difference, ...], remarks: tuple[str, ...]
) -> Verdict:
    reference = found[0].reference
    rows = list(dict.fromkeys(one.row for one in found))
    subject = max(rows, key=lambda row: _merit([d for d in found if d.row == row]))
    own = sorted((d for d in found if d.row == subject), key=_priority)
    clear, open_ = ([d for d in own if d.resolved is wanted] for wanted in (True, False))
    seeds = max(d.found.pairs for d in own)
    each = f", each of {len(own)} numbers by itself" if len(own) > 1 else ""
    holm = f", corrected for {len(rows)} comparisons by Holm" if len(rows) > 1 else ""
    return Verdict(
        _headline(groups, subject, reference, clear, seeds, len(rows)),
        clear=f"Clear (p < {SIGNIFICANCE:g}, paired over {counted(seeds, 'seed')}{each}{holm}): "
        f"{'; '.join(map(_result, clear))}."
        if clear
        else "",
        unresolved=_open(open_, groups[subject].name, seeds),
        remarks=(*_others(groups, found, subject), *remarks),
        subject=subject,
        reference=reference,
        differences=found,
    )


def _merit(own: Sequence[Difference]) -> tuple[bool, float]:
    """Rank experiments: a resolved gain first, then the headline measure."""
    gained = any(d.resolved and d.better for d in own)
    for d in sorted(own, key=_priority):
        if d.column.key.startswith(("anytime", "last")) and d.column.key != "last_forgetting":
            return gained, -d.found.mean if d.column.better == "lower" else d.found.mean
    return gained, 0.0


def _priority(difference: Difference) -> int:
    key = difference.column.key.removesuffix("_rmse")
    return _ORDER.index(key) if key in _ORDER else len(_ORDER)


def _headline(
    groups: Sequence[Group],
    subject: int,
    reference: int,
    clear: Sequence[Difference],
    seeds: int,
    rows: int,
) -> str:
    name, other = groups[subject].name, groups[reference].name
    if not clear:
        pair = f"between {name} and {other}" if rows == 1 else f"to {other}"
        if seeds == 1:
            return f"One seed cannot resolve a difference {pair}"
        return f"No difference {pair} is resolved by {seeds} seeds"
    gains = [d for d in clear if d.better][:_CLAUSES]
    losses = [d for d in clear if not d.better][:_CLAUSES]
    clauses = [clause(d) for d in (*gains, *losses)]
    # The reference is named once, after the first comparative.
    first = clauses[0].replace("{than}", f" than {other}")
    rest = [one.replace("{than}", "") for one in clauses[1:]]
    middle = len(gains) - 1 if gains else len(losses) - 1
    text = " and ".join([first, *rest[:middle]])
    return (
        f"{name} {text}, but {' and '.join(rest[middle:])}" if rest[middle:] else f"{name} {text}"
    )


def clause(difference: Difference) -> str:
    """Write a difference as a clause, with ``{than}`` where the reference may be named."""
    column, size = difference.column, difference.size
    word = "better" if difference.better else "worse"
    side = "higher" if difference.found.mean > 0 else "lower"
    heading = plain_heading(column)
    if column.key == "last_forgetting":
        return f"forgets {size} {'less' if difference.better else 'more'}{{than}}"
    if "next-period" in heading and column.key == "anytime":
        return f"predicts the next period {size} {word}{{than}}"
    phrases = {
        "anytime": "over time",
        "last": "after the last round",
        "best5": "in its best five evaluations",
    }
    stem = column.key.removesuffix(f"_{HEADLINES['regression']}")
    if stem in phrases and (difference.points or stem != column.key):
        return f"is {size} {word}{{than}} {phrases[stem]}"
    return f"has {size} {side} {heading}{{than}}"


def plain_heading(column: Column) -> str:
    """Return the heading of a column without its unit."""
    return column.heading.removesuffix(" %")


def _result(difference: Difference) -> str:
    return f"{plain_heading(difference.column)} {difference.signed} ({difference.p_text})"


def _open(open_: Sequence[Difference], name: str, seeds: int) -> str:
    if not open_:
        return ""
    if seeds == 1:
        gaps = "; ".join(_result(d).partition(" (")[0] for d in open_[:4])
        return f"Of one seed, {name}: {gaps}. More seeds resolve them: run with --seeds 0-4."
    results = "; ".join(map(_result, open_))
    return f"Not resolved by {seeds} seeds: {results}."


def _others(groups: Sequence[Group], found: Sequence[Difference], subject: int) -> Iterator[str]:
    """Summarise the resolved differences of the experiments that the headline is not about."""
    rows = [row for row in dict.fromkeys(d.row for d in found) if row != subject]
    resolved = {row: [d for d in found if d.row == row and d.resolved] for row in rows}
    for row in [row for row in rows if resolved[row]][:3]:
        parts = [clause(d).replace("{than}", "") for d in sorted(resolved[row], key=_priority)[:3]]
        yield f"{groups[row].name} {listed(parts)}."
    more = sum(bool(resolved[row]) for row in rows) - 3
    if more > 0:
        yield f"{counted(more, 'further experiment')} differ; see the table."
    rest = sum(not resolved[row] for row in rows)
    if rest:
        yield f"{counted(rest, 'further experiment')}: no difference to the reference is resolved."


def _alone(group: Group) -> tuple[str, str]:
    """Write what one experiment reached, and against its baselines."""
    task = tasks_of([group])[0]
    keys = {c.key: c for c in result_columns([group])}
    suffix = "" if HEADLINES[task] == HEADLINE else f"_{HEADLINES[task]}"
    baselines = [one for run in group.runs if (one := run.summary.get("baselines"))]
    column = keys[f"anytime{suffix}"] if baselines else keys.get(f"last{suffix}")
    if column is None or group.spread(column.key) is None:
        return f"{group.name} has finished {counted(group.rounds, 'round')}", ""
    text = group.text(column) + (" %" if column.heading.endswith("%") else "")
    if not baselines:
        kind = "test accuracy" if not suffix else plain_heading(column)
        return f"{group.name} reaches {text} {kind} after round {group.rounds}", ""
    name = "next-period accuracy" if not suffix else "next-period error"
    against = _against(baselines)
    headline = f"{group.name} reaches {text} {name} over time{f', {against}' if against else ''}"
    words = baselines[0]["words"] if len(group.runs) == 1 else ""
    return headline, f"{words[:1].upper()}{words[1:]}." if words else ""


def _against(baselines: Sequence[dict[str, object]]) -> str:
    """Name the baselines that every run differs from beyond chance, in the same direction."""
    tables = [dict(one["references"]) for one in baselines]  # type: ignore[call-overload]
    sides: dict[str, list[str]] = {"above": [], "below": []}
    for name, about in tables[0].items():
        both = [table[name] for table in tables if name in table]
        signs = {one["difference"] > 0 for one in both}
        clear = all(one["p"] is not None and one["p"] < SIGNIFICANCE for one in both)
        if clear and len(signs) == 1 and len(both) == len(tables):
            scale = 100.0 if baselines[0]["measure"] == HEADLINE else 1.0
            mean = rounded(fmean(one["mean"] for one in both), 1 if scale > 1 else 3, scale)
            sides["above" if signs.pop() else "below"].append(f"{about['title']} ({mean})")
    return " and ".join(f"{side} {listed(names)}" for side, names in sides.items() if names)


def _nothing_finished(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    if not runs:
        return "No run yet"
    if len(runs) > 1:
        states = [run.state for run in runs]
        known = [(state, states.count(state)) for state in dict.fromkeys(states)]
        return f"No run has finished yet: {listed([f'{n} {state}' for state, n in known])}"
    run = runs[0]
    if run.state == "finished":
        return f"{run.name} has finished without an evaluation"
    word = {"running": "is running", "failed": "failed", "stopped": "was stopped"}[run.state]
    return f"{run.name} {word} after round {int(run.summary.get('rounds', 0))}{_planned(run)}"


def _planned(run: RunView) -> str:
    rounds = run.spec.get("rounds")
    return f" of {rounds}" if isinstance(rounds, int) else ""


def _failures(groups: Sequence[Group]) -> Iterator[str]:
    """Give the reason of every failure."""
    failed = [run for group in groups for run in group.runs if run.state == "failed"]
    for run in failed[:3]:
        yield f"{run.label} failed: {run.directory.failure() or 'no reason was recorded'}"
    if len(failed) > 3:
        yield f"{counted(len(failed) - 3, 'further run')} failed; the table has the reasons."


def _unfinished(groups: Sequence[Group]) -> Iterator[str]:
    """Count what is still running, and what was stopped."""
    runs = [run for group in groups for run in group.runs]
    for state, word in (("running", "still running"), ("stopped", "stopped before the end")):
        count = sum(run.state == state for run in runs)
        if count and len(runs) > 1:
            yield f"{counted(count, 'run')} {word}: not averaged in."


def _not_compared(groups: Sequence[Group]) -> Iterator[str]:
    places = comparable(groups)
    finished = [k for k, g in enumerate(groups) if g.finished and _evaluated(g)]
    left = [groups[k].name for k in finished if k not in places]
    if len(places) > 1 and left:
        names = listed(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        other = groups[reference_of(groups, places)].name
        yield f"Not compared with {other}, because data, scenario or rounds differ: {names}."
