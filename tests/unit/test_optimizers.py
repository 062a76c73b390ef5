"""The step rules against torch.optim in float64, clipping and schedules by hand, and what is refused."""

import math

import numpy as np
import pytest
import torch

from chronofed import (
    Clipped,
    Constant,
    Cosine,
    FedAvg,
    FedNova,
    FedOpt,
    Method,
    Mime,
    MimeLite,
    Scaffold,
    Stateless,
    Step,
    Train,
    run,
)
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.spec_io import from_table, to_table
from chronofed.methods.backbones.fednova import effective_steps
from chronofed.methods.local import ClientLocal, descend
from chronofed.methods.optimizers import clip_
from chronofed.methods.surrogate import Quadratic, Surrogate
from tests.unit.test_local import local

STEPS = 7
RULES = {
    "plain": (Train(lr=0.1, weight_decay=0.02), "SGD", {}),
    "momentum": (
        Train(lr=0.1, weight_decay=0.02, momentum=0.9),
        "SGD",
        {"momentum": 0.9},
    ),
    "nesterov": (
        Train(lr=0.1, weight_decay=0.02, momentum=0.9, nesterov=True),
        "SGD",
        {"momentum": 0.9, "nesterov": True},
    ),
    "adamw": (
        Train(lr=0.1, weight_decay=0.02, optimizer="adamw", betas=(0.8, 0.95), eps=1e-3),
        "AdamW",
        {"betas": (0.8, 0.95), "eps": 1e-3},
    ),
    "adamw without decay": (Train(lr=0.1, optimizer="adamw"), "AdamW", {}),
}


def slope(params):
    """The gradient of a function that is no parabola."""
    return torch.sin(params) + params**3 / 10


