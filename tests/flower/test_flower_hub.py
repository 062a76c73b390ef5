"""A hub with TLS, keys and a proxy, typed as on its how-to; a stranger with its certificate gets nowhere."""

import base64
import json
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from chronofed.cli.main import main
from chronofed.flower import proxy
from chronofed.flower.hub import Hub, HubSettings
from chronofed.flower.hub_service import HubService, prepare_app
from chronofed.flower.hub_status import read_status
from chronofed.flower.keys import key_header, make_keys
from chronofed.flower.processes import Processes, environment, free_port
from tests.helpers.trial import NEEDS_FLOWER, NEEDS_NGINX, events, rounds_done, running, wait

pytestmark = [NEEDS_FLOWER, NEEDS_NGINX]

SPEC = """
name = "coast"
rounds = 4

[data]
kind = "source-rows"
[data.source]
kind = "table-file"
path = "{folder}/test.csv"
classes = ["calm", "storm"]
target = "weather"
time = "when"
features = [{{ name = "wind" }}, {{ name = "rain" }}]

[scenario]
kind = "remote"
clients = 3

[method]
backbone = {{ kind = "scaffold" }}
memory = {{ kind = "core-set", size = 5 }}

[train]
steps = 4
batch_size = 4
"""
SOURCE = """
[source]
kind = "table-file"
path = "rows.csv"
classes = ["calm", "storm"]
target = "weather"
time = "when"
id = "row"
features = [{ name = "wind" }, { name = "rain" }]
current = { kind = "each-round", count = 6 }
"""


def rows(client: int, start: int, count: int) -> str:
    days = [date(2024, 1, 1) + timedelta(days=k) for k in range(start, start + count)]
    return "".join(
        f"{client}-{k},{day},{client + k % 5},{k % 3},{('calm', 'storm')[k % 2]}\n"
        for k, day in zip(range(start, start + count), days, strict=True)
    )


COUNT, ROUNDS = 6, 4  # rows of a client in a round, and rounds


class Site:
    """Machines as folders; every command is typed as a user would, and counted."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes, self.typed = folder, processes, 0
        self.port = free_port()
        head = "row,when,wind,rain,weather\n"
        (folder / "test.csv").write_text(head + rows(9, 0, 20))
        (folder / "spec.toml").write_text(SPEC.format(folder=folder))
        for client, name in enumerate("abc"):
            (folder / name).mkdir()
            (folder / name / "source.toml").write_text(SOURCE)
            # Two rounds' rows; the others are written while training goes on.
            (folder / name / "rows.csv").write_text(head + rows(client, 0, 2 * COUNT))
        self.hub = Hub(folder / "hub")

    def grow(self, round_: int) -> None:
        """Let the rows of one more round arrive on every machine."""
        for client, name in enumerate("abc"):
            with (self.folder / name / "rows.csv").open("a") as file:
                file.write(rows(client, COUNT * round_, COUNT))

    def type(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        self.typed += 1
        program = [
            sys.executable,
            "-c",
            "from chronofed.cli.main import main; raise SystemExit(main())",
        ]
        return self.processes.start(name, *program, *command)

    def do(self, name: str, *command: str) -> None:
        code = self.type(name, *command).wait()
        self.processes.stop(name)
        assert code == 0, self.log(name)

    def wait(self, condition, what: str) -> None:
        """Wait for something; fail at once if the hub or a node has ended."""

        def met() -> bool:
            found = condition()
            if not found:
                self.processes.check()
            return found

        wait(met, 400.0, what)

    def log(self, name: str) -> str:
        path = self.processes.logs / f"{name}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A federation of three, from nothing, in at most 6 commands."""
    folder = tmp_path_factory.mktemp("site")
    with Processes(folder / "logs", environment(folder / "home")) as processes:
        site = Site(folder, processes)
        where = ("--host", "127.0.0.1", "localhost", "--port", str(site.port))
        spec, hub = str(folder / "spec.toml"), str(site.hub.path)
        site.type("hub", "hub", "start", hub, spec, *where, "--join-timeout", "200")
        site.wait(
            lambda: site.hub.exists and (site.hub.path / "registered.json").exists(), "the hub"
        )
        site.do("add", "hub", "add-node", hub, "a", "b", "c")
        for name in "abc":
            shutil.move(site.hub.path / "nodes" / name, folder / name / "node")
            at = folder / name
            node, source = str(at / "node"), str(at / "source.toml")
            site.type(f"node-{name}", "node", "start", node, "--source", source)
        for round_ in range(2, ROUNDS):
            site.wait(lambda r=round_: rounds_done(site.hub.run) >= r - 1, f"round {round_ - 2}")
            site.grow(round_)
        yield site


