"""Threads and processes: failures, interrupts, ends, and what is shared."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import (
    Classification,
    CoreSet,
    Dataset,
    FedAvg,
    Linear,
    Method,
    Mime,
    Samples,
    Scaffold,
    Train,
    run,
)
from chronofed.clients.messages import Order
from chronofed.core.errors import ChronofedError, IncompatibleError, MissingExtraError, SpecError
from chronofed.engines import ProcessEngine, SerialEngine, ThreadEngine, processes
from chronofed.engines.base import usable_cores
from chronofed.engines.parallel import longest_first
from chronofed.engines.shared_memory import ALIGNMENT_BYTES, SharedObject, dumps, loads
from chronofed.engines.threads import uses_global_rng
from chronofed.methods.weighting import Merged
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import encode
from chronofed.scenarios.base import Plan, Visit
from tests.helpers.waiting import LIMIT_S, wait_until

KINDS = [ThreadEngine, ProcessEngine]
STATEFUL = Method(Scaffold(), CoreSet(5))
ENDLESS = Train(steps=10**9)


@dataclass(frozen=True)
class Trapped:
    """A task on which clients with certain samples come to grief."""

    inner: Classification
    traps: dict[int, object] = field(default_factory=dict)

    def objective(self):
        return self.inner.objective()

    def initial(self, seed):
        return self.inner.initial(seed)

    def samples(self, indices):
        for row, trap in self.traps.items():
            if row in indices:
                spring(trap)
        return self.inner.samples(indices)


def spring(trap) -> None:
    if isinstance(trap, BaseException):
        raise trap
    os.kill(os.getpid(), signal.SIGKILL) if trap == "kill" else os._exit(3)


class OddError(ValueError):
    """An error that Python's own serialisation can write but not read."""

    def __init__(self, one, two) -> None:
        super().__init__(f"{one} and {two}")


def with_dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Dropout(0.5), nn.Linear(8, classes))


@pytest.fixture(params=KINDS, ids=["threads", "processes"])
def kind(request):
    return request.param


@pytest.fixture
def plan():
    """Four clients; the one with the highest number has the most samples."""
    return Plan(0, {i: Visit(np.arange(100 * i, 100 * i + 20 + 10 * i), 0) for i in range(4)})


def orders(task, plan, train=None, method=STATEFUL):
    params, buffers = task.initial(0)
    state, train = method.backbone.init_server(params, 4), train or Train(steps=2)
    common = state, buffers, Merged(), None, train, 0
    return [Order(plan.round, i, *common) for i in plan.visits]


def served(engine, plan, method=STATEFUL, train=None):
    return {r.client: r for r in engine.map(method, orders(engine.task, plan, train), plan)}


def check_still_works(engine, plan):
    """With the same results as ever."""
    engine.client_states.clear()
    want, got = served(SerialEngine(engine.task), plan), served(engine, plan)
    for client, result in want.items():
        assert torch.equal(result.upload["delta"], got[client].upload["delta"])


# Failures


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("round_", [0, 1])
def test_a_failed_round_raises_the_first_error_by_client_and_keeps_all_client_states(
    kind, workers, round_, task, plan
):
    row = {client: int(visit.indices[0]) for client, visit in plan.visits.items()}
    with kind(task, workers) as whole:
        served(whole, plan)
        before = dict(whole.client_states) if round_ else {}
    trapped = Trapped(task, {row[1]: SpecError("one"), row[3]: OddError("three", "more")})
    with kind(trapped, workers, client_states=dict(before)) as engine:
        for _ in range(2):
            with pytest.raises(SpecError, match=r"^one$") as caught:
                served(engine, plan)
            assert getattr(caught.value, "__notes__", []) == []
        assert engine.client_states == before
        rest = Plan(0, {i: plan.visits[i] for i in (0, 2)})
        assert set(served(engine, rest)) == {0, 2}
        assert {
            i for i in engine.client_states if engine.client_states[i] is not before.get(i)
        } == {0, 2}


def test_errors_come_back_from_processes_as_they_were(task, plan):
    row = int(plan.visits[2].indices[0])
    with ProcessEngine(Trapped(task, {row: OddError("three", "more")}), 2) as engine:
        with pytest.raises(OddError) as caught:
            served(engine, plan)
        assert str(caught.value) == "three and more"
        (note,) = caught.value.__notes__
        assert note.startswith("In a worker process:\nTraceback")
        assert "in samples\n" in note
    missing = MissingExtraError("flwr", "flower", "this engine")
    with (
        ProcessEngine(Trapped(task, {row: missing}), 2) as engine,
        pytest.raises(MissingExtraError, match=r"^this engine needs flwr: pip install"),
    ):
        served(engine, plan)