def start(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_torch(train, optimizer, others, params):
    params = params.clone()
    rule = optimizer([params], lr=train.lr, weight_decay=train.weight_decay, **others)
    for _ in range(STEPS):
        params.grad = slope(params)
        rule.step()
    return params


def by_hand(train, params):
    """The formulas in NumPy, one step after another."""
    w, velocity, mean, square = params.numpy().copy(), 0.0, 0.0, 0.0
    (a, b), lr, decay = train.betas, train.lr, train.weight_decay
    for k in range(1, STEPS + 1):
        g = np.sin(w) + w**3 / 10
        if train.optimizer == "adamw":
            mean, square = a * mean + (1 - a) * g, b * square + (1 - b) * g**2
            step = mean / (1 - a**k) / (np.sqrt(square / (1 - b**k)) + train.eps) + decay * w
        else:
            g = g + decay * w
            velocity = train.momentum * velocity + g
            step = g + train.momentum * velocity if train.nesterov else velocity
        w = w - lr * step
    return torch.from_numpy(w)


# torch.optim takes seconds to import.
@pytest.mark.slow
@pytest.mark.parametrize(("train", "optimizer", "others"), RULES.values(), ids=RULES)
def test_the_formulas_are_those_of_torch(train, optimizer, others):
    expected = by_torch(train, getattr(torch.optim, optimizer), others, start(5))
    assert torch.allclose(by_hand(train, start(5)), expected, rtol=0, atol=1e-14)
    params = start(5)
    descend(params, slope, train, STEPS, train.first_state(params))
    assert torch.allclose(params, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("train", [train for train, *_ in RULES.values()], ids=RULES)
def test_stacked_clients_take_the_steps_of_the_formulas(train):
    """Also where some of them have taken steps before: AdamW's correction counts their own."""
    params, state = start(3, 5), train.first_state(start(3, 5))
    descend(params[:2], slope, train, 4, {name: rows[:2] for name, rows in state.items()})
    descend(params, slope, train, STEPS - 4, state)
    for i in range(2):
        expected = by_hand(train, start(3, 5)[i])
        assert torch.allclose(params[i], expected, rtol=0, atol=1e-14)
    last = start(3, 5)[2]
    descend(last, slope, train, STEPS - 4, train.first_state(last))
    assert torch.allclose(params[2], last, rtol=0, atol=1e-14)


# --- clipping ----------------------------------------------------------------------------------------


def test_clipping_scales_to_the_norm_row_by_row():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    clip_(rows, 1.0)
    assert torch.allclose(
        rows[0], torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=0, atol=1e-15
    )
    assert rows[1:].tolist() == [[0.3, 0.4], [0.0, 0.0]]


def test_a_gradient_is_clipped_with_the_past_and_before_weight_decay():
    # at w = 2: the samples pull by 2 - 2 = 0, the past by 4 * 2 = 8, clipped to 1; decay adds 0.5 * 2
    here = torch.zeros(1).double()
    past = Surrogate(1.0, quadratic=Quadratic((slice(0, 1),), (1.0,), here, here + 4.0))
    train = Train(lr=0.1, batch_size="full", steps=1, clip_norm=1.0, weight_decay=0.5)
    one = local(train, past)
    end = one.descend(torch.tensor([2.0]).double(), one.stochastic_gradient)
    assert end.item() == pytest.approx(2 - 0.1 * (1 + 1), abs=1e-15)


def test_full_gradients_are_not_clipped():
    one = local(Train(batch_size="full", steps=1, clip_norm=1.0))
    # mean of 1 and 3, from 10
    assert one.full_gradient(torch.tensor([10.0]).double()).item() == 8.0


# --- kept state --------------------------------------------------------------------------------------


def continued(train, kept=None) -> ClientLocal:
    one = local(train)
    return ClientLocal(one.objective, one.samples, one.past, train, one.generator, 1.0, kept or {})


@pytest.mark.parametrize("rule", [{"momentum": 0.5}, {"optimizer": "adamw"}], ids=str)
def test_a_kept_state_continues_where_it_ended(rule):
    train = Train(lr=0.1, batch_size="full", steps=2, optimizer_state="keep", **rule)
    first, whole = continued(train), continued(Train(lr=0.1, batch_size="full", steps=4, **rule))
    middle = first.descend(torch.zeros(1).double(), first.stochastic_gradient)
    kept = first.kept_state()
    before = {name: tensor.clone() for name, tensor in kept.items()}
    second = continued(train, kept)
    end = second.descend(middle, second.stochastic_gradient)
    assert torch.equal(end, whole.descend(torch.zeros(1).double(), whole.stochastic_gradient))
    # What the client kept does not change before it has served.
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.items())
    assert whole.kept_state() == {}


def test_every_descent_of_a_round_has_a_state_of_its_own():
    train = Train(lr=0.1, batch_size="full", steps=1, momentum=0.5, optimizer_state="keep")
    one = continued(train)
    for place in (0.0, 5.0):
        one.descend(torch.tensor([place]).double(), one.stochastic_gradient)
    kept = one.kept_state()
    # gradients 0 - 2 and 5 - 2
    assert {name: tensor.item() for name, tensor in kept.items()} == {
        "0.velocity": -2.0,
        "1.velocity": 3.0,
    }
    other = continued(train, kept)
    ends = [
        other.descend(torch.tensor([2.0]).double(), other.stochastic_gradient).item()
        for _ in range(2)
    ]
    # gradient 0, so that the step is half of the velocity
    assert ends == pytest.approx([2 + 0.1, 2 - 0.15], abs=1e-15)


# --- schedules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Constant(), [1, 1, 1, 1, 1, 1]),
        (Constant(warmup_rounds=2), [0.5, 1, 1, 1, 1, 1]),
        (Step(every=2, factor=0.5), [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (Step(every=2, factor=0.5, warmup_rounds=3), [1 / 3, 2 / 3, 1, 1, 1, 0.5]),
        (Cosine(rounds=4, final=0.2), [1, 0.6 + 0.4 * math.sqrt(0.5), 0.6, None, 0.2, 0.2]),
        (Cosine(rounds=2, final=0.2, warmup_rounds=2), [0.5, 1, 1, 0.6, 0.2, 0.2]),
    ],
)
def test_schedules(schedule, rates):
    got = [Train(lr=0.1, schedule=schedule).at(t) for t in range(6)]
    assert all(train.schedule is None for train in got)
    for train, rate in zip(got, rates, strict=True):
        assert rate is None or train.lr == pytest.approx(0.1 * rate, abs=1e-16)


def test_a_rate_is_never_zero():
    assert Train(schedule=Step(every=1, factor=0.1)).at(10**6).lr > 0


def test_orders_carry_the_rate_of_their_round(train_for):
    """One step of plain descent: the second round is half as long as it would be."""
    plain = Train(lr=0.1, batch_size="full", steps=1)
    falling = Train(lr=0.1, batch_size="full", steps=1, schedule=Step(every=1, factor=0.5))
    first, second = (train_for(Method(), n, settings=falling).params for n in (1, 2))
    assert torch.equal(first, train_for(Method(), 1, settings=plain).params)
    whole = train_for(Method(), 2, settings=plain).params
    assert torch.allclose(second - first, (whole - first) / 2, rtol=1e-4, atol=1e-7)


def test_a_schedule_in_a_specification():
    table = {"lr": 0.1, "schedule": {"kind": "cosine", "rounds": 5, "warmup_rounds": 2}}
    train = from_table(table, Train, "train")
    assert train.schedule == Cosine(rounds=5, warmup_rounds=2)
    assert from_table(to_table(train), Train) == train
    with pytest.raises(SpecError, match=r"train\.schedule\.rounds: missing"):
        from_table({"schedule": {"kind": "cosine"}}, Train, "train")
    with pytest.raises(SpecError, match=r"train\.schedule\.kind: unknown value 'cosinus'"):
        from_table({"schedule": {"kind": "cosinus"}}, Train, "train")


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nesterov": True}, "nesterov needs momentum above 0"),
        ({"optimizer": "adamw", "momentum": 0.9}, "adamw has betas"),
        ({"betas": (0.9, 0.99)}, "betas and eps are for optimizer = 'adamw'"),
        ({"eps": 1e-6}, "betas and eps are for optimizer = 'adamw'"),
        ({"optimizer_state": "keep"}, "plain sgd has none"),
        ({"optimizer": "adamw", "betas": (0.9, 1.0)}, "betas"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"optimizer": "adam"}, "optimizer"),
    ],
)
def test_settings_that_do_nothing_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Train(**settings)


