"""Every method on two federations, tuned alike; makes the tables of docs/results/all-methods.md.

    python benchmarks/all_methods.py images [--seeds 3] [--jobs 2] [--folder runs/all]
    python benchmarks/all_methods.py flights --data FOLDER

``images``: the images that come with the package in the paper's scenario (examples/demo.toml). ``flights``: all flights
that left New York in 2013, carriers as clients, judged on the week that comes next (examples/flights.toml).

Every method gets three learning rates, tried with a seed that the table does not use: of the images on validation rows,
of the flights on the first half of the year. The table shows test rows, and of the flights the second half of the year.
All else is the default of every part. Runs are kept in the folder and are resumed, not repeated, when this is called again.
"""

import argparse
import json
import os
import statistics
import tomllib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from next_period import HERE, cell, mean, second_half

from chronofed import ChronofedError
from chronofed.runs import RunDirectory, checkpoint, runner
from chronofed.runs.load_spec import load
from chronofed.training.paired import holm, paired

METHODS = tomllib.loads((Path(__file__).with_suffix(".toml")).read_text())
LEARNING_RATES = (0.02, 0.05, 0.15)
TUNING_SEED = 100
FEDERATIONS = {
    "images": ("demo", ["data.validation=0.2"]),
    "flights": ("flights", ["evaluate.periods='off'", 'evaluate.baselines="off"']),
}


def experiment(federation, method, lr, seed, data, tuning):
    """The experiment of one run."""
    spec, changes = FEDERATIONS[federation]
    on = ['evaluate.on="validation"'] if tuning else []
    own = [
        "method.memory={kind='forget'}",
        *METHODS[method].get(federation, METHODS[method]["set"]),
    ]
    names = [f"train.lr={lr}", f"seed={seed}", f"name='{method}'", 'engine="serial"']
    return load(HERE / f"{spec}.toml", [*changes, *own, *names, *on], data)


def cell_of(job, make=experiment):
    """Run one experiment, from the start or from where it stopped; the reason if it cannot be run."""
    federation, method, lr, seed, data, tuning, folder = job
    try:
        wanted = make(federation, method, lr, seed, data, tuning)
        path = folder / federation / f"{wanted.fingerprint()}-s{seed}"
        runner.run(wanted, path, data)
    except ChronofedError as error:
        return str(error).splitlines()[0]
    return path


def headline(path):
    """The figure that learning rates are chosen by."""
    return json.loads((path / "summary.json").read_text())["anytime"]


def tune(options, pool, work=cell_of):
    """Choose a learning rate for each method; those that fail with all of them get the last reason instead."""
    jobs = [
        (options.federation, method, lr, TUNING_SEED, options.data, True, options.folder)
        for method in options.only
        for lr in LEARNING_RATES
    ]
    found = dict(zip([job[1:3] for job in jobs], pool.map(work, jobs), strict=True))
    chosen = {}
    for method in options.only:
        tried = {lr: found[method, lr] for lr in LEARNING_RATES}
        scores = {lr: headline(path) for lr, path in tried.items() if isinstance(path, Path)}
        print(method, scores or tried, flush=True)
        chosen[method] = max(scores, key=scores.get) if scores else tried[LEARNING_RATES[0]]
    return chosen


def state_models(path):
    """State of a client and of the server beside the model, in models; samples and all."""
    snapshot, _ = checkpoint.load_latest(RunDirectory(path).checkpoints)
    model = snapshot.params.nbytes
    states = [snapshot.client_states[client] for client in sorted(snapshot.client_states)]
    clients = [
        size(state.backbone_state) + sum(size(item.record) for item in state.items)
        for state in states
    ]
    server = size(snapshot.server) - model + sum(size(item.record) for item in snapshot.past)
    return statistics.fmean(clients) / model if clients else 0.0, server / model


def size(record):
    """Bytes of a record."""
    return sum(tensor.nbytes for tensor in record.values())


def worst_client(path):
    """Accuracy of the worst client on its own data sets, at the end."""
    by_client = {}
    for client, _, accuracy in RunDirectory(path).record("period_accuracy")[-1]["accuracy"]:
        by_client.setdefault(client, []).append(accuracy)
    return min(statistics.fmean(found) for found in by_client.values())


