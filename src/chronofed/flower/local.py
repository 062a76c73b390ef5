"""A whole federation on this machine: SuperLink and SuperNodes as processes of their own, on loopback."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from chronofed.errors import ChronofedError, RunError
from chronofed.flower.app import new_app
from chronofed.flower.keys import CA, CERTIFICATE, KEY
from chronofed.flower.processes import (
    LOOPBACK,
    Processes,
    free_port,
    program,
    surroundings,
    wait_for_port,
)
from chronofed.flower.warm import prepare
from chronofed.records import RunDirectory

CONNECTION = """\
[superlink]
default = "local"

[superlink.local]
address = "{address}"
{security}
"""


class LocalFederation:
    """A SuperLink and SuperNodes, ready to run apps; use it as a ``with`` block.

    Attributes:
        folder: Where everything is: Flower's home, logs, and what the clients keep.
        database: Whether the SuperLink keeps its state on disk, so that nodes find it again when it comes back.
        keys: Folder that :func:`~chronofed.flower.keys.make_keys` wrote: encrypt everything, and let nobody in
            without a key. By default neither, for nothing leaves this machine.
        warm: Whether app processes are forked (:mod:`~chronofed.flower.warm`), or started the usual way.
        port: Where the SuperLink listens.
        processes: Flower's programs.
    """

    def __init__(
        self, folder: Path, database: bool = False, keys: Path | None = None, warm: bool = True
    ) -> None:
        self.folder = folder.resolve()
        self.keys = keys
        self.warm = warm
        self.port = free_port()
        programs, self._warm = prepare(self.folder)
        variables = surroundings(self.folder / "home", *([programs] if warm else []))
        self.processes = Processes(self.folder / "logs", variables)
        self._database = self.folder / "superlink.db" if database else None

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{LOOPBACK}:{self.port}"

    def __enter__(self) -> "LocalFederation":
        program("flower-superlink")
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        security = "insecure = true"
        if self.keys is not None:
            security = f"root-certificates = {json.dumps(str(self.keys / CA))}"
        connection = CONNECTION.format(address=self.address, security=security)
        (home / "config.toml").write_text(connection)
        try:
            if self.warm:
                here = [sys.executable, "-m", "chronofed.flower.warm", str(self._warm)]
                self.processes.start("warm", *here)
            self.start_link()
            while self.warm and not self._warm.exists():
                self.processes.check()
                time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.__exit__()
        shutil.rmtree(self._warm.parent, ignore_errors=True)

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        command = ["flower-superlink", "--host", LOOPBACK, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation", *self._link_security()]
        if self._database is not None:
            command += ["--database", str(self._database)]
        self.processes.start("superlink", *command)
        wait_for_port(self.port, self.processes)

    def register(self, public: Path) -> None:
        """Let a SuperNode in that has the private key to this public one."""
        process = self.processes.start(
            "register", "flwr", "supernode", "register", str(public), "local"
        )
        if process.wait() != 0:
            raise ChronofedError(f"{public}: {self.processes.last_words('register')}")
        self.processes.stop("register")

    def _link_security(self) -> list[str]:
        if self.keys is None:
            return ["--insecure"]
        files = {"ca-certfile": CA, "certfile": CERTIFICATE, "keyfile": KEY}
        options = [(f"--ssl-{name}", str(self.keys / file)) for name, file in files.items()]
        return ["--enable-supernode-auth", *chain.from_iterable(options)]

    def _node_security(self, key: Path | None) -> list[str]:
        if self.keys is None:
            return ["--insecure"]
        own = [] if key is None else ["--auth-supernode-private-key", str(key)]
        return ["--root-certificates", str(self.keys / CA), *own]

    def start_node(
        self, client: int, data: Path | None = None, key: Path | None = None, **config: str
    ) -> None:
        """Start a SuperNode that says which client it is."""
        settings = {"state": str(self.folder / "clients"), **config}
        if data is not None:
            settings["data"] = str(data.resolve())
        table = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        self.processes.start(
            f"node-{client}",
            *("flower-supernode", *self._node_security(key), "--superlink", self.address),
            *("--host", LOOPBACK, "--port", str(free_port())),
            *("--node-config", f"client={client} {table}"),
        )

    def submit(self, app: Path, config: str = "") -> "subprocess.Popen[bytes]":
        """Start an app; the process lasts as long as the run does, or until the next one is started."""
        self.processes.stop("run")
        more = ["--run-config", config] if config else []
        return self.processes.start("run", "flwr", "run", str(app), "local", "--stream", *more)


def run_locally(
    spec: str,
    run: Path,
    clients: Sequence[int],
    data: Path | None = None,
    watch: Callable[[RunDirectory], None] = lambda directory: None,  # noqa: ARG005
    sources: Mapping[int, Path] | None = None,
    **settings: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Carry out an experiment on a federation that lives as long as that takes.

    Args:
        spec: The specification, as TOML.
        run: Directory of the run; one that is there already is continued.
        clients: Numbers of the clients, one SuperNode each.
        data: Folder of data files.
        watch: Called again and again while the run goes on.
        sources: Where clients' own data are described, by client; the others take their shares of ``data``.
        settings: How clients are waited for, as in :class:`~chronofed.flower.settings.Federation`.

    Returns:
        The run's summary.

    Raises:
        ChronofedError: If the run does not come to its end.
    """
    run = run.resolve()
    folder = run / "flower"
    app = folder / f"app-{time.time_ns()}"
    new_app(app, spec, run, **settings)
    with LocalFederation(folder) as federation:
        for client in clients:
            own = (sources or {}).get(client)
            more = {} if own is None else {"source": str(own.resolve())}
            federation.start_node(client, data, None, **more)
        config = "" if data is None else f"data={json.dumps(str(data.resolve()))}"
        process = federation.submit(app, config)
        directory = RunDirectory(run)
        while process.poll() is None and directory.summary() is None:
            watch(directory)
            time.sleep(0.5)
        summary = directory.summary()
        if summary is None:
            raise _failure(directory, federation)
        watch(directory)
        return summary


def _failure(directory: RunDirectory, federation: LocalFederation) -> ChronofedError:
    """Why a run has stopped: as the server says, or as Flower does."""
    events = directory.path / "events.jsonl"
    lines = events.read_text().splitlines() if events.exists() else []
    for line in reversed(lines):
        event = json.loads(line)
        if event["event"] == "stopped":
            return RunError(event["reason"])
    said = federation.processes.last_words("run")
    return RunError(f"the run has stopped: {said}; see {federation.processes.logs}")