def test_six_commands_make_a_federation_with_growing_files(site):
    site.wait(lambda: rounds_done(site.hub.run) >= 4, "the last round")
    site.do("status", "hub", "status", str(site.hub.path))
    assert site.typed == 6
    text = site.log("status")
    assert "4 of 4 rounds done" in text
    for client, name in enumerate("abc"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert line.split()[1] == str(client)
        assert "never" not in line
    # A client whose rows of a round come late says so, and is asked again.
    found = [e for e in events(site.hub.run) if e["event"] in ("failed", "skipped")]
    assert all("has no data in round" in event["reason"] for event in found)
    kinds = {event["event"] for event in events(site.hub.run)} - {"failed", "skipped"}
    assert kinds <= {"started", "joined", "finished", "missing", "late"}


def test_what_arrived_during_the_run_was_trained_on(site, capsys):
    wait(lambda: "the run is finished" in site.log("hub"), 400.0, what="the end")
    for name in "abc":
        (store,) = (site.folder / name / "node" / "state").glob("*.sqlite")
        assert main(["client", "inspect", str(store), "--json"]) == 0
        sets = json.loads(capsys.readouterr().out)["data_sets"]
        assert [one["round"] for one in sets] == list(range(ROUNDS))


def test_the_operator_sees_rounds_answers_and_the_time_left(site):
    wait(lambda: "the run is finished" in site.log("hub"), what="the end")
    text = site.log("hub")
    assert "may join" in text
    assert "round 3: 3 of 3 clients" in text
    assert " left" in text
    status = read_status(site.hub)
    assert (status.state, status.round, status.rounds) == ("finished", 4, 4)
    assert [node.round for node in status.nodes] == [3, 3, 3]


def test_secrets_are_for_their_owner_alone(site):
    for path in site.hub.path.rglob("*"):
        public = path.is_dir() or path.suffix in (".crt", ".pem", ".pub")
        if not public and path.name in ("superlink.db", "ca.key", "superlink.key", "nodes.json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(site.hub.path.stat().st_mode) == 0o700


# The stranger: has ca.crt, a key pair of its own, and reaches the published port.

# Every path that a SuperLink of the installed Flower serves, and every method that its protocol has.
PATHS = """
import re
from pathlib import Path

import flwr.proto
from flwr.supercore.routers.health.router import router as health
from flwr.supercore.routers.runtime.responses import router as responses
from flwr.supercore.routers.runtime.router import router as runtime
from flwr.superlink.routers.control.router import router as control
from flwr.superlink.routers.fleet.router import router as fleet

for router in (control, fleet, runtime, responses, health):
    print(*(route.path for route in router.routes), sep="\\n")
for file in Path(flwr.proto.__file__).parent.glob("*_pb2_grpc.py"):
    print(*sorted(set(re.findall(r"/flwr[.]proto[.]\\w+/\\w+", file.read_text()))), sep="\\n")
"""
SLY = (
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/pull-messages/../../control/list-runs",
    "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2flist-runs",
    "//v1//control//list-runs",
    "/v1/fleet/pull-messages/%00/v1/control/list-runs",
    "https://hub/v1/control/list-runs",
)


class Guarded:
    """A hub with three known nodes, and an app that nobody has started."""

    def __init__(self, folder: Path) -> None:
        self.hub, self.port = Hub(folder / "hub"), free_port()
        self.hub.create(HubSettings(("127.0.0.1", "localhost"), self.port))
        for name in "abc":
            self.hub.add_node(name)
        prepare_app(self.hub, "rounds = 1\n")

    def curl(self, path: str, length: int = 0, body: bytes = b"", **headers: str) -> int:
        """Send a request over TLS, byte for byte, and return the status; it may promise a longer body."""
        context = ssl.create_default_context(cafile=self.hub.keys / "ca.crt")
        lines = [f"POST {path} HTTP/1.1", "Host: hub", f"Content-Length: {length or len(body)}"]
        lines += ["Content-Type: application/protobuf", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as server,
        ):
            server.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            return int(server.recv(64).split()[1])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    guarded = Guarded(tmp_path_factory.mktemp("guarded"))
    with HubService(guarded.hub):
        yield guarded


@pytest.fixture(scope="module")
def stranger(guarded, tmp_path_factory):
    """Flower's own programs with the public certificate and a key that nobody knows."""
    folder = tmp_path_factory.mktemp("stranger")
    make_keys(folder / "keys", 1, ["localhost"])
    certificate = json.dumps(str(guarded.hub.keys / "ca.crt"))
    home = folder / "home"
    home.mkdir()
    address = f'address = "127.0.0.1:{guarded.port}"\nroot-certificates = {certificate}\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "hub"\n[superlink.hub]\n{address}')
    with Processes(folder / "logs", environment(home)) as processes:

        def tries(*command: str) -> tuple[int, str]:
            log = folder / "logs" / "try.log"
            log.unlink(missing_ok=True)
            code = processes.start("try", *command).wait(120)
            processes.stop("try")
            return code, log.read_text()

        yield folder, tries


def test_a_stranger_cannot_do_what_the_operator_does(guarded, stranger):
    folder, tries = stranger
    registered = json.loads((guarded.hub.path / "registered.json").read_text())
    assert len(registered) == 3
    node = registered["a"][0]
    app = str(guarded.hub.app)
    attempts = {
        "register": ("supernode", "register", str(folder / "keys" / "client-0.pub"), "hub"),
        "start an app": ("run", app, "hub", "--run-config", f'run="{folder}/run"'),
        "list runs": ("list", "hub"),
        "list nodes": ("supernode", "list", "hub"),
        "unregister": ("supernode", "unregister", node, "hub"),
    }
    for what, command in attempts.items():
        code, text = tries("flwr", *command)
        assert code != 0, f"{what}: {text}"
        assert node not in text or what == "unregister"
    assert not (folder / "run").exists()
    assert json.loads((guarded.hub.path / "registered.json").read_text()) == registered


@pytest.fixture(scope="module")
def served():
    """Every path and every method that Flower has."""
    command = [sys.executable, "-W", "ignore", "-c", PATHS]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return sorted(set(found))


def signed(key: Path) -> dict[str, str]:
    """Return the headers with which Flower's nodes prove that they have a private key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    now = datetime.now(UTC).isoformat()
    signature = private.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr_public_key": key_header(key.with_name(f"{key.name}.pub").read_bytes()),
        "flwr_timestamp": now,
        "flwr_signature": base64.b64encode(signature).decode(),
    }


def test_nothing_else_that_flower_serves_is_published(guarded, stranger, served):
    """Neither to a stranger, nor to a node that may join: its key opens the calls of nodes alone."""
    keys = {"stranger": stranger[0] / "keys" / "client-0"}
    keys["node"] = guarded.hub.path / "nodes" / "a" / "node.key"
    calls = {f"/v1/fleet/{call}" for call in proxy.NODE_CALLS}
    paths = [path for path in served if path.startswith("/v1/")]
    assert len(paths) > 70
    assert calls < set(paths)
    for who, key in keys.items():
        headers = signed(key)
        for path in served:
            status = guarded.curl(path, **headers)
            if path not in calls:
                assert status == 404, (who, path)
            elif who == "stranger":
                assert status == 401, path
    # The same headers are good for what nodes may do: it is not the request that is wrong.
    assert guarded.curl("/v1/fleet/pull-messages", **signed(keys["node"])) != 404


def test_a_stranger_with_the_public_key_of_a_node_is_refused(guarded, stranger):
    """It is no secret, but the signature must fit."""
    headers = signed(stranger[0] / "keys" / "client-0")
    headers["flwr_public_key"] = next(iter(guarded.hub.headers()))
    for call in proxy.NODE_CALLS:
        assert guarded.curl(f"/v1/fleet/{call}", **headers) == 401, call


def test_raw_grpc_gets_nowhere(guarded, served):
    """Every method of every service of Flower's protocol, with the certificate and the key of a node."""
    grpc = pytest.importorskip("grpc", reason="grpcio comes with chronofed[flower]")
    known = next(iter(guarded.hub.headers()))
    certificate = (guarded.hub.keys / "ca.crt").read_bytes()
    methods = [path for path in served if path.startswith("/flwr.proto.")]
    assert len(methods) > 40
    assert {path.split("/")[1] for path in methods} >= {"flwr.proto.Control", "flwr.proto.Fleet"}
    credentials = grpc.ssl_channel_credentials(certificate)
    with grpc.secure_channel(f"127.0.0.1:{guarded.port}", credentials) as channel:
        for method in methods:
            call = channel.unary_unary(method)
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=20, metadata=[("flwr-public-key", known)])
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, method
    registered = json.loads((guarded.hub.path / "registered.json").read_text())
    assert registered.keys() == set("abc")


