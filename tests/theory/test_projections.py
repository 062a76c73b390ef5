"""A-GEM and GEM against their definitions, in float64."""

from itertools import combinations

import numpy as np
import pytest
import torch

from chronofed import AGem, CoreSet, Ditto, FedAvg, FedProx, Forget, Gem, Method, Mime, Taylor
from chronofed.methods.wrappers.gem import projected
from tests.helpers.quadratics import QuadraticWorld, apart, models

# One client with three data sets of one or two samples in two dimensions; minimisers (2, 0), (0, 2), (-1, -1).
PARTS = [
    [
        [([1.0, 1.0], [2.0, 0.0])],
        [([1.0, 2.0], [0.0, 4.0])],
        [([2.0, 1.0], [-1.5, -1.0]), ([2.0, 1.0], [-2.5, -1.0])],
    ]
]
KEYS = [{0: 0}, {0: 1}, {0: 2}]
LR, STEPS = 0.2, 4


def world():
    return QuadraticWorld(PARTS, KEYS)


def gradients(there, past, w):
    return torch.stack([there.mean(0, k)[0] * w - there.mean(0, k)[1] for k in past])


def trained(backbone, rounds=3, memory=None, **settings):
    method = Method(backbone, CoreSet(9) if memory is None else memory)
    return world().train(method, rounds, LR, STEPS, settings=settings)


def written_out(project, rounds=3):
    """Project the gradient of the present data set by those of all past ones."""
    there, w = world(), torch.zeros(2, dtype=torch.float64)
    for t in range(rounds):
        present, past = t % 3, [k for k in range(min(t, 3)) if k != t % 3]
        for _ in range(STEPS):
            (g,) = gradients(there, [present], w)
            w = w - LR * (project(g, past, w, there) if past else g)
        yield w


def averaged(g, past, w, there):
    """With all samples of the past alike (merged weights): data set 2 has two of them."""
    sizes = torch.tensor([[1.0, 1.0, 2.0][k] for k in past], dtype=torch.float64)
    r = (sizes / sizes.sum()) @ gradients(there, past, w)
    return g - (g @ r) / (r @ r) * r if g @ r < 0 else g


def nearest(g, past):
    """Every set of active conditions, one after the other: the nearest point that satisfies all."""
    best = None
    for size in range(len(past) + 1):
        for active in combinations(range(len(past)), size):
            some = past[list(active)]
            found = g - some.T @ (np.linalg.pinv(some @ some.T) @ (some @ g)) if active else g
            far = np.linalg.norm(found - g)
            if (past @ found).min() > -1e-9 and (best is None or far < best[0] - 1e-12):
                best = far, found
    return best[1]


