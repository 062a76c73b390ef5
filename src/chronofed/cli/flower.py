"""The command ``chronofed flower``: Flower apps, keys, and a whole federation on this machine."""

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import (
    add_data,
    add_json,
    add_quiet,
    add_set,
    add_spec,
    check_counts,
    check_spec,
)
from chronofed.cli.output import emit, emit_json, note, plain, width
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from chronofed.runs import RunDirectory
    from chronofed.scenarios import Scenario

GROUP = "experiments"
HELP = "run on real clients through Flower"

# Options of `flower local` that are settings of the federation.
FEDERATION_OPTIONS = (
    "quorum",
    "round_timeout_s",
    "join_timeout_s",
    "quorum_timeout_s",
    "poll_s",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text, add in (
        ("new", "write the folder of a Flower app", _add_new),
        ("local", "run a SuperLink and SuperNodes on this machine", _add_local),
        ("keys", "write a certificate and key pairs", _add_keys),
        ("prefork", "run a SuperNode with preforked app processes", _add_prefork),
    ):
        description = f"{text[0].upper()}{text[1:]}."
        add(actions.add_parser(name, help=text, description=description))


def _add_new(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the app")
    text = "spec of the experiment (default: a small one)"
    parser.add_argument("spec", type=Path, nargs="?", metavar="SPEC.toml", help=text)
    add_set(parser)
    add_data(parser)


def _add_local(parser: ArgumentParser) -> None:
    add_spec(parser)
    text = "number of SuperNodes (default 3)"
    parser.add_argument("--clients", type=int, default=3, metavar="N", help=text)
    text = "run directory (default: runs/NAME-FINGERPRINT-sSEED)"
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=text)
    text = "TOML file with a [source] of each client's own data; {client} stands for its number"
    parser.add_argument("--source", metavar="FILE", help=text)
    text = "replies that a round needs (default: more than half of the clients asked)"
    parser.add_argument("--quorum", type=int, metavar="K", help=text)
    for name, text in (
        ("round-timeout", "seconds after which a round continues with a quorum (default 600)"),
        ("join-timeout", "seconds the first round waits for clients to connect (default 60)"),
        (
            "quorum-timeout",
            "seconds after which a round without a quorum is skipped (default 3600)",
        ),
        ("poll", "seconds between two checks for replies (default 0.2)"),
    ):
        dest = f"{name.replace('-', '_')}_s"
        parser.add_argument(f"--{name}", type=float, metavar="S", dest=dest, help=text)
    for add in (add_data, add_quiet, add_json):
        add(parser)


def _add_keys(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the keys")
    text = "number of SuperNodes"
    parser.add_argument("--clients", type=int, required=True, metavar="N", help=text)
    parser.add_argument(
        "--host",
        nargs="+",
        default=["localhost", "127.0.0.1"],
        help="names and addresses of the SuperLink's machine (default: this machine only)",
    )
    text = "days that the certificates are valid (default 365)"
    parser.add_argument("--days", type=int, default=365, metavar="N", help=text)
    add_json(parser)


def _add_prefork(parser: ArgumentParser) -> None:
    text = "after --: the program and its arguments"
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help=text)


def run(options: Namespace) -> int:
    """Run one of the actions."""
    actions = {"new": _new, "local": _local, "keys": _keys, "prefork": _prefork}
    return actions[options.action](options)


def _new(options: Namespace) -> int:
    """Write a ready app."""
    if options.spec is not None:
        check_spec(options.spec)
    from chronofed.flower.app import new_app
    from chronofed.runs.load_spec import load
    from chronofed.runs.spec import Experiment

    experiment = Experiment(name="first", rounds=20)
    if options.spec is not None:
        experiment = load(options.spec, options.set, options.data)
    new_app(options.folder, experiment.resolved())
    note(f"wrote the app {options.folder}; to run it, see {options.folder / 'README.md'}")
    return 0


def _local(options: Namespace) -> int:
    """Run an experiment on processes of this machine."""
    check_counts(options, "clients")
    check_spec(options.spec)
    from chronofed.cli.main import INTERRUPTED
    from chronofed.cli.progress import progress
    from chronofed.cli.run import default_name
    from chronofed.flower.local import run_locally
    from chronofed.reports.groups import groups
    from chronofed.reports.runs import RunView
    from chronofed.reports.terminal.comparison import comparison
    from chronofed.runs import runner
    from chronofed.runs.built import build
    from chronofed.runs.load_spec import load

    experiment = load(options.spec, options.set, options.data)
    built = build(experiment, options.data)
    scenario, rounds = built.scenario, built.rounds
    if scenario.persistent and scenario.clients > options.clients:
        msg = (
            f"--clients {options.clients}: the scenario has {scenario.clients} clients, and every one "
            f"needs a SuperNode; use --clients {scenario.clients}, or -s scenario.clients=..."
        )
        raise SpecError(msg)
    sources = _sources(options, scenario)
    path = options.output or Path("runs") / default_name(experiment)
    waiting = {
        k: getattr(options, k) for k in FEDERATION_OPTIONS if getattr(options, k) is not None
    }
    check_federation(waiting)
    with progress(options.quiet or options.json) as bars:
        move = bars.watch(experiment.name, built.experiment.evaluate.own_measures())

        def watch(directory: "RunDirectory") -> None:
            history = directory.history()
            last = history[-1] if history else None
            move(runner.Progress(last["round"] if last else 0, rounds, last))

        clients = range(options.clients)
        try:
            summary = run_locally(
                experiment.resolved(), path, clients, options.data, watch, sources, **waiting
            )
        except KeyboardInterrupt:
            note(f"interrupted; to resume, run the same command with -o {path}")
            return INTERRUPTED
    if options.json:
        emit_json({"run": str(path), **summary})
    else:
        emit(comparison(groups([RunView.read(path)]), f"run: {path}", width(), plain()))
    return 0


def check_federation(settings: dict[str, float]) -> None:
    """Refuse waiting times and a quorum that are out of range.

    Raises:
        SpecError: With the name of the option.
    """
    import msgspec

    from chronofed.flower.settings import Federation

    try:
        msgspec.structs.replace(Federation(), **settings)
    except ValueError as error:
        name, _, complaint = str(error).removeprefix("Federation.").partition(": ")
        option = name.removesuffix("_s").replace("_", "-")
        raise SpecError(f"--{option}: {complaint}") from None


def _sources(options: Namespace, scenario: "Scenario") -> dict[int, Path]:
    """Return the file that describes each client's own data; check all before anything starts."""
    from chronofed.data.client_source.load import load_source

    if options.source is None:
        if scenario.remote:
            msg = "clients of this scenario bring their own data; use --source 'data/{client}.toml'"
            raise SpecError(msg)
        return {}
    paths = {i: Path(options.source.replace("{client}", str(i))) for i in range(options.clients)}
    for path in paths.values():
        load_source(path)
    return paths


def _keys(options: Namespace) -> int:
    """Make certificates and key pairs."""
    from chronofed.flower.keys import make_keys

    files = make_keys(options.folder, options.clients, options.host, options.days)
    if options.json:
        emit_json({"files": [str(file) for file in files]})
    else:
        note(
            f"{len(files)} files in {options.folder}; keep those secret that do not end in .pub, .crt or .pem"
        )
    return 0


def _prefork(options: Namespace) -> int:
    """Run one of Flower's programs with preforked app processes."""
    import shutil
    import time

    from chronofed.flower.processes import Processes, find_program
    from chronofed.flower.resident import Resident

    if not options.program:
        msg = "flower prefork: program missing, e.g. flower prefork -- flower-supernode ..."
        raise SpecError(msg)
    command = [find_program(options.program[0]), *options.program[1:]]
    folder = Path.home() / ".cache" / "chronofed" / f"prefork-{os.getpid()}"
    resident = Resident(folder)
    home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    try:
        with Processes(folder / "logs", resident.environment(home)) as processes:
            resident.start(processes)
            # Ended with the others by every signal that ends this command.
            process = processes.start("program", *command, log=False)
            while process.poll() is None:
                resident.tend(processes, note)
                time.sleep(0.2)
            return process.returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        resident.close()