def test_only_calls_of_nodes_are_published_and_only_for_known_keys(guarded):
    known = next(iter(guarded.hub.headers()))
    for path in SLY:
        assert guarded.curl(path, flwr_public_key=known) in (400, 404)
    for call in ("register-node", "unregister-node"):
        assert guarded.curl(f"/v1/fleet/{call}", flwr_public_key=known) == 404
    for path in ("/docs", "/openapi.json", "/"):
        assert guarded.curl(path) == 404
    other = base64.b64encode(b"-----BEGIN PUBLIC KEY-----").decode()
    assert guarded.curl("/v1/fleet/pull-messages") == 401
    assert guarded.curl("/v1/fleet/pull-messages", flwr_public_key=other) == 401
    # A public key is no secret: without its private half, Flower refuses the request.
    assert guarded.curl("/v1/fleet/pull-messages", flwr_public_key=known) == 401
    # A body that nginx must write to its own folder gets as far: Flower reads that it is no message.
    assert guarded.curl("/v1/fleet/push-object", body=bytes(10**6), flwr_public_key=known) == 400
    assert "crit" not in (guarded.hub.proxy / "nginx-error.log").read_text()
    assert guarded.curl("/v1/fleet/push-object", 70_000_000, flwr_public_key=known) == 413


def test_a_node_with_an_unknown_key_is_refused_and_the_operator_sees_it(guarded, stranger):
    folder, tries = stranger
    before = read_status(guarded.hub).strangers
    _, text = tries(
        *("flower-supernode", "--superlink", f"127.0.0.1:{guarded.port}"),
        *("--root-certificates", str(guarded.hub.keys / "ca.crt")),
        *("--auth-supernode-private-key", str(folder / "keys" / "client-0")),
        *("--host", "127.0.0.1", "--port", str(free_port()), "--node-config", "client=1"),
    )
    assert "SuperNode ID" not in text
    assert read_status(guarded.hub).strangers > before


def test_the_superlink_listens_on_the_loopback_interface_only(guarded):
    """Everything that listens below the hub's process: the proxy on its port, the SuperLink on loopback."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {line[1] for line in lines if line[3] == "0A"}
    (text,) = [p for p in running("flower-superlink") if str(guarded.hub.path) in p]
    port = int(text.split("\0")[text.split("\0").index("--port") + 1])
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening
