"""Flower's commands for the operator of a SuperLink: nodes that may join, and runs."""

import json
from pathlib import Path
from threading import get_ident
from typing import Any

from chronofed.core.atomic import write_atomic
from chronofed.core.errors import ChronofedError
from chronofed.flower.processes import Processes


class Operator:
    """Runs the commands.

    Args:
        processes: Runs programs whose Flower home names the SuperLink ``local``.
        program: The program ``flwr``, or its launcher.
        folder: Folder for files that a command reads.
    """

    def __init__(self, processes: Processes, program: str, folder: Path) -> None:
        self._processes, self._program, self._folder = processes, program, folder

    def register(self, name: str, public: str) -> str:
        """Let a node with this public key join; return Flower's number of it."""
        key = self._folder / f"{name}.pub"
        write_atomic(key, public.encode())
        try:
            return str(self._run("supernode", "register", str(key))["node-id"])
        finally:
            key.unlink(missing_ok=True)

    def unregister(self, node: str) -> None:
        """Refuse a node from now on."""
        self._run("supernode", "unregister", node)

    def nodes(self) -> set[str]:
        """Return Flower's numbers of the nodes that may join."""
        return {str(node["node-id"]) for node in self._run("supernode", "list")["nodes"]}

    def stop_runs(self) -> None:
        """Stop all runs, with everything that is stored for them."""
        for run in self._run("list")["runs"]:
            if str(run["status"]).startswith("running"):
                self._run("stop", str(run["run-id"]))

    def _run(self, *words: str) -> dict[str, Any]:
        """Run a command.

        Raises:
            ChronofedError: With the last line of its output.
        """
        name = f"operator-{get_ident()}"
        log = self._processes.logs / f"{name}.log"
        command = (self._program, *words, "local", "--format", "json")
        code = self._processes.start(name, *command).wait()
        self._processes.stop(name)
        text, reason = log.read_text(), self._processes.last_line(name)
        log.unlink()
        try:
            answer = json.loads(text[text.index("{") :])
        except ValueError:
            answer = {}
        if code != 0 or not answer.get("success"):
            raise ChronofedError(f"flwr {' '.join(words[:2])}: {reason}")
        return dict(answer)
