"""Methods and baselines on a real federation, by next-period figures; makes the tables of docs/examples.

    python benchmarks/next_period.py rain --data FOLDER [--seeds 3] [--jobs 2] [--folder runs/next] [--heads]

Every method gets three learning rates, tried with a seed that the table does not use on the first half of the periods
(``evaluate.on = "validation"``); the best is run on all periods. The table shows the second half alone, which nothing was
chosen by. Runs are kept in the folder and are resumed, not repeated, when this is called again.
"""

import argparse
import json
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from chronofed.runs import RunDirectory, runner
from chronofed.runs.load_spec import load
from chronofed.training.paired import paired

HERE = Path(__file__).resolve().parent.parent / "examples"
METHODS = {
    "FedAvg": ['method.memory={kind = "forget"}'],
    "CFL-Core-Set": [],
    "CFL-Regularization": ['method.memory={kind = "taylor"}'],
}
MEAN = ['method.backbone={kind="averaged"}']
# A regression has one output, which only ridge is for.
HEAD = {"flights-delay": ['method.head={kind="ridge"}']}
GAUSSIAN = ['method.head={kind="gaussian"}']


def heads(name):
    """The methods of ``--heads``: with and without memory, mean of models and head."""
    head, found = HEAD.get(name, GAUSSIAN), {}
    for memory in ("FedAvg", "CFL-Core-Set"):
        base = METHODS[memory]
        found[memory] = base
        found[f"{memory}, mean of models"] = [*base, *MEAN]
        found[f"{memory}, head"] = [*base, *head]
        found[f"{memory}, head on the mean"] = [*base, *MEAN, *head]
    return {**found, "auto": ['method="auto"']}


LEARNING_RATES = {
    "rain": (0.03, 0.1, 0.3),
    "hapt": (0.03, 0.1, 0.3),
    "flights": (0.03, 0.1, 0.3),
    "flights-delay": (0.03, 0.1, 0.3),
}
TUNING_SEED = 100
BASELINES = {
    "majority": "majority class or mean",
    "persistence": "persistence",
    "last_period": "last period's own model",
    "local": "one local model a client",
    "pooled": "all data pooled",
}
# Key of an evaluation, heading, factor and decimals.
CLASSES = (
    ("test_accuracy", "accuracy %", 100, 2),
    ("auc", "AUC", 1, 3),
    ("macro_f1", "macro F1 %", 100, 2),
    ("worst_client_accuracy", "worst client %", 100, 2),
)
NUMBERS = (("rmse", "RMSE", 1, 2), ("mae", "MAE", 1, 2), ("r2", "R2", 1, 4))


def experiment(name, method, lr, seed, data, tuning):
    """The experiment of one run."""
    more = ['evaluate.on="validation"', 'evaluate.baselines="off"'] if tuning else []
    if not tuning and method == "FedAvg":
        more = ['evaluate.baselines="all"']
    changes = [*METHODS[method], f"train.lr={lr}", f"seed={seed}", f'name="{method}"', *more]
    return load(HERE / f"{name}.toml", changes, data)


def cell_of(job):
    """Run one experiment, from the start or from where it stopped; None if it diverges."""
    name, method, lr, seed, data, tuning, folder = job
    wanted = experiment(name, method, lr, seed, data, tuning)
    path = folder / name / f"{wanted.fingerprint()}-s{seed}"
    try:
        runner.run(wanted, path, data)
    except runner.ChronofedError as error:
        print(f"{name}, {method}, lr {lr}, seed {seed}: {error}", flush=True)
        return None
    return path


def headline(path):
    """The figure that learning rates are chosen by, larger is better."""
    summary = json.loads((path / "summary.json").read_text())
    return summary["anytime"] if "anytime" in summary else -summary["anytime_rmse"]