def figures(federation, path):
    """The columns of one run."""
    summary = json.loads((path / "summary.json").read_text())
    clients = {"images": 7, "flights": 16}[federation]
    model = checkpoint.load_latest(RunDirectory(path).checkpoints)[0].params.nbytes
    visits = model * clients * summary["rounds"]
    client_state, server_state = state_models(path)
    rest = {
        "up": summary["last_bytes_up"] / visits,
        "down": summary["last_bytes_down"] / visits,
        "client_state": client_state,
        "server_state": server_state,
        "seconds": summary["seconds"],
    }
    if federation == "images":
        return {
            "accuracy": summary["anytime"],
            "best": summary["best5"],
            "forgetting": summary["last_forgetting"],
            "worst": worst_client(path),
            **rest,
        }
    later = second_half(RunDirectory(path).history())
    return {
        "accuracy": mean(later, "test_accuracy"),
        "best": mean(later, "auc"),
        "worst": mean(later, "worst_client_accuracy"),
        **rest,
    }


COLUMNS = {
    "images": (
        ("accuracy", "anytime %", 100, 2),
        ("best", "best 5 %", 100, 2),
        ("forgetting", "forgetting %", 100, 1),
        ("worst", "worst client %", 100, 1),
    ),
    "flights": (
        ("accuracy", "accuracy %", 100, 2),
        ("best", "AUC", 1, 3),
        ("worst", "worst client %", 100, 1),
    ),
}
COSTS = (
    ("up", "up", 1, 2),
    ("down", "down", 1, 2),
    ("client_state", "on a client", 1, 1),
    ("server_state", "on the server", 1, 1),
)


def table(options, chosen, pool):
    """Run all seeds; return the rows, the best first."""
    seeds = range(options.seeds)
    tuned = {method: lr for method, lr in chosen.items() if isinstance(lr, float)}
    jobs = [
        (options.federation, method, lr, seed, options.data, False, options.folder)
        for seed in seeds
        for method, lr in tuned.items()
    ]
    paths = dict(zip([(job[1], job[3]) for job in jobs], pool.map(cell_of, jobs), strict=True))
    failed = {key: why for key, why in paths.items() if not isinstance(why, Path)}
    for key, why in failed.items():
        print("failed:", key, why)
    whole = [method for method in tuned if not any(key[0] == method for key in failed)]
    found = {
        method: [figures(options.federation, paths[method, seed]) for seed in seeds]
        for method in whole
    }
    plain = [100 * each["accuracy"] for each in found["FedAvg"]]
    gains = {
        m: paired([100 * each["accuracy"] for each in f], plain)
        for m, f in found.items()
        if m != "FedAvg"
    }
    corrected = dict(zip(gains, holm([gain.p() for gain in gains.values()]), strict=True))
    unit = statistics.fmean(each["seconds"] for each in found["FedAvg"])
    columns = COLUMNS[options.federation]
    heads = [
        "method",
        "lr",
        *(c[1] for c in columns),
        "against FedAvg",
        *(c[1] for c in COSTS),
        "time",
    ]
    rows = [heads, ["---"] * len(heads)]
    order = sorted(found, key=lambda m: -statistics.fmean(each["accuracy"] for each in found[m]))
    for method in order:
        each = found[method]
        numbers = [cell([one[key] for one in each], *rest) for key, _, *rest in columns]
        costs = [
            f"{statistics.fmean(one[key] for one in each):.{digits}f}"
            for key, _, _, digits in COSTS
        ]
        seconds = statistics.fmean(one["seconds"] for one in each) / unit
        gain = gains.get(method)
        against = "" if gain is None else f"{gain.mean:+.2f} (p = {corrected[method]:.2f})"
        rows.append([method, f"{tuned[method]:g}", *numbers, against, *costs, f"{seconds:.1f}"])
    refused = {method: why for method, why in chosen.items() if not isinstance(why, float)}
    return ["| " + " | ".join(row) + " |" for row in rows], refused


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("federation", choices=list(FEDERATIONS))
    parser.add_argument("--data", type=Path, help="folder of flights.csv")
    parser.add_argument("--only", nargs="*", default=list(METHODS), help="names of methods")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=Path("runs/all"))
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        chosen = tune(options, pool)
        lines, refused = table(options, chosen, pool)
    print("\n".join(lines))
    for method, why in refused.items():
        print(f"{method}: {why}")


if __name__ == "__main__":
    main()