def test_an_error_that_cannot_travel_is_told():
    class Local(Exception):
        """Nobody else can import it."""

    error = processes.explained(Local("what happened"))
    assert type(error) is RuntimeError
    assert str(error) == "Local: what happened"


@pytest.mark.parametrize(
    ("trap", "what"), [("kill", r"was killed \(signal 9\)"), ("exit", r"ended \(exit code 3\)")]
)
@pytest.mark.slow
def test_a_worker_that_dies_is_named(trap, what, task, plan):
    row = int(plan.visits[2].indices[0])
    with ProcessEngine(Trapped(task, {row: trap}), 2) as engine:
        with pytest.raises(ChronofedError, match=f"round 0, client 2: the worker process {what}"):
            served(engine, plan)
        assert engine.client_states == {}
        rest = Plan(0, {i: plan.visits[i] for i in (0, 1, 3)})
        assert set(served(engine, rest)) == {0, 1, 3}


@pytest.mark.slow
def test_a_fork_server_that_dies_while_it_starts_is_one_line(tmp_path):
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing
            from chronofed.core.errors import ChronofedError
            from chronofed.engines import processes

            if __name__ == "__main__":
                context = multiprocessing.get_context("forkserver")
                context.set_forkserver_preload(["dies"])
                try:
                    processes.start(context.Process(target=print))
                except ChronofedError as error:
                    print(error)
            """
        )
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.stderr == ""
    assert done.stdout.startswith("cannot start a worker process: the fork server died (")


def test_a_worker_killed_while_idle_is_missed_and_replaced(task, plan):
    with ProcessEngine(task, 2) as engine:
        served(engine, plan)
        victim = engine._pool[0].process
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        with pytest.raises(ChronofedError, match=r"client 3: the worker process was killed"):
            served(engine, plan)
        check_still_works(engine, plan)


# Interrupts and ends


def test_ctrl_c_ends_promptly_and_the_engine_can_be_used_again(kind, task, plan):
    with kind(task, 2) as engine:
        served(engine, plan)
        before = dict(engine.client_states)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        start = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            served(engine, plan, train=ENDLESS)
        assert time.monotonic() - start < LIMIT_S
        timer.join()
        assert engine.client_states == before
        check_still_works(engine, plan)


def test_closing_ends_the_workers_and_may_be_repeated(kind, task, plan):
    threads = threading.active_count()
    engine = kind(task, 2)
    served(engine, plan)
    pids = [worker.process.pid for worker in engine._pool] if kind is ProcessEngine else []
    engine.close()
    engine.close()
    assert threading.active_count() == threads
    assert not any(alive(pid) for pid in pids)
    check_still_works(engine, plan)  # with new workers
    engine.close()


def alive(pid: int) -> bool:
    """Check that a process runs; a zombie does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def script(body: str) -> str:
    """A program that trains, with an engine named by its argument."""
    head = """
        import sys
        from chronofed import Classification, Linear, Method, Subsets, Train, run
        from chronofed import engines
        from tests.helpers.world import blobs

        def main():
            data = blobs()
            task = Classification(data, Linear())
            scenario = Subsets(clients=4, subsets=6).on(data, seed=0)
            engine = getattr(engines, sys.argv[1])(task, 2)
    """
    tail = 'if __name__ == "__main__":\n    main()\n'
    return textwrap.dedent(head) + textwrap.indent(textwrap.dedent(body), "    ") + tail


@pytest.fixture
def launch(tmp_path):
    def launch(body: str, kind: type) -> subprocess.Popen:
        path = tmp_path / "program.py"
        path.write_text(script(body))
        folders = [str(Path(__file__).parents[2]), *sys.path]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
        command = [sys.executable, str(path), kind.__name__]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return launch


