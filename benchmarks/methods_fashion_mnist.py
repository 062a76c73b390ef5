"""The method family on Fashion-MNIST with the paper's protocol; writes the table of docs/results.

    python benchmarks/methods_fashion_mnist.py --rounds 500 --seeds 3 --jobs 2

210 subsets for 7 clients, alpha 0.1 on both levels, MLP 784-200-10, batch 32, one local epoch, lr 0.01.
Every cell is a run directory below runs/methods and is resumed, not repeated, when this is called again.
"""

import argparse
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from chronofed import (
    Adaptive,
    CoreSet,
    Experiment,
    FedAvg,
    FedProx,
    Fisher,
    Generative,
    Hutchinson,
    Method,
    MimeLite,
    Scaffold,
    Subsets,
    Taylor,
    Train,
)
from chronofed.data.settings import Images
from chronofed.reports.groups import Group, groups
from chronofed.reports.runs import RunView
from chronofed.runs import runner
from chronofed.runs.spec import Checkpoint
from chronofed.training.evaluate import Evaluate
from chronofed.training.measure import Column
from chronofed.training.paired import paired

FULL = {"*": 1.0}
METHODS = {
    "FedAvg": Method(FedAvg()),
    "FedProx (mu 0.1)": Method(FedProx(0.1)),
    "MimeLite (beta 0.01)": Method(MimeLite(0.01)),
    "SCAFFOLD": Method(Scaffold()),
    "CFL-Reg (Hutchinson)": Method(FedAvg(), Taylor(Hutchinson())),
    "CFL-Reg (Fisher)": Method(FedAvg(), Taylor(Fisher())),
    "CFL-Reg-Full (Hutchinson)": Method(FedAvg(), Taylor(Hutchinson(), layers=FULL)),
    "CFL-Reg-Full (practice)": Method(FedAvg(), Taylor(Hutchinson(), layers=FULL, mode="practice")),
    "CFL-Reg + FedProx": Method(FedProx(0.1), Taylor(Hutchinson())),
    "CFL-Core-Set (uniform, 100)": Method(FedAvg(), CoreSet(100)),
    "CFL-Core-Set (herding, 100)": Method(FedAvg(), CoreSet(100, select="herding")),
    "CFL-Core-Set (adaptive weights)": Method(FedAvg(), CoreSet(100), Adaptive()),
    "CFL-Generative (50)": Method(FedAvg(), Generative(50)),
}
PAPER = {"FedAvg": 86.75, "CFL-Reg (Hutchinson)": 87.02, "CFL-Core-Set (uniform, 100)": 88.32}
PAPER["CFL-Reg-Full (Hutchinson)"] = 77.37
COLUMNS = (
    Column("best5", "mean of best 5 %", 100, 2),
    Column("last", "last %", 100, 2),
    Column("anytime", "anytime %", 100, 2),
    Column("last_forgetting", "forgetting %", 100, 2),
    Column("last_information_loss", "information loss", 1, 3),
    Column("seconds", "seconds", 1, 0),
)


def experiment(name: str, seed: int, rounds: int, lr: float = 0.01) -> Experiment:
    return Experiment(
        name=name,
        seed=seed,
        rounds=rounds,
        data=Images("fashion-mnist"),
        scenario=Subsets(clients=7, subsets=30, client_alpha=0.1),
        method=METHODS[name],
        train=Train(lr=lr, batch_size=32, epochs=1),
        evaluate=Evaluate(every=5, seen=1000, past=2),
        checkpoint=Checkpoint(every=100),
        engine="serial",  # the figures on the page were made so; batched ones round differently
    )


def cell_of(job: tuple[str, int, int, float, Path]) -> Path:
    """One run, from the start or from where it stopped."""
    name, seed, rounds, lr, folder = job
    wanted = experiment(name, seed, rounds, lr)
    path = folder / f"{wanted.fingerprint()}-s{seed}"
    runner.run(wanted, path)
    return path


def gain(group: Group, plain: Group) -> str:
    """Mean difference to FedAvg over the same seeds, with the deviation of the differences and the paired test."""
    ours, theirs = (g.by_seed("best5") for g in (group, plain))
    seeds = sorted(ours.keys() & theirs.keys())
    found = paired([100 * ours[s] for s in seeds], [100 * theirs[s] for s in seeds])
    if found.deviation is None or group is plain:
        return "-"
    return f"{found.mean:+.2f} ± {found.deviation:.2f} (p = {found.p():.3f})"


def table(found: list[Group]) -> str:
    plain = next(group for group in found if group.name == "FedAvg")
    heads = [
        "method",
        "paper, mean of best 5 %",
        *(c.heading for c in COLUMNS),
        "mean of best 5 against FedAvg",
    ]
    rows = [heads, ["---"] * len(heads)]
    for group in found:
        numbers = [group.text(column) for column in COLUMNS]
        rows.append([group.name, str(PAPER.get(group.name, "")), *numbers, gain(group, plain)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--only", nargs="*", default=list(METHODS), help="names of methods")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=Path("runs/methods"))
    options = parser.parse_args()
    start = time.perf_counter()
    settings = (options.rounds, options.lr, options.folder)
    jobs = [(n, s, *settings) for s in range(options.seeds) for n in options.only]
    with ProcessPoolExecutor(options.jobs) as pool:
        paths = list(pool.map(cell_of, jobs))
    order = list(METHODS)
    found = sorted(groups([RunView.read(p) for p in paths]), key=lambda g: order.index(g.name))
    print(table(found))
    print(f"\n{len(paths)} runs of {options.rounds} rounds, {options.jobs} at a time, ", end="")
    print(f"{time.perf_counter() - start:.0f} s on {platform.machine()}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
