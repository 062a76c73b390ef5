"""The folder of a Flower app: a specification, two programs of two lines, and their settings."""

import json
from pathlib import Path
from typing import Any

import msgspec

from chronofed.core.atomic import write_atomic
from chronofed.core.errors import RunError, cannot_write
from chronofed.flower.settings import Federation

PROJECT = """\
[project]
name = {name}
version = "1.0.0"
description = "Federated learning on data that keeps changing"
license = "Apache-2.0"
dependencies = ["chronofed[flower]"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "chronofed"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
{settings}
"""

PROGRAM = '''\
"""The {side} of this app."""

from chronofed.flower.{side}_app import {side}_app

app = {side}_app(__file__)
'''

README = """\
# {name}

A Flower app made by `chronofed flower new`. `spec.toml` is the experiment; server and clients get it with the
app. `[tool.flwr.app.config]` in `pyproject.toml` sets the run directory on the server's machine (`run`, an
absolute path), timeouts and quorum (`round_timeout_s`, `quorum`, ...), and limits for replies (`max_norm`,
...).

- Try it on this machine: `chronofed flower local --clients 3 spec.toml`
- Keys and certificates: `chronofed flower keys keys --clients 3`
- Run it on a SuperLink: `flwr run . NAME --run-config 'run="/srv/chronofed/run"'`; run it again to resume
- Tell every SuperNode which client it is: `--node-config 'client=0 state="/srv/chronofed"'`
"""


def new_app(
    folder: Path,
    spec: str,
    run: Path | None = None,
    data: Path | None = None,
    nodes: Path | None = None,
    sent: Path | None = None,
    asked: Path | None = None,
    allowed: Path | None = None,
    **settings: Any,
) -> None:
    """Write the folder of an app.

    Args:
        folder: The folder; it must not contain a project already.
        spec: The specification, as TOML.
        run: Run directory on the server's machine.
        data: Folder of data files on the server's machine.
        nodes: File on the server's machine that says which node is which client.
        sent: File on the server's machine to touch whenever orders were sent.
        asked: Folder on the server's machine with a file for every node that is touched whenever it asks for an
            order.
        allowed: File on the server's machine for how much each node may send.
        settings: Settings of :class:`~chronofed.flower.settings.Federation`.

    Raises:
        RunError: If the folder contains a project already.
        StorageError: If it cannot be written.
    """
    if (folder / "pyproject.toml").exists():
        raise RunError(f"{folder} contains a project already; use another folder")
    name = "".join(c if c.isalnum() else "-" for c in folder.resolve().name.lower()).strip("-")
    table = {"spec": "spec.toml", "run": str(run or ""), "data": str(data or "")}
    places = {"nodes": nodes, "sent": sent, "asked": asked, "allowed": allowed}
    table |= {key: str(place or "") for key, place in places.items()}
    table |= msgspec.to_builtins(Federation(**settings))
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    name = name or "app"
    files = {
        "pyproject.toml": PROJECT.format(name=json.dumps(name), settings=lines),
        "server_app.py": PROGRAM.format(side="server"),
        "client_app.py": PROGRAM.format(side="client"),
        "spec.toml": spec,
        "README.md": README.format(name=name),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    for file, content in files.items():
        write_atomic(folder / file, content.encode())
