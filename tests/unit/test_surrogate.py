"""Surrogates: what one local step sees of the past."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from chronofed.core.types import Batch, Samples
from chronofed.methods.surrogate import Pool, Quadratic, Surrogate, equal_weights


def samples(n: int, offset: int = 0) -> Samples:
    return Samples(torch.arange(offset, offset + n, dtype=torch.float64)[:, None], torch.arange(n))


def pool(*weights: float) -> Pool:
    return Pool(samples(len(weights)), torch.tensor(weights, dtype=torch.float64))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(n=st.integers(1, 40), size=st.integers(1, 50), seed=st.integers(0, 99))
def test_equal_weights_come_in_epochs_without_repeats(n, size, seed):
    batches = Pool(samples(n), torch.full((n,), 1 / n, dtype=torch.float64)).batches(
        size, generator(seed)
    )
    seen: list[int] = []
    while len(seen) < n:
        batch = next(batches)
        assert torch.isclose(batch.weight.sum(), torch.tensor(1.0, dtype=torch.float64))
        seen += batch.y.tolist()
    assert sorted(seen) == list(range(n))


def test_unequal_weights_are_met_on_average():
    batches = pool(0.1, 0.2, 0.7).batches(30, generator())
    total = torch.zeros(3, dtype=torch.float64)
    for _ in range(2000):
        batch = next(batches)
        total.index_add_(0, batch.y, batch.weight)
    assert torch.allclose(total / 2000, torch.tensor([0.1, 0.2, 0.7]).double(), atol=0.01)


def test_a_batch_weighs_what_the_pool_weighs():
    assert float(next(pool(0.2, 0.2).batches(1, generator())).weight.sum()) == 0.4
    assert float(next(pool(0.1, 0.3).batches(5, generator())).weight.sum()) == 0.4


def test_equal_weights_need_not_be_given():
    given, plain = Pool(samples(4), equal_weights(4, 0.6), even=0.6), Pool(samples(4), even=0.6)
    assert plain.weight.tolist() == given.weight.tolist() == [0.15] * 4
    assert plain.weight.dtype == torch.float64
    assert len(Pool([samples(4), samples(3)], even=1.0)) == 7
    ours, theirs = (p.draws(3, generator(1)) for p in (plain, given))
    for _ in range(5):
        torch.testing.assert_close(next(ours), next(theirs), rtol=0, atol=0)


def test_mini_batches_of_equal_size_and_weight_share_their_weights():
    first, second = (Surrogate().pool(samples(n)).draws(2, generator(n)) for n in (4, 9))
    assert next(first)[1] is next(second)[1]
    assert next(Surrogate(0.5).pool(samples(4)).draws(2, generator()))[1].tolist() == [0.25, 0.25]


def test_weights_that_are_shared_can_be_trained_with_wherever_they_were_made():
    with torch.inference_mode():
        weight = equal_weights(3, 0.123)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(x @ weight, x)
    assert gradient.tolist() == weight.tolist()


def test_present_and_past_are_joined_with_their_weights():
    past = Pool(samples(2, offset=10), torch.tensor([0.1, 0.3], dtype=torch.float64))
    joined = Surrogate(present=0.6, replay=past).pool(samples(3))
    assert joined.samples.x.flatten().tolist() == [0, 1, 2, 10, 11]
    assert torch.allclose(joined.weight, torch.tensor([0.2, 0.2, 0.2, 0.1, 0.3]).double())


def test_without_a_past_the_pool_is_the_present():
    joined = Surrogate().pool(samples(4))
    assert joined.weight.tolist() == [0.25] * 4
    assert len(joined) == 4


def test_the_quadratic_part_works_on_its_parameters_alone():
    grad, w = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 10.0, 100.0, 5.0])
    spans = (slice(0, 1), slice(2, 4))
    quadratic = Quadratic(
        spans,
        scale=(0.5, 0.0),
        linear=torch.tensor([7.0, 0.0, 1.0]),
        diagonal=torch.tensor([0.0, 0.1, 2.0]),
    )
    Surrogate(quadratic=quadratic).add_gradient_(grad, w)
    assert grad.tolist() == [7.5, 2.0, 10.0, 11.0]
    Surrogate().add_gradient_(grad, w)
    assert grad.tolist() == [7.5, 2.0, 10.0, 11.0]


def test_negative_weights_count_with_their_sign():
    batches = pool(0.8, -0.3, 0.5).batches(50, generator())
    total = torch.zeros(3, dtype=torch.float64)
    for _ in range(2000):
        batch = next(batches)
        total.index_add_(0, batch.y, batch.weight)
    assert torch.allclose(total / 2000, torch.tensor([0.8, -0.3, 0.5]).double(), atol=0.02)


def test_parts_cover_the_pool_once():
    parts = list(pool(0.1, 0.2, 0.3, 0.4, 0.5).parts(2))
    assert [len(p.y) for p in parts] == [2, 2, 1]
    assert torch.cat([p.weight for p in parts]).tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_shuffled_parts_cover_the_pool_once_in_a_fixed_order():
    one = pool(*(0.1 * k for k in range(1, 10)))
    parts = list(one.shuffled_parts(4, least=2))
    assert [len(p.y) for p in parts] == [4, 5]
    found = torch.cat([p.weight for p in parts])
    assert found.tolist() != one.weight.tolist()
    assert torch.equal(found.sort()[0], one.weight)
    again = torch.cat([p.weight for p in one.shuffled_parts(4)])
    assert torch.equal(found, again)


def test_mean_batch_weighs_one():
    batch = Batch.mean(samples(8))
    assert batch.weight.tolist() == [0.125] * 8


def test_pieces_are_joined_in_order_when_they_are_asked_for():
    first, second = samples(2), samples(3, offset=10)
    both = Pool([first, second], torch.full((5,), 0.2, dtype=torch.float64))
    assert both.pieces == (first, second)
    assert len(both) == 5
    assert both.samples.x.flatten().tolist() == [0, 1, 10, 11, 12]
    assert both.samples.y.tolist() == [0, 1, 0, 1, 2]
    assert both.samples is both.samples
    assert Pool(first, both.weight[:2]).samples is first


def test_a_replay_of_several_data_sets_is_not_copied_before_it_is_joined():
    past = Pool([samples(2), samples(1)], torch.ones(3, dtype=torch.float64))
    joined = Surrogate(replay=past).pool(samples(4))
    assert joined.pieces[1:] == past.pieces
    assert len(joined) == len(joined.samples) == 7
