"""The command ``chronofed hub``: the server's machine of a federation."""

import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_data, add_json, add_set, check_counts, check_spec
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from chronofed.flower.hub import Hub

GROUP = "experiments"
HELP = "run the server's machine of a federation"
LOOPBACK = "127.0.0.1"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text, add in (
        ("start", "start the hub and its run, or go on with them", _add_start),
        ("add-node", "let nodes join, and write the folder that each one needs", _add_add_node),
        ("remove-node", "refuse a node from now on", _add_remove_node),
        ("renew", "replace the certificate; nodes keep theirs", _add_renew),
        ("status", "show nodes, rounds and what went wrong", _add_status),
    ):
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        action.add_argument("hub", type=Path, metavar="HUB", help="folder of the hub")
        add(action)


def _add_start(parser: ArgumentParser) -> None:
    text = "spec of the experiment; needed when the hub is made"
    parser.add_argument("spec", type=Path, nargs="?", metavar="SPEC.toml", help=text)
    _add_host(parser, "names and addresses of this machine; needed when the hub is made")
    text = "port to publish (default 8443)"
    parser.add_argument("--port", type=int, default=8443, metavar="N", help=text)
    text = "address of this machine to publish, 0.0.0.0 for all (default: only this machine reaches it)"
    parser.add_argument("--listen", default=LOOPBACK, metavar="ADDRESS", help=text)
    text = "replies that a round needs (default: more than half of the clients asked)"
    parser.add_argument("--quorum", type=int, metavar="K", help=text)
    text = "seconds after which a round continues with a quorum (default 600)"
    parser.add_argument(
        "--round-timeout", type=float, metavar="S", dest="round_timeout_s", help=text
    )
    text = "seconds the first round waits for clients to connect (default 60)"
    parser.add_argument("--join-timeout", type=float, metavar="S", dest="join_timeout_s", help=text)
    text = "print a systemd unit for this command, and start nothing"
    parser.add_argument("--unit", action="store_true", help=text)
    add_set(parser)
    add_data(parser)


def _add_add_node(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of the nodes")
    text = "numbers of the clients of one node (default: one, the lowest that is free)"
    parser.add_argument("--client", type=int, nargs="+", default=[], metavar="N", help=text)


def _add_remove_node(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of the nodes")


def _add_renew(parser: ArgumentParser) -> None:
    _add_host(parser, "new names and addresses of this machine (default: those that it has)")


def _add_status(parser: ArgumentParser) -> None:
    text = "number of events to show (default 10)"
    parser.add_argument("--events", type=int, default=10, metavar="N", help=text)
    add_json(parser)


def _add_host(parser: ArgumentParser, text: str) -> None:
    parser.add_argument("--host", nargs="+", default=[], metavar="NAME", help=text)


def run(options: Namespace) -> int:
    """Run one of the actions."""
    actions = {
        "start": _start,
        "add-node": _add_node,
        "remove-node": _remove_node,
        "renew": _renew,
        "status": _status,
    }
    return actions[options.action](options)


def _start(options: Namespace) -> int:
    from chronofed.flower.hub import Hub
    from chronofed.flower.hub_service import HubService

    hub = Hub(options.hub)
    if options.unit:
        from chronofed.flower.node_service import unit

        again = [a for a in options.continue_with if a != "--unit"]
        command = shlex.join([str(Path(sys.argv[0]).resolve()), *again])
        emit(unit("hub", command, Path.cwd()))
        return 0
    _prepare(hub, options)
    note(f"hub {hub.path} on {options.listen}:{hub.settings.port}; to stop it, press Ctrl-C")
    if options.listen == LOOPBACK:
        note("only this machine can reach it; for nodes elsewhere, start it with --listen 0.0.0.0")
    with HubService(hub, note, options.listen) as service:
        from chronofed.flower.hub_status import Follower

        follower = Follower(hub)
        while service.tend():
            for line in follower.news():
                note(line)
            time.sleep(1.0)
        for line in follower.news():
            note(line)
    note(f"the run is finished; see: chronofed compare {hub.run}")
    return 0


def _prepare(hub: "Hub", options: Namespace) -> None:
    """Make the hub and its app, if they are not there yet."""
    from chronofed.flower.hub import HubSettings
    from chronofed.flower.hub_service import prepare_app

    if not hub.exists and not (options.host and options.spec):
        msg = (
            f"{hub.path} is no hub yet; to make one, give SPEC.toml and --host NAME-OF-THIS-MACHINE"
        )
        raise SpecError(msg)
    if options.spec is not None:
        from chronofed.cli.flower import check_federation
        from chronofed.runs.load_spec import load

        check_spec(options.spec)
        experiment = load(options.spec, options.set, options.data)
        names = ("quorum", "round_timeout_s", "join_timeout_s")
        settings = {k: getattr(options, k) for k in names if getattr(options, k) is not None}
        check_federation(settings)
    if not hub.exists:
        hub.create(HubSettings(tuple(options.host), options.port))
    if options.spec is not None:
        data = None if options.data is None else options.data.resolve()
        prepare_app(hub, experiment.resolved(), data, **settings)


def _add_node(options: Namespace) -> int:
    from chronofed.flower.hub import Hub

    if options.client and len(options.names) > 1:
        raise SpecError("hub add-node: --client works with one NAME only")
    hub = Hub(options.hub)
    for name in options.names:
        folder = hub.add_node(name, options.client)
        note(f"carry {folder} to the machine of {name}; there: chronofed node start {name}")
    return 0


def _remove_node(options: Namespace) -> int:
    from chronofed.flower.hub import Hub

    hub = Hub(options.hub)
    for name in options.names:
        hub.remove_node(name)
        note(f"{name} may no longer join; a running hub refuses it within seconds")
    return 0


def _renew(options: Namespace) -> int:
    from chronofed.flower.hub import Hub

    hub = Hub(options.hub)
    hub.renew(options.host)
    note(f"new certificate in {hub.keys}; a running hub uses it within seconds")
    return 0


def _status(options: Namespace) -> int:
    from chronofed.flower.hub import Hub
    from chronofed.flower.hub_status import read_status

    check_counts(options, "events")
    status = read_status(Hub(options.hub), options.events)
    if options.json:
        emit_json(status.as_json())
    else:
        for line in status.lines():
            emit(line)
    return 0
