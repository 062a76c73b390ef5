"""The command ``chronofed watch``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from chronofed.cli.options import add_json
from chronofed.cli.output import emit_json, note
from chronofed.core.errors import RunError

GROUP = "results"
HELP = "follow runs on a page in the browser, on this machine"

PORT = 8765


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="DIR",
        help="a folder with runs below it, or a run (default runs)",
    )
    text = f"port to listen on; 0 for any that is free (default {PORT})"
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=text)
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="serve browsers that reach this machine by another name, such as a proxy's; may be repeated",
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_json(parser)


def run(options: Namespace) -> int:
    """Serve a page about the runs below a folder to this machine until interrupted."""
    import webbrowser

    from chronofed.reports.web.live import LiveServer

    if not options.folder.is_dir():
        raise RunError(f"{options.folder} is not a folder; give one that has runs, or will have")
    with LiveServer(options.folder, options.port, options.allow_host) as server:
        if options.json:
            emit_json({"url": server.url})
        note(f"watching {options.folder} at {server.url} (this machine only); stop with Ctrl-C")
        if options.open:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            note("stopped; the runs go on")
    return 0
