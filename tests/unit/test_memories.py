"""What memories keep, and what they make of it."""

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chronofed import CoreSet, Forget, Generative, Merged, Method, Mlp, Optimal, Uniform, Window
from chronofed.core.errors import SpecError
from chronofed.core.types import Samples
from chronofed.methods.memories import MemoryItem, Moment
from chronofed.methods.memories.selection import herding
from chronofed.models.objective import CHUNK_SAMPLES, TorchObjective


def samples(n: int, label: int = 0) -> Samples:
    x = torch.arange(n, dtype=torch.float32)[:, None] + 100 * label
    return Samples(x, torch.full((n,), label))


def item(round_: int, key: int, n: int) -> MemoryItem:
    data = samples(n, key)
    return MemoryItem(round_, 0, key, 2 * n, {"x": data.x, "y": data.y})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
    kept = memory.retain((), [item(0, 7, 2)], generator())
    kept = memory.retain(kept, [item(1, 8, 2)], generator())
    kept = memory.retain(kept, [item(5, 7, 3)], generator())
    assert [(k.round, k.key) for k in kept] == [(1, 8), (5, 7)]


def test_merged_weights_make_a_plain_union():
    kept = (item(0, 1, 10), item(1, 2, 30))
    surrogate = CoreSet().recall(kept, Merged(), Moment(2, 9, 60))
    assert surrogate.present == pytest.approx(0.6)
    assert torch.allclose(surrogate.replay.weight, torch.full((40,), 0.01).double())
    assert surrogate.replay.samples.y.tolist() == [1] * 10 + [2] * 30


def test_a_rounds_weight_is_shared_by_its_samples():
    kept = (item(0, 1, 2), item(1, 2, 4))
    surrogate = CoreSet().recall(kept, Uniform(), Moment(2, 9, 50))
    assert surrogate.present == pytest.approx(1 / 3)
    want = torch.tensor([1 / 6] * 2 + [1 / 12] * 4, dtype=torch.float64)
    assert torch.allclose(surrogate.replay.weight, want)


def test_what_has_no_weight_is_not_replayed():
    kept = (item(0, 1, 10), item(1, 2, 30))
    surrogate = CoreSet().recall(
        kept, Optimal(time_drift_sq=0.0, information_loss_sq=1.0), Moment(2, 9, 60)
    )
    assert (surrogate.present, surrogate.replay) == (1.0, None)


def test_what_is_present_needs_no_remembering():
    kept = (item(0, 1, 10), item(1, 2, 10))
    surrogate = CoreSet().recall(kept, Merged(), Moment(2, 1, 10))
    assert surrogate.present == 0.5
    assert set(surrogate.replay.samples.y.tolist()) == {2}
    alone = CoreSet().recall(kept[:1], Merged(), Moment(2, 1, 10))
    assert alone.present == 1.0
    assert alone.replay is None


def test_an_empty_item_is_not_weighed():
    kept = (MemoryItem(0, 0, 1, 50, {}), item(1, 2, 10))
    surrogate = CoreSet().recall(kept, Uniform(), Moment(2, 9, 10))
    assert surrogate.present == 0.5


def test_generated_samples_are_replayed_like_real_ones():
    kept, moment = (item(0, 1, 10), item(1, 2, 30)), Moment(2, 1, 60)
    for weights in (Merged(), Uniform()):
        real, made = (m.recall(kept, weights, moment) for m in (CoreSet(), Generative()))
        assert made.present == real.present
        assert torch.equal(made.replay.weight, real.replay.weight)
        assert torch.equal(made.replay.samples.x, real.replay.samples.x)


def test_positions_are_kept_where_they_are_known():
    rows = torch.tensor([7, 3, 9, 4])
    record = CoreSet(2).observe(None, None, Samples(rows[:, None], rows, rows), generator())
    assert set(record) == {"x", "y", "rows"}
    assert torch.equal(record["rows"], record["y"])
    assert set(CoreSet(2).observe(None, None, samples(4), generator())) == {"x", "y"}