@pytest.mark.parametrize("kind", [ThreadEngine, ProcessEngine])
@pytest.mark.slow
def test_an_engine_that_nobody_closes_does_not_keep_python_from_ending(kind, launch):
    body = """
        print(next(run(Method(), scenario, task, engine=engine)).round)
        globals()["kept"] = engine
    """
    with launch(body, kind) as program:
        assert program.communicate(timeout=600)[0] == "1\n"
        assert program.returncode == 0


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_parent(launch):
    """Not even until they have finished what they are at."""
    body = """
        next(run(Method(), scenario, task, engine=engine))
        print(*(worker.process.pid for worker in engine._pool), flush=True)
        next(run(Method(), scenario, task, train=Train(steps=10**9), engine=engine))
    """
    with launch(body, ProcessEngine) as program:
        pids = [int(pid) for pid in program.stdout.readline().split()]
        time.sleep(0.3)
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        program.kill()
        wait_until(lambda: not any(map(alive, pids)), "the workers are gone")


# Randomness


def test_models_that_draw_are_told_from_those_that_do_not(task, data):
    assert not uses_global_rng(task)
    state = torch.get_rng_state()
    assert uses_global_rng(Classification(data, Custom(f"{__name__}:with_dropout")))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_dropout_is_refused_by_threads_and_served_by_processes(data, train_for):
    task = Classification(data, Custom(f"{__name__}:with_dropout"))
    with pytest.raises(IncompatibleError, match=r"threads: the model draws .* use processes"):
        ThreadEngine(task)
    for backbone in (FedAvg(), Mime()):
        want = train_for(Method(backbone), 2, task=task)
        with ProcessEngine(task, 2) as engine:
            got = train_for(Method(backbone), 2, task=task, engine=engine)
        assert encode(got) == encode(want)


