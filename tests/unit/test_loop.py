"""The main loop: averaging, ends, and what it refuses."""

import itertools

import pytest
import torch

from chronofed import Method, Snapshot, Subsets, Train, run
from chronofed.clients.messages import Result
from chronofed.core.errors import DivergedError, SpecError
from chronofed.scenarios import OneShot


class Canned:
    """Answers with fixed updates instead of training."""

    def __init__(self, *answers):
        self.client_states = {}
        self.answers = answers

    def map(self, method, orders, plan):
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
