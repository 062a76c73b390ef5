"""The command ``chronofed node``: a client's machine of a federation."""

import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from chronofed.cli.output import emit, note

GROUP = "experiments"
HELP = "run a client's machine of a federation"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "start the nodes of this machine, and start them again whenever they end"
    start = actions.add_parser("start", help=text, description=f"{text[0].upper()}{text[1:]}.")
    text = "folders from: hub add-node"
    start.add_argument("folders", type=Path, nargs="+", metavar="DIR", help=text)
    text = "TOML file whose table [source] describes the data; {name} and {client} stand for those of the node"
    start.add_argument("--source", type=Path, metavar="FILE", help=text)
    text = "folder of the client stores (default: state in each DIR)"
    start.add_argument("--state", type=Path, metavar="DIR", help=text)
    text = "folder of data files, for clients without a source"
    start.add_argument("--data", type=Path, metavar="DIR", help=text)
    text = "maximum megabytes of past data to keep"
    start.add_argument("--limit-mb", type=float, metavar="MB", help=text)
    text = "maximum age of past data to keep, e.g. '365 days'"
    start.add_argument("--max-age", metavar="AGE", help=text)
    text = "print a systemd unit for this command, and start nothing"
    start.add_argument("--unit", action="store_true", help=text)


def run(options: Namespace) -> int:
    """Start the node, or print a unit."""
    from chronofed.flower.node_service import NodeService, unit

    config = _config(options)
    if options.unit:
        again = [a for a in options.continue_with if a != "--unit"]
        command = shlex.join([str(Path(sys.argv[0]).resolve()), *again])
        names = " ".join(folder.name for folder in options.folders)
        emit(unit(f"node {names}", command, Path.cwd()))
        return 0
    with NodeService(options.folders, config, note) as service:
        for node in service.nodes:
            numbers = ", ".join(map(str, node.about.clients))
            note(f"node {node.about.name} (client {numbers}) of {node.about.hub}")
        note("to stop, press Ctrl-C")
        while True:
            service.tend()
            time.sleep(1.0)


def _config(options: Namespace) -> dict[str, str | float]:
    """Return the node's settings, all checked before anything starts."""
    from chronofed.core.spec_io import from_table
    from chronofed.data.client_source.load import load_source
    from chronofed.flower.hub import read_node
    from chronofed.flower.settings import Node

    about = [read_node(folder) for folder in options.folders]
    for node in about if options.source is not None else ():
        for client in node.clients:
            path = str(options.source).replace("{name}", node.name)
            load_source(Path(path.replace("{client}", str(client))))
    config: dict[str, str | float] = {
        name: str(path.resolve())
        for name in ("source", "state", "data")
        if (path := getattr(options, name)) is not None
    }
    for name in ("limit_mb", "max_age"):
        if getattr(options, name) is not None:
            config[name] = getattr(options, name)
    for node in about:
        from_table({"client": node.clients[0], **config}, Node, "node start")
    return config
