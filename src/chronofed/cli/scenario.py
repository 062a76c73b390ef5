"""The command ``chronofed scenario``."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from chronofed.cli.options import add_data, add_json, add_plot, add_spec, check_counts, check_spec
from chronofed.cli.output import emit, emit_json, note

if TYPE_CHECKING:
    from rich.table import Table

    from chronofed.data.dataset import Codes
    from chronofed.scenarios import Scenario, Visit

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

    built = build(load(options.spec, options.set, options.data), options.data)
    task, scenario, last = built.task, built.scenario, built.rounds
    rounds, labels, classes = min(options.rounds, last), task.data.labels, task.data.groups
    if options.plot:
        draw_scenario(scenario, labels, classes, options.plot, rounds=rounds)
        note(f"figure: {options.plot}")
    plans = [_round(scenario, t, labels, len(classes)) for t in range(rounds)]
    about = {"clients": scenario.clients, "rounds": last, "returning": scenario.persistent}
    if options.json:
        emit_json({**about, "classes": list(classes), "plans": plans})
    else:
        kinds = "classes" if task.data.classes else "bins of the target for classes"
        emit(_table(plans, f"{about['clients']} clients, {last} rounds, {len(classes)} {kinds}"))
        for line in task.data.notes:
            note(line)
    return 0


def _round(scenario: "Scenario", round_: int, labels: "Codes", classes: int) -> dict[str, object]:
    return {
        "round": round_,
        "clients": [
            {"client": client, **_held(visit, labels, classes)}
            for client, visit in scenario.at(round_).visits.items()
        ],
    }


def _held(visit: "Visit", labels: "Codes", classes: int) -> dict[str, object]:
    """Count what a client holds; ``None`` where its data are on another machine."""
    import numpy as np

    if not len(visit.indices):
        return {"samples": None, "by_class": None}
    counts = np.bincount(labels[visit.indices], minlength=classes)
    return {"samples": len(visit.indices), "by_class": counts.tolist()}


def _table(plans: list[dict[str, object]], title: str) -> "Table":
    """Make a row a round: the samples of each client, and how many classes hold 90 % of them."""
    from rich.table import Table

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
    import numpy as np

    shares = np.cumsum(sorted(counts, reverse=True)) / sum(counts)
    return int(np.searchsorted(shares, 0.9 - 1e-12)) + 1
