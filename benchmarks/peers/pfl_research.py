"""FedAvg by pfl-research: its simulated backend on resident tensors, in one process or in two.

    python pfl_research.py A [--processes 2]

Two processes are pfl's own: ``PFL_WORKER_ADDRESSES`` and ``PFL_WORKER_RANK`` make its torch module join a
gloo group on this machine. Each takes half of the cohort and pfl sums the updates. Rank 0 speaks with the
driver, starts rank 1 and passes every order on to it.

pfl's datasets keep their batches from round to round as views and never shuffle them, so this peer alone
trains in stored order in the measured rounds too and copies no samples.
"""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from protocol import Channel, asked
from workload import WORKLOADS

HERE = Path(__file__).resolve()


def join_group(processes: int, workload: str) -> TextIO | None:
    """Set what pfl reads when it is imported; rank 0 of two starts rank 1 and returns its input."""
    if processes == 1 or "PFL_WORKER_RANK" in os.environ:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = f"127.0.0.1:{port},127.0.0.1:0"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, str(HERE), workload, "--processes", str(processes)]
    other = subprocess.Popen(
        command, env={**os.environ, "PFL_WORKER_RANK": "1"}, stdin=subprocess.PIPE, text=True
    )
    os.environ["PFL_WORKER_RANK"] = "0"
    return other.stdin


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("workload", choices=[name for name in WORKLOADS if name != "R"])
    options.add_argument("--processes", type=int, choices=[1, 2], default=1)
    chosen = options.parse_args()
    channel = Channel()
    other = join_group(chosen.processes, chosen.workload)

    import pfl_worker

    peer, facts = pfl_worker.prepared(WORKLOADS[chosen.workload])
    if not pfl_worker.leads():
        for number in asked():
            peer.rounds(number)
        return

    def rounds(number: int) -> None:
        if other:
            other.write(f"go {number}\n")
            other.flush()
        peer.rounds(number)

    name = f"pfl-{pfl_worker.processes()}"
    channel.serve(rounds, peer=name, workload=chosen.workload, **facts)
    if other:
        other.close()


if __name__ == "__main__":
    main()
