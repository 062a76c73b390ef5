"""The scheduler of threads: who computes next, how long it takes, and what happens after a failure."""

import threading
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chronofed import Classification, Method, Train
from chronofed.clients.messages import Order
from chronofed.core.timing import PhaseTimer
from chronofed.engines import SerialEngine, ThreadEngine, scheduler, threads
from chronofed.engines.base import Job
from chronofed.engines.scheduler import Scheduler, Slot, StoppedError
from chronofed.methods.weighting import Merged
from chronofed.scenarios.base import Plan, Visit

BATCH = 4
FOREVER = 300  # seconds until a test that hangs fails


class Flag:
    """An event for which nobody really waits."""

    def __init__(self) -> None:
        self.up = False

    def set(self):
        self.up = True

    def clear(self):
        self.up = False

    def wait(self):
        pass


def slot(owner: Scheduler, left: float) -> Slot:
    made = Slot(owner)
    made.work_left, made.granted = left, Flag()
    return made


def requested(owner: Scheduler, steps: int, step: float = 1.0) -> Slot:
    made = slot(owner, 0)
    made.request(steps, step)
    return made


# Who is next


def test_who_has_most_left_is_next_and_of_equals_who_came_first():
    queue = Scheduler(1)
    a, b, c, d = (slot(queue, left) for left in (3, 1, 2, 2))
    for each in (a, b, c, d):
        queue.request(each)
    queue.yield_to_longest(a)
    assert [each.granted.up for each in (a, b, c, d)] == [True, False, False, False]
    a.work_left = 1
    queue.yield_to_longest(a)
    assert [each.granted.up for each in (a, b, c, d)] == [False, False, True, False]
    c.work_left = 1
    queue.yield_to_longest(c)
    assert [each.granted.up for each in (a, b, c, d)] == [False, False, False, True]
    for following in (b, a, c):
        queue.release()
        assert following.granted.up


def test_nobody_comes_before_those_who_wait():
    queue = Scheduler(2)
    first, second, waiting, late = (slot(queue, 1) for _ in range(4))
    for each in (first, second, waiting):
        queue.request(each)
    queue.release()
    assert waiting.granted.up
    queue.request(late)
    assert not late.granted.up
    queue.release()
    assert late.granted.up


def test_what_is_given_back_when_nobody_waits_is_free():
    queue = Scheduler(1)
    with requested(queue, 1).computing():
        pass
    with pytest.raises(ValueError, match="oops"), requested(queue, 1).computing():
        raise ValueError("oops")
    assert requested(queue, 1).granted.up
    assert not requested(queue, 1).granted.up


def test_a_step_is_work_done():
    queue = Scheduler(1)
    own, other = requested(queue, 3, 10.0), requested(queue, 2, 10.0)
    own.step()
    own.step()
    assert own.work_left == 10
    assert not other.granted.up
    own.step()
    assert other.granted.up
    assert not own.granted.up


