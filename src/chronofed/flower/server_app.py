"""Chronofed's server as a Flower ServerApp.

Settings of a run are in the app's ``[tool.flwr.app.config]``, or given with ``flwr run --run-config``:
``spec``, the specification; ``run``, the run directory on the server's machine; ``data``, its folder of data
files; ``nodes``, a file that says which node is which client; ``sent``, a file to touch whenever orders were
sent; ``asked``, a folder with a file for every node that is touched whenever it asks for an order; ``allowed``,
a file for how much each node may send; and the settings of :class:`~chronofed.flower.settings.Federation`.
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from chronofed.clients.screening import Screen
from chronofed.core.atomic import append_line, write_atomic
from chronofed.core.errors import ChronofedError, RunError, SpecError
from chronofed.core.paths import expand
from chronofed.core.spec_io import from_table
from chronofed.core.timing import PhaseTimer
from chronofed.flower.client_app import UserConfig
from chronofed.flower.engine import FlowerEngine
from chronofed.flower.messages import method_fingerprint
from chronofed.flower.processes import exit_with_flower
from chronofed.flower.settings import Federation
from chronofed.flower.transport import GridTransport, Transport, import_flower
from chronofed.models.supervised import SupervisedTask
from chronofed.runs import RunDirectory, runner
from chronofed.runs.built import build
from chronofed.runs.json_files import read_json
from chronofed.runs.load_spec import load, load_run
from chronofed.runs.spec import Checkpoint, Experiment

APP_KEYS = ("spec", "run", "data", "nodes", "sent", "asked", "allowed")
"""Settings of an app that do not belong to the federation."""


def server_app(file: str | Path) -> Any:
    """Make the ServerApp for an app's folder.

    Args:
        file: A file in the folder of the specification, such as ``__file__``.

    Returns:
        The object that ``[tool.flwr.app.components]`` names.
    """
    folder = Path(file).resolve().parent
    app = import_flower("flwr.serverapp").ServerApp()

    def main(grid: Any, context: Any) -> None:
        exit_with_flower()
        config = context.run_config
        data, nodes, *files = (_path(config, name) for name in APP_KEYS[2:])
        experiment = load(folder / str(config.get("spec", "spec.toml")), data=data)
        transport = GridTransport(grid, *files)
        run_server(experiment, run_path(config), transport, federation(config), data, nodes=nodes)

    app.main()(main)
    return app


def _path(run_config: UserConfig, name: str) -> Path | None:
    return expand(str(run_config[name])) if run_config.get(name) else None


def federation(run_config: UserConfig) -> Federation:
    """Read the federation's settings among those of an app."""
    table = {name: value for name, value in run_config.items() if name not in APP_KEYS}
    return from_table(table, Federation, "tool.flwr.app.config")


def run_path(run_config: UserConfig) -> Path:
    """Return the path of the run directory.

    Raises:
        SpecError: If it is not absolute: a relative path would depend on where the server was started.
    """
    path = expand(str(run_config.get("run", "")))
    if not path.is_absolute():
        raise SpecError(
            "tool.flwr.app.config.run: expected the absolute path of the run directory on the server's "
            f"machine, not {str(path)!r}; e.g. flwr run . --run-config 'run=\"/srv/run\"'"
        )
    return path


def run_server(
    experiment: Experiment,
    path: Path,
    transport: Transport,
    settings: Federation,
    data: Path | None = None,
    on_round: runner.OnRound = lambda progress: None,
    nodes: Path | None = None,
) -> dict[str, Any]:
    """Start a run, or resume the one in the directory.

    Args:
        experiment: The experiment.
        path: The run directory.
        transport: Carries messages to nodes.
        settings: Timeouts, quorum and limits.
        data: Folder of data files.
        on_round: Called after every round.
        nodes: File that says which node is which client; by default a node says it itself.

    Returns:
        The run's summary.

    Raises:
        RunError: If the directory contains a run of another method, or too few clients answer.
    """
    directory = RunDirectory(path)
    built = None if directory.exists else build(experiment, data)
    if built is None:
        known = _known(experiment, directory, data)
    else:
        known = built.experiment
        runner.create(built, path, remote=True)
    run = _run_name(directory)

    def make_engine(task: SupervisedTask, _: PhaseTimer) -> FlowerEngine:
        screen = Screen.on(task, known.method, settings)
        return FlowerEngine(
            task,
            transport,
            run,
            method_fingerprint(known),
            screen,
            settings,
            events.write,
            answers.write,
            None if nodes is None else partial(read_roster, nodes),
        )

    now, answers = checkpoint_every_round(known), EventLog(path / "answers.jsonl")
    with log_events(path / "events.jsonl") as events:
        events.write({"event": "started", "settings": msgspec.to_builtins(settings)})
        try:
            if built is None:
                summary = runner.resume(
                    directory, data, experiment=now, on_round=on_round, engine_factory=make_engine
                )
            else:
                ready = replace(built, experiment=now)
                summary = runner.proceed(
                    directory, ready, on_round=on_round, engine_factory=make_engine
                )
        except ChronofedError as error:
            events.write({"event": "stopped", "reason": str(error), "code": error.exit_code})
            raise
        events.write({"event": "finished"})
    return summary


def read_roster(path: Path) -> dict[int, list[int]]:
    """Read which node has which clients; the hub writes this file when its nodes change."""
    return {int(node): list(clients) for node, clients in (read_json(path) or {}).items()}


class EventLog(logging.Handler):
    """Appends events to ``events.jsonl``, and the warnings that are logged in this thread.

    Several runs may share a process, each in a thread of its own.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.path = path
        self._thread = threading.get_ident()

    def write(self, event: Mapping[str, Any]) -> None:
        """Append an event with the present time."""
        append_line(self.path, json.dumps({"time": round(time.time(), 3), **event}).encode())

    def emit(self, record: logging.LogRecord) -> None:
        """Append a warning."""
        if record.thread == self._thread:
            self.write({"event": "warning", "message": record.getMessage()})


@contextmanager
def log_events(path: Path) -> Iterator[EventLog]:
    """Record warnings about the run as events while the block runs."""
    # Not those of the whole library: a client's warning may quote its data, and never leaves its machine.
    logger = logging.getLogger("chronofed.runs")
    events = EventLog(path)
    logger.addHandler(events)
    try:
        yield events
    finally:
        logger.removeHandler(events)


def _known(experiment: Experiment, directory: RunDirectory, data: Path | None) -> Experiment:
    """Load the experiment of an existing run, which must be the same."""
    known = load_run(directory, data)
    if method_fingerprint(known) != method_fingerprint(experiment):
        msg = f"{directory.path} holds a run of another method or model; choose another directory"
        raise RunError(msg)
    return known


def checkpoint_every_round(experiment: Experiment) -> Experiment:
    """Save a checkpoint after every round.

    Clients store only their last reply, so a server that resumes must not be more than one round behind them.
    """
    keep = max(2, experiment.checkpoint.keep)
    return msgspec.structs.replace(experiment, checkpoint=Checkpoint(every=1, keep=keep))


def _run_name(directory: RunDirectory) -> str:
    """Return the name of the run for its clients; it is chosen once, before the first round."""
    path = directory.path / "flower.json"
    begun = any(directory.checkpoints.glob("*.safetensors"))
    if not path.exists() and not begun:
        write_atomic(path, json.dumps({"run": secrets.token_hex(8)}).encode())
    return str((read_json(path) or {}).get("run", ""))
