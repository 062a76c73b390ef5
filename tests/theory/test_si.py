"""SI against its identity and the algorithm written out, in float64."""

import pytest
import torch

from chronofed import Deletion, FedAvg, FedProx, Method, Scaffold, Si
from tests.helpers.quadratics import QuadraticWorld, apart, models

# Two clients with three data sets each, in two dimensions.
PARTS = [
    [[([2.0, 1.0], [2.0, 1.0])], [([1.0, 2.0], [4.0, -2.0])], [([3.0, 1.0], [0.0, 1.0])]],
    [[([1.0, 0.5], [3.0, 1.0])] * 2, [([2.0, 1.0], [-1.0, 0.0])] * 3, [([1.0, 1.0], [1.0, 4.0])]],
]
KEYS = (0, 0, 1, 1, 2, 0, 1)
LR, STEPS = 0.1, 3


def world(*numbers):
    return QuadraticWorld(PARTS, [{0: k, 1: k} for k in numbers or KEYS], start=0.5)


def trained(backbone, rounds=7, there=None, **settings):
    return (there or world()).train(Method(backbone), rounds, LR, STEPS, settings=settings)


def written_out(rounds, strength, damping, largest=None, factors=(1.0, 1.0), momentum=0.0):
    """The algorithm with a list for every client: the finished data sets, then the path on the present one."""
    there, factors = world(), torch.tensor(factors, dtype=torch.float64)
    w, zero = torch.full((2,), 0.5, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    omega, anchor = [zero, zero], [zero, zero]
    path, moved, end, last = [zero, zero], [zero, zero], [zero, zero], [None, None]
    for t in range(rounds):
        ends, sizes = [], []
        for i, visit in there.at(t).visits.items():
            if last[i] not in (None, visit.key):
                new = omega[i] + factors * path[i] / (moved[i] ** 2 + damping)
                omega[i], anchor[i] = new.clamp(0, largest), end[i]
                path[i] = moved[i] = zero
            h, b = there.mean(i, visit.key)
            y, speed = w.clone(), zero
            for _ in range(STEPS):
                g = h * y - b
                speed = momentum * speed + g + 2 * strength * omega[i] * (y - anchor[i])
                path[i] = path[i] - g * (-LR * speed)
                y = y - LR * speed
            moved[i], end[i], last[i] = moved[i] + y - w, y, visit.key
            ends.append(y)
            sizes.append(len(visit.indices))
        w = sum(n * y for n, y in zip(sizes, ends, strict=True)) / sum(sizes)
        yield w


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"largest": 0.05},
        {"layers": {"w1": 0.5}, "factors": (0.0, 0.5)},
        {"momentum": 0.5},
    ],
    ids=str,
)
def test_written_out(how):
    """Also with a data set that comes back; the path is of the real change, with momentum and penalty in it."""
    settings = {name: value for name, value in how.items() if name in ("largest", "layers")}
    reference = {name: value for name, value in how.items() if name != "layers"}
    got = models(
        trained(Si(FedAvg(), 0.3, 0.2, **settings), momentum=reference.get("momentum", 0.0))
    )
    want = torch.stack([*written_out(7, 0.3, 0.2, **reference)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-14)
    assert apart(trained(Si(FedAvg(), 0.3, 0.2)), trained(FedAvg())) > 0.01


@pytest.mark.parametrize("eta", [0.05, 0.2])
def test_the_importance_of_a_quadratic(eta):
    """h/(2 - eta h) when it has converged: with short steps, half the curvature, the exact expansion."""
    there = QuadraticWorld(
        [[[([1.0, 4.0], [1.0, 8.0])], [([1.0, 1.0], [0.0, 0.0])]]], [{0: 0}, {0: 1}]
    )
    *_, last = there.train(Method(Si(damping=1e-30)), 2, eta, round(35 / eta))
    h = torch.tensor([1.0, 4.0], dtype=torch.float64)
    state = last.client_states[0].backbone_state
    torch.testing.assert_close(state["si_importance"], h / (2 - eta * h), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        state["si_anchor"], torch.tensor([1.0, 2.0]).double(), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("inner", [FedAvg(), FedProx(0.3), Scaffold()], ids=repr)
def test_without_strength_it_is_the_inner_backbone(inner):
    assert apart(trained(Si(inner, strength=0.0)), trained(inner)) == 0


@pytest.mark.parametrize("strength", [0.1, 1.0, 8.0])
def test_strength_holds(strength):
    """The minimum of h w^2/2 - b w + c Omega (w - w~)^2, so much strength freezes; there is no factor 1/2."""
    alone = QuadraticWorld([PARTS[0]], [{0: 0}, {0: 1}])
    first, second = alone.train(Method(Si(strength=strength, damping=1e-30)), 2, LR, 350)
    h, b = alone.mean(0, 1)
    omega = (old := alone.mean(0, 0)[0]) / (2 - LR * old)
    held = (b + 2 * strength * omega * first.params) / (h + 2 * strength * omega)
    torch.testing.assert_close(second.params, held, rtol=0, atol=1e-13)
    free = b / h
    assert ((second.params - first.params) / (free - first.params)).max() < 2 / strength


def test_a_deleted_sample_takes_what_was_made_of_it_along():
    """Row 0 is in data set 0 of client 0."""
    there = world(0, 1, 2)
    method = Method(Si())
    *_, last = there.train(method, 3, deletions=[Deletion(round=2, rows=(0,))])
    gone, kept = (last.client_states[i].backbone_state for i in (0, 1))
    assert gone["si_importance"].abs().max() == 0
    assert kept["si_importance"].abs().max() > 0
    assert gone["sources"].tolist() == [2]
    assert kept["sources"].tolist() == [3, 4, 5, 6, 7, 8]
