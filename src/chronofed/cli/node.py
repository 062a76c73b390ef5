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
    text = "start the node, and start it again whenever it ends"
    start = actions.add_parser("start", help=text, description=f"{text[0].upper()}{text[1:]}.")
    start.add_argument("folder", type=Path, metavar="DIR", help="folder from: hub add-node")
    text = "TOML file whose table [source] describes the client's own data"
    start.add_argument("--source", type=Path, metavar="FILE", help=text)
    text = "folder of the client stores (default: DIR/state)"
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
        emit(unit(f"node {options.folder.name}", command, Path.cwd()))
        return 0
    with NodeService(options.folder, config, note) as service:
        about = service.about
        note(f"node {about.name} (client {about.client}) of {about.hub}; to stop it, press Ctrl-C")
        while True:
            service.tend()
            time.sleep(1.0)


def _config(options: Namespace) -> dict[str, str | float]:
    """Return the node's settings, all checked before anything starts."""
    from chronofed.core.spec_io import from_table
    from chronofed.data.client_source.load import load_source
    from chronofed.flower.hub import read_node
    from chronofed.flower.settings import Node

    if options.source is not None:
        load_source(options.source)
    config: dict[str, str | float] = {
        name: str(path.resolve())
        for name in ("source", "state", "data")
        if (path := getattr(options, name)) is not None
    }
    for name in ("limit_mb", "max_age"):
        if getattr(options, name) is not None:
            config[name] = getattr(options, name)
    from_table({"client": read_node(options.folder).client, **config}, Node, "node start")
    return config
