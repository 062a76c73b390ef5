"""The commands of the how-to for three machines, with folders of this machine in place of machines.

Differences from the page: host name, address and port, folders, and ``cp`` for ``scp``.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest

from chronofed import Subsets
from chronofed.flower.processes import Processes, environment, free_port
from tests.helpers.trial import NEEDS_FLOWER, events, rounds_done, running, small, wait

pytestmark = NEEDS_FLOWER

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "flower.md"


def section(title: str) -> str:
    """Return the text below a heading of the page, up to the next one."""
    return re.split(r"^#+ ", PAGE.read_text().split(f"# {title}\n")[1], flags=re.MULTILINE)[0]


def commands(text: str) -> list[str]:
    """Return all commands, in order."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in lines.splitlines()]


class Machines:
    """The server ``server`` and the clients ``a`` and ``b``, as folders."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        self.hub = folder / "server" / "hub"
        for name in ("server", "a", "b"):
            (folder / name).mkdir()

    def start(self, machine: str, name: str, command: str):
        """Type a command on a machine."""
        place = shlex.quote(str(self.folder / machine))
        return self.processes.start(name, "/bin/bash", "-c", f"cd {place} && exec {command}")

    def do(self, command: str) -> None:
        """Type a command on the server, and wait for its end."""
        code = self.start("server", "command", command).wait()
        self.processes.stop("command")
        assert code == 0, f"{command}: {self.processes.last_line('command')}"

    def start_hub(self, command: str) -> None:
        here = command.replace("hub.example.org", f"127.0.0.1 --port {free_port()}")
        here = re.sub(r"--listen \S+", "--listen 127.0.0.1", here)
        self.start("server", "hub", f"{here} --join-timeout 300")
        wait((self.hub / "registered.json").exists, what="the hub")

    def copy(self, command: str) -> None:
        self.do(re.sub(r" (\w):", rf" {self.folder}/\1/", command).replace("scp", "cp"))

    def start_nodes(self, command: str) -> None:
        """The page shows the first client's command; the second one's differs in its name."""
        for machine in "ab":
            self.start(machine, f"node-{machine}", re.sub(r" a$", f" {machine}", command))

    def look(self, command: str) -> None:
        wait(lambda: (self.hub / "run" / "summary.json").exists(), 500.0, "the end of the run")
        self.do(command)


@pytest.fixture
def machines(tmp_path):
    with Processes(tmp_path / "logs", environment(tmp_path / "home")) as processes:
        yield Machines(tmp_path, processes)


@pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ.get('PATH')}:/usr/sbin") is None,
    reason="nginx is missing: apt install nginx-light",
)
def test_from_a_laptop_to_three_machines(machines, tmp_path):
    scenario = Subsets(clients=2, subsets=4)
    spec = msgspec.structs.replace(small(rounds=2), scenario=scenario).resolved()
    (tmp_path / "server" / "spec.toml").write_text(spec)
    steps = {
        "chronofed hub start": machines.start_hub,
        "chronofed hub add-node": machines.do,
        "scp": machines.copy,
        "chronofed node start": machines.start_nodes,
        "chronofed hub status": machines.look,
    }
    done = []
    for command in commands(section("Three machines")):
        kind = next(words for words in steps if command.startswith(words))
        steps[kind](command)
        done.append(kind)

    assert done == [*list(steps)[:3], "scp", *list(steps)[3:]]
    run = machines.hub / "run"
    assert rounds_done(run) == 2
    assert {event["client"] for event in events(run) if event["event"] == "joined"} == {0, 1}
    for machine in "ab":
        assert len(list((tmp_path / machine / machine / "state").glob("*.sqlite"))) == 1
    assert "2 of 2 rounds done" in machines.processes.logs.joinpath("command.log").read_text()


def test_a_preforked_node_ends_with_all_its_children(machines, tmp_path):
    """A SuperNode behind ``chronofed flower prefork`` ends on SIGTERM."""
    link = f"--superlink 127.0.0.1:{free_port()} --insecure"
    node = f"flower-supernode {link} --node-config 'state=\"{tmp_path}\"'"
    command = f"chronofed flower prefork -- {node} --host 127.0.0.1 --port {free_port()}"
    process = machines.start("a", "node", command)
    log = machines.processes.logs / "node.log"
    wait(lambda: log.exists() and "SuperNode" in log.read_text(), what="the SuperNode's start")
    machines.processes.stop("node")
    assert process.poll() is not None
    wait(lambda: not running(str(tmp_path)), 60.0, "the end of all processes")
