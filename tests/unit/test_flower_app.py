"""Apps, keys, processes and the prefork server."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from chronofed import Experiment
from chronofed.cli.main import build_parser, main
from chronofed.core.errors import ChronofedError, MissingExtraError, RunError, SpecError
from chronofed.flower import launchers, prefork, processes
from chronofed.flower.app import new_app
from chronofed.flower.keys import make_keys
from chronofed.flower.processes import Processes, find_program, free_port, wait_for_port
from chronofed.flower.server_app import APP_KEYS, federation
from chronofed.flower.settings import Federation
from chronofed.flower.transport import import_flower
from chronofed.runs.built import build
from chronofed.runs.load_spec import load
from tests.helpers.waiting import LIMIT_S, wait_until


def test_a_new_app_is_a_flower_app(tmp_path):
    folder = tmp_path / "My app!"
    new_app(folder, Experiment(rounds=3).resolved(), tmp_path / "run", quorum=2)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    app = project["tool"]["flwr"]["app"]
    for side, reference in app["components"].items():
        module, _, name = reference.partition(":")
        text = (folder / f"{module}.py").read_text()
        compile(text, module, "exec")
        assert f"{name} = {side.removesuffix('app')}_app(__file__)" in text
    assert federation(app["config"]) == Federation(quorum=2)
    assert app["config"]["run"] == str(tmp_path / "run")
    assert set(app["config"]) == {*APP_KEYS, *Federation.__struct_fields__}
    assert load(folder / "spec.toml") == Experiment(rounds=3)
    assert len((folder / "README.md").read_text().splitlines()) <= 12
    with pytest.raises(RunError, match="contains a project already"):
        new_app(folder, "")


def test_the_command_new(tmp_path, capsys):
    spec = tmp_path / "mine.toml"
    spec.write_text("rounds = 7\n")
    assert main(["flower", "new", str(tmp_path / "app"), str(spec), "-s", "seed=4"]) == 0
    read = load(tmp_path / "app" / "spec.toml")
    assert (read.rounds, read.seed) == (7, 4)
    assert main(["flower", "new", str(tmp_path / "other")]) == 0
    assert build(load(tmp_path / "other" / "spec.toml")).rounds == 20
    assert main(["flower", "new", str(tmp_path / "app")]) == RunError.exit_code
    assert "contains a project already" in capsys.readouterr().err


def test_the_command_line_after_the_dashes_is_left_alone():
    options = build_parser().parse_args(
        ["flower", "prefork", "--", "flower-supernode", "--superlink", "x:1", "--insecure"]
    )
    assert options.program == ["flower-supernode", "--superlink", "x:1", "--insecure"]


def test_every_client_needs_a_node(tmp_path, capsys):
    spec = tmp_path / "spec.toml"
    spec.write_text("rounds = 1\n[scenario]\nkind = 'subsets'\nclients = 5\n")
    code = main(["flower", "local", str(spec), "--clients", "3", "-o", str(tmp_path / "run")])
    assert code == SpecError.exit_code
    assert "use --clients 5" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_without_flower_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(processes, "_python_folder", lambda: "/nowhere")
    for attempt in (
        lambda: find_program("flower-superlink"),
        lambda: import_flower("flwr.none_such"),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install 'chronofed\[flower\]'"):
            attempt()


def test_keys_are_for_their_owner_alone(tmp_path):
    pytest.importorskip("cryptography")
    files = make_keys(tmp_path / "keys", 2, ["hub.example.org", "10.0.0.1"])
    secret = {f.name for f in files if stat.S_IMODE(f.stat().st_mode) == 0o600}
    assert secret == {"ca.key", "loopback.key", "superlink.key", "client-0", "client-1"}
    with pytest.raises(RunError, match="contains keys already"):
        make_keys(tmp_path / "keys", 2, ["x"])
    with pytest.raises(SpecError, match="at least one client"):
        make_keys(tmp_path / "more", 0, ["x"])


@pytest.fixture
def started(tmp_path):
    with Processes(tmp_path / "logs", os.environ) as found:
        yield found


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_processes_end_with_their_block(tmp_path):
    stubborn = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("on", flush=True)
time.sleep(999)
"""
    before, processes.GRACE_S = processes.GRACE_S, 0.2
    try:
        with Processes(tmp_path / "logs", os.environ) as found:
            willing = found.start("willing", *python("import time; time.sleep(999)"))
            other = found.start("stubborn", *python(stubborn))
            while found.last_line("stubborn") != "on":
                time.sleep(0.05)
    finally:
        processes.GRACE_S = before
    assert willing.returncode == -signal.SIGTERM
    assert other.returncode == -signal.SIGKILL


