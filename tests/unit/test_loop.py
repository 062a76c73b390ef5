"""The main loop: averaging, ends, and what it refuses."""

import itertools
from dataclasses import replace

import pytest
import torch

from chronofed import Adaptive, FedAvg, Forget, Method, Mime, Snapshot, Subsets, Taylor, Train, run
from chronofed.clients.deletion import Deletion
from chronofed.clients.messages import Result
from chronofed.core.errors import DivergedError, SpecError
from chronofed.methods.memories import MemoryItem
from chronofed.scenarios import OneShot


class Canned:
    """Answers with fixed updates instead of training."""

    def __init__(self, *answers):
        self.client_states = {}
        self.answers = answers

    def map(self, method, orders, plan):
        self.orders = orders
        return iter(self.answers)


def answer(client: int, size: int, delta: float, buffer: float) -> Result:
    return Result(client, 0, size, {"delta": torch.full((18,), delta)}, torch.tensor([buffer]))


def one_round(method, task, scenario, *answers) -> Snapshot:
    return next(run(method, scenario, task, engine=Canned(*answers)))


def test_clients_count_by_samples_or_equally(task, scenario):
    start = task.initial(0)[0]
    answers = answer(0, 10, 1.0, 4.0), answer(1, 30, 5.0, 8.0)
    by_samples = one_round(Method(), task, scenario, *answers)
    torch.testing.assert_close(by_samples.params, start + 4.0)
    assert by_samples.buffers.tolist() == [7.0]
    equally = one_round(Method(average="clients"), task, scenario, *answers)
    torch.testing.assert_close(equally.params, start + 3.0)
    assert equally.buffers.tolist() == [6.0]


def test_numbers_that_are_not_finite_stop_the_run(task, scenario):
    with pytest.raises(
        DivergedError, match=r"round 0: the model is no longer finite; try a smaller"
    ):
        one_round(Method(), task, scenario, answer(0, 1, float("nan"), 0.0))


def test_runs_for_ever_if_nothing_ends_it(task, scenario):
    rounds = [s.round for s in itertools.islice(run(Method(), scenario, task), 5)]
    assert rounds == [1, 2, 3, 4, 5]


def test_ends_with_the_scenario(task, data):
    world = Subsets(clients=4, subsets=2, membership=OneShot(per_round=2)).on(data, seed=0)
    assert [s.round for s in run(Method(), world, task)] == [1, 2]


def test_refuses_more_rounds_than_there_are_before_the_first(task, data):
    world = Subsets(clients=4, subsets=2, membership=OneShot(per_round=2)).on(data, seed=0)
    with pytest.raises(SpecError, match=r"the scenario ends after 2 rounds, but 3 are requested"):
        run(Method(), world, task, rounds=3)


def test_the_initial_model_depends_on_the_seed_alone(task):
    torch.manual_seed(1)
    first = task.initial(5)[0]
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(first, task.initial(5)[0])
    assert not torch.equal(first, task.initial(6)[0])
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's randomness is touched


def test_threads_are_given_back(task, scenario):
    before = torch.get_num_threads()
    next(run(Method(), scenario, task, train=Train(steps=1)))
    assert torch.get_num_threads() == before


def taylor_item(client: int, size: int) -> MemoryItem:
    record = {
        "linear": torch.ones(18),
        "diagonal": torch.zeros(18),
        "spans": torch.tensor([[0, 18]]),
        "strength": torch.ones(1, dtype=torch.float64),
    }
    return MemoryItem(0, client, 0, size, record)


def with_past(task, *items: MemoryItem) -> Snapshot:
    params, buffers = task.initial(0)
    return Snapshot(1, {"params": params}, buffers, past=items)


def test_the_present_counts_as_much_as_a_usual_data_set_for_the_server(task, scenario):
    """Of 10, 30 and a present of about 20 samples, the past has two thirds."""
    engine = Canned(answer(0, 10, 1.0, 4.0))
    start = with_past(task, taylor_item(0, 10), taylor_item(1, 30))
    next(run(Method(memory=Taylor()), scenario, task, engine=engine, start=start))
    (quadratic,) = {id(order.past): order.past.quadratic for order in engine.orders}.values()
    assert quadratic.scale == (pytest.approx(1 / 3),)
    assert quadratic.linear.tolist() == pytest.approx([2 / 3] * 18)


def test_the_server_forgets_the_items_of_deleted_clients(task, scenario):
    start = with_past(task, taylor_item(0, 10), taylor_item(1, 30), taylor_item(2, 20))
    engine, gone = Canned(answer(0, 10, 1.0, 4.0)), [Deletion(1, clients=(1,))]
    after = next(
        run(Method(memory=Taylor()), scenario, task, engine=engine, start=start, deletions=gone)
    )
    assert [item.client for item in after.past] == [0, 2]


def test_an_extra_exchange_is_traffic_too(task, scenario):
    """Both exchanges send a vector up and the server's vectors down; the second one also the control."""
    gradient = Result(0, 0, 10, {"gradient": torch.ones(18)}, torch.zeros(0))
    delta = Result(0, 0, 10, {"delta": torch.ones(18)}, torch.zeros(0))

    class TwoExchanges(Canned):
        def prepare(self, method, orders, plan):
            self.first = orders
            return [gradient]

    engine = TwoExchanges(delta)
    after = next(run(Method(Mime()), scenario, task, engine=engine))
    vector = 4 * 18
    assert after.traffic.up_bytes == 2 * vector
    clients = len(engine.orders)
    vectors = [len(orders[0].server) for orders in (engine.first, engine.orders)]
    assert vectors == [2, 3]
    assert after.traffic.down_bytes == clients * sum(vectors) * vector


def test_weights_that_learn_are_told_the_round(task, scenario):
    report = {"gradient": torch.ones(3), "information_loss_sq": torch.zeros(())}
    engine = Canned(replace(answer(0, 10, 1.0, 4.0), probe=report))
    start = with_past(task)
    method = Method(FedAvg(), Forget(), Adaptive())
    start = replace(start, round=7, weighting_state=method.weights.init())
    after = next(run(method, scenario, task, engine=engine, start=start))
    assert after.weighting_state["visits"].tolist() == [[7, 0]]
