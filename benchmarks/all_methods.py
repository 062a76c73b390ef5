"""Every method on two federations, tuned alike; makes the tables of docs/results/all-methods.md.

    python benchmarks/all_methods.py images [--seeds 5] [--jobs 2] [--folder runs/all]
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
import time
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
        start = time.process_time()
        runner.run(wanted, path, data)
        cpu = path.with_suffix(".cpu")
        if not cpu.exists():
            cpu.write_text(str(time.process_time() - start))
    except ChronofedError as error:
        return str(error).splitlines()[0]
    return path


def headline(path):
    """The figure that learning rates are chosen by."""
    return json.loads((path / "summary.json").read_text())["anytime"]


def tune(options, pool, work=cell_of, rates=LEARNING_RATES):
    """Choose a learning rate for each method; those that fail with all of them get the last reason instead."""
    jobs = [
        (options.federation, method, lr, TUNING_SEED, options.data, True, options.folder)
        for method in options.only
        for lr in rates
    ]
    found = dict(zip([job[1:3] for job in jobs], pool.map(work, jobs), strict=True))
    chosen = {}
    for method in options.only:
        tried = {lr: found[method, lr] for lr in rates}
        scores = {lr: headline(path) for lr, path in tried.items() if isinstance(path, Path)}
        print(method, scores or tried, flush=True)
        chosen[method] = max(scores, key=scores.get) if scores else tried[rates[0]]
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
        "cpu_s": float(path.with_suffix(".cpu").read_text()),
    }
    history = RunDirectory(path).history()
    if federation == "images":
        return {
            "accuracy": summary["anytime"],
            "best": summary["best5"],
            "forgetting": summary["last_forgetting"],
            "worst": worst_client(path),
            **own_models(history[-1:]),
            **rest,
        }
    later = second_half(history)
    return {
        "accuracy": mean(later, "test_accuracy"),
        "best": mean(later, "auc"),
        "worst": mean(later, "worst_client_accuracy"),
        **own_models(later),
        **rest,
    }


def own_models(history):
    """Accuracy of the models that clients would use, where these are not the server's, and of the server's there."""
    for own in ("personal_accuracy", "cluster_accuracy"):
        if own in history[-1]:
            return {"own": mean(history, own), "shared": mean(history, "client_accuracy")}
    return {}


# Key of a figure, heading, factor and decimals.
COLUMNS = {
    "images": (
        ("accuracy", "anytime %", 100, 2),
        ("best", "best 5 %", 100, 2),
        ("forgetting", "forgetting %", 100, 1),
        ("worst", "worst client %", 100, 1),
        ("own", "own model %", 100, 1),
        ("shared", "server's model %", 100, 1),
    ),
    "flights": (
        ("accuracy", "accuracy %", 100, 2),
        ("best", "AUC", 1, 3),
        ("worst", "worst client %", 100, 1),
        ("own", "own model %", 100, 1),
        ("shared", "server's model %", 100, 1),
    ),
}
COSTS = (
    ("up", "up", 1, 2),
    ("down", "down", 1, 2),
    ("client_state", "on a client", 1, 1),
    ("server_state", "on the server", 1, 1),
)


def final_runs(options, chosen, pool):
    """Run every method that has a learning rate with all seeds; return their figures, best first, and the failures."""
    tuned = {method: lr for method, lr in chosen.items() if isinstance(lr, float)}
    jobs = [
        (options.federation, method, lr, seed, options.data, False, options.folder)
        for seed in range(options.seeds)
        for method, lr in tuned.items()
    ]
    paths = dict(zip([(job[1], job[3]) for job in jobs], pool.map(cell_of, jobs), strict=True))
    failed = {key: why for key, why in paths.items() if not isinstance(why, Path)}
    refused = {method: why for method, why in chosen.items() if not isinstance(why, float)}
    refused |= {f"{method}, seed {seed}": why for (method, seed), why in failed.items()}
    found = {
        method: [figures(options.federation, paths[method, seed]) for seed in range(options.seeds)]
        for method in tuned
        if not any(key[0] == method for key in failed)
    }
    order = sorted(found, key=lambda m: -statistics.fmean(each["accuracy"] for each in found[m]))
    return {method: found[method] for method in order}, refused


def differences(found):
    """The paired differences from FedAvg in accuracy, in points: the difference, its p, and p with Holm's correction."""
    plain = [100 * each["accuracy"] for each in found["FedAvg"]]
    gains = {
        method: paired([100 * each["accuracy"] for each in runs], plain)
        for method, runs in found.items()
        if method != "FedAvg"
    }
    corrected = holm([gain.p() for gain in gains.values()])
    return {
        method: [
            f"{gain.mean:+.2f} ± {gain.deviation:.2f}",
            p_value(gain.p()),
            p_value(p, bold=True),
        ]
        for (method, gain), p in zip(gains.items(), corrected, strict=True)
    }


def p_value(p, bold=False):
    """A p-value as a reader wants it; resolved ones may be bold."""
    text = "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
    return f"**{text}**" if bold and p < 0.05 else text


def results_table(options, chosen, found):
    """What the methods reach."""
    against = differences(found)
    columns = COLUMNS[options.federation]
    rows = [
        ["method", "family", "lr", *(c[1] for c in columns), "against FedAvg", "p", "corrected"]
    ]
    for method, runs in found.items():
        numbers = [
            cell([one[key] for one in runs], *rest) if all(key in one for one in runs) else ""
            for key, _, *rest in columns
        ]
        family = METHODS[method]["family"]
        lr = f"{chosen[method]:g}"
        edge = "" if chosen[method] == LEARNING_RATES[1] else "*"
        rows.append([method, family, lr + edge, *numbers, *against.get(method, [""] * 3)])
    return rows


def costs_table(found):
    """What the methods cost, in models and in the time of FedAvg."""
    unit = statistics.fmean(each["cpu_s"] for each in found["FedAvg"])
    rows = [["method", *(c[1] for c in COSTS), "CPU time"]]
    for method, runs in found.items():
        costs = [
            f"{statistics.fmean(one[key] for one in runs):.{digits}f}"
            for key, _, _, digits in COSTS
        ]
        seconds = statistics.fmean(one["cpu_s"] for one in runs) / unit
        rows.append([method, *costs, f"{seconds:.1f}"])
    return rows


def markdown(rows):
    """The lines of a table whose first row is its head."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def insert(page, name, text):
    """Put a table between the marks of its name on a page."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("federation", choices=list(FEDERATIONS))
    parser.add_argument("--data", type=Path, help="folder of flights.csv")
    parser.add_argument("--only", nargs="*", default=list(METHODS), help="names of methods")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=Path("runs/all"))
    parser.add_argument("--page", type=Path, help="page to put the tables on")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        chosen = tune(options, pool)
        found, refused = final_runs(options, chosen, pool)
    results, costs = markdown(results_table(options, chosen, found)), markdown(costs_table(found))
    print(results, costs, sep="\n\n")
    if options.page:
        insert(options.page, f"results of {options.federation}", results)
        insert(options.page, f"costs of {options.federation}", costs)
    for method, why in refused.items():
        print(f"{method}: {why}")


if __name__ == "__main__":
    main()