ADAMW, CLIPPED = Train(optimizer="adamw"), Train(clip_norm=1.0)
KEPT = Train(momentum=0.5, optimizer_state="keep")
UNSUITED = [
    (FedNova(), ADAMW, "steps of adamw have no known number"),
    (FedNova(), KEPT, "kept momentum holds gradients of earlier rounds"),
    (Scaffold(), ADAMW, "SCAFFOLD's option II"),
    (Scaffold(), KEPT, "SCAFFOLD's option II"),
    (Scaffold(option="I"), CLIPPED, "SCAFFOLD's option I "),
    (Mime(), CLIPPED, "Mime's correction"),
    (FedOpt(backbone=FedNova()), ADAMW, "by which FedNova divides"),
    (Clipped(backbone=FedNova(), bounds={"steps": 9.0}), KEPT, "by which FedNova divides"),
]


@pytest.mark.parametrize(("backbone", "train", "words"), UNSUITED)
def test_steps_that_would_make_a_backbone_wrong_are_refused(backbone, train, words, scenario, task):
    with pytest.raises(IncompatibleError, match=rf"^train\..*{words}"):
        run(Method(backbone), scenario, task, train=train)


@pytest.mark.parametrize(
    ("backbone", "train"),
    [
        (Scaffold(option="I"), ADAMW),
        (Scaffold(option="I"), KEPT),
        (Scaffold(), CLIPPED),
        (FedNova(), CLIPPED),
        (MimeLite(), CLIPPED),
        (Mime(), ADAMW),
        (FedAvg(), KEPT),
    ],
)
def test_other_steps_are_allowed(backbone, train):
    assert backbone.unsuited(train) is None


def test_kept_state_needs_returning_clients(data, task):
    stateless = Stateless(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    with pytest.raises(IncompatibleError, match=r"^train\.optimizer_state: 'keep' needs returning"):
        run(Method(), stateless, task, rounds=1, train=KEPT)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_nesterovs_effective_steps_are_the_sum_of_the_gradients_weights(steps):
    position = torch.zeros(1, dtype=torch.float64)
    train = Train(lr=1.0, momentum=0.9, nesterov=True)
    descend(position, lambda p: -torch.ones_like(p), train, steps, train.first_state(position))
    assert effective_steps(steps, 0.9, nesterov=True) == pytest.approx(position.item(), abs=1e-12)
