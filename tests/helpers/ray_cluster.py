"""A Ray cluster of several nodes on this machine, in a process of its own: real raylets, on loopback.

``python -m tests.helpers.ray_cluster 3 0 200000000`` starts a head and two more nodes with a core each, no GPU
and so many bytes of shared memory. It prints a line of JSON, and obeys the lines that it reads: ``kill 1``
kills node 1 with all its processes, ``add 1`` starts it again.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from chronofed.engines.ray.connect import LOOPBACK, QUIET

# Before Ray is imported.
SETTINGS = QUIET | LOOPBACK
# A token of these tests alone, so that Ray neither makes one in the home folder nor reads that.
AUTHENTICATION = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
STORE_BYTES = 200 * 2**20
# A node that is killed is missed within seconds, not half a minute.
HEALTH = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}


class LocalCluster:
    """The process of a cluster, as its user sees it."""

    def __init__(self, nodes: int, gpus: int = 0, store_bytes: int = STORE_BYTES) -> None:
        for name, value in AUTHENTICATION.items():
            os.environ.setdefault(name, value)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, (nodes, gpus, store_bytes))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | SETTINGS,
            start_new_session=True,
        )
        self.address: str = self._answer()["address"]

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL, its workers too, as when a machine loses power."""
        self._say(f"kill {node}")

    def add(self, node: int) -> None:
        """Start a node in the place of one that was killed."""
        self._say(f"add {node}")

    def processes(self) -> set[int]:
        """Return the processes of the cluster."""
        return {self._process.pid, *descendants(self._process.pid)}

    def workers(self, name: str = "ray::Worker") -> list[int]:
        """Return the processes of workers, on all nodes, by the beginning of their titles."""
        return [pid for pid in self.processes() if title(pid).startswith(name)]

    def close(self) -> None:
        """Stop the cluster."""
        mine = self.processes()
        self._process.kill()
        for pid in mine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()

    def _say(self, command: str) -> None:
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> dict:
        for line in self._process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                return json.loads(line)
        raise AssertionError("the cluster did not start")


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, directly or not."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text().split()):
                yield child
                yield from descendants(child)


def title(pid: int) -> str:
    """Return the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ").strip()
    except OSError:
        return ""


def main() -> None:
    from ray.cluster_utils import Cluster

    count, gpus, store_bytes = map(int, sys.argv[1:])
    settings = {"num_cpus": 1, "num_gpus": gpus, "object_store_memory": store_bytes}
    cluster = Cluster()
    nodes = [cluster.add_node(**settings, include_dashboard=False, _system_config=HEALTH)]
    nodes += [cluster.add_node(**settings) for _ in range(1, count)]
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        action, number = line.split()
        if action == "add":
            nodes[int(number)] = cluster.add_node(**settings)
        else:
            kill(nodes[int(number)])
        print("{}", flush=True)


def kill(node) -> None:
    for processes in node.all_processes.values():
        for each in processes:
            for pid in [each.process.pid, *descendants(each.process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            each.process.wait()


if __name__ == "__main__":
    main()
