"""PVI against exact posteriors and ridge regression, through the real loop, in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import (
    Clipped,
    Compressed,
    Custom,
    Dataset,
    Deletion,
    Exact,
    FedAvg,
    Hutchinson,
    Method,
    Private,
    Pvi,
    Regression,
    Samples,
    Train,
    run,
)
from chronofed.scenarios.base import Plan, Visit
from tests.helpers.quadratics import QuadraticWorld, models

PRIOR = 0.5
EXACT = Pvi(prior=PRIOR, curvature=Exact())
rng = np.random.default_rng(3)
SAMPLES = [(rng.uniform(0.5, 3, 2).tolist(), rng.normal(size=2).tolist()) for _ in range(6)]
SPLITS = {
    "one client": [[SAMPLES]],
    "two clients": [[SAMPLES[:2]], [SAMPLES[2:]]],
    "six clients": [[[sample]] for sample in SAMPLES],
}


def trained(backbone, parts, rounds, keys=None, steps=60, **others):
    return QuadraticWorld(parts, keys, start=0.7).train(
        Method(backbone), rounds, lr=0.5, steps=steps, **others
    )


def posterior(samples, prior=PRIOR):
    """Mean and precision of everything: sum b / (prior + sum h)."""
    h, b = torch.tensor(samples, dtype=torch.float64).sum(0)
    return b / (prior + h), prior + h


def near(one, other, atol=2e-15):
    """Compare up to a unit in the last place of the largest precisions, of about 12."""
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def precision(snapshot):
    return snapshot.server["pvi_precision"].sum(0) + PRIOR


@pytest.mark.parametrize("parts", SPLITS.values(), ids=SPLITS)
def test_the_posterior_is_exact_after_one_round_whatever_the_split(parts):
    mean, width = posterior(SAMPLES)
    first, *_, last = trained(EXACT, parts, 4)
    for snapshot in (first, last):
        # A fixed point.
        near(snapshot.params, mean)
        near(precision(snapshot), width)


def test_it_is_exact_over_clients_and_time_and_nothing_counts_twice():
    """Data sets leave and stay in the product; the first of client 0 comes back, and replaces its factor."""
    parts = [[SAMPLES[:1], SAMPLES[1:3]], [SAMPLES[3:4], SAMPLES[4:]]]
    seen = [SAMPLES[:1] + SAMPLES[3:4], SAMPLES[:4], SAMPLES, SAMPLES]
    keys = [{0: 0, 1: 0}, {0: 1}, {1: 1}, {0: 0, 1: 0}]
    last = trained(EXACT, parts, 4, keys)
    for snapshot, samples in zip(last, seen, strict=True):
        mean, width = posterior(samples)
        near(snapshot.params, mean)
        near(precision(snapshot), width)
    assert last[-1].client_states[0].backbone_state["keys"].tolist() == [1, 0]


def test_damping_by_hand():
    """One sample h = 1, b = 1, prior 1: the factor is (1, 1), of which half arrives, then half of the rest."""
    backbone = Pvi(prior=1.0, damping=0.5, curvature=Exact())
    got = models(trained(backbone, [[[(1.0, 1.0)]]], 3)).flatten()
    near(got, torch.tensor([0.5 / 1.5, 0.75 / 1.75, 0.875 / 1.875], dtype=torch.float64))


def test_two_rounds_of_few_steps_written_out():
    """Implicit steps that do not converge: every term of the update counts."""
    parts, lr, rho = [[[(2.0, 1.0)]], [[(1.0, -1.0), (3.0, 0.5)]]], 0.5, 0.8
    got = models(trained(Pvi(prior=PRIOR, damping=rho, curvature=Exact()), parts, 2, steps=2))
    means = [(1, 2.0, 1.0), (2, 2.0, -0.25)]
    w, factors = 0.7, [(0.0, 0.0), (0.0, 0.0)]
    for t in range(2):
        new = []
        for i, (n, h, b) in enumerate(means):
            other = factors[1 - i]
            cavity, pull, v = PRIOR + other[0], other[1], w
            for _ in range(2):
                v = (v - lr * (h * v - b) + lr * pull / n) / (1 + lr * cavity / n)
            factor = n * h, (cavity + n * h) * v - pull
            new.append(tuple((1 - rho) * o + rho * f for o, f in zip(factors[i], factor)))  # noqa: B905
        factors = new
        w = sum(f[1] for f in factors) / (PRIOR + sum(f[0] for f in factors))
        assert got[t].item() == pytest.approx(w, abs=1e-14)


def test_negative_curvature_counts_as_nothing():
    snapshot = trained(EXACT, [[[(-0.2, 1.0)]], [[(1.0, 1.0)]]], 1)[-1]
    assert snapshot.server["pvi_precision"].min() == 0
    assert precision(snapshot).item() == PRIOR + 1


def test_a_deleted_client_leaves_the_product():
    parts = [[SAMPLES[:2]], [SAMPLES[2:]]]
    gone = [Deletion(round=2, clients=(1,))]
    mean, width = posterior(SAMPLES[:2])
    last = trained(EXACT, parts, 3, deletions=gone)[-1]
    near(last.params, mean)
    near(precision(last), width)
    assert not last.server["pvi_pull"][1].any()
    # At once, before anybody trains again; and one that never came changes nothing.
    before = trained(EXACT, parts, 2)[-1].server
    near(EXACT.forget(before, [1])["params"], mean)
    first = EXACT.init_server(torch.ones(2), 2)
    assert EXACT.forget(first, [1, 7]) is first


def test_a_client_with_a_deleted_row_is_not_counted_twice():
    gone = [Deletion(round=1, rows=(0,))]
    last = trained(EXACT, [[SAMPLES[:2]], [SAMPLES[2:]]], 2, deletions=gone)[-1]
    mean, width = posterior(SAMPLES[1:])
    near(last.params, mean)
    near(precision(last), width)


def test_clients_that_join_have_room():
    server = EXACT.init_server(torch.ones(2, dtype=torch.float64), 1)
    more = EXACT.enrol(server, 3)
    assert more["pvi_pull"].shape == (3, 2)
    sent = EXACT.address(EXACT.broadcast(more), 2)
    assert sent.keys() == {"params", "precision", "pull"}
    near(sent["precision"], torch.full((2,), PRIOR, dtype=torch.float64))


def test_who_sent_what_is_not_for_private():
    with pytest.raises(ValueError, match=r"^Private\.backbone: Pvi must know which client sent"):
        Private(Pvi(), bounds={"precision": 1.0, "pull": 1.0})
    with pytest.raises(ValueError, match="Pvi also sends precision"):
        Clipped(Pvi())


def test_compression_keeps_precisions_positive():
    backbone = Compressed(EXACT, form="top", ratio=0.5, feedback=True)
    for snapshot in trained(backbone, SPLITS["two clients"], 6):
        assert snapshot.server["pvi_precision"].min() >= 0
        assert torch.isfinite(snapshot.params).all()


# --- least squares, whose Hessian is not diagonal


N = 24
X, NOISE = rng.normal(size=(N, 3)), rng.normal(size=N)
Y = X @ np.array([1.0, -0.5, 0.3]) + 0.2 * NOISE


class World:
    persistent, rounds = True, None

    def __init__(self, clients):
        self.clients = clients

    def at(self, t):
        parts = np.array_split(np.arange(N), self.clients)
        return Plan(t, {i: Visit(part, 0) for i, part in enumerate(parts)})


def double(shape, classes):
    return nn.Linear(shape[0], classes).double()


def ridge(prior):
    a = np.column_stack([X, np.ones(N)])
    return torch.from_numpy(np.linalg.solve(a.T @ a + prior * np.eye(4), a.T @ Y))


def regression(backbone, clients, rounds, steps=400):
    samples = Samples(torch.from_numpy(X), torch.from_numpy(Y))
    task = Regression(Dataset("d", samples, samples, ()), Custom(f"{__name__}:double"))
    train = Train(lr=0.2, steps=steps, batch_size="full")
    *_, last = run(Method(backbone), World(clients), task, rounds=rounds, train=train)
    return last.params


@pytest.mark.parametrize("curvature", [Exact(), Hutchinson()], ids=repr)
def test_one_client_and_one_data_set_is_ridge_regression(curvature):
    """Whatever the curvature, which cancels."""
    near(regression(Pvi(prior=2.0, curvature=curvature), 1, 1), ridge(2.0))


@pytest.mark.slow
def test_several_clients_end_in_ridge_regression_where_fedavg_does_not():
    got = regression(Pvi(prior=2.0, damping=0.5, curvature=Exact()), 3, 150, steps=50)
    near(got, ridge(2.0))
    assert (regression(FedAvg(), 3, 150, steps=50) - ridge(0.0)).abs().max() > 1e-3
