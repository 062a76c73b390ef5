"""The folder of a hub: who may join, with which key, and what each node needs."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from chronofed.core.atomic import make_folder, write_atomic
from chronofed.core.config import Config, Count, Natural
from chronofed.core.errors import RunError, SpecError
from chronofed.core.spec_io import from_table
from chronofed.flower.keys import (
    CA,
    authority,
    check_cryptography,
    key_header,
    node_keys,
    write_files,
)
from chronofed.flower.keys import renew as renew_certificate
from chronofed.runs.json_files import read_json

SETTINGS, NODES, NODE, NODE_KEY = "hub.json", "nodes.json", "node.json", "node.key"
HUB_LOG = "hub.jsonl"
"""What the hub has started, started again, let in and excluded."""
STARTS, EXCLUDED = "the hub starts", "excluded"
"""A message in this log, and the kind of an event: the hub refuses a node until it is started again."""
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class HubSettings(Config):
    """Settings of a hub, in its ``hub.json``.

    Attributes:
        hosts: Names and addresses of its machine; nodes connect to the first.
        port: Port that it publishes.
        days: Days for which its certificate is valid.
    """

    hosts: tuple[str, ...]
    port: Port = 8443
    days: Count = 365


class KnownNode(Config):
    """A node that may join.

    Attributes:
        clients: Numbers of its clients.
        public: Its public key, as in the file that ends in ``.pub``.
    """

    clients: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)]
    public: str


class NodeSettings(Config):
    """Settings of a node, in the ``node.json`` of the folder that is carried to its machine.

    Attributes:
        name: Its name.
        clients: Numbers of its clients.
        hub: Address and port of the hub.
    """

    name: str
    clients: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)]
    hub: str


class Hub:
    """The folder of a hub.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
        keys: Folder of certificates.
        run: Run directory.
        app: Folder of the Flower app.
        proxy: Folder of the reverse proxy.
        logs: Folder of logs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.keys, self.run, self.app, self.proxy, self.logs = (
            self.path / name for name in ("keys", "run", "app", "proxy", "logs")
        )

    @property
    def exists(self) -> bool:
        """True if it has been made."""
        return (self.path / SETTINGS).exists()

    def check(self) -> None:
        """Refuse a folder that is no hub.

        Raises:
            RunError: With the command that makes one.
        """
        if not self.exists:
            raise RunError(
                f"{self.path} is not a hub; make one: chronofed hub start {self.path} SPEC.toml --host NAME"
            )

    def create(self, settings: HubSettings) -> None:
        """Make the folder with new keys.

        Raises:
            RunError: If it exists.
        """
        check_cryptography()
        if self.exists:
            raise RunError(f"{self.path} is a hub already; use another folder")
        make_folder(self.path)
        self.path.chmod(0o700)
        write_files(self.keys, authority(self.keys, settings.hosts, settings.days))
        self._write(SETTINGS, msgspec.to_builtins(settings))

    @property
    def settings(self) -> HubSettings:
        """Its settings.

        Raises:
            RunError: If it does not exist.
        """
        self.check()
        return from_table(self._read(SETTINGS), HubSettings, SETTINGS)

    @property
    def nodes(self) -> dict[str, KnownNode]:
        """Nodes that may join, by name."""
        return {
            name: from_table(table, KnownNode, f"{NODES}.{name}")
            for name, table in self._read(NODES).items()
        }

    def headers(self) -> dict[str, str]:
        """Return the name of every node that may join, by the header that holds its public key."""
        return {key_header(node.public.encode()): name for name, node in self.nodes.items()}

    def add_node(self, name: str, clients: Sequence[int] = ()) -> Path:
        """Let a node join.

        Args:
            name: Its name.
            clients: Numbers of its clients; by default one, the lowest number that is free.

        Returns:
            The folder to carry to its machine. Nothing else there is needed, and the hub does not need it.

        Raises:
            SpecError: If the name or a number cannot be used.
        """
        nodes = self.nodes
        taken = {client for node in nodes.values() for client in node.clients}
        free = next(number for number in range(len(taken) + 1) if number not in taken)
        own = tuple(dict.fromkeys(clients)) or (free,)
        if not NODE_NAME.fullmatch(name):
            raise SpecError(f"{name!r} is not a name of a node: letters, digits, - _ and . only")
        twice = sorted(taken.intersection(own))
        if name in nodes or twice:
            what = f"a node {name}" if name in nodes else f"a node for client {twice[0]}"
            raise SpecError(
                f"{self.path} has {what} already; to replace its key, remove it first: hub remove-node"
            )
        folder, settings = self.path / "nodes" / name, self.settings
        pair = node_keys(NODE_KEY)
        about = NodeSettings(name, own, _address(settings))
        content = {
            CA: (self.keys / CA).read_bytes(),
            NODE: json.dumps(msgspec.to_builtins(about), indent=2).encode(),
            **pair,
        }
        write_files(folder, content)
        known = KnownNode(own, pair[f"{NODE_KEY}.pub"].decode())
        self._write(NODES, msgspec.to_builtins({**nodes, name: known}))
        return folder

    def remove_node(self, name: str) -> None:
        """Refuse a node from now on, and remove the folder that was made for it.

        Raises:
            SpecError: If there is no such node.
        """
        self.check()
        nodes = self.nodes
        if name not in nodes:
            raise SpecError(
                f"{self.path} has no node {name!r}; it has {', '.join(nodes) or 'none'}"
            )
        del nodes[name]
        self._write(NODES, msgspec.to_builtins(nodes))
        shutil.rmtree(self.path / "nodes" / name, ignore_errors=True)

    def renew(self, hosts: Sequence[str] = ()) -> None:
        """Replace the certificate; nodes keep theirs. A running hub uses it within seconds.

        Args:
            hosts: New names and addresses of the machine; by default those that it has.
        """
        settings = self.settings
        if hosts:
            settings = msgspec.structs.replace(settings, hosts=tuple(hosts))
            self._write(SETTINGS, msgspec.to_builtins(settings))
        renew_certificate(self.keys, settings.hosts, settings.days)

    def _read(self, name: str) -> dict[str, object]:
        return dict(read_json(self.path / name) or {})

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        write_atomic(self.path / name, json.dumps(content, indent=2).encode())
        (self.path / name).chmod(0o600)


def read_node(folder: Path) -> NodeSettings:
    """Read what a node must know.

    Raises:
        RunError: If the folder was not made by a hub.
    """
    if not (folder / NODE).exists():
        raise RunError(
            f"{folder} has no {NODE}; make it on the hub with: chronofed hub add-node HUB NAME"
        )
    return from_table(dict(read_json(folder / NODE) or {}), NodeSettings, str(folder / NODE))


def _address(settings: HubSettings) -> str:
    host = settings.hosts[0]
    return f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"
