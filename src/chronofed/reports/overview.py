"""The first screen of a page as plain data: the verdict, what it rests on, and where it fails."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from chronofed.reports.by_client import Periods, class_maps, client_rows
from chronofed.reports.comparisons import MINUS, Difference
from chronofed.reports.groups import Group
from chronofed.reports.main_chart import calendar, main_chart
from chronofed.reports.notes import counted, listed
from chronofed.reports.result_columns import result_columns
from chronofed.reports.runs import RunView
from chronofed.reports.verdict import Verdict, plain_heading, verdict

# Experiments whose maps of classes have room on a page.
_MAPS = 20


def overview(groups: Sequence[Group], periods: Periods = RunView.periods) -> dict[str, Any]:
    """Build the first screen."""
    judged = verdict(groups)
    clients = client_rows(groups, periods)
    return {
        "verdict": {
            "headline": judged.headline, "clear": judged.clear, "unresolved": judged.unresolved,
            "failures": list(judged.failures), "remarks": list(judged.remarks),
        },
        "provenance": provenance(groups),
        "subject": judged.subject, "reference": judged.reference,
        "tiles": list(_tiles(groups, judged, clients)),
        "main": main_chart(groups),
        "calendar": calendar(groups),
        "differences": [_difference(one) for one in judged.differences],
        "clients": clients,
        "classes": class_maps(groups[:_MAPS], periods),
    }  # fmt: skip


def provenance(groups: Sequence[Group]) -> str:
    """Say in a line what the page rests on: data, clients, rounds, seeds, date, version, states."""
    runs = [run for group in groups for run in group.runs]
    data = sorted({data_name(run.spec) for run in runs})
    scenarios = [about for run in runs if (about := run.directory.scenario())]
    parts = [
        listed(data[:3]),
        _span("client", {about["clients"] for about in scenarios}),
        _span("round", {g.rounds for g in groups if g.finished} or {g.rounds for g in groups}),
        _span("seed", {len(group.runs) for group in groups if group.finished}),
        _dates(groups),
        listed(sorted({v for run in runs if (v := _version(run.directory.environment()))})),
        _states(runs),
    ]
    return " · ".join(part for part in parts if part)


def data_name(spec: dict[str, Any]) -> str:
    """Return the name of the data, or of its file."""
    data = spec.get("data", {})
    name = data.get("name") or str(data.get("path", "data")).rsplit("/", 1)[-1]
    return str(name)


def _span(word: str, counts: set[int]) -> str:
    known = sorted(counts)
    if len(known) < 2:
        return counted(known[0], word) if known else ""
    return f"{known[0]} to {known[-1]} {word}s"


def _dates(groups: Sequence[Group]) -> str:
    """Return the days on which the runs were last written, by the times of their files."""
    paths = [run.path / "metrics.jsonl" for group in groups for run in group.runs]
    times = [path.stat().st_mtime for path in paths if path.exists()]
    days = sorted({time.strftime("%Y-%m-%d", time.localtime(each)) for each in times})
    return " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))


def _version(environment: dict[str, Any]) -> str:
    version = environment.get("packages", {}).get("chronofed")
    return f"chronofed {version}" if version else ""


def _states(runs: Sequence[RunView]) -> str:
    states = Counter(run.state for run in runs)
    if len(states) == 1:
        (state,) = states
        return f"{'all ' if len(runs) > 1 else ''}{counted(len(runs), 'run')} {state}"
    return ", ".join(f"{states[k]} {k}" for k in sorted(states, key=lambda k: -states[k]))


def _tiles(
    groups: Sequence[Group], judged: Verdict, clients: dict[str, Any]
) -> Iterator[dict[str, str]]:
    """Yield the numbers that matter most: the headline's experiment and its reference."""
    if judged.subject is None:
        return
    subject = groups[judged.subject]
    other = None if judged.reference is None else groups[judged.reference]
    columns = {column.key: column for column in result_columns(groups)}
    wanted = ["last_forgetting", "anytime", "anytime_rmse", "last_rmse"]
    for key in wanted:
        column = columns.get(key)
        if column and subject.spread(key):
            unit = " points" if key == "last_forgetting" else " %"
            unit = unit if column.heading.endswith("%") else ""
            about = f"instead of {other.text(column)}" if other and other.spread(key) else ""
            yield {
                "label": plain_heading(column),
                "value": subject.text(column) + unit,
                "about": about,
            }
    yield from _worst(judged, clients)
    yield from _price(subject, other)


def _worst(judged: Verdict, clients: dict[str, Any]) -> Iterator[dict[str, str]]:
    worst = {row["group"]: row["worst"] for row in clients["rows"]}
    if judged.subject in worst:
        name, _, value = worst[judged.subject]
        about = name
        if judged.reference in worst:
            there, _, instead = worst[judged.reference]
            about = f"{name}; instead of {instead} ({there})"
        yield {"label": "worst client", "value": f"{value} %", "about": about}


def _price(subject: Group, other: Group | None) -> Iterator[dict[str, str]]:
    seconds, traffic = subject.spread("seconds"), subject.spread("traffic")
    if seconds is None:
        return
    sent = f"{traffic.mean / 1e6:.1f} MB" if traffic else ""
    before = other.spread("seconds") if other else None
    if other is None or before is None or not before.mean:
        yield {"label": "price", "value": f"{seconds.mean:.1f} s", "about": sent}
        return
    ratio = seconds.mean / before.mean - 1
    there = other.spread("traffic")
    about = "time"
    if traffic and there and there.mean:
        more = traffic.mean / there.mean - 1
        about += ", same traffic" if abs(more) < 0.005 else f", {_percent(more)} traffic"
    yield {"label": "price", "value": _percent(ratio), "about": about}


def _percent(share: float) -> str:
    """Write a change.

    >>> _percent(0.151), _percent(0.004)
    ('+15 %', '±0 %')
    """
    text = f"{100 * share:+.0f} %".replace("-", MINUS)
    return "±0 %" if text[1:] == "0 %" else text


def _difference(one: Difference) -> dict[str, Any]:
    scale = one.column.scale
    ends = one.found.interval()
    return {
        "key": one.column.key, "heading": plain_heading(one.column),
        "row": one.row, "reference": one.reference,
        "mean": scale * one.found.mean, "text": one.signed, "p": one.p_text,
        "ends": [scale * end for end in ends] if ends else None,
        "seeds": [[seed, scale * value] for seed, value in one.by_seed],
        "resolved": one.resolved, "better": one.better, "points": one.points,
    }  # fmt: skip
