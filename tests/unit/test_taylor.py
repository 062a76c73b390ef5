"""The Taylor memory: what it keeps of which layers, what the server makes of it, what travels."""

import tomllib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from chronofed import (
    Classification,
    Exact,
    Fisher,
    Forget,
    Hutchinson,
    Linear,
    Merged,
    Method,
    Mlp,
    Optimal,
    ResNet18,
    SquaredGradient,
    Stateless,
    Taylor,
    Uniform,
)
from chronofed.clients.messages import Order
from chronofed.core.errors import SpecError
from chronofed.core.flat import take
from chronofed.core.spec_io import from_table
from chronofed.core.types import Batch, Samples
from chronofed.methods.memories import Memory, MemoryItem, Moment
from chronofed.methods.memories.curvature import MeanLoss
from chronofed.methods.weighting import Fixed, Timeline
from chronofed.models.objective import TorchObjective
from chronofed.runs.spec import Experiment
from chronofed.training.traffic import Traffic

EVERYTHING = {"*": 1.0}
SPANS = (slice(1, 3), slice(3, 4))  # of 5 parameters
STRENGTHS = (0.1, 1.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def record(g, h, w) -> dict[str, torch.Tensor]:
    """What the memory keeps of an expansion with gradient g and curvature h around w."""
    return {
        "linear": g - h * w,
        "diagonal": h,
        "spans": torch.tensor([[span.start, span.stop] for span in SPANS]),
        "strength": torch.tensor(STRENGTHS, dtype=torch.float64),
    }


def items(count: int, clients: int = 4, seed: int = 0) -> tuple[MemoryItem, ...]:
    """Records of so many clients, several a round, oldest first."""
    numbers = normal(count, 3, 3, seed=seed)
    return tuple(
        MemoryItem(k // clients, k % clients, 0, 10 + k, record(g, h.abs(), w))
        for k, (g, h, w) in enumerate(numbers)
    )


# What is kept


def objective(settings, shape=(5,), classes=3) -> TorchObjective:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return TorchObjective(settings.build(shape, classes).double())


def samples(shape=(5,), classes=3, n=12) -> Samples:
    return Samples(normal(n, *shape), torch.randint(classes, (n,), generator=generator()))


def observed(memory: Memory, one: TorchObjective, data: Samples):
    return memory.observe(one, one.flat.read(), data, generator())


@pytest.mark.parametrize("curvature", [Fisher(), SquaredGradient(), Hutchinson(), Exact()], ids=str)
def test_keeps_the_expansion_around_the_end_of_training(curvature):
    one, data = objective(Mlp((4,))), samples()
    kept = observed(Taylor(curvature, EVERYTHING), one, data)
    w = one.flat.read()
    everything = (slice(0, len(w)),)
    _, h = curvature.expand(MeanLoss(one, w, data, everything), generator())
    g = one.loss_gradient(w, Batch.mean(data), everything)
    assert torch.equal(kept["diagonal"], h)
    torch.testing.assert_close(kept["linear"] + h * w, g, rtol=0, atol=1e-14)
    torch.testing.assert_close(
        kept["linear"] + h * (w + 1), g + h, rtol=0, atol=1e-14
    )  # one step away the curvature counts


def test_on_an_mlp_the_last_layer_alone_is_remembered():
    one = objective(Mlp((4, 6)))
    kept = observed(Taylor(), one, samples())
    names = one.names
    assert kept["spans"].tolist() == [[names["fc.weight"].start, names["fc.bias"].stop]]
    assert kept["strength"].tolist() == [1.0]
    assert len(kept["linear"]) == len(kept["diagonal"]) == 7 * 3


def test_on_a_resnet_the_last_block_is_remembered_a_little():
    """Spans, sizes, and the gradient with the statistics in use, which stay as they are."""
    one, data = objective(ResNet18(4), (3, 8, 8), 5), samples((3, 8, 8), 5)
    w = one.flat.read()
    one.gradient(w, Batch.mean(data))  # statistics of its own
    before = one.buffers
    kept = observed(Taylor(Fisher()), one, data)
    block = [span for name, span in one.names.items() if name.startswith("layer4.")]
    first, middle = block[0].start, one.names["fc.weight"].start
    assert kept["spans"].tolist() == [[first, middle], [middle, len(w)]]
    assert kept["strength"].tolist() == [0.1, 1.0]
    assert torch.equal(one.buffers, before)
    one.flat.module.eval()
    loss = functional.cross_entropy(one.flat.module(data.x), data.y)
    gradient = one.flat.gradient(loss)[first:]
    torch.testing.assert_close(
        kept["linear"] + kept["diagonal"] * w[first:], gradient, rtol=0, atol=1e-12
    )


def test_the_first_pattern_that_matches_counts():
    one = objective(Mlp((4, 6)))
    names = one.names
    layers = {"features.fc1.*": 0.0, "*.bias": 0.5, "features.*": 0.25, "fc.weight": 0.5}
    kept = observed(Taylor(SquaredGradient(), layers), one, samples())
    second, bias = names["features.fc2.weight"], names["features.fc2.bias"]
    # A bias, fc.weight and fc.bias are neighbours of equal strength.
    want = [[second.start, second.stop], [bias.start, names["fc.bias"].stop]]
    assert kept["spans"].tolist() == want
    assert kept["strength"].tolist() == [0.25, 0.5]


def test_a_gap_separates_neighbours_of_equal_strength():
    one = objective(Mlp((4, 6)))
    names = one.names
    kept = observed(Taylor(SquaredGradient(), {"*.bias": 1.0}), one, samples())
    want = [[s.start, s.stop] for name, s in names.items() if name.endswith("bias")]
    assert kept["spans"].tolist() == want
    assert len(want) == 3


def test_no_strength_keeps_nothing():
    assert observed(Taylor(layers={"*": 0.0}), objective(Linear()), samples()) == {}


def test_a_model_in_which_nothing_matches_is_refused_with_its_names():
    message = r"layers: no .* matches head.\*, layer4.\*; its parameters are fc.weight, fc.bias"
    with pytest.raises(SpecError, match=message):
        observed(Taylor(layers={"head.*": 1.0, "layer4.*": 0.1}), objective(Linear()), samples())


# What the server keeps


def test_the_latest_records_stay_and_a_data_set_that_comes_back_adds_one():
    memory, kept = Taylor(buffer=40), ()
    every = items(58, clients=7)  # all of the same data set of each client
    for t in range(9):
        kept = memory.retain(kept, [k for k in every if k.round == t], generator())
        assert kept == every[: 7 * (t + 1)][-40:]
    assert len(kept) == 40


def test_rounds_are_merged_by_the_mean_weighted_by_size():
    memory, kept = Taylor(buffer=2, unit="rounds"), ()
    every = items(12, clients=3)
    for t in range(4):
        kept = memory.retain(kept, [k for k in every if k.round == t], generator())
    assert [k.round for k in kept] == [2, 3]
    *_, a, b, c = every
    assert (a.size, b.size, c.size) == (19, 20, 21)
    for name in ("linear", "diagonal"):
        want = (19 * a.record[name] + 20 * b.record[name] + 21 * c.record[name]) / 60
        torch.testing.assert_close(kept[-1].record[name], want, rtol=0, atol=1e-14)
    assert torch.equal(kept[-1].record["spans"], a.record["spans"])
    assert torch.equal(kept[-1].record["strength"], a.record["strength"])
    assert kept[-1].size == 60
    assert kept[-1].client == kept[-1].key == -1


def test_a_merged_round_counts_as_its_records_did():
    every = items(12, clients=3)
    memory, kept = Taylor(unit="rounds"), ()
    for t in range(4):
        kept = memory.retain(kept, [k for k in every if k.round == t], generator())
    moment = Moment(4, None, 50)
    merged, single = (memory.recall(k, Merged(), moment).quadratic for k in (kept, every))
    torch.testing.assert_close(merged.linear, single.linear)
    torch.testing.assert_close(merged.diagonal, single.diagonal)
    assert merged.scale == pytest.approx(single.scale)


# What clients get


def naive(kept, p_past, p_now, mode, present, w):
    """Present and past, term by term: the paper's sum."""
    grad, start = present.clone(), 0
    for span, beta in zip(SPANS, STRENGTHS, strict=True):
        part = slice(start, start + span.stop - span.start)
        past = torch.zeros_like(w[span])
        for k, p in zip(kept, p_past, strict=True):
            share = p if mode == "theory" else p / (1 - p_now)
            past += share * (k.record["linear"][part] + k.record["diagonal"][part] * w[span])
        scale = 1 - beta * (1 - p_now) if mode == "theory" else 1.0
        grad[span] = scale * present[span] + beta * past
        start = part.stop
    return grad


@pytest.mark.parametrize("mode", ["theory", "practice"])
@given(count=st.integers(1, 40), seed=st.integers(0, 999), fixed=st.floats(0, 0.9))
def test_the_collapsed_sum_is_the_naive_one(mode, count, seed, fixed):
    kept = items(count, seed=seed)
    w, present = normal(5, seed=seed + 1), normal(5, seed=seed + 2)
    for weights in (Merged(), Fixed(fixed), Optimal(time_drift_sq=1.0, information_loss_sq=fixed)):
        surrogate = Taylor(mode=mode).recall(kept, weights, Moment(99, None, 30))
        assert surrogate.present == 1.0
        assert surrogate.replay is None
        got = present.clone()
        surrogate.add_gradient_(got, w)
        p = weights(Timeline(tuple(k.round for k in kept), tuple(k.size for k in kept), 99, 30))
        want = naive(kept, p[:-1].tolist(), float(p[-1]), mode, present, w)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def signed_items(diagonals) -> tuple[MemoryItem, ...]:
    """Records with g = 1, 2, ... around w = 10, 20, ..., one a round, each with the curvatures given."""
    found = []
    for k, diagonal in enumerate(diagonals):
        g, w = (torch.full((3,), factor * (k + 1.0)).double() for factor in (1, 10))
        h = torch.tensor(diagonal).double()
        found.append(MemoryItem(k, 0, k, 10, {**record(g, h, w), "gradient": g}))
    return tuple(found)


def test_the_sum_of_curvatures_is_clamped_and_no_single_one():
    """p = 1/4, 1/4, 1/2: -2 and 6 sum to 1, 2 and -6 to -1, which counts as 0 with gradient 3/4."""
    kept = signed_items([[-2.0, 2.0, 2.0], [6.0, -6.0, 2.0]])
    past = Taylor().recall(kept, Fixed(0.5), Moment(2, None, 10)).quadratic
    strength = torch.tensor([0.1, 0.1, 1.0], dtype=torch.float64)
    # a = sum of p (g - h w): (1 + 20 + 2 - 120)/4, then the gradients alone, then (1 - 20 + 2 - 40)/4
    want = torch.tensor([[-97 / 4, 3 / 4, -57 / 4], [1.0, 0.0, 1.0]]).double() * strength
    torch.testing.assert_close(torch.stack([past.linear, past.diagonal]), want, rtol=0, atol=1e-14)
    free = Taylor(clamp=False).recall(
        tuple(
            replace(k, record={n: t for n, t in k.record.items() if n != "gradient"}) for k in kept
        ),
        Fixed(0.5),
        Moment(2, None, 10),
    )
    assert float(free.quadratic.diagonal[1]) == pytest.approx(-0.1)
    rounds = Taylor(unit="rounds")
    merged = rounds.retain((), [replace(k, round=0) for k in kept], generator())
    once = rounds.recall(merged, Fixed(0.5), Moment(2, None, 10)).quadratic
    torch.testing.assert_close(once.linear, past.linear)
    torch.testing.assert_close(once.diagonal, past.diagonal)


def test_forty_noisy_records_sum_to_the_curvature():
    """Clamped one by one they would sum to four times as much."""
    one, memory = objective(Mlp((20,)), (10,), 10), Taylor(layers=EVERYTHING)
    w, n = one.flat.read(), 1200
    data = Samples(normal(n, 10), torch.randint(10, (n,), generator=generator()))
    # The exact diagonal of a ReLU network is its Fisher information with labels of its own.
    chances = one.logits(w, data.x).softmax(1).clone()
    own = Batch(data.x.repeat_interleave(10, 0), torch.arange(10).repeat(n), chances.flatten() / n)
    exact = one.squared_gradients(w, own, (slice(0, len(w)),))
    parts = [data[part] for part in torch.arange(n).split(30)]
    records = [memory.observe(one, w, part, generator(k)) for k, part in enumerate(parts)]
    kept = tuple(MemoryItem(k, k, 0, 30, record) for k, record in enumerate(records))
    summed = memory.recall(kept, Fixed(0.0), Moment(40, None, 30)).quadratic.diagonal
    assert summed.min() == 0
    assert 1 < summed.sum() / exact.sum() < 1.3
    one_by_one = sum(record["diagonal"].clamp(min=0) for record in records) / 40
    assert one_by_one.sum() / exact.sum() > 3.5


@pytest.mark.parametrize("curvature", [Fisher(), SquaredGradient(), Hutchinson(), Exact()], ids=str)
@pytest.mark.parametrize("clamp", [True, False])
def test_a_third_vector_is_kept_only_where_clamping_needs_it(curvature, clamp):
    kept = observed(Taylor(curvature, clamp=clamp), objective(Linear()), samples())
    signed = isinstance(curvature, Hutchinson | Exact)
    assert ("gradient" in kept) is (clamp and signed)


def test_by_hand():
    """One record, g = 3 + 2 (w - 1) on parameter 3 with strength 1; p = (1/4, 3/4)."""
    three, two = torch.full((3,), 3.0).double(), torch.full((3,), 2.0).double()
    kept = (MemoryItem(0, 0, 0, 10, record(three, two, torch.ones(3).double())),)
    w = torch.tensor([9.0, 1.0, 9.0, 6.0, 9.0], dtype=torch.float64)
    grad = torch.full((5,), 8.0).double()
    Taylor().recall(kept, Fixed(0.75), Moment(1, None, 10)).add_gradient_(grad, w)
    # parameter 1: (1 - 0.1/4) 8 + 0.1/4 * 3; parameter 3: 3/4 * 8 + 1/4 (3 + 2 * 5)
    assert grad.tolist() == pytest.approx([8, 7.875, 8 - 0.2 + 0.475, 9.25, 8], abs=1e-14)
    grad = torch.full((5,), 8.0).double()
    practice = Taylor(mode="practice").recall(kept, Fixed(0.75), Moment(1, None, 10))
    practice.add_gradient_(grad, w)
    assert grad.tolist() == pytest.approx([8, 8.3, 8 + 1.9, 8 + 13, 8], abs=1e-14)


def test_weights_are_asked_about_what_is_recalled():
    asked = []

    def weights(timeline):
        asked.append(timeline)
        return Uniform()(timeline)

    Taylor().recall(items(5, clients=2), weights, Moment(7, None, 33))
    (timeline,) = asked
    assert timeline.rounds == (0, 0, 1, 1, 2)
    assert timeline.sizes == (10, 11, 12, 13, 14)
    assert (timeline.now, timeline.size) == (7, 33)


@pytest.mark.parametrize("mode", ["theory", "practice"])
def test_no_past_or_one_without_weight_is_the_present_alone(mode):
    memory, moment = Taylor(mode=mode), Moment(3, None, 10)
    assert memory.recall((), Merged(), moment).quadratic is None
    assert memory.recall(items(4), Fixed(1.0), moment).quadratic is None
    assert (
        memory.recall(
            items(4), Optimal(time_drift_sq=0.0, information_loss_sq=1.0), moment
        ).quadratic
        is None
    )


def test_weights_of_both_signs():
    """A mean needs weights with a sum: without one, practice has no past."""

    def signed(timeline):
        return np.array([0.5, -0.5, 1.0])

    kept, moment = items(2), Moment(3, None, 10)
    theory = Taylor().recall(kept, signed, moment).quadratic
    assert theory.scale == (1.0, 1.0)
    difference = (kept[0].record["diagonal"] - kept[1].record["diagonal"])[2]
    assert float(theory.diagonal[2]) == pytest.approx(0.5 * float(difference))
    assert Taylor(mode="practice").recall(kept, signed, moment).quadratic is None


def test_recalling_leaves_what_is_kept_alone():
    kept = items(3)
    copies = [{name: t.clone() for name, t in k.record.items()} for k in kept]
    Taylor().recall(kept, Merged(), Moment(3, None, 10))
    for k, copy in zip(kept, copies, strict=True):
        assert all(torch.equal(k.record[name], copy[name]) for name in copy)


def test_approximation_of_one_keepsake():
    g, h, w = normal(3, 3)
    params = normal(5, seed=4)
    item = MemoryItem(0, 0, 0, 10, record(g, h, w))
    spans, gradient = Taylor().approximate(None, params, item)
    assert spans == SPANS
    torch.testing.assert_close(gradient, g + h * (take(params, SPANS) - w), rtol=0, atol=1e-14)


def test_what_travels_does_not_grow_with_what_is_kept():
    def down(count: int) -> int:
        past = Taylor().recall(items(count), Merged(), Moment(99, None, 10))
        server = {"params": normal(5)}
        order = Order(99, 0, server, torch.empty(0), Merged(), past, None, 0)
        return Traffic().after([order], []).down_bytes

    assert down(5) == down(40) == 5 * 8 + 2 * 3 * 8 + 2 * 3 * 8  # model, vectors, spans


def test_orders_that_differ_are_counted_each_as_it_is():
    past = Taylor().recall(items(5), Merged(), Moment(99, None, 10))
    servers = {"params": normal(5)}, {"params": normal(7)}
    orders = [
        Order(0, client, server, torch.empty(buffers), Merged(), some, None, 0)
        for client, (server, buffers, some) in enumerate(
            [
                (servers[0], 0, None),
                (servers[0], 0, past),
                (servers[1], 3, None),
                (servers[1], 0, None),
            ]
        )
    ]
    alone = [Traffic().after([order], []).down_bytes for order in orders]
    assert alone == [40, 136, 56 + 12, 56]
    assert Traffic(1, 2).after(orders + orders, []) == Traffic(1 + 2 * sum(alone), 2)


# In the loop


def exactly(a, b) -> bool:
    return torch.equal(a.params, b.params)


def test_serves_clients_that_never_come_back(train_for, data):
    world = Stateless(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    method = Method(memory=Taylor(), weights=Uniform())
    last = train_for(method, 15, scenario=world)
    assert last.client_states == {}
    assert len(last.past) == 40
    assert [k.round for k in last.past] == sorted(r for r in range(15) for _ in range(3))[-40:]
    assert not exactly(last, train_for(Method(), 15, scenario=world))
    rounds = train_for(Method(memory=Taylor(unit="rounds", buffer=4)), 6, scenario=world)
    assert [(k.round, k.client) for k in rounds.past] == [(2, -1), (3, -1), (4, -1), (5, -1)]


def test_the_order_is_as_large_with_forty_records_as_with_four(train_for):
    method = Method(memory=Taylor())
    down = [train_for(method, t).traffic.down_bytes for t in (1, 2, 3, 10, 11)]
    first, second = down[0], down[1] - down[0]
    assert second == first + 4 * (2 * 18 * 4 + 24)  # 4 clients, two vectors of 18 floats, one span
    assert down[2] - down[1] == down[4] - down[3] == second


def test_no_strength_is_fedavg(train_for):
    method = Method(memory=Taylor(layers={"*": 0.0}), weights=Uniform())
    assert exactly(train_for(method, 4), train_for(Method(memory=Forget()), 4))


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "changed",
    [
        {"curvature": Fisher()},
        {"curvature": SquaredGradient()},
        {"curvature": Exact()},
        {"curvature": Hutchinson(3)},
        {"clamp": False},
        {"layers": {"*.bias": 0.3}},
        {"mode": "practice"},
        {"unit": "rounds"},
        {"buffer": 5},
    ],
    ids=str,
)
@pytest.mark.some(2)
def test_every_setting_changes_the_result_and_learns(changed, train_for, straight, task):
    method = Method(
        memory=Taylor(**changed), weights=Optimal(time_drift_sq=1.0, information_loss_sq=0.5)
    )
    last = train_for(method, 12)
    assert not exactly(last, straight(Method(memory=Taylor(), weights=method.weights), 12))
    score = task.score(task.objective(), last.params, last.buffers, task.data.test)
    assert score.accuracy > 0.75


def test_strengths_above_one_are_for_practice():
    """Where n expansions of strength n count as their sum."""
    few, n = items(3), 3
    sums = [
        MemoryItem(k.round, k.client, k.key, 10, {**k.record, "strength": n * k.record["strength"]})
        for k in few
    ]
    got = Taylor(mode="practice").recall(tuple(sums), Uniform(), Moment(9, None, 10)).quadratic
    parts = torch.tensor([STRENGTHS[0]] * 2 + [STRENGTHS[1]], dtype=torch.float64)
    for name in ("linear", "diagonal"):
        want = parts * sum(k.record[name] for k in few)
        torch.testing.assert_close(getattr(got, name), want, rtol=0, atol=1e-14)
    assert Taylor(mode="practice", layers={"*": 40.0}).layers == {"*": 40.0}
    with pytest.raises(ValueError, match=r"Taylor.layers: strengths above 1 need mode = 'pract"):
        Taylor(layers={"fc.*": 1.5})


def test_full_is_all_layers(train_for, data):
    task = Classification(data, Mlp((4,)))
    default, full = (
        train_for(Method(memory=memory), 2, task=task)
        for memory in (Taylor(), Taylor(layers=EVERYTHING))
    )
    assert default.past[0].record["spans"].tolist() == [[24, 39]]
    assert full.past[0].record["spans"].tolist() == [[0, 39]]
    assert not exactly(default, full)


# As settings


def test_a_method_with_it_is_a_value():
    one, same = (Method(memory=Taylor(layers={"a": 0.1, "b": 1.0})) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert len({Taylor(), Taylor(), Taylor(buffer=3), Taylor(Fisher())}) == 3
    assert Taylor().layers == {"fc.*": 1.0, "layer4.*": 0.1}
    assert Taylor().layers is not Taylor().layers


def test_strengths_are_not_negative():
    with pytest.raises(ValueError, match=r"Taylor.layers: Expected `float` >= 0.0"):
        Taylor(layers={"fc.*": -2.0})


def test_reads_from_a_specification_and_back():
    memory = {
        "kind": "taylor",
        "curvature": {"kind": "hutchinson", "probes": 5},
        "layers": {"head.*": 1, "*": 0.5},
        "unit": "rounds",
    }
    experiment = from_table({"method": {"memory": memory}}, Experiment)
    want = Taylor(Hutchinson(5), {"head.*": 1.0, "*": 0.5}, unit="rounds")
    assert experiment.method.memory == want
    again = from_table(tomllib.loads(experiment.resolved()), Experiment)
    assert again == experiment
    assert list(again.method.memory.layers) == ["head.*", "*"]  # in order: the first match counts
    with pytest.raises(SpecError, match=r"method.memory.curvature.kind: .* did you mean 'fisher'"):
        from_table({"method": {"memory": {**memory, "curvature": {"kind": "fischer"}}}}, Experiment)


# --- measured on a part of the samples, and without a backward pass where only the last layer counts


def test_expansion_of_a_part_of_the_samples():
    torch.manual_seed(0)
    one = TorchObjective(Mlp((4,)).build((5,), 3).double())
    data = Samples(torch.randn(40, 5).double(), torch.randint(3, (40,)))
    memory = Taylor(curvature=Fisher(), layers=EVERYTHING)
    whole = observed(memory, one, data)
    same = observed(msgspec.structs.replace(memory, samples=40), one, data)
    part = observed(msgspec.structs.replace(memory, samples=10), one, data)
    assert all(torch.equal(whole[name], same[name]) for name in whole)
    assert not torch.equal(whole["linear"], part["linear"])
    some = msgspec.structs.replace(memory, samples=10)
    few = [some.observe(one, one.flat.read(), data, generator(k)) for k in range(100)]
    mean = torch.stack([record["diagonal"] for record in few]).mean(0)
    torch.testing.assert_close(mean, whole["diagonal"], rtol=0.3, atol=0.02)  # it is unbiased
    assert hash(memory) != hash(msgspec.structs.replace(memory, samples=10))


@pytest.mark.parametrize(
    ("model", "shape"), [(Mlp((6,)), (5,)), (Linear(), (5,)), (ResNet18(4), (3, 8, 8))]
)
@pytest.mark.parametrize("names", [("fc.weight", "fc.bias"), ("fc.weight",), ("fc.bias",)])
def test_last_layer_needs_no_backward_pass(model, shape, names, monkeypatch):
    torch.manual_seed(0)
    one = TorchObjective(model.build(shape, 3).double())
    params = one.flat.read()
    x, y = torch.randn(7, *shape).double(), torch.randint(3, (7,))
    batch = Batch(x, y, torch.rand(7, dtype=torch.float64) - 0.3)
    spans = tuple(one.names[name] for name in names)
    assert one._only_last(spans)
    quick = one.loss_gradient(params, batch, spans), one.squared_gradients(params, batch, spans)
    monkeypatch.setattr(TorchObjective, "_only_last", lambda self, spans: False)
    plain = one.loss_gradient(params, batch, spans), one.squared_gradients(params, batch, spans)
    torch.testing.assert_close(quick, plain, rtol=1e-10, atol=1e-12)


def test_other_layers_do():
    one = TorchObjective(Mlp((6,)).build((5,), 3))
    assert not one._only_last((slice(0, one.flat.size),))