def test_what_a_killed_process_started_goes_too(started):
    child = """
import subprocess, sys
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"])
print(sleeper.pid, flush=True)
sleeper.wait()
"""
    started.start("parent", *python(child))
    while not started.last_line("parent"):
        time.sleep(0.05)
    number = int(started.last_line("parent"))
    started.kill("parent")
    deadline = time.monotonic() + 20
    while alive(number) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(number)
    wait_until(lambda: not alive(number), "the child is gone")


def alive(number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_ends_by_itself_is_reported_with_its_last_line(started):
    process = started.start("link", *python("print('port 5 is taken'); raise SystemExit(3)"))
    process.wait()
    with pytest.raises(
        ChronofedError, match=r"link ended \(exit code 3\): port 5 is taken; see .*link.log"
    ):
        started.check()
    with pytest.raises(ChronofedError, match="port 5 is taken"):
        wait_for_port(free_port(), started)


WATCHED = """
import sys, time
from chronofed.flower.processes import exit_with_flower

sys.argv = ["flwr-serverapp", "--parent-pid", sys.argv[1]]
exit_with_flower(grace_s=0.0)
print("watching", flush=True)
time.sleep(999)
"""


def test_an_app_ends_with_what_started_it_even_if_it_hangs(started):
    parent = started.start("parent", *python("import time; time.sleep(999)"))
    app = started.start("app", sys.executable, "-c", WATCHED, str(parent.pid))
    while started.last_line("app") != "watching":
        started.check()
        time.sleep(0.05)
    assert app.poll() is None
    started.kill("parent")
    assert app.wait(LIMIT_S) == 1


def test_a_port_is_waited_for(started):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        wait_for_port(server.getsockname()[1], started)


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(
    not list(Path("/proc/self/task").glob("*/children")), reason="Linux does not list children here"
)
def test_a_program_that_has_lost_its_child_is_noticed(started):
    """A child that was killed stays as a zombie, for nobody waits for it."""
    started.start("parent", sys.executable, "-c", PARENT)
    while not (number := started.last_line("parent")):
        started.check()
        time.sleep(0.05)
    assert not started.lacks_children("parent")
    os.kill(int(number), signal.SIGKILL)
    while not started.lacks_children("parent"):
        started.check()
        time.sleep(0.05)
    started.kill("parent")
    assert not started.lacks_children("parent")


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """The programs that are found first, with a stand-in for Flower's own beside Python."""
    beside = tmp_path / "beside"
    beside.mkdir()
    for name in prefork.PROGRAMS:
        (beside / name).write_text("#!/bin/sh\necho the usual way $@\n")
        (beside / name).chmod(0o700)
    real = sys.executable
    programs, address = launchers.write_launchers(tmp_path)
    for name in prefork.PROGRAMS:
        path = programs / name
        path.write_text(path.read_text().replace(repr(os.path.dirname(real)), repr(str(beside))))
    yield programs / "flwr-clientapp", address
    for file in (address, address.parent):
        if file.exists():
            file.unlink() if file.is_socket() else file.rmdir()


def test_where_nobody_forks_flowers_own_program_is_started(launcher):
    said = subprocess.run([launcher[0], "--token", "x"], capture_output=True, text=True, check=True)
    assert said.stdout == "the usual way --token x\n"


HOST = """
import os, signal, subprocess, sys, time, types
from importlib.metadata import EntryPoint

from chronofed.flower import prefork

def entry():
    print("forked", sys.argv, flush=True)
    if sys.argv[0] in prefork.STAYING:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        if "--child" in sys.argv:
            subprocess.Popen(["sleep", "600"])
            time.sleep(0.5)
        print(os.getpid(), flush=True)
        time.sleep(600)
    raise SystemExit(0)

stand_in = types.ModuleType("stand_in")
stand_in.entry = entry
sys.modules["stand_in"] = stand_in
prefork.PRELOAD, prefork.LOOK_S, prefork.STARTING_LOOKS = (), 0.05, 600
prefork._entry = lambda name: EntryPoint(name, "stand_in:entry", "console_scripts")
prefork.main(sys.argv[1])
"""


def test_a_fork_is_the_program_with_its_arguments_and_output(launcher, started):
    path, address = launcher
    started.start("host", sys.executable, "-c", HOST, str(address))
    while not address.exists():
        started.check()
        time.sleep(0.05)
    for number in range(3):
        said = subprocess.run(
            [path, "--token", str(number)], capture_output=True, text=True, check=True
        )
        assert said.stdout == f"forked ['flwr-clientapp', '--token', '{number}']\n"


@pytest.fixture
def host(launcher, started):
    """Launchers, and a prefork server that runs stand-ins for Flower's programs."""
    path, address = launcher
    started.start("host", sys.executable, "-c", HOST, str(address))
    return path.parent


def begun(*command):
    """Start a command that ends up in a fork; return its process and the fork's number."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process.stdout as said:
        assert said.readline().startswith("forked ['flower-")
        return process, int(said.readline())


def wait_for_end(number):
    while processes._runs(number):
        time.sleep(0.02)


def test_a_program_that_stays_gets_signals_and_gives_its_exit_code(host):
    process, fork = begun(host / "flower-supernode", "--superlink", "x:1")
    assert Path(f"/proc/{fork}/comm").read_text().strip() == "flower-supernode"[:15]
    process.terminate()
    assert process.wait(60) == 7
    wait_for_end(fork)


def test_a_program_that_stays_ends_with_its_launcher_and_the_launcher_with_it(host):
    process, fork = begun(host / "flower-supernode")
    process.kill()
    process.wait(60)
    wait_for_end(fork)
    process, fork = begun(host / "flower-supernode")
    os.kill(fork, signal.SIGKILL)
    assert process.wait(60) == 1


# A SuperNode is a process that has started a SuperExec, with its own number.
NODE = """
import os, subprocess, sys
child = subprocess.Popen([*sys.argv[1:], "--parent-pid", str(os.getpid())])
child.wait()
raise SystemExit(9)
"""
# As Flower's own, it does not notice that its SuperExec has ended.
DEAF_NODE = NODE.replace("child.wait()", "import time; time.sleep(600)")


def launcher_below(process):
    (below,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(below)


@pytest.mark.parametrize("victim", ["fork", "launcher"])
def test_a_superexec_that_ends_takes_its_supernode_with_it(host, victim):
    """Which would else never work on an order again, and look healthy."""
    node, fork = begun(sys.executable, "-c", DEAF_NODE, host / "flower-superexec")
    os.kill(fork if victim == "fork" else launcher_below(node), signal.SIGKILL)
    assert node.wait(60) == -signal.SIGTERM
    wait_for_end(fork)


def test_a_supernode_ends_in_order_when_its_superexec_and_the_launcher_are_killed_at_once(host):
    process, fork = begun(host / "flower-supernode", "--child")
    (child,) = Path(f"/proc/{fork}/task/{fork}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    assert process.wait(60) == 7
    wait_for_end(fork)


def test_a_supernode_whose_app_was_killed_ends_in_order_unless_another_app_comes(monkeypatch):
    """Flower does not answer in the place of an app that had not fetched its message yet."""
    ended, told, now = [], [], [0.0]

    def reap(*_):
        return ended.pop() if ended else (0, 0)

    monkeypatch.setattr(prefork.os, "waitpid", reap)
    monkeypatch.setattr(prefork.os, "kill", lambda *sent: told.append(sent))
    monkeypatch.setattr(prefork.time, "monotonic", lambda: now[0])
    forks = prefork.Forks()
    for number, port in ((1, "70"), (2, "71")):
        forks.add(number, ["flower-supernode", "--port", port])
    app = ["flwr-clientapp", "--runtime-api-address", "127.0.0.1:70", "--token", "x"]
    for number, status, successor in (
        (3, 0, None),
        (4, signal.SIGKILL, 5),
        (6, signal.SIGKILL, None),
    ):
        forks.add(number, app)
        ended.append((number, status))
        forks.tend()
        if successor is not None:
            forks.add(successor, app)
        assert told == []
        now[0] += prefork.ANSWER_S + 1
        forks.tend()
    assert told == [(1, signal.SIGTERM)]
    now[0] += prefork.ANSWER_S + 1
    forks.tend()
    assert len(told) == 1


def test_a_superexec_that_was_asked_to_end_leaves_its_supernode(host):
    node, fork = begun(sys.executable, "-c", NODE, host / "flower-superexec")
    os.kill(launcher_below(node), signal.SIGTERM)
    assert node.wait(60) == 9
    wait_for_end(fork)


def test_where_nobody_forks_a_program_that_stays_is_started_by_itself(launcher):
    path, address = launcher
    address.parent.rmdir()
    command = [sys.executable, "-c", NODE]
    for start in ([], command):
        said = subprocess.run(
            [*start, path.parent / f"flower-super{'exec' if start else 'node'}", "--x"],
            capture_output=True,
            text=True,
        )
        assert said.stdout.startswith("the usual way --x")
