"""FedAvg by Flower's simulation: Ray, two actors with one CPU and one torch thread each.

    python flower.py A

Flower's own way is the command ``flwr run``, which starts new processes for a run of so many rounds.
``run_simulation`` is deprecated in 1.41 but runs the same engine in this process, so the ServerApp can read
orders itself: every ``go`` is one round of Flower's ``FedAvg`` on actors that are already there, and start-up
is in no figure. The figure includes Flower's wait: its grid looks for replies every 0.1 s, and so does its
hand-out of messages. Data and model are resident in the actors. For B the cohort is Flower's own draw, by a
seed, not the workload's.
"""

import argparse
import logging
import os
import random

from protocol import Channel
from workload import SEED, WORKLOADS, Workload, check, clients, initial

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")

import flower_client
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_models import Probe, build, put


class Server:
    """Flower's strategy and the global model, one round at a time."""

    def __init__(self, work: Workload, grid: Grid) -> None:
        self.work = work
        self.grid = grid
        self.arrays = ArrayRecord(initial(work))
        self.strategy = FedAvg(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=work.clients,
        )

    def rounds(self, number: int, shuffled: bool = True) -> dict[str, float]:
        """Go on from the last result; the aggregated metrics of the last round."""
        result = self.strategy.start(
            self.grid,
            self.arrays,
            num_rounds=number,
            train_config=ConfigRecord({"shuffled": shuffled}),
        )
        assert result.arrays, "no client answered: see standard error"
        self.arrays = result.arrays
        return dict(result.train_metrics_clientapp[number])


def prepared(work: Workload, grid: Grid) -> tuple[Server, dict[str, object]]:
    """Checked against the reference where the cohort is everybody, and warmed up by two rounds."""
    random.seed(SEED)  # Flower draws cohorts by Python's global generator
    server = Server(work, grid)
    measure, model = Probe(clients(work)), build(work)
    before = measure(model)
    steps = server.rounds(1, shuffled=False)["steps"]
    assert abs(steps - work.steps) < 1e-6, steps  # a weighted mean of equal numbers
    everybody = work.cohort == work.clients
    error = check(work, server.arrays.to_numpy_ndarrays()) if everybody else None
    server.rounds(2)
    put(model, server.arrays.to_numpy_ndarrays())
    after = measure(model)
    assert after < before, (before, after)
    facts = {"steps": work.steps, "samples": work.samples, "error": error, "loss": [before, after]}
    return server, {"order": "shuffled", **facts}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("workload", choices=[name for name in WORKLOADS if name != "R"])
    chosen = options.parse_args()
    os.environ["CHRONOFED_PEERS_WORKLOAD"] = chosen.workload
    work = WORKLOADS[chosen.workload]
    channel = Channel()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, _: Context) -> None:
        server, facts = prepared(work, grid)

        def rounds(number: int) -> None:
            server.rounds(number)

        channel.serve(rounds, peer="flower", workload=work.name, **facts)

    run_simulation(
        server_app,
        flower_client.app,
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": 2, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )


if __name__ == "__main__":
    main()
