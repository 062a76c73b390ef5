"""Estimate the minutes of every table at a scale from a few rounds of each row; one JSON line for each.

    python benchmarks/scale/budget.py --data FOLDER > benchmarks/scale/budget.jsonl

CPU time of one process with one thread, so that the estimate holds for one run at a time on one core, and two runs
beside each other on two. Cells that an earlier table trains already are not counted again. ``--table`` makes the
table of the README from the lines.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from chronofed.core.errors import ChronofedError
from chronofed.runs import runner
from chronofed.studies.load_recipe import load
from chronofed.studies.recipe import RecipeCell

HERE = Path(__file__).parent
# By importance; what does not fit into the budget is cut from the end.
ORDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("table-baselines", ("alpha 0.1", "alpha 0.1, shares")),
    ("table-methods", ()),
    ("table-stateless", ()),
    ("figure-information-loss", ()),
    ("table-baselines", ("alpha 0.2",)),
    ("table-ablation", ()),
    ("table-overlap", ()),
    ("figure-past", ()),
    ("figure-convergence", ()),
    ("figure-loss", ()),
)
# The first round has no memory to replay, and builds what is built once.
WARM, TIMED = 2, 3


def rows(scale: str) -> Iterator[tuple[str, str, str, list[RecipeCell]]]:
    """Yield recipe, row, column and the cells that no earlier table has."""
    known: set[str] = set()
    for name, columns in ORDER:
        recipe = load(name)
        cells = list(recipe.cells(scale, recipe.scale(scale).seeds))
        for column in columns or recipe.headings(scale):
            for row in recipe.rows:
                own = [c for c in cells if (c.row, c.column) == (row, column)]
                new = [c for c in own if c.experiment.fingerprint() not in known]
                known |= {c.experiment.fingerprint() for c in new}
                yield name, row, column, new


def seconds_a_round(cell: RecipeCell, data: Path) -> float | None:
    """Measure CPU seconds of a round without evaluation; ``None`` for a cell that is refused."""
    last = WARM + TIMED
    changes = {"rounds": last + 1, "workers": 1, "engine": "serial"}
    evaluate = msgspec.structs.replace(cell.experiment.evaluate, every=last + 1)
    experiment = msgspec.structs.replace(cell.experiment, evaluate=evaluate, **changes)
    at: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            runner.run(
                experiment,
                Path(folder) / "run",
                data,
                on_round=lambda p: at.update({p.round: time.process_time()}),
            )
        except ChronofedError:
            # A few rounds are enough, even if the method then diverges.
            return (at[last] - at[WARM]) / TIMED if last in at else None
    return (at[last] - at[WARM]) / TIMED


def measure(scale: str, data: Path) -> None:
    """Print a line for every row and column; a method on another column of the same model costs the same."""
    found: dict[str, float | None] = {}
    for name, row, column, new in rows(scale):
        if not new:
            continue
        experiment = new[0].experiment
        # Data sets of 100 classes and other drifts change the last layer and the samples, not the arithmetic.
        parts = (experiment.method, experiment.model, type(experiment.scenario).__name__)
        key = repr(parts)
        if key not in found:
            found[key] = seconds_a_round(new[0], data)
        spent = found[key]
        line = {"recipe": name, "row": row, "column": column, "runs": len(new)}
        line |= {"rounds": experiment.rounds, "s_a_round": spent and round(spent, 3)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def table(lines: list[dict[str, Any]]) -> str:
    """Make a Markdown table: runs, minutes of a run on one core, and hours of a table on two."""
    text = "| table | runs | minutes a run, one core | hours, two cores | sum |\n|---|---:|---:|---:|---:|\n"
    total = 0.0
    for name in dict.fromkeys(line["recipe"] for line in lines):
        own = [line for line in lines if line["recipe"] == name and line["s_a_round"]]
        minutes = [line["rounds"] * line["s_a_round"] / 60 for line in own]
        hours = sum(m * line["runs"] for m, line in zip(minutes, own, strict=True)) / 120
        total += hours
        runs = sum(line["runs"] for line in own)
        least, most = min(minutes), max(minutes)
        text += f"| `{name}` | {runs} | {least:.1f} to {most:.1f} | {hours:.1f} | {total:.1f} |\n"
    return text


def main() -> None:
    """Measure, or make the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.table:
        lines = (HERE / "budget.jsonl").read_text().splitlines()
        sys.stdout.write(table([json.loads(line) for line in lines]))
        return
    if options.data is None:
        parser.error("--data: name the folder of the data files")
    measure(options.scale, options.data)


if __name__ == "__main__":
    main()
