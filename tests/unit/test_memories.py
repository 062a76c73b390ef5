"""What memories keep, and what they make of it."""

import pytest
import torch

from chronofed import CoreSet, Forget, Merged, Uniform
from chronofed.memories import Keepsake, Moment
from chronofed.types import Samples


def samples(n: int, label: int = 0) -> Samples:
    x = torch.arange(n, dtype=torch.float32)[:, None] + 100 * label
    return Samples(x, torch.full((n,), label))


def keepsake(round_: int, key: int, n: int) -> Keepsake:
    data = samples(n, key)
    return Keepsake(round_, 0, key, 2 * n, {"x": data.x, "y": data.y})


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_forget_keeps_and_recalls_nothing():
    memory = Forget()
    assert memory.observe(None, None, samples(5), generator()) == {}
    surrogate = memory.recall((), Merged(), Moment(3, 0, 5))
    assert surrogate.present == 1.0
    assert surrogate.replay is None


def test_core_set_draws_different_samples_without_repeats():
    record = CoreSet(4).observe(None, None, samples(10), generator())
    assert len(record["x"]) == len(set(record["x"].flatten().tolist())) == 4


def test_every_sample_is_as_likely():
    counts = torch.zeros(6)
    source = generator()
    for _ in range(3000):
        counts[CoreSet(2).observe(None, None, samples(6), source)["x"].flatten().long()] += 1
    assert (counts / 3000 - 2 / 6).abs().max() < 0.03


def test_a_small_data_set_is_kept_whole():
    record = CoreSet(100).observe(None, None, samples(3), generator())
    assert sorted(record["x"].flatten().tolist()) == [0, 1, 2]


def test_a_data_set_that_comes_back_replaces_what_was_kept():
    memory = CoreSet(2)
    kept = memory.retain((), [keepsake(0, 7, 2)], generator())
    kept = memory.retain(kept, [keepsake(1, 8, 2)], generator())
    kept = memory.retain(kept, [keepsake(5, 7, 3)], generator())
    assert [(k.round, k.key) for k in kept] == [(1, 8), (5, 7)]


def test_merged_weights_make_a_plain_union():
    kept = (keepsake(0, 1, 10), keepsake(1, 2, 30))
    surrogate = CoreSet().recall(kept, Merged(), Moment(2, 9, 60))
    assert surrogate.present == pytest.approx(0.6)
    assert torch.allclose(surrogate.replay.weight, torch.full((40,), 0.01).double())
    assert surrogate.replay.samples.y.tolist() == [1] * 10 + [2] * 30


def test_a_rounds_weight_is_shared_by_its_samples():
    kept = (keepsake(0, 1, 2), keepsake(1, 2, 4))
    surrogate = CoreSet().recall(kept, Uniform(), Moment(2, 9, 50))
    assert surrogate.present == pytest.approx(1 / 3)
    want = torch.tensor([1 / 6] * 2 + [1 / 12] * 4, dtype=torch.float64)
    assert torch.allclose(surrogate.replay.weight, want)


def test_what_is_present_needs_no_remembering():
    kept = (keepsake(0, 1, 10), keepsake(1, 2, 10))
    surrogate = CoreSet().recall(kept, Merged(), Moment(2, 1, 10))
    assert surrogate.present == 0.5
    assert set(surrogate.replay.samples.y.tolist()) == {2}
    alone = CoreSet().recall(kept[:1], Merged(), Moment(2, 1, 10))
    assert alone.present == 1.0
    assert alone.replay is None
