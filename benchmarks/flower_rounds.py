"""Time and bytes of a round on Flower, beside plain Flower FedAvg with the same training.

    python benchmarks/flower_rounds.py [--rounds 5] [--models small large]

One SuperLink and three SuperNodes on the loopback interface serve both in turns (ABAB), so that other load on
the machine affects both. The plain app is what one would write with Flower alone: its FedAvg strategy, the
model as one flat array, and a client that loads its data and trains. Both prefork their app processes
(``chronofed flower prefork``); with ``--cold`` neither does. For each it prints the median seconds of a round
and the part beyond training, the ratios of both, and the bytes per round over the loopback interface. The bytes
include every hop: server, SuperLink, SuperNode, client and back.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from chronofed import Experiment, Mlp, Subsets, Train
from chronofed.core.seeds import torch_generator
from chronofed.engines.base import one_thread
from chronofed.flower.app import new_app
from chronofed.flower.local import LocalFederation
from chronofed.methods.local import Local
from chronofed.methods.surrogate import Surrogate
from chronofed.training.evaluate import Evaluate

MODELS = {"small": (128,), "large": (3000, 2900)}  # 0.4 MB and 44 MB
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")

SERVER = """
import json, time
from pathlib import Path
from chronofed.runs.load_spec import load
from chronofed.flower.transport import GridTransport
from chronofed.flower.server_app import run_server
from chronofed.flower.settings import Federation
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    run, times = Path(context.run_config["run"]), []
    run_server(load(Path(__file__).parent / "spec.toml"), run, GridTransport(grid), Federation(quorum=3),
               on_round=lambda progress: times.append(time.time()))
    (run / "rounds.json").write_text(json.dumps(times))
"""

PLAIN_SERVER = """
import json, time
from pathlib import Path
import numpy as np
from chronofed.runs.load_spec import load
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid, context):
    run, times = Path(context.run_config["run"]), []
    experiment = load(Path(__file__).parent / "spec.toml")
    task, _, rounds = experiment.build()
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([task.initial(0)[0].numpy()]), num_rounds=rounds,
                   evaluate_fn=lambda round, arrays: times.append(time.time()))
    run.mkdir(parents=True)
    (run / "rounds.json").write_text(json.dumps(times))
"""

PLAIN_CLIENT = """
from pathlib import Path
import torch
from chronofed.engines.base import one_thread
from chronofed.runs.load_spec import load
from chronofed.methods.local import Local
from chronofed.core.seeds import torch_generator
from chronofed.methods.surrogate import Surrogate
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    experiment = load(Path(__file__).parent / "spec.toml")
    task, scenario, _ = experiment.build()
    client = context.node_config["client"]
    samples = task.samples(scenario.at(0).visits[client].indices)
    (array,) = message.content["arrays"].to_numpy_ndarrays()
    generator = torch_generator(0, "train", 0, client)
    local = Local(task.objective(), samples, Surrogate(), experiment.train, generator)
    with one_thread():
        params = local.descend(torch.from_numpy(array.copy()), local.stochastic_gradient)
    content = RecordDict({"arrays": ArrayRecord([params.numpy()]),
                          "metrics": MetricRecord({"num-examples": len(samples)})})
    return Message(content, reply_to=message)
"""


def experiment(model: str, rounds: int) -> Experiment:
    return Experiment(
        rounds=rounds,
        model=Mlp(MODELS[model]),
        scenario=Subsets(clients=3, subsets=4),
        train=Train(steps=5, batch_size=16),
        evaluate=Evaluate(every=10_000, seen=0, periods="off"),
    )


def write_app(folder: Path, spec: Experiment, kind: str) -> None:
    new_app(folder, spec.resolved())
    if kind == "plain":
        (folder / "server_app.py").write_text(PLAIN_SERVER)
        (folder / "client_app.py").write_text(PLAIN_CLIENT)
    else:
        (folder / "server_app.py").write_text(SERVER)


@dataclass
class Found:
    """Measurements of one contestant: seconds of every round, and bytes per round of every run."""

    seconds: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)

    def run(self, federation: LocalFederation, app: Path, rounds: int) -> None:
        """Run once; the first round, in which everything is new, does not count."""
        run = app.parent / f"run-{time.time_ns()}"
        before = int(LOOPBACK.read_text())
        federation.submit(app, f"run={json.dumps(str(run))}").wait()
        self.bytes.append((int(LOOPBACK.read_text()) - before) / rounds)
        times = json.loads((run / "rounds.json").read_text())
        self.seconds += [after - before for before, after in itertools.pairwise(times[1:])]


def training(spec: Experiment) -> float:
    """Return the seconds that one client trains in a round, alone and in one thread."""
    task, scenario, _ = spec.build()
    samples = task.samples(scenario.at(0).visits[0].indices)
    found = []
    with one_thread():
        for _ in range(5):
            start = time.perf_counter()
            generator = torch_generator(0, "train", 0, 0)
            local = Local(task.objective(), samples, Surrogate(), spec.train, generator)
            local.descend(task.initial(0)[0], local.stochastic_gradient)
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def report(model: str, found: dict[str, Found], alone: float) -> None:
    print(f"{model}: a client trains for {alone:.3f} s")
    medians = {kind: statistics.median(one.seconds) for kind, one in found.items()}
    for kind, one in found.items():
        low, high = min(one.seconds), max(one.seconds)
        print(
            f"  {kind}: {medians[kind]:.2f} s a round ({low:.2f} to {high:.2f} in {len(one.seconds)}), "
            f"{medians[kind] - alone:.2f} s beyond training, {statistics.median(one.bytes) / 1e6:.2f} MB"
        )
    ours, plain = medians.values()
    print(
        f"  {ours / plain:.2f} x a round, {(ours - alone) / (plain - alone):.2f} x beyond training"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--cold", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with LocalFederation(folder / "flower", prefork=not given.cold) as federation:
            for client in range(3):
                federation.start_node(client)
            for model in given.models:
                spec = experiment(model, given.rounds)
                found = {"chronofed": Found(), "plain": Found()}
                for kind in found:
                    write_app(folder / f"{kind}-{model}", spec, kind)
                alone = training(spec)
                for _ in range(given.repeat):
                    for kind, one in found.items():
                        one.run(federation, folder / f"{kind}-{model}", given.rounds)
                report(model, found, alone)


if __name__ == "__main__":
    main()
