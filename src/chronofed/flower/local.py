"""A whole federation on this machine: a SuperLink and SuperNodes as processes on the loopback interface."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from chronofed.core.errors import ChronofedError, RunError
from chronofed.flower.app import new_app
from chronofed.flower.keys import CA, CERTIFICATE, KEY
from chronofed.flower.processes import (
    LOOPBACK,
    Processes,
    environment,
    find_program,
    free_port,
    wait_for_port,
)
from chronofed.flower.resident import Resident
from chronofed.runs import RunDirectory

CONNECTION = """\
[superlink]
default = "local"

[superlink.local]
address = "{address}"
{security}
"""


class LocalFederation:
    """A SuperLink and SuperNodes that run apps; use it in a ``with`` block.

    Args:
        folder: Folder for everything: Flower's home, logs, and client stores.
        database: Keep the SuperLink's state on disk, so that nodes reconnect after it was restarted.
        keys: Folder that :func:`~chronofed.flower.keys.make_keys` wrote: use TLS, and refuse nodes without a
            key. By default neither, because nothing leaves this machine.
        prefork: Fork app processes (:mod:`~chronofed.flower.prefork`), which hand messages to a resident worker
            (:mod:`~chronofed.flower.worker`), instead of starting each one anew.

    Attributes:
        port: Port of the SuperLink.
        processes: Flower's programs.
    """

    def __init__(
        self, folder: Path, database: bool = False, keys: Path | None = None, prefork: bool = True
    ) -> None:
        self.folder = folder.resolve()
        self.keys = keys
        self.port = free_port()
        self._resident = Resident(self.folder) if prefork else None
        home = self.folder / "home"
        variables = (
            environment(home) if self._resident is None else self._resident.environment(home)
        )
        self.processes = Processes(self.folder / "logs", variables)
        self._database = self.folder / "superlink.db" if database else None

    @property
    def address(self) -> str:
        """Address of the SuperLink."""
        return f"{LOOPBACK}:{self.port}"

    def __enter__(self) -> "LocalFederation":
        find_program("flower-superlink")
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        security = "insecure = true"
        if self.keys is not None:
            security = f"root-certificates = {json.dumps(str(self.keys / CA))}"
        connection = CONNECTION.format(address=self.address, security=security)
        (home / "config.toml").write_text(connection)
        try:
            if self._resident is not None:
                self._resident.start(self.processes)
            self.start_link()
            if self._resident is not None:
                self._resident.wait(self.processes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.__exit__()
        if self._resident is not None:
            self._resident.close()

    def tend(self) -> None:
        """Start again what stays beside the SuperNodes and has ended."""
        if self._resident is not None:
            self._resident.tend(self.processes, lambda line: None)

    def start_link(self) -> None:
        """Start the SuperLink and wait until it listens."""
        command = ["flower-superlink", "--host", LOOPBACK, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation", *self._link_security()]
        if self._database is not None:
            command += ["--database", str(self._database)]
        self.processes.start("superlink", *command)
        wait_for_port(self.port, self.processes)

    def register(self, public: Path) -> None:
        """Register the public key of a SuperNode, so that it may join."""
        process = self.processes.start(
            "register", "flwr", "supernode", "register", str(public), "local"
        )
        if process.wait() != 0:
            raise ChronofedError(f"{public}: {self.processes.last_line('register')}")
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

    @property
    def _node_program(self) -> str:
        plain = "flower-supernode"
        return plain if self._resident is None else self._resident.program(plain)

    def start_node(
        self, client: int, data: Path | None = None, key: Path | None = None, **config: str
    ) -> None:
        """Start the SuperNode of a client.

        Args:
            client: Number of the client.
            data: Folder of data files.
            key: Private key of the node.
            config: More settings of :class:`~chronofed.flower.settings.Node`.
        """
        settings = {"state": str(self.folder / "clients"), **config}
        if data is not None:
            settings["data"] = str(data.resolve())
        table = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        self.processes.start(
            f"node-{client}",
            *(self._node_program, *self._node_security(key), "--superlink", self.address),
            *("--host", LOOPBACK, "--port", str(free_port())),
            *("--node-config", f"client={client} {table}"),
        )

    def submit(self, app: Path, config: str = "") -> "subprocess.Popen[bytes]":
        """Start an app; the process ends with the run, or when the next app is submitted."""
        self.processes.stop("run")
        more = ["--run-config", config] if config else []
        return self.processes.start("run", "flwr", "run", str(app), "local", "--stream", *more)


def run_locally(
    spec: str,
    run: Path,
    clients: Sequence[int],
    data: Path | None = None,
    on_progress: Callable[[RunDirectory], None] = lambda directory: None,
    sources: Mapping[int, Path] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Run an experiment on a local federation, which is stopped afterwards.

    Args:
        spec: The specification, as TOML.
        run: Run directory; a run that was stopped is resumed.
        clients: Numbers of the clients, one SuperNode each.
        data: Folder of data files.
        on_progress: Called twice a second while the run goes on.
        sources: TOML files that describe clients' own data, by client; the others use their part of the
            specification's data.
        settings: Settings of :class:`~chronofed.flower.settings.Federation`.

    Returns:
        The run's summary.

    Raises:
        ChronofedError: If the run stops before its end.
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
            on_progress(directory)
            federation.tend()
            time.sleep(0.5)
        summary = directory.summary()
        if summary is None:
            raise _failure(directory, federation)
        on_progress(directory)
        return summary


def _failure(directory: RunDirectory, federation: LocalFederation) -> ChronofedError:
    """Return the reason why a run has stopped: the server's, or else the last line of Flower's log."""
    events = directory.path / "events.jsonl"
    lines = events.read_text().splitlines() if events.exists() else []
    for line in reversed(lines):
        event = json.loads(line)
        if event["event"] == "stopped":
            return RunError(event["reason"])
    line = federation.processes.last_line("run")
    return RunError(f"the run has stopped: {line}; see {federation.processes.logs}")
