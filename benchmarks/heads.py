"""Heads, the mean of models, local losses and server steps, against FedAvg and CFL-Core-Set; prints tables.

    python benchmarks/heads.py shares [--seeds 5] [--jobs 2] [--folder runs/heads] [--only FedAvg head]
    python benchmarks/heads.py cifar cifar-symmetric --data FOLDER [--rounds 1500]

``shares`` and ``symmetric``: the images that come with the package in the paper's scenario, with either Dirichlet prior
(examples/demo.toml). ``stateless``: the same images with new clients in every round. ``cifar``,
``cifar-symmetric`` and ``cifar-stateless``: CIFAR-10 as in the paper's tables at the scale ``cpu``: a ResNet-8, rounds of half
an epoch, a cosine schedule, core sets of 100 samples.

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
ROUNDS = {"images": 100, "cifar": 1500}
RATES = {"images": (0.02, 0.05, 0.15), "cifar": (0.1, 0.2, 0.4)}
# Samples of a core set.
KEPT = {"images": 20, "cifar": 100}
# As the scale "cpu" of src/chronofed/studies/recipes/table-baselines.toml.
CIFAR = [
    "data.name='cifar10'",
    "model={kind='resnet-cifar', depth=8, width=16, norm='group', stride=2}",
    "scenario={kind='subsets', clients=7, subsets=30, client_alpha=0.1}",
    "evaluate={every=25, seen=0, sample=2000, periods='off'}",
    "checkpoint={every=100, keep=1}",
]
TRAIN = (
    "train={{batch_size=32, epochs=0.5, schedule={{kind='cosine', rounds={rounds}, final=0.01}}}}"
)
FEDERATIONS = {
    "shares": [],
    "symmetric": ["scenario.prior='symmetric'"],
    "stateless": [NEW_CLIENTS],
    "cifar": CIFAR,
    "cifar-symmetric": [*CIFAR, "scenario.prior='symmetric'"],
    "cifar-stateless": [*CIFAR[:2], *CIFAR[3:], NEW_CLIENTS],
}


def family(federation):
    """The data of a federation."""
    return "cifar" if federation.startswith("cifar") else "images"


def experiment(federation, method, lr, seed, data, tuning, rounds=None):
    """The experiment of one run."""
    kind = family(federation)
    rounds = rounds or ROUNDS[kind]
    own = [change.replace("size=20", f"size={KEPT[kind]}") for change in METHODS[method]["set"]]
    local = [TRAIN.format(rounds=rounds)] if kind == "cifar" else []
    changes = [
        *COMMON,
        *FEDERATIONS[federation],
        *local,
        f"rounds={rounds}",
        "method.memory={kind='forget'}",
        *own,
    ]
    on = ['evaluate.on="validation"'] if tuning else []
    names = [f"train.lr={lr}", f"seed={seed}", f"name='{method}'", 'engine="serial"']
    return load(HERE / "demo.toml", [*changes, *names, *on], data)


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


def table(options, chosen, pool, work):
    """Run all seeds; the rows, the best first."""
    tuned = {method: lr for method, lr in chosen.items() if isinstance(lr, float)}
    jobs = [
        (options.federation, method, lr, seed, options.data, False, options.folder)
        for seed in range(options.seeds)
        for method, lr in tuned.items()
    ]
    paths = list(pool.map(work, jobs))
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
    parser.add_argument("federations", choices=list(FEDERATIONS), nargs="+")
    parser.add_argument("--data", type=Path, help="folder of data files")
    parser.add_argument("--only", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--rounds", type=int, help="instead of 100, or 1500 of CIFAR-10")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/heads"))
    options = parser.parse_args()
    work = partial(cell_of, make=partial(experiment, rounds=options.rounds))
    with ProcessPoolExecutor(options.jobs) as pool:
        for federation in options.federations:
            options.federation = federation
            chosen = tune(options, pool, work, RATES[family(federation)])
            lines = table(options, chosen, pool, work)
            print("\n".join([f"\n{federation}", "", *lines]), flush=True)


if __name__ == "__main__":
    main()
