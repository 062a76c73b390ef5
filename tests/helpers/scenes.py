"""Runs to look at."""

import json
import math
import random

from chronofed import CoreSet, Experiment, Method
from chronofed.reports.runs import RunView
from chronofed.runs import RunDirectory
from chronofed.training.summary import summarise

EVIL = "<script>alert(1)</script>"


def write_run(
    path, name, seed=0, rounds=160, memory=None, finish=True, periods=True, models=0, gain=0.1
):
    """A run as it might be: accuracies that rise, data sets that are forgotten without a memory."""
    draw = random.Random(f"{name}{seed}")
    settings = {"method": Method(memory=CoreSet(memory))} if memory else {}
    experiment = Experiment(name=name, seed=seed, rounds=rounds, **settings)
    run = RunDirectory.create(
        path, experiment.resolved(), {"python": "3.11", "command": ["chronofed"]}
    )
    history, lines, weights, clusters, times = [], [], [], [], []
    for t in range(4, rounds + 1, 4):
        level = (0.7 + gain * bool(memory)) * (1 - math.exp(-t / 30)) + draw.uniform(-0.02, 0.02)
        history.append(
            {
                "round": t,
                "test_accuracy": level,
                "test_loss": 2 - 2 * level,
                "bytes_up": t,
                "bytes_down": t,
                "forgetting": (0.05 if memory else 0.25) * t / rounds
                + 0.01 * ((7 * seed + t + 3 * bool(memory)) % 5),
            }
        )
        train = 0.2 + 0.1 * bool(memory) + 0.01 * seed
        times.append({"round": t, "total": 0.5 + train, "train": train, "evaluate": 0.25})
        if periods:
            pairs = [(c, k) for c in range(5) for k in range(12) if 3 * k < t]
            lost = 0.05 if memory else 0.6
            value = {
                (c, k): 0.9 - lost * (c == 3) * (t > 100) - 0.1 * draw.random() for c, k in pairs
            }
            lines.append({
                "round": t, "accuracy": [[c, k, round(value[c, k], 4)] for c, k in pairs],
                "held": [[c, k, [[c, 1.0]]] for c, k in pairs], "tested": [20] * len(pairs),
                "basis": "classes", "pairs": len(pairs),
            })  # fmt: skip
        if models:
            of = [-1 if t < 20 * c else (t // 40 + c) % models for c in range(5)]
            clusters.append({"round": t, "models": [*range(models)], "of": of})
        if memory:
            weights.append(
                {"round": t, "present": 2 / t, "past": [(1 - 2 / t) / t] * min(t, 20), "older": 0.0}
            )
    for kind, content in (
        ("metrics", history),
        ("period_accuracy", lines),
        ("round_weights", weights),
        ("clusters", clusters),
        ("times", times),
    ):
        (path / f"{kind}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))
    run.describe_scenario(
        {
            "rounds": rounds, "clients": 5, "returning": True, "shown": [0, 50, 100],
            "classes": ["shoe", "shirt", "bag", "coat", "boot"],
            "held": [[[k, [[c, 20], [(c + k) % 5, 5]]] for k in range(3)] for c in range(5)],
            "there": ["111", "110", "011", "101", "111"],
            "mix": [[25, 20, 20, 20, 20], [20, 30, 20, 15, 20], [20, 20, 45, 10, 10]],
        }
    )  # fmt: skip
    if finish:
        run.finish(summarise(history) | {"seconds": 12.0})
    return path


def monthly(path, name, seed, names):
    """A run with an evaluation after every period."""
    write_run(path, name, seed, rounds=len(names), periods=False)
    draw = random.Random(seed)
    lines = [{"round": t + 1, "test_accuracy": draw.random()} for t in range(len(names))]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "digests.json").unlink()
    about = RunDirectory(path).scenario()
    RunDirectory(path).describe_scenario(
        about | {"rounds": len(names), "period_names": list(names)}
    )
    (path / "digests.json").unlink(missing_ok=True)
    return RunView.read(path)
