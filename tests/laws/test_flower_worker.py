"""The resident worker answers what an app process hands over, as that process would have answered itself."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from chronofed import CoreSet, Experiment, Linear, Merged, Method, Scaffold, Subsets, Train
from chronofed.clients.messages import Order
from chronofed.core.errors import ChronofedError, RunError
from chronofed.flower import worker
from chronofed.flower.client_app import answer
from chronofed.flower.codec import OrderWriter
from chronofed.flower.messages import Message, method_fingerprint, read_reply, write_hello
from chronofed.flower.processes import Processes, environment
from chronofed.runs.built import build

RUN = "00c0ffee00c0ffee"
EXPERIMENT = Experiment(
    rounds=2,
    model=Linear(),
    scenario=Subsets(clients=3, subsets=4),
    method=Method(Scaffold(), CoreSet(size=10)),
    train=Train(steps=2),
)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app")
    (folder / "spec.toml").write_text(EXPERIMENT.resolved())
    return folder


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path / "logs", environment(tmp_path / "home")) as processes:
        yield processes


@pytest.fixture
def address(tmp_path, processes):
    """The address of a worker in a process of its own."""
    address = tmp_path / "s"
    processes.start("worker", sys.executable, "-m", "chronofed.flower.worker", str(address))
    return address


def orders():
    """The first order of every client."""
    built, method = build(EXPERIMENT), EXPERIMENT.method
    params, buffers = built.task.initial(0)
    server = method.backbone.init_server(params, 3)
    writer = OrderWriter(RUN, method_fingerprint(EXPERIMENT))
    for client in range(3):
        order = Order(0, client, server, buffers, Merged(), None, EXPERIMENT.train, 0)
        yield client, writer.write(order, "train")[1]


def test_replies_are_those_of_a_process_of_their_own_bit_for_bit(address, app, tmp_path):
    def answers(state, reply):
        def one(client, message):
            return reply(message, {"client": client, "state": str(tmp_path / state)}, {}, app)

        with ThreadPoolExecutor(3) as pool:
            return [found.pack() for found in pool.map(lambda given: one(*given), orders())]

    handed = answers("there", lambda *given: worker.hand_over(address, *given))
    # Items of a client store have keys with a secret of its own only if they come from the client's source.
    assert handed == answers("here", answer)
    again = answers("there", lambda *given: worker.hand_over(address, *given))
    assert again == handed
    assert len(list((tmp_path / "there").glob("client-?-*.sqlite"))) == 3


def test_what_is_wrong_is_said_in_one_line(address, app, tmp_path, processes):
    config = {"client": 0, "state": str(tmp_path / "state")}
    ask = write_hello(RUN)
    for settings, reason in (({}, "which client it is"), ({"clinet": 1, **config}, "clinet")):
        assert reason in read_reply(worker.hand_over(address, ask, settings, {}, app)).error
    reply = worker.hand_over(address, Message("{"), config, {}, app)
    assert "malformed header" in read_reply(reply).error
    # An error that nobody expected is logged with its traceback, and the worker goes on.
    bad = Message('{"node": {"client": 0}}', b"")
    with worker._connect(address) as raw:
        worker._send(raw, bad.pack())
        assert "MessageError" in Message.unpack(worker._receive(raw)).header
    assert "Traceback" in (processes.logs / "worker.log").read_text()
    assert read_reply(worker.hand_over(address, ask, config, {}, app)).client == 0


def test_a_worker_that_ends_in_the_middle_is_reported_at_once(tmp_path):
    with worker.socket.socket(worker.socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        asked = pool.submit(worker.hand_over, tmp_path / "s", write_hello(RUN), {}, {}, tmp_path)
        connection, _ = listener.accept()
        connection.recv(8)
        connection.close()
        with pytest.raises(RunError, match="ended while it worked on the order"):
            asked.result(60)


def test_a_worker_that_is_missing_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "START_TIMEOUT_S", 0.2)
    with pytest.raises(RunError, match="does not run"):
        worker.hand_over(tmp_path / "s", write_hello(RUN), {}, {}, tmp_path)


def test_a_length_beyond_all_reason_is_refused(tmp_path):
    here, there = worker.socket.socketpair()
    with here, there:
        there.sendall((worker.MAX_FRAME_BYTES + 1).to_bytes(8, "little"))
        with pytest.raises(ChronofedError, match="is too large"):
            worker._receive(here)


def test_a_process_that_hands_messages_over_does_not_import_torch():
    program = (
        "import sys, chronofed.flower.client_app, chronofed.flower.prefork\n"
        "heavy = {'torch', 'numpy', 'chronofed.flower.node'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
