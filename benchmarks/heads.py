"""Heads, the mean of models, local losses and server steps, against FedAvg and CFL-Core-Set; prints a table.

    python benchmarks/heads.py shares [--seeds 5] [--jobs 2] [--folder runs/heads] [--only FedAvg head]

``shares`` and ``symmetric``: the images that come with the package in the paper's scenario, with either Dirichlet prior
(examples/demo.toml). ``stateless``: the same images with new clients in every round. ``cifar``,
``cifar-symmetric`` and ``cifar-stateless``: the same with CIFAR-10 and a small CNN (its file is in --data FOLDER).

Every method gets three learning rates, tried on validation rows with a seed that the table does not use. All else is the
default of every part: decay, shrinkage and prior of a head are chosen by evidence, without test rows. The table shows test
rows; differences are paired by seed, and their p-values have Holm's correction for all rows of the table. Runs are kept in
the folder and are resumed, not repeated, when this is called again.
"""

import argparse
import json
import statistics
import tomllib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from all_methods import cell_of, tune
from next_period import HERE, cell

from chronofed.runs import RunDirectory, checkpoint
from chronofed.runs.load_spec import load
from chronofed.training.paired import holm, paired

METHODS = tomllib.loads((Path(__file__).with_suffix(".toml")).read_text())
COMMON = ["data.validation=0.2", "evaluate.seen=0", "evaluate.periods='off'"]
NEW_CLIENTS = "scenario={kind='stateless', clients=7, client_alpha=0.2}"
CIFAR = ["data.name='cifar10'", "model={kind='cnn'}", "scenario.clients=7", "rounds=300"]
FEDERATIONS = {
    "shares": [],
    "symmetric": ["scenario.prior='symmetric'"],
    "stateless": [NEW_CLIENTS],
    "cifar": CIFAR,
    "cifar-symmetric": [*CIFAR, "scenario.prior='symmetric'"],
    "cifar-stateless": [*CIFAR, NEW_CLIENTS],
}


def experiment(federation, method, lr, seed, data, tuning):
    """The experiment of one run."""
    changes = [
        *COMMON,
        *FEDERATIONS[federation],
        "method.memory={kind='forget'}",
        *METHODS[method]["set"],
    ]
    on = ['evaluate.on="validation"'] if tuning else []
    names = [f"train.lr={lr}", f"seed={seed}", f"name='{method}'", 'engine="serial"']
    return load(HERE / "demo.toml", [*changes, *names, *on], data)


WORK = partial(cell_of, make=experiment)


def figures(path):
    """The columns of one run; traffic in models a visit."""
    summary = json.loads((path / "summary.json").read_text())
    directory = RunDirectory(path)
    model = checkpoint.load_latest(directory.checkpoints)[0].params.nbytes
    visits = model * directory.scenario()["clients"] * summary["rounds"]
    return {
        "best": 100 * summary["best5"],
        "anytime": 100 * summary["anytime"],
        "up": summary["last_bytes_up"] / visits,
        "down": summary["last_bytes_down"] / visits,
        "seconds": summary["seconds"],
    }


def against(found, reference):
    """Differences of the anytime accuracy from a reference, with Holm's correction."""
    if reference not in found:
        return {}
    plain = [one["anytime"] for one in found[reference]]
    gains = {
        m: paired([one["anytime"] for one in each], plain)
        for m, each in found.items()
        if m != reference
    }
    corrected = holm([gain.p() for gain in gains.values()])
    return {
        m: f"{gain.mean:+.2f} (p = {p:.3f})"
        for (m, gain), p in zip(gains.items(), corrected, strict=True)
    }


def table(options, chosen, pool):
    """Run all seeds; the rows, the best first."""
    tuned = {method: lr for method, lr in chosen.items() if isinstance(lr, float)}
    jobs = [
        (options.federation, method, lr, seed, options.data, False, options.folder)
        for seed in range(options.seeds)
        for method, lr in tuned.items()
    ]
    paths = list(pool.map(WORK, jobs))
    for job, path in zip(jobs, paths, strict=True):
        if not isinstance(path, Path):
            raise SystemExit(f"{job[1]}: {path}")
    found = {method: [] for method in tuned}
    for job, path in zip(jobs, paths, strict=True):
        found[job[1]].append(figures(path))
    references = ["FedAvg", "CFL-Core-Set"]
    gains = {reference: against(found, reference) for reference in references}
    unit = statistics.fmean(one["seconds"] for one in found[next(iter(found))])
    heads = ["method", "lr", "best 5 %", "anytime %"]
    heads += [f"anytime against {name}" for name in references] + ["up", "down", "time"]
    rows = [heads, ["---"] * len(heads)]
    for method in sorted(found, key=lambda m: -statistics.fmean(o["anytime"] for o in found[m])):
        each = found[method]
        numbers = [cell([one[key] for one in each], 1, 2) for key in ("best", "anytime")]
        costs = [f"{statistics.fmean(one[key] for one in each):.2f}" for key in ("up", "down")]
        seconds = f"{statistics.fmean(one['seconds'] for one in each) / unit:.1f}"
        compared = [gains[name].get(method, "") for name in references]
        rows.append([method, f"{tuned[method]:g}", *numbers, *compared, *costs, seconds])
    return ["| " + " | ".join(row) + " |" for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("federation", choices=list(FEDERATIONS))
    parser.add_argument("--data", type=Path, help="folder of data files")
    parser.add_argument("--only", nargs="*", default=list(METHODS), help="names of methods")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/heads"))
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        chosen = tune(options, pool, WORK)
        lines = table(options, chosen, pool)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