def tune(name, options, pool):
    """Choose a learning rate for each method."""
    jobs = [
        (name, method, lr, TUNING_SEED, options.data, True, options.folder)
        for method in METHODS
        for lr in LEARNING_RATES[name]
    ]
    paths = dict(zip([job[1:3] for job in jobs], pool.map(cell_of, jobs), strict=True))
    scores = {key: headline(path) for key, path in paths.items() if path is not None}
    for key, score in scores.items():
        print(f"tuning {key}: {score:.4f}", flush=True)
    return {
        method: max((s, lr) for (m, lr), s in scores.items() if m == method)[1]
        for method in METHODS
    }


def second_half(history):
    """The evaluations of periods that nothing was chosen by."""
    last = max(line["test_period"] for line in history)
    first = -(-(last + 1) // 2)
    return [line for line in history if line["test_period"] >= first]


def mean(lines, key):
    """Mean over periods; None where it was not measured."""
    values = [line[key] for line in lines if key in line]
    return statistics.fmean(values) if values else None


def cell(values, factor, digits):
    """Mean and deviation over seeds."""
    if any(value is None for value in values):
        return "-"
    shown = [factor * value for value in values]
    spread = f" ± {statistics.stdev(shown):.{digits}f}" if len(shown) > 1 else ""
    return f"{statistics.fmean(shown):.{digits}f}{spread}"


def table(name, options, chosen, pool):
    """Run all seeds; return the lines of the table."""
    seeds = range(options.seeds)
    jobs = [
        (name, method, chosen[method], seed, options.data, False, options.folder)
        for seed in seeds
        for method in METHODS
    ]
    paths = dict(zip([(job[1], job[3]) for job in jobs], pool.map(cell_of, jobs), strict=True))
    halves = {key: second_half(RunDirectory(path).history()) for key, path in paths.items()}
    one = next(iter(halves.values()))
    measures = CLASSES if "test_accuracy" in one[0] else NUMBERS
    main = measures[0]
    rows = [["", "lr", *(m[1] for m in measures), f"{main[1]} against FedAvg"]]
    rows.append(["---"] * len(rows[0]))
    plain = [main[2] * mean(halves["FedAvg", seed], main[0]) for seed in seeds]
    for method in METHODS:
        cells = [cell([mean(halves[method, s], m[0]) for s in seeds], *m[2:]) for m in measures]
        found = paired([main[2] * mean(halves[method, s], main[0]) for s in seeds], plain)
        gain = "" if method == "FedAvg" else f"{found.mean:+.{main[3]}f} (p = {found.p():.2f})"
        rows.append([method, f"{chosen[method]:g}", *cells, gain])
    later = {line["round"] for line in one}
    for key, title in BASELINES.items():
        values = [baseline(paths["FedAvg", seed], key, later) for seed in seeds]
        rows.append([title, "", cell(values, main[2], main[3]), *[""] * len(measures)])
    periods = f"{len(one)} periods of the second half, {options.seeds} seeds"
    return ["| " + " | ".join(row) + " |" for row in rows], periods


def baseline(path, key, rounds):
    """Mean score of a baseline over the same periods."""
    found = json.loads((path / "baselines.json").read_text())
    pairs = zip(found["rounds"], found["scores"][key], strict=True)
    return statistics.fmean(score for round_, score in pairs if round_ in rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=list(LEARNING_RATES))
    parser.add_argument("--data", type=Path, required=True, help="folder of the data file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=Path("runs/next"))
    parser.add_argument("--heads", action="store_true", help="compare heads and the mean of models")
    options = parser.parse_args()
    if options.heads:
        # Before the pool, whose processes are copies of this one.
        chosen = heads(options.name)
        METHODS.clear()
        METHODS.update(chosen)
    with ProcessPoolExecutor(options.jobs) as pool:
        chosen = tune(options.name, options, pool)
        lines, about = table(options.name, options, chosen, pool)
    print("\n".join(lines))
    print(f"\n{about}")


if __name__ == "__main__":
    main()
