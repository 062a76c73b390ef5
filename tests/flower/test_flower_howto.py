"""The commands of the how-to for three machines, with folders of this machine in place of machines.

Differences from the page: host name and ports, absolute paths, ``cp`` for ``scp``, and a separate port for
every SuperNode, because two of them share this machine.
"""

import re
import shlex
from pathlib import Path

import msgspec
import pytest

from chronofed import Subsets
from chronofed.flower.processes import Processes, environment, free_port, wait_for_port
from tests.helpers.trial import NEEDS_FLOWER, events, rounds_done, small, wait

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
    """The server ``hub`` and the clients ``a`` and ``b``, as folders."""

    def __init__(self, folder: Path, processes: Processes, port: int) -> None:
        self.folder, self.processes = folder, processes
        self.changes = {
            "hub.example.org:8000": f"127.0.0.1:{port}",
            "hub.example.org": "127.0.0.1",
            "--host 0.0.0.0 --port 8000": f"--host 127.0.0.1 --port {port}",
            "/srv/": f"{folder}/hub/srv/",
            "/home/me/keys": f"{folder}/hub/keys",
        }
        for name in ("hub", "a/chronofed", "b/chronofed"):
            (folder / name).mkdir(parents=True)

    def here(self, text: str, **more: str) -> str:
        for there, here in {**self.changes, **more}.items():
            text = text.replace(there, here)
        return text

    def start(self, machine: str, name: str, command: str):
        """Type a command on a machine."""
        place = shlex.quote(str(self.folder / machine))
        return self.processes.start(name, "/bin/bash", "-c", f"cd {place} && exec {command}")

    def copied(self, command: str) -> str:
        return re.sub(r" (\w):", rf" {self.folder}/\1/", command).replace("scp", "cp")

    def start_link(self, command: str, port: int) -> None:
        self.start("hub", "superlink", self.here(command))
        wait_for_port(port, self.processes)

    def start_nodes(self, command: str) -> None:
        """The page shows the first client's command; the second one's differs in its number."""
        for number, machine in enumerate("ab"):
            own = {
                "/home/me/chronofed": f"{self.folder}/{machine}/chronofed",
                "client-0": f"client-{number}",
                "client=0": f"client={number}",
            }
            port = f" --host 127.0.0.1 --port {free_port()}"
            self.start(machine, f"node-{machine}", self.here(command, **own) + port)

    def do(self, machine: str, command: str) -> None:
        """Type a command on a machine, and wait for its end."""
        code = self.start(machine, "command", command).wait()
        self.processes.stop("command")
        assert code == 0, f"{command}: {self.processes.last_line('command')}"


@pytest.fixture
def machines(tmp_path):
    port = free_port()
    with Processes(tmp_path / "logs", environment(tmp_path / "home")) as processes:
        yield Machines(tmp_path, processes, port), port


def test_from_a_laptop_to_three_machines(machines, tmp_path):
    machines, port = machines
    text = section("Three machines")
    (configuration,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(machines.here(configuration))
    experiment = small(rounds=2)
    scenario = Subsets(clients=2, subsets=4)
    spec = msgspec.structs.replace(experiment, scenario=scenario).resolved()
    (tmp_path / "hub" / "spec.toml").write_text(spec)

    steps = {
        # The environment of these processes sets it already.
        "export": lambda command: None,
        "scp": lambda command: machines.do("hub", machines.copied(command)),
        "flower-superlink": lambda command: machines.start_link(command, port),
        "chronofed flower prefork": machines.start_nodes,
        "chronofed": lambda command: machines.do("hub", machines.here(command)),
        "flwr": lambda command: machines.do("hub", machines.here(command)),
    }
    done = []
    for command in commands(text):
        kind = next(words for words in steps if command.startswith(words))
        steps[kind](command)
        done.append(kind)

    assert set(done) == set(steps)
    run = tmp_path / "hub" / "srv" / "chronofed" / "first"
    assert rounds_done(run) == 2
    assert {event["client"] for event in events(run) if event["event"] == "joined"} == {0, 1}
    for machine in "ab":
        assert len(list((tmp_path / machine / "chronofed" / "state").glob("*.sqlite"))) == 1
    assert "1 x 2" in machines.processes.logs.joinpath("command.log").read_text()


def test_processes_of_the_how_to_end(machines, tmp_path):
    """A SuperNode behind ``chronofed flower prefork`` ends on request, with all its children."""
    machines, _ = machines
    (node,) = [c for c in commands(section("Three machines")) if "flower-supernode" in c]
    plain = re.sub(r"--root-certificates.*?client-0", "--insecure", machines.here(node))
    process = machines.start("a", "node", f"{plain} --host 127.0.0.1 --port {free_port()}")
    log = machines.processes.logs / "node.log"
    wait(lambda: log.exists() and "SuperNode" in log.read_text(), what="the SuperNode's start")
    machines.processes.stop("node")
    assert process.poll() is not None
    wait(lambda: not _mentions(str(tmp_path)), 60.0, "the end of all processes")


def _mentions(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text())
        except OSError:
            continue
    return [line for line in found if text in line]
