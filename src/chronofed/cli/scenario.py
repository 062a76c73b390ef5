"""The command ``chronofed scenario``."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from chronofed.cli.options import add_data, add_json, add_plot, add_spec, check_counts, check_spec
from chronofed.cli.output import emit, emit_json, note

if TYPE_CHECKING:
    from rich.table import Table

    from chronofed.core.names import Names
    from chronofed.data.dataset import Codes
    from chronofed.scenarios import Plan, Visit

GROUP = "settings and data"
HELP = "show which client has which data in each round"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser)
    text = "rounds to show (default 12)"
    parser.add_argument("--rounds", type=int, default=12, metavar="N", help=text)
    for add in (add_data, add_plot, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """Show which client has which data in each round; draw it if asked for."""
    check_counts(options, "rounds")
    check_spec(options.spec)
    from chronofed.reports.figures.scenario import draw_scenario
    from chronofed.runs.built import build
    from chronofed.runs.load_spec import load
    from chronofed.training.scenario_summary import names_of

    built = build(load(options.spec, options.set, options.data), options.data)
    task, scenario, last = built.task, built.scenario, built.rounds
    rounds, labels, classes = min(options.rounds, last), task.data.labels, task.data.groups
    names = names_of(scenario, task.data)
    if options.plot:
        draw_scenario(scenario, labels, classes, options.plot, rounds=rounds, names=names)
        note(f"figure: {options.plot}")
    plans = [_round(scenario.at(t), labels, len(classes), names) for t in range(rounds)]
    about = {"clients": scenario.clients, "rounds": last, "returning": scenario.persistent}
    if options.json:
        emit_json({**about, "classes": list(classes), "plans": plans})
    else:
        kinds = "classes" if task.data.classes else "bins of the target for classes"
        emit(_table(plans, f"{about['clients']} clients, {last} rounds, {len(classes)} {kinds}"))
        for line in task.data.notes:
            note(line)
    return 0


def _round(plan: "Plan", labels: "Codes", classes: int, names: "Names") -> dict[str, Any]:
    """Say who takes part, with names where the data have them."""
    keys = sorted({visit.key for visit in plan.visits.values()})
    period = {"period": ", ".join(names.periods[key] for key in keys)} if names.periods else {}
    clients = [
        {"client": client}
        | ({"name": names.clients[client]} if names.clients else {})
        | _held(visit, labels, classes)
        for client, visit in plan.visits.items()
    ]
    return {"round": plan.round, **period, "clients": clients}


def _held(visit: "Visit", labels: "Codes", classes: int) -> dict[str, object]:
    """Count what a client holds; ``None`` where its data are on another machine."""
    import numpy as np

    if not len(visit.indices):
        return {"samples": None, "by_class": None}
    counts = np.bincount(labels[visit.indices], minlength=classes)
    return {"samples": len(visit.indices), "by_class": counts.tolist()}


def _table(plans: list[dict[str, Any]], title: str) -> "Table":
    """Make a row a round: the samples of each client, and how many classes hold 90 % of them."""
    from rich.table import Table
    from rich.text import Text

    from chronofed.core.names import shortened

    headings = ["period"] if any("period" in plan for plan in plans) else []
    rest = "client: samples (classes that hold 90 % of them)"
    table = Table("round", *headings, rest, title=title)
    for plan in plans:
        cells = [Text(shortened(plan[heading])) for heading in headings]
        visits = "  ".join(map(_cell, plan["clients"])) or "nobody"
        # A name is no markup.
        table.add_row(str(plan["round"]), *cells, Text(visits))
    return table


def _cell(visit: dict[str, Any]) -> str:
    from chronofed.core.names import shortened

    who = shortened(visit["name"]) if "name" in visit else visit["client"]
    if visit["samples"] is None:
        return f"{who}: its own data"
    return f"{who}: {visit['samples']} ({_main_classes(visit['by_class'])})"


def _main_classes(counts: list[int]) -> int:
    import numpy as np

    shares = np.cumsum(sorted(counts, reverse=True)) / sum(counts)
    return int(np.searchsorted(shares, 0.9 - 1e-12)) + 1