# --- herding -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network():
    """A network, and more samples than it is shown at once."""
    objective = TorchObjective(Mlp((7, 4)).build((5,), 3))
    data = Samples(
        torch.randn(CHUNK_SAMPLES + 9, 5, generator=generator()),
        torch.arange(CHUNK_SAMPLES + 9) % 2 + 1,
    )
    return objective, objective.flat.read(), data


def by_hand(module: nn.Module, x: torch.Tensor, layer: str) -> torch.Tensor:
    """What a layer sees, without hooks."""
    hidden = x
    with torch.no_grad():
        for name, part in module.features.named_children():
            if f"features.{name}" == layer:
                return hidden
            hidden = part(hidden)
    return hidden


@pytest.mark.parametrize("layer", [None, "fc", "features.fc2", "features.relu1", "features.fc1"])
def test_features_are_what_a_layer_sees(network, layer):
    objective, params, data = network
    got = objective.features(params, data.x, layer)
    want = by_hand(objective.flat.module, data.x, layer or "fc")
    torch.testing.assert_close(
        got, want, rtol=0, atol=1e-6
    )  # parts of a batch, so not the same bits
    assert not objective.flat.module.fc._forward_pre_hooks


def test_features_of_a_picture_are_one_vector(network):
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    objective = TorchObjective(module)
    x = torch.randn(3, 1, 4, 4, generator=generator())
    assert objective.features(objective.flat.read(), x, "1").shape == (3, 8)
    assert torch.equal(objective.features(objective.flat.read(), x, "0"), x.flatten(1))


