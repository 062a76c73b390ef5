"""The command ``chronofed watch``."""

import webbrowser
from argparse import Namespace

from chronofed.cli.output import emit_json, note
from chronofed.errors import RunError
from chronofed.reports.live import LiveServer


def main(options: Namespace) -> int:
    """Serve a page about the runs below a folder to this machine until interrupted."""
    if not options.folder.is_dir():
        raise RunError(f"{options.folder} is not a folder; give one that has runs, or will have")
    with LiveServer(options.folder, options.port) as server:
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