def test_agem_written_out():
    got, want = models(trained(AGem(), 5)), torch.stack([*written_out(averaged, 5)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-14)
    assert apart(trained(AGem(), 5), trained(FedAvg(), 5)) > 0.1
    assert apart(trained(AGem(), 5), trained(FedAvg(), 5, Forget())) > 0.1


def test_gem_written_out():
    def project(g, past, w, there):
        return torch.from_numpy(nearest(g.numpy(), gradients(there, past, w).numpy()))

    got, want = models(trained(Gem(), 5)), torch.stack([*written_out(project, 5)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9)
    assert apart(trained(Gem(), 5), trained(AGem(), 5)) > 0.1


def test_gem_of_one_past_data_set_is_agem():
    assert apart(trained(Gem(), 2), trained(AGem(), 2)) < 1e-9


@pytest.mark.parametrize(
    ("gradient", "past", "margin", "want"),
    [
        ([1.0, -1.0], [[0.0, 2.0]], 0.0, [1.0, 0.0]),
        ([-1.0, 1.0], [[0.0, 2.0]], 9.0, [-1.0, 1.0]),  # nothing is violated
        # The margin adds a multiple of the past gradient first: (1, -1/2) is projected, (1, 1) is not.
        ([1.0, -1.0], [[0.0, 2.0]], 0.25, [1.0, 0.0]),
        ([1.0, -1.0], [[0.0, 2.0]], 1.0, [1.0, 1.0]),
        # Opposite conditions leave what is orthogonal to both; a past gradient of 0 says nothing.
        ([1.0, -1.0], [[0.0, 2.0], [0.0, -1.0], [0.0, 0.0]], 0.0, [1.0, 0.0]),
        ([0.0, 0.0], [[0.0, 2.0]], 0.0, [0.0, 0.0]),
    ],
)
def test_a_projection_by_hand(gradient, past, margin, want):
    found = projected(*(torch.tensor(v, dtype=torch.float64) for v in (gradient, past)), margin)
    assert found.tolist() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("d", [2, 3, 12])
def test_projections_against_every_set_of_active_conditions(d):
    draw = np.random.default_rng(d)
    for _ in range(40):
        past = draw.normal(size=(draw.integers(1, 6), d)) * draw.lognormal(sigma=3, size=(1, 1))
        if draw.random() < 0.3:
            past = np.vstack([past, 2 * past[:1], past[:1] - past[-1:]])
        g = draw.normal(size=d)
        got = projected(torch.from_numpy(g), torch.from_numpy(past)).numpy()
        lengths = np.linalg.norm(past, axis=1) + 1e-300
        assert (past @ got / lengths).min() > -1e-7
        assert np.linalg.norm(got - g) <= np.linalg.norm(nearest(g, past) - g) + 1e-7


@pytest.mark.parametrize("wrap", [AGem, Gem])
def test_without_kept_samples_it_is_the_inner_backbone(wrap):
    """Bit for bit: with no memory, with one that keeps no samples, and with mini-batches."""
    for memory in (Forget(), Taylor(layers={"*": 1.0})):
        for inner in (FedAvg(server_lr=0.5), Mime(0.0)):
            for how in ({}, {"batch_size": 1}):
                one, other = (trained(b, 4, memory, **how) for b in (wrap(inner), inner))
                assert apart(one, other) == 0


@pytest.mark.parametrize("wrap", [AGem, Gem])
def test_a_step_does_not_raise_past_losses(wrap):
    """To first order: with small steps the loss of data set 0 does not rise while data set 1 is learnt."""
    there = world()
    first, second = there.train(Method(wrap(), CoreSet(9)), 2, 0.01, 50)
    h, b = there.mean(0, 0)

    def loss(w):
        return (h * w**2 / 2 - b * w).sum()

    assert loss(second.params) < loss(first.params) + 0.02
    assert loss(there.train(Method(), 2, 0.01, 50)[-1].params) > loss(first.params) + 0.1


@pytest.mark.parametrize("wrap", [AGem, Gem])
def test_the_inner_backbone_trains_on_the_present_alone(wrap):
    """The tie of FedProx comes on top of the projection; the control of Mime is of the present samples."""
    there = QuadraticWorld([PARTS[0][:2]], [{0: 0}, {0: 1}])
    first, second = there.train(Method(wrap(FedProx(0.5)), CoreSet(9)), 2, LR, 1)
    (g,), past = gradients(there, [1], first.params), gradients(there, [0], first.params)
    want = first.params - LR * projected(g, past)
    torch.testing.assert_close(second.params, want, rtol=0, atol=1e-9)
    assert apart(trained(wrap(Mime(0.0)), 3), trained(wrap(FedAvg()), 3)) < 1e-9


@pytest.mark.parametrize("wrap", [AGem, Gem])
def test_steps_count_replayed_samples_if_the_epoch_does(wrap):
    """An epoch of batches of one: 2 steps on data set 0, then 3 + 2 on data set 1."""
    how = {"batch_size": 1, "epochs": 1.0, "epoch": "union"}
    there = QuadraticWorld([[[([1.0], [10.0])] * 2, [([1.0], [3.0])] * 3]], [{0: 0}, {0: 1}])
    ends = there.train(Method(wrap(), CoreSet(9)), 2, 0.1, None, settings=how)
    # Both pull upwards, so that nothing is projected.
    want = [10 * (1 - 0.9**2)]
    want.append(3 - (3 - want[0]) * 0.9**5)
    assert [s.params.item() for s in ends] == pytest.approx(want, abs=1e-14)


@pytest.mark.parametrize("wrap", [AGem, Gem])
def test_the_inner_backbone_keeps_its_optimisers_apart(wrap):
    """Ditto descends twice a round: the kept momentum of its personal model is the second one."""
    how = {"momentum": 0.5, "optimizer_state": "keep"}
    first, second, third = trained(wrap(Ditto(5.0)), 3, **how)
    kept = [s.client_states[0].optimizer_state for s in (first, second, third)]
    assert all(set(state) == set(kept[0]) and len(state) == 2 for state in kept)
    for state in kept[1:]:
        one, other = state.values()
        assert not torch.equal(one, other)


@pytest.mark.parametrize("wrap", [AGem, Gem])
def test_the_servers_step_belongs_to_the_inner_backbone(wrap):
    with pytest.raises(ValueError, match="set server_lr of the inner backbone"):
        wrap(server_lr=0.5)
    half = trained(wrap(FedAvg(server_lr=0.5)), 1)
    assert apart(half, trained(FedAvg(server_lr=0.5), 1)) == 0