def test_waiting_is_not_booked(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    queue = Scheduler(1)
    own = requested(queue, 1)
    timer = PhaseTimer(own.clock_s)
    with own.computing(), timer("train"):
        now[0] += 3
        own.granted.wait = lambda: now.__setitem__(0, now[0] + 100)
        requested(queue, 5)
        own.step()
        now[0] += 4
    assert now == [107]
    assert timer.drain() == {"train": 7}


def test_closing_wakes_all_who_wait_and_stops_the_others():
    queue, errors = Scheduler(1), []

    def wait(place):
        try:
            queue.wait(place)
        except StoppedError as error:
            errors.append(error)

    own, others = Slot(queue), [Slot(queue) for _ in range(3)]
    for each in (own, *others):
        each.request(1, 1.0)
    with own.computing():
        waiting = [threading.Thread(target=wait, args=(each,)) for each in others]
        for thread in waiting:
            thread.start()
        queue.close()
        for thread in waiting:
            thread.join(FOREVER)
        assert len(errors) == 3
        own.step()
        with pytest.raises(StoppedError):
            own.raise_if_closed()


# Rounds


class Watched:
    """An objective that tells of every gradient before it is computed."""

    def __init__(self, objective, tell) -> None:
        self.__dict__.update(objective=objective, tell=tell)

    def __getattr__(self, name):
        return getattr(self.objective, name)

    def __setattr__(self, name, value):
        setattr(self.objective, name, value)

    def gradient(self, params, batch):
        self.tell(batch)
        return self.objective.gradient(params, batch)


@dataclass
class Studied:
    """A task whose gradients are told of."""

    inner: Classification
    tell: object = None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def objective(self):
        return Watched(self.inner.objective(), lambda batch: self.tell(batch))


@pytest.fixture
def studied(task):
    """While an engine is made, which tries a gradient out, nobody listens."""
    return Studied(task, lambda batch: None)


def plan_of(steps: list[int]) -> Plan:
    """Clients that take so many steps."""
    starts = np.cumsum([0, *steps]) * BATCH
    return Plan(0, {i: Visit(np.arange(starts[i], starts[i + 1]), 0) for i in range(len(steps))})


def served(engine, plan, train=None):
    params, buffers = engine.task.initial(0)
    state = Method().backbone.init_server(params, len(plan.visits))
    common = state, buffers, Merged(), None, train or Train(batch_size=BATCH), 0
    orders = [Order(0, i, *common) for i in plan.visits]
    return {r.client: r.upload["delta"] for r in engine.map(Method(), orders, plan)}


def check_schedule(engine, steps: list[int], workers: int) -> None:
    """Every step finds as many as there are workers at the same time, so that none is ever idle."""
    ticks, told, all_asked = threading.Barrier(workers), count(), threading.Event()
    sharing = workers + len(steps) % workers
    alone = sum(sorted(steps, reverse=True)[:-sharing])
    submit, submitted = engine._submit, count(1)

    def watched(*job):
        submit(*job)
        if next(submitted) == len(steps):
            all_asked.set()

    def tell(batch):
        if next(told) >= alone:  # those who share begin together, however late a thread wakes
            assert all_asked.wait(FOREVER)
        ticks.wait(FOREVER)

    engine.task.tell = tell
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_submit", watched)
        got = served(engine, plan_of(steps))
    want = served(SerialEngine(engine.task.inner), plan_of(steps))
    assert got.keys() == want.keys()
    assert all(torch.equal(got[i], want[i]) for i in want)


SCHEDULES = {
    "seven": ([8] * 7, 2),
    "three": ([8] * 3, 2),
    "four on three": ([6] * 4, 3),
    "seven on four": ([8] * 7, 4),
    "unequal": ([9, 7, 6], 2),
    "one long": ([8, 4, 4], 2),
    "one short": ([6, 8, 8], 2),
}


@pytest.mark.parametrize(("steps", "workers"), SCHEDULES.values(), ids=SCHEDULES)
def test_no_worker_is_idle(steps, workers, studied):
    with ThreadEngine(studied, workers) as engine:
        for _ in range(3):
            check_schedule(engine, steps, workers)


@pytest.mark.parametrize(
    ("workers", "clients", "models"),
    [(2, 7, 3), (2, 8, 2), (2, 3, 3), (2, 2, 2), (2, 1, 1), (4, 9, 5), (4, 11, 7), (1, 3, 1)],
)
def test_no_more_models_than_are_needed(workers, clients, models, studied):
    with ThreadEngine(studied, workers) as engine:
        served(engine, plan_of([2] * clients))
        assert len(engine._pool.threads) == models


@pytest.mark.parametrize("unlucky", range(3))
def test_the_slot_of_a_client_that_fails_is_released(unlucky, studied):
    plan = plan_of([8] * 3)
    theirs = studied.inner.samples(plan.visits[unlucky].indices).x
    seen = []

    def fail(batch):
        if (batch.x[0] == theirs).all(dim=1).any():
            seen.append(batch)
            if len(seen) == 4:
                raise ArithmeticError("in the middle")

    with ThreadEngine(studied, 2) as engine:
        studied.tell = fail
        with pytest.raises(ArithmeticError, match="in the middle"):
            served(engine, plan)
        check_schedule(engine, [8] * 3, 2)


def test_an_end_reaches_those_who_wait(studied, monkeypatch):
    """Nine steps of three clients: all of them have begun, and one is paused."""
    before, nine = threading.active_count(), threading.Semaphore(0)
    with ThreadEngine(studied, 2) as engine:
        studied.tell = lambda batch: nine.release()

        def interrupted():
            for _ in range(9):
                assert nine.acquire(timeout=FOREVER)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_next_outcome", interrupted)
            with pytest.raises(KeyboardInterrupt):
                served(engine, plan_of([8] * 3), Train(batch_size=BATCH, steps=10**9))
        assert threading.active_count() == before
        check_schedule(engine, [8] * 3, 2)


@pytest.mark.parametrize(
    ("train", "work"),
    [
        (Train(batch_size=4), (5, 4)),
        (Train(batch_size=4, steps=7), (7, 4)),
        (Train(batch_size="full", epochs=3), (3, 20)),
    ],
)
def test_what_a_client_has_to_do_is_known(train, work):
    order = Order(0, 0, {}, torch.empty(0), Merged(), None, train, 0)
    assert threads._work(Job(Method(), order, Visit(np.arange(20), 0), None)) == work
