"""The command ``chronofed flower``: Flower apps, keys, and a whole federation on this machine."""

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from chronofed.cli.main import INTERRUPTED
from chronofed.cli.output import emit, emit_json, note, width
from chronofed.cli.progress import progress
from chronofed.cli.run import default_name
from chronofed.errors import SpecError
from chronofed.experiments import runner, spec
from chronofed.experiments.own import load_source
from chronofed.flower import warm
from chronofed.flower.app import new_app
from chronofed.flower.keys import make_keys
from chronofed.flower.local import run_locally
from chronofed.flower.processes import Processes, program, surroundings
from chronofed.records import RunDirectory
from chronofed.reports.terminal import comparison
from chronofed.reports.view import RunView, groups
from chronofed.scenarios import Scenario

WAITING = ("quorum", "deadline", "muster")


def main(options: Namespace) -> int:
    """Do one of them."""
    actions = {"new": _new, "local": _local, "keys": _keys, "warm": _warm}
    return actions[options.action](options)


def _new(options: Namespace) -> int:
    """Write a ready app."""
    experiment = spec.Experiment(name="first", rounds=20)
    if options.spec is not None:
        experiment = spec.load(options.spec, options.set, options.data)
    new_app(options.folder, experiment.resolved())
    note(f"app: {options.folder}; how to run it: {options.folder / 'README.md'}")
    return 0


def _local(options: Namespace) -> int:
    """Carry out an experiment on processes of this machine."""
    experiment = spec.load(options.spec, options.set, options.data)
    _, scenario, rounds = experiment.build(options.data)
    if scenario.persistent and scenario.clients > options.clients:
        msg = (
            f"--clients {options.clients}: the scenario has {scenario.clients} clients, and every one "
            f"needs a SuperNode; use --clients {scenario.clients}, or -s scenario.clients=..."
        )
        raise SpecError(msg)
    sources = _sources(options, scenario)
    path = options.output or Path("runs") / default_name(experiment)
    waiting = {k: getattr(options, k) for k in WAITING if getattr(options, k) is not None}
    with progress(options.quiet or options.json) as bars:
        move = bars.watch(experiment.name)

        def watch(directory: RunDirectory) -> None:
            history = directory.history()
            last = history[-1] if history else None
            move(runner.Progress(last["round"] if last else 0, rounds, last))

        clients = range(options.clients)
        try:
            summary = run_locally(
                experiment.resolved(), path, clients, options.data, watch, sources, **waiting
            )
        except KeyboardInterrupt:
            note(f"interrupted; the same command with -o {path} continues")
            return INTERRUPTED
    if options.json:
        emit_json({"run": str(path), **summary})
    else:
        emit(comparison(groups([RunView.read(path)]), f"run: {path}", width()))
    return 0


def _sources(options: Namespace, scenario: Scenario) -> dict[int, Path]:
    """Files that say where each client's own data are; they must be readable before anything starts."""
    if options.source is None:
        if scenario.elsewhere:
            msg = "--source: this scenario's clients bring their own data: --source 'data/{client}.toml'"
            raise SpecError(msg)
        return {}
    paths = {i: Path(options.source.replace("{client}", str(i))) for i in range(options.clients)}
    for path in paths.values():
        load_source(path)
    return paths


def _keys(options: Namespace) -> int:
    """Make certificates and key pairs."""
    files = make_keys(options.folder, options.clients, options.host, options.days)
    if options.json:
        emit_json({"files": [str(file) for file in files]})
    else:
        note(f"{len(files)} files in {options.folder}; keep what has no .pub, .crt or .pem secret")
    return 0


def _warm(options: Namespace) -> int:
    """Run one of Flower's programs with app processes that are forked."""
    if not options.program:
        raise SpecError("flower warm: say what to run, e.g. flower warm -- flower-supernode ...")
    program(options.program[0])
    folder = Path.home() / ".cache" / "chronofed" / f"warm-{os.getpid()}"
    programs, address = warm.prepare(folder)
    home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    try:
        with Processes(folder / "logs", surroundings(home, programs)) as processes:
            processes.start("warm", sys.executable, "-m", "chronofed.flower.warm", str(address))
            command = [program(options.program[0]), *options.program[1:]]
            return subprocess.call(command, env=surroundings(home, programs))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(address.parent, ignore_errors=True)
