"""Show where the time of a cell goes: shares of one process's CPU time, which other work hardly changes.

    python benchmarks/scale/shares.py table-baselines CFL-Core-Set --scale cpu --rounds 20 --data FOLDER

Functions of the profile stand for the parts of a run; a part that calls another is counted without it.
"""

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import torch

from chronofed.runs import runner
from chronofed.studies.load_recipe import load
from chronofed.studies.recipe import RecipeCell

# Parts by the function that does them: file, name.
PARTS = {
    "gradients": [("objective.py", "gradient")],
    "evaluation: forward passes": [("scoring.py", "score")],
    "evaluation: drift and information loss": [("drift.py", "drift_measures")],
    "evaluation: all of it": [("evaluation.py", "__call__")],
    "records and digests": [("directory.py", "append"), ("record_digests.py", "add")],
    "checkpoints": [("checkpoint_writer.py", "save")],
    "scenario": [("base.py", "at")],
    "all rounds": [("runner.py", "_train")],
}


def find(recipe: str, row: str, column: str, scale: str) -> RecipeCell:
    """Return a cell of a recipe with its first seed."""
    cells = load(recipe).cells(scale, [0])
    return next(c for c in cells if c.row == row and column in ("", c.column))


def measure(cell: RecipeCell, rounds: int, data: Path) -> pstats.Stats:
    """Profile some rounds of a cell by CPU time."""
    experiment = msgspec.structs.replace(cell.experiment, rounds=rounds, workers=1, engine="serial")
    profile = cProfile.Profile(time.process_time)
    with tempfile.TemporaryDirectory() as folder:
        profile.runcall(runner.run, experiment, Path(folder) / "run", data)
    return pstats.Stats(profile)


def shares(stats: pstats.Stats) -> dict[str, dict[str, float]]:
    """Return calls, seconds and the share of all rounds for every part."""
    found = {part: [0, 0.0] for part in PARTS}
    for (file, _, name), (calls, _, _, seconds, _) in stats.stats.items():  # type: ignore[attr-defined]
        for part, functions in PARTS.items():
            if "chronofed" in file and (Path(file).name, name) in functions:
                found[part][0] += calls
                found[part][1] += seconds
    whole = found["all rounds"][1]
    return {
        part: {"calls": calls, "s": round(seconds, 3), "share": round(seconds / whole, 4)}
        for part, (calls, seconds) in found.items()
    }


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("row")
    parser.add_argument("--column", default="")
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cell = find(options.recipe, options.row, options.column, options.scale)
    found = shares(measure(cell, options.rounds, options.data))
    about = {"cell": f"{options.recipe}: {cell.name}", "scale": options.scale}
    sys.stdout.write(json.dumps({**about, "rounds": options.rounds, "parts": found}) + "\n")


if __name__ == "__main__":
    main()
