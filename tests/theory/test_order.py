"""Measured orders of convergence, of literal runs, against those that theory predicts.

A slope test: the error of runs with ever more rounds, or ever smaller steps, on logarithmic axes.
"""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from chronofed import theory
from chronofed.theory import nqm

FEDAVG, _, CFL, *_ = nqm.ALGORITHMS
ROUNDS = (16, 32, 64, 128)
# One curvature, so that the order is not blurred by slow coordinates; many coordinates, so that few seeds do.
MODEL = nqm.Model(
    smoothness=1.0,
    convexity=1.0,
    time_drift_sq=100.0,
    client_drift_sq=0.0,
    noise_sq=0.0,
    dimension=150,
    clients=2,
    rotated=False,
)


def slope(x, y):
    """Least squares on logarithmic axes."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def error(model, algorithm, lr, seeds=3):
    """Mean of f(w_T) - f(w*) over literal runs; here it is ||Aw + B||^2 / (2 mu)."""
    runs = [nqm.literal(model, algorithm, lr, seed)[-1] for seed in range(seeds)]
    return np.mean(np.square(runs)) / (2 * model.convexity)


def predicted(algorithm, **constants):
    """The order of T -> error that the strongly convex theorem gives: T ~ error^(-1/order), far out."""
    epsilon = np.array([1e-8, 1e-9])
    rounds = theory.rounds(algorithm, "strongly-convex", epsilon=epsilon, **constants).total
    return 1 / slope(epsilon, rounds)


def test_fedavg_with_steps_that_shrink_with_the_rounds():
    """Strongly convex, eta ~ 1/T: the error falls as 1/T."""
    errors = [
        error(
            replace(MODEL, rounds=t, time_drift_sq=500.0), FEDAVG, lr=min(1.0, math.log(t**2) / t)
        )
        for t in ROUNDS
    ]
    corrected = [e / math.log(t) for e, t in zip(errors, ROUNDS, strict=True)]
    order = predicted(
        "fedavg", time_drift_sq=500.0, client_drift_sq=0.0, noise_sq=0.0, convexity=1.0
    )
    assert order == pytest.approx(-1, abs=0.02)
    assert slope(ROUNDS, corrected) == pytest.approx(order, abs=0.1)


def test_fedavg_with_fixed_steps_stops_getting_better():
    errors = [error(replace(MODEL, rounds=t), FEDAVG, lr=0.5) for t in ROUNDS]
    assert slope(ROUNDS, errors) == pytest.approx(0, abs=0.1)


@pytest.mark.slow
def test_cfl_with_fixed_steps_goes_on_as_the_finite_constant():
    """Without information loss the variance is D2/T: the order is -1 although steps do not shrink."""
    errors = [error(replace(MODEL, rounds=t), CFL, lr=0.5) for t in ROUNDS]
    constants = [theory.variance(t, time_drift_sq=100.0, information_loss_sq=0.0) for t in ROUNDS]
    assert slope(ROUNDS, constants) == pytest.approx(-1, abs=1e-12)
    assert slope(ROUNDS, errors) == pytest.approx(slope(ROUNDS, constants), abs=0.1)


def test_floor_of_fedavg_is_of_first_order_in_the_step():
    """The term c_1 eta of the proof (one step final)."""
    steps = np.array([0.4, 0.2, 0.1])
    errors = [error(replace(MODEL, rounds=64, time_drift_sq=1e4), FEDAVG, lr) for lr in steps]
    exact = steps / (2 - steps)  # kappa^2 / (1 - rho^2)
    assert slope(steps, exact) == pytest.approx(
        1.12, abs=0.01
    )  # not quite 1: steps are not that small
    assert slope(steps, errors) == pytest.approx(slope(steps, exact), abs=0.1)


def test_without_noise_convergence_is_linear():
    """The term exp(-mu eta T): the logarithm of the loss falls by a fixed amount a round."""
    still = replace(MODEL, time_drift_sq=0.0, rounds=32, smoothness=4.0, dimension=5, steps=2)
    losses = nqm.literal(still, FEDAVG, lr=0.05)
    late = np.diff(np.log(losses))[-8:]
    assert late == pytest.approx([2 * math.log(1 - 0.05 * 1.0)] * 8, rel=0.02)