def test_workers_have_the_parents_default_dtype(data, train_for):
    torch.set_default_dtype(torch.float64)
    try:
        task = Classification(data, Linear())
        with ProcessEngine(task, 2) as engine:
            got = train_for(Method(), 2, task=task, engine=engine)
        assert encode(got) == encode(train_for(Method(), 2, task=task))
        assert got.params.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def careless(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + torch.randn(x.shape)


class Noisy(Scaffold, tag="test-noisy"):
    """Draws from the global generator where only a round can show it."""

    def finish(self, params, server, client, local):
        return super().finish(params + torch.randn(params.shape), server, client, local)


def test_other_global_draws_are_refused_by_threads_and_served_by_processes(
    task, data, plan, train_for
):
    with pytest.raises(IncompatibleError, match="threads: the model draws"):
        ThreadEngine(Classification(data, Linear(), careless))
    noisy = Method(Noisy())
    with ThreadEngine(task, 2) as engine:
        with pytest.raises(IncompatibleError, match=r"threads: something drew .* use processes"):
            served(engine, plan, noisy)
        assert engine.client_states == {}
    with ProcessEngine(task, 2) as engine:
        assert encode(train_for(noisy, 2, engine=engine)) == encode(train_for(noisy, 2))


# What is sent, and what is shared


def private_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


def test_the_data_are_in_memory_once(plan):
    def measure(megabytes: int) -> float:
        x, y = torch.ones(1024 * megabytes, 1024, dtype=torch.uint8), torch.zeros(10**6).long()
        samples = Samples(x, y[: len(x)].clone())
        task = Classification(Dataset("large", samples, samples, ("a",)), Linear())
        every = np.arange(0, len(x), 100 * megabytes)
        with ProcessEngine(task, 2) as engine:
            served(engine, Plan(0, {i: Visit(every, 0) for i in range(4)}), Method())
            assert not x.is_shared()
            block = engine._shared_task.block
            assert 0 <= engine.task.data.train.x.data_ptr() - block.data_ptr() < len(block)
            assert len(block) < 1.1 * 2**20 * megabytes  # the same tensor twice takes room once
            return max(private_megabytes(worker.process.pid) for worker in engine._pool)

    assert measure(48) - measure(1) < 12


def test_what_clients_have_in_common_is_sent_once_to_a_worker(task, plan, monkeypatch):
    sent, plain = [], Connection.send_bytes

    def spy(self, content):
        sent.append(len(content))
        plain(self, content)

    monkeypatch.setattr(Connection, "send_bytes", spy)
    with ProcessEngine(task, 2) as engine:
        for _ in range(2):
            sent.clear()
            served(engine, plan)
            common = sent[::2]
            assert len(common) == 4
            assert sum(size > 0 for size in common) == 2


def test_orders_that_differ_are_each_sent(task, plan):
    def uploads(engine):
        _, *others = orders(task, plan)
        other = orders(task, plan, Train(steps=3))[0]
        results = engine.map(STATEFUL, [other, *others], plan)
        return {r.client: r.upload["delta"] for r in results}

    want = uploads(SerialEngine(task))
    with ProcessEngine(task, 1) as engine:
        got = uploads(engine)
    assert all(torch.equal(want[i], got[i]) for i in plan.visits)


def test_what_cannot_be_sent_is_refused(task, data, plan):
    class Unknown(FedAvg, tag="test-unknown"):
        """Nobody else can import it."""

    with pytest.raises(IncompatibleError, match=r"^task: cannot be sent .*lambda.* use threads"):
        ProcessEngine(Classification(data, Linear(), lambda x, generator: x))
    with (
        ProcessEngine(task, 1) as engine,
        pytest.raises(IncompatibleError, match=r"^method: cannot be sent"),
    ):
        served(engine, plan, Method(Unknown()))


TENSORS = {
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "view": torch.arange(12.0).view(3, 4)[:, 1:].T,
    "half": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "parameter": nn.Parameter(torch.ones(2), requires_grad=False),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_travel(name):
    tensor = TENSORS[name]
    content = {"first": torch.ones(3, dtype=torch.uint8), "tensor": tensor, "array": np.arange(5)}
    for copy in (loads(dumps(content, "it")), SharedObject.of(content, "it").load()):
        assert type(copy["tensor"]) is type(tensor)
        assert copy["tensor"].dtype == tensor.dtype
        assert copy["tensor"].requires_grad == tensor.requires_grad
        assert torch.equal(copy["tensor"], tensor)
        assert copy["tensor"].data_ptr() % ALIGNMENT_BYTES == 0
        assert copy["array"].tolist() == [0, 1, 2, 3, 4]
    assert not tensor.is_shared()


def test_a_shared_task_without_room_says_so(task, monkeypatch):
    def full(tensor):
        raise RuntimeError("No space left on device")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(
        ChronofedError, match=r"no room for 0 MB .* enlarge /dev/shm or use threads"
    ):
        ProcessEngine(task)


# Work


def test_the_longest_come_first(kind, task, plan):
    assert [o.client for o in longest_first(orders(task, plan), plan)] == [3, 2, 1, 0]
    even = Plan(0, dict.fromkeys(range(3), plan.visits[0]))
    assert [o.client for o in longest_first(orders(task, even)[::-1], even)] == [0, 1, 2]
    with kind(task, 1) as engine:
        assert list(served(engine, plan)) == [3, 2, 1, 0]


def test_no_more_workers_than_clients(kind, task, plan):
    with kind(task, 9) as engine:
        assert engine.workers == 9
        few = Plan(0, {1: plan.visits[1]})
        served(engine, few)
        pool = engine._pool if kind is ProcessEngine else engine._pool.threads
        assert len(pool) == 1
        served(engine, plan)
        assert len(engine._pool if kind is ProcessEngine else engine._pool.threads) == 4
        assert list(engine.map(STATEFUL, [], Plan(0, {}))) == []


def test_workers_are_as_many_as_cores_or_as_told(kind, task):
    assert kind(task).workers == usable_cores() == len(os.sched_getaffinity(0))
    with pytest.raises(ValueError, match=r"workers: expected at least 1, not 0"):
        kind(task, 0)


def test_time_is_booked(kind, task, plan):
    with kind(task, 2) as engine:
        served(engine, plan)
        seconds = engine.timer.drain()
    assert set(seconds) == {"data", "memory", "train", "probe"}
    assert all(spent > 0 for spent in seconds.values())


def test_torch_threads_are_given_back(kind, task, scenario):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with kind(task, 2) as engine:
            next(run(Method(), scenario, task, engine=engine))
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_exchange_before_a_round_keeps_nothing(kind, task, plan):
    method = Method(Mime(), CoreSet(5))
    with kind(task, 2) as engine:
        asked = orders(task, plan, method=method)
        answers = {r.client: r for r in engine.prepare(method, asked, plan)}
        want = {r.client: r for r in SerialEngine(task).prepare(method, asked, plan)}
        assert engine.client_states == {}
    assert all(
        torch.equal(answers[i].upload["gradient"], want[i].upload["gradient"]) for i in plan.visits
    )
