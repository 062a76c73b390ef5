"""The command ``chronofed scenario``."""

from argparse import Namespace
from typing import Any

import numpy as np
from rich.table import Table

from chronofed.cli.output import emit, emit_json, note
from chronofed.experiments import spec
from chronofed.reports.balls import draw_scenario
from chronofed.scenarios import Scenario, Visit
from chronofed.tasks.dataset import Codes


def main(options: Namespace) -> int:
    """Show who has which data when; draw it if asked for."""
    task, scenario, last = spec.load(options.spec, options.set, options.data).build(options.data)
    rounds, labels, classes = min(options.rounds, last), task.data.labels, task.data.classes
    if options.plot:
        draw_scenario(scenario, labels, classes, options.plot, rounds=rounds)
        note(f"figure: {options.plot}")
    plans = [_round(scenario, t, labels, len(classes)) for t in range(rounds)]
    about = {"clients": scenario.clients, "rounds": last, "returning": scenario.persistent}
    if options.json:
        emit_json({**about, "classes": list(classes), "plans": plans})
    else:
        emit(_table(plans, f"{about['clients']} clients, {last} rounds, {len(classes)} classes"))
        for line in task.data.notes:
            note(line)
    return 0


def _round(scenario: Scenario, round_: int, labels: Codes, classes: int) -> dict[str, object]:
    return {
        "round": round_,
        "clients": [
            {"client": client, **_held(visit, labels, classes)}
            for client, visit in scenario.at(round_).visits.items()
        ],
    }


def _held(visit: Visit, labels: Codes, classes: int) -> dict[str, object]:
    """What a client holds; nobody here knows where that is elsewhere."""
    if not len(visit.indices):
        return {"samples": None, "by_class": None}
    counts = np.bincount(labels[visit.indices], minlength=classes)
    return {"samples": len(visit.indices), "by_class": counts.tolist()}


def _table(plans: list[dict[str, object]], title: str) -> Table:
    """A row a round, a cell a client: samples, and how many classes hold 90 % of them."""
    table = Table("round", "client: samples (classes that hold 90 % of them)", title=title)
    for plan in plans:
        visits = plan["clients"]
        assert isinstance(visits, list)
        table.add_row(str(plan["round"]), "  ".join(map(_cell, visits)) or "nobody")
    return table


def _cell(visit: dict[str, Any]) -> str:
    if visit["samples"] is None:
        return f"{visit['client']}: its own data"
    return f"{visit['client']}: {visit['samples']} ({_main_classes(visit['by_class'])})"


def _main_classes(counts: list[int]) -> int:
    shares = np.cumsum(sorted(counts, reverse=True)) / sum(counts)
    return int(np.searchsorted(shares, 0.9 - 1e-12)) + 1
