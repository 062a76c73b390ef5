"""Time and memory of a federation of many nodes on this machine: TLS, keys, the proxy, and a small model.

    .venv-flower/bin/python benchmarks/flower_scale.py --nodes 50 --rounds 5

All nodes share one worker and one prefork server (``chronofed node start DIR DIR ...``). It prints one line of JSON:
seconds until the first round, seconds of every round, and the memory of processes as proportional set size, which
counts a page that several processes share once.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from chronofed import CoreSet, Experiment, Linear, Method, Scaffold, Subsets, Train
from chronofed.flower.hub import Hub, HubSettings
from chronofed.flower.hub_service import prepare_app
from chronofed.flower.processes import Processes, environment, free_port
from chronofed.runs import RunDirectory
from chronofed.training.evaluate import Evaluate

COMMAND = (sys.executable, "-c", "from chronofed.cli.main import main; raise SystemExit(main())")
KINDS = {
    "flwr-clientapp": "apps",
    "flower-supernod": "SuperNodes",
    "flower-superexe": "SuperExecs",
    "flwr-serverapp": "server app",
    "flower.worker": "worker",
    "flower.prefork": "prefork server",
    "flower-superlink": "SuperLink",
    "nginx": "proxy",
}
OF_A_NODE = ("SuperNodes", "SuperExecs")


def experiment(nodes: int, rounds: int) -> Experiment:
    """Linear model of 7850 parameters on the embedded images, 4 steps a round."""
    return Experiment(
        name="scale",
        rounds=rounds,
        model=Linear(),
        scenario=Subsets(clients=nodes, subsets=4),
        method=Method(Scaffold(), CoreSet(size=10)),
        train=Train(steps=4, batch_size=16),
        evaluate=Evaluate(seen=0),
    )


def memory(folder: Path) -> dict[str, tuple[int, float]]:
    """Return the number of processes of every kind, and their megabytes in all."""
    found: dict[str, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_text(errors="replace")
            about = line + (path / "environ").read_text(errors="replace")
            if str(folder) not in about:
                continue
            # A fork has given itself the name of its program, of at most 15 characters.
            line = (path / "comm").read_text().strip() + "\0" + line
            text = (path / "smaps_rollup").read_text()
        except OSError:
            continue
        kind = next((name for word, name in KINDS.items() if line.startswith(word)), None)
        kind = kind or next((name for word, name in KINDS.items() if word in line), None)
        if kind is not None:
            own = f"{folder}/hub/home" in about
            kind = f"hub: {kind}" if own and kind in (*OF_A_NODE, "prefork server") else kind
            kb = int(text.split("\nPss:")[1].split()[0])
            count, mb = found.get(kind, (0, 0.0))
            found[kind] = count + 1, mb + kb / 1024
    return found


def main() -> int:
    """Run the federation and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chronofed-scale-") as name:
        folder = Path(name)
        hub = Hub(folder / "hub")
        hub.create(HubSettings(("127.0.0.1",), free_port()))
        nodes = [str(hub.add_node(f"n{k}")) for k in range(given.nodes)]
        spec = experiment(given.nodes, given.rounds).resolved()
        prepare_app(hub, spec, quorum=given.nodes, join_timeout_s=1800.0, round_timeout_s=1800.0)
        with Processes(folder / "logs", environment(folder / "home")) as processes:
            print(json.dumps(measure(processes, hub, nodes, given.rounds)))
    return 0


def measure(processes: Processes, hub: Hub, nodes: list[str], rounds: int) -> dict[str, object]:
    """Run to the end, and return the figures."""
    start, before = time.monotonic(), os.getloadavg()
    processes.start("hub", *COMMAND, "hub", "start", str(hub.path))
    while not (hub.path / "roster.json").exists():
        processes.check()
        time.sleep(0.5)
    registered = time.monotonic() - start
    processes.start("nodes", *COMMAND, "node", "start", *nodes)
    directory, most, first = RunDirectory(hub.run), {}, 0.0
    while directory.summary() is None:
        done = len(directory.history())
        if done and not first:
            first = time.monotonic() - start
        if done >= 1:
            now = memory(hub.path.parent)
            if sum(mb for _, mb in now.values()) > sum(mb for _, mb in most.values()):
                most = now
        time.sleep(1.0)
    lines = (hub.run / "answers.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    own = sum(most[kind][1] for kind in OF_A_NODE) / len(nodes)
    return {
        "nodes": len(nodes),
        "rounds": rounds,
        "seconds until all nodes may join": round(registered, 1),
        "seconds until the first round is done": round(first, 1),
        "seconds a round": seconds,
        "median of later rounds": round(median(seconds[1:]), 1),
        "MB a node": round(own, 1),
        "MB in all": round(sum(mb for _, mb in most.values())),
        "MB": {kind: [count, round(mb)] for kind, (count, mb) in sorted(most.items())},
        "load before and after": [round(before[0], 1), round(os.getloadavg()[0], 1)],
    }


if __name__ == "__main__":
    raise SystemExit(main())