class Twice(nn.Module):
    """One layer used twice, another never."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.never, self.conv = nn.Linear(2, 2), nn.Linear(2, 2), nn.Conv1d(1, 1, 1)

    def forward(self, x):
        return self.again(self.again(x))


def test_a_layer_that_is_used_twice_counts_once_and_one_never_used_is_refused():
    objective = TorchObjective(Twice())
    params, x = objective.flat.read(), torch.randn(5, 2, generator=generator())
    assert torch.equal(objective.features(params, x, "again"), x)
    with pytest.raises(SpecError, match="has a layer 'never', but never calls it"):
        objective.features(params, x, "never")


def test_a_model_without_a_linear_layer_must_name_another():
    objective = TorchObjective(nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten()))
    params, x = objective.flat.read(), torch.randn(5, 1, 1, generator=generator())
    assert objective.features(params, x, "1").shape == (5, 2)
    with pytest.raises(SpecError, match="no linear layer: name another; its layers are 0, 1"):
        objective.features(params, x)


def test_herding_uses_the_features_of_the_layer_asked_for(network):
    objective, params, data = network
    for layer in (None, "features.fc1"):
        want = herding(by_hand(objective.flat.module, data.x, layer or "fc"), data.y, 20)
        record = CoreSet(20, "herding", layer=layer).observe(objective, params, data, generator())
        assert torch.equal(record["x"], data.x[want])
    assert record["y"].bincount().tolist() == [0, 10, 10]


def test_a_wrong_layer_names_the_right_ones(network, train_for):
    with pytest.raises(SpecError) as caught:
        train_for(Method(memory=CoreSet(select="herding", layer="fc9")), 1)
    assert str(caught.value) == (
        "method.memory.layer: the model has no layer 'fc9'; "
        "its layers are scale, features, features.flatten, fc"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"layer": "fc"},
            "CoreSet.layer: only select = 'herding' uses features, not 'uniform'",
        ),
        (
            {"select": "reservoir", "limit": 9},
            "CoreSet.limit: a reservoir is one sample, of size 100,",
        ),
        ({"select": "reservoir", "keep_rounds": 9}, "CoreSet.keep_rounds: a reservoir is one"),
        ({"select": "best"}, "CoreSet.select: "),
        ({"limit": 0}, "CoreSet.limit: "),
    ],
)
def test_settings_that_do_not_fit_together(settings, message):
    with pytest.raises(ValueError, match=message):
        CoreSet(**settings)


# --- limit and keep_rounds ---------------------------------------------------------------------------


def visits(memory: CoreSet, *sizes: int, seed: int = 0) -> tuple[MemoryItem, ...]:
    """What is kept after a visit a round, each with a data set of its own; y is the key."""
    kept, source = (), generator(seed)
    for round_, n in enumerate(sizes):
        record = memory.observe(None, None, samples(n, round_), source)
        kept = memory.retain(kept, [MemoryItem(round_, 0, round_, n, record)], source)
    return kept


def lengths(kept) -> list[int]:
    return [len(k.record.get("y", ())) for k in kept]


def test_without_a_limit_nothing_shrinks():
    assert lengths(visits(CoreSet(10), 20, 5, 20)) == [10, 5, 10]


def test_shares_shrink_equally_and_the_rest_falls_to_the_latest():
    assert lengths(visits(CoreSet(10, limit=25), 20, 20)) == [10, 10]
    assert lengths(visits(CoreSet(10, limit=25), 20, 20, 20)) == [8, 8, 9]
    assert lengths(visits(CoreSet(10, limit=25), 20, 3, 20, 20)) == [7, 3, 7, 8]


def test_with_more_data_sets_than_the_limit_the_latest_keep_one_each():
    kept = visits(CoreSet(10, limit=3), 20, 20, 20, 20, 20)
    assert [(k.key, len(k.record["y"])) for k in kept] == [(2, 1), (3, 1), (4, 1)]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 10), st.integers(1, 30)
)
def test_the_limit_holds_and_is_used(sizes, size, limit):
    got = lengths(visits(CoreSet(size, limit=limit), *sizes))
    asked = sum(min(size, n) for n in sizes)
    assert sum(got) == min(limit, asked)
    cut = [n for n, full in zip(got[::-1], sizes[::-1], strict=False) if n < min(size, full)]
    assert not cut or max(got) - min(cut) <= 1


def test_samples_that_go_are_random_ones():
    counts = torch.zeros(6)
    for seed in range(1000):
        kept = visits(CoreSet(4, limit=4), 6, 6, seed=seed)
        counts[kept[0].record["x"].flatten().long()] += 1
    assert (counts / 1000 - 2 / 6).abs().max() < 0.06


def test_herding_drops_its_last_choices(network):
    objective, params, data = network
    memory = CoreSet(10, "herding", limit=12)
    record = memory.observe(objective, params, data, generator())
    kept = ()
    for key in range(2):
        kept = memory.retain(kept, [MemoryItem(key, 0, key, len(data), record)], generator())
    for k in kept:
        assert torch.equal(k.record["x"], record["x"][:6])


def test_what_is_too_old_is_not_replayed_and_then_removed():
    memory = CoreSet(2, keep_rounds=3)
    kept = (item(0, 1, 2), item(4, 2, 2))
    replayed = [
        sorted(set(memory.recall(kept, Merged(), Moment(now, 9, 2)).replay.samples.y.tolist()))
        for now in (3, 4, 7)
    ]
    assert replayed == [[1, 2], [2], [2]]
    assert memory.recall(kept, Merged(), Moment(8, 9, 2)).replay is None
    assert [k.key for k in memory.retain(kept, [item(7, 3, 2)], generator())] == [2, 3]
    assert [k.key for k in memory.retain(kept, [item(8, 3, 2)], generator())] == [3]


def test_nothing_older_than_asked_for_is_in_any_locker(train_for):
    last = train_for(Method(memory=CoreSet(5, keep_rounds=2)), 9)
    assert {
        k.round for client_state in last.client_states.values() for k in client_state.items
    } == {
        6,
        7,
        8,
    }


# --- reservoir ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "size"), [((7, 1, 4, 12), 5), pytest.param((3, 3, 3, 3), 1, marks=pytest.mark.slow)]
)
def test_a_reservoir_is_a_uniform_sample_of_all_that_was_seen(sizes, size):
    """Every sample has the same chance, and so has every pair."""
    n, first, runs = sum(sizes), torch.tensor([0, *sizes]).cumsum(0), 1500
    inside = torch.zeros(runs, n, dtype=torch.float64)
    for seed in range(runs):
        for k in visits(CoreSet(size, "reservoir"), *sizes, seed=seed):
            if k.record:
                inside[seed, first[k.key] + k.record["x"].flatten().long() - 100 * k.key] = 1
    assert (inside.sum(1) == size).all()
    assert (inside.mean(0) - size / n).abs().max() < 0.045  # 4.3 standard errors
    pairs = (inside.T @ inside / runs).fill_diagonal_(0)[~torch.eye(n, dtype=torch.bool)]
    assert (pairs - size * (size - 1) / (n * (n - 1))).abs().max() < 0.02


def test_a_reservoir_takes_all_until_it_is_full():
    assert lengths(visits(CoreSet(20, "reservoir"), 7, 1, 4)) == [7, 1, 4]
    assert sum(lengths(visits(CoreSet(20, "reservoir"), 7, 1, 4, 12, 30))) == 20


def test_a_data_set_that_comes_back_is_not_counted_again():
    memory = CoreSet(6, "reservoir")
    kept = visits(memory, 10, 10, 10)
    again = MemoryItem(7, 0, 1, 10, memory.observe(None, None, samples(10, 1), generator(5)))
    after = memory.retain(kept, [again], generator(5))
    assert [(k.round, k.key) for k in after] == [(0, 0), (2, 2), (7, 1)]
    held = {k.key: k.record for k in kept}
    assert all(k.record is held[k.key] for k in after)


def test_data_sets_that_have_nothing_left_are_still_counted(network):
    kept = visits(CoreSet(1, "reservoir"), 5, 5, 5)
    assert sorted(lengths(kept)) == [0, 0, 1]
    assert sum(k.size for k in kept) == 15
    objective, params, _ = network
    (empty, *_) = [k for k in kept if not k.record]
    spans, gradient = CoreSet(1, "reservoir").approximate(objective, params, empty)
    assert (spans, gradient.tolist()) == ((slice(0, len(params)),), [0.0] * len(params))


def test_places_of_deleted_samples_are_given_away_fairly():
    """After a deletion, what was there before and what comes later have the same chances."""
    memory, runs = CoreSet(4, "reservoir"), 1500
    counts = torch.zeros(20, dtype=torch.float64)
    for seed in range(runs):
        (kept,) = visits(memory, 10, seed=seed)
        stay = kept.record["x"].flatten() >= 5  # half of the data are deleted
        left = {name: tensor[stay] for name, tensor in kept.record.items()} if stay.any() else {}
        kept = MemoryItem(0, 0, 0, 10, left)
        source = generator(seed + runs)
        record = memory.observe(None, None, samples(10, 1), source)
        for k in memory.retain((kept,), [MemoryItem(1, 0, 1, 10, record)], source):
            if k.record:
                counts[(k.record["x"].flatten() - 90 * k.key).long()] += 1
    assert counts[:5].sum() == 0
    assert (counts[5:] / runs - 4 / 20).abs().max() < 0.045


def test_a_reservoir_in_a_run_holds_as_many_as_asked_for(train_for, scenario, data):
    last = train_for(Method(memory=CoreSet(12, "reservoir")), 12)
    for client, client_state in last.client_states.items():
        records = [k.record for k in client_state.items if k.record]
        rows = torch.cat([record["rows"] for record in records])
        seen = {scenario.at(t).visits[client].key for t in range(12)}
        assert len(rows) == len(set(rows.tolist())) == 12
        assert {k.key for k in client_state.items} == seen
        assert torch.equal(torch.cat([r["x"] for r in records]), data.train.x[rows])


@pytest.mark.parametrize("select", ["uniform", "herding", "reservoir", "balanced"])
def test_every_selection_replays_and_resumes(select, train_for, data):
    world = Window(clients=3, subsets=20, client_alpha=1.0).on(data, seed=0)
    method = Method(memory=CoreSet(8, select))
    straight = train_for(method, 8, scenario=world)
    half = train_for(method, 4, scenario=world)
    resumed = train_for(method, 8, scenario=world, start=half)
    assert torch.equal(resumed.params, straight.params)
    forgetful = train_for(msgspec.structs.replace(method, memory=Forget()), 8, scenario=world)
    assert not torch.equal(straight.params, forgetful.params)
