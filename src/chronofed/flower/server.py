"""Chronofed's server as a Flower ServerApp.

What belongs to a run is set in the app's ``[tool.flwr.app.config]``, or with ``flwr run --run-config``:
``spec``, the specification; ``run``, the run's directory on the server's machine; ``data``, its folder of data
files; and the settings of :class:`~chronofed.flower.settings.Federation`, which has those of
:class:`~chronofed.screening.Screening`.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from chronofed.clock import Clock
from chronofed.errors import ChronofedError, RunError, SpecError
from chronofed.experiments import runner
from chronofed.experiments.reader import read
from chronofed.experiments.spec import Checkpoint, Experiment, load
from chronofed.flower.client import Settings
from chronofed.flower.engine import FlowerEngine, Mail
from chronofed.flower.grid import GridMail, flower
from chronofed.flower.processes import end_with_flower
from chronofed.flower.settings import Federation
from chronofed.flower.wire import fingerprint
from chronofed.records import RunDirectory
from chronofed.records.atomic import append_line, write_atomic
from chronofed.screening import Screen
from chronofed.tasks.classification import Classification

OWN = ("spec", "run", "data")  # settings of an app that are not the federation's


def server_app(beside: str | Path) -> Any:  # noqa: ANN401
    """The ServerApp of an app's folder.

    Args:
        beside: A file in the folder of the specification, such as ``__file__``.

    Returns:
        What ``[tool.flwr.app.components]`` names.
    """
    folder = Path(beside).resolve().parent
    app = flower("flwr.serverapp").ServerApp()

    def main(grid: Any, context: Any) -> None:  # noqa: ANN401
        end_with_flower()
        settings = context.run_config
        data = Path(str(settings["data"])).expanduser() if settings.get("data") else None
        experiment = load(folder / str(settings.get("spec", "spec.toml")), data=data)
        conduct(experiment, directory_of(settings), GridMail(grid), federation(settings), data)

    app.main()(main)
    return app


def federation(settings: Settings) -> Federation:
    """The federation's settings among an app's."""
    table = {name: value for name, value in settings.items() if name not in OWN}
    return read(table, Federation, "tool.flwr.app.config")


def directory_of(settings: Settings) -> Path:
    """The run's directory.

    Raises:
        SpecError: If the app does not name one that does not depend on where the server was started.
    """
    path = Path(str(settings.get("run", ""))).expanduser()
    if not path.is_absolute():
        msg = (
            "tool.flwr.app.config.run: expected the absolute path of the run's directory on the "
            f"server's machine, not {str(path)!r}; e.g. flwr run . --run-config 'run=\"/srv/run\"'"
        )
        raise SpecError(msg)
    return path


def conduct(
    experiment: Experiment,
    path: Path,
    mail: Mail,
    settings: Federation,
    data: Path | None = None,
    watch: runner.Watch = lambda progress: None,  # noqa: ARG005
) -> dict[str, Any]:
    """Start a run, or continue the one that is in the directory.

    Returns:
        The run's summary.

    Raises:
        RunError: If the directory holds a run of another method, or too few clients answer.
    """
    directory = _directory(experiment, path, data)
    note = _noter(path / "events.jsonl")
    run = _run_name(directory)

    def hire(task: Classification, _: Clock) -> FlowerEngine:
        known = load(directory.spec_path, data=data)
        screen = Screen.on(task, known.method, settings)
        return FlowerEngine(task, mail, run, fingerprint(known), screen, settings, note)

    def say(line: str) -> None:
        note({"event": "note", "line": line})

    note({"event": "started", "settings": msgspec.to_builtins(settings)})
    try:
        summary = runner.proceed(directory, data, watch, say, every_round, hire)
    except ChronofedError as error:
        note({"event": "stopped", "reason": str(error), "code": error.exit_code})
        raise
    note({"event": "finished"})
    return summary


def _directory(experiment: Experiment, path: Path, data: Path | None) -> RunDirectory:
    if not (path / "spec.toml").exists():
        return runner.start(experiment, path, data, hired=True)
    directory = RunDirectory.open(path)
    if fingerprint(load(directory.spec_path, data=data)) != fingerprint(experiment):
        raise RunError(f"{path} holds a run of another method or model; choose another directory")
    return directory


def every_round(experiment: Experiment) -> Experiment:
    """With a checkpoint after every round.

    Clients remember only their last reply, so a server that comes back must not be further behind than that.
    """
    keep = max(2, experiment.checkpoint.keep)
    return msgspec.structs.replace(experiment, checkpoint=Checkpoint(every=1, keep=keep))


def _noter(path: Path) -> Callable[[Mapping[str, Any]], None]:
    def note(event: Mapping[str, Any]) -> None:
        append_line(path, json.dumps({"time": round(time.time(), 3), **event}).encode())

    return note


def _run_name(directory: RunDirectory) -> str:
    """The name under which clients keep their memory of this run: made once, before the first round."""
    path = directory.path / "flower.json"
    begun = any(directory.checkpoints.glob("*.safetensors"))
    if not path.exists() and not begun:
        write_atomic(path, json.dumps({"run": secrets.token_hex(8)}).encode())
    return str(json.loads(path.read_bytes())["run"]) if path.exists() else ""
