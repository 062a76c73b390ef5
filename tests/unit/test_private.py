"""Clipping and noise against hand-computed rounds, and the accountant against published numbers."""

import math

import numpy as np
import pytest
import torch

from chronofed import (
    Adaptive,
    Backbone,
    Clipped,
    Ditto,
    FedAvg,
    FedNova,
    FedOpt,
    FedProx,
    Method,
    Mime,
    MimeLite,
    Private,
    Scaffold,
    Taylor,
    Upload,
)
from chronofed.cli.main import main
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import from_table, to_table
from chronofed.methods.accountant import _log_moment, combined, epsilon
from chronofed.methods.wrappers.clipped import clip
from chronofed.methods.wrappers.private import SEED, system_normal


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


SERVER = {"params": vector(1.0, 1.0)}
UPLOADS = [Upload(1.0, {"delta": vector(3.0, 4.0)}), Upload(3.0, {"delta": vector(0.0, 0.5)})]


# --- Clipped


def test_one_round_by_hand():
    """(3, 4) of length 5 becomes (0.6, 0.8); (0, 0.5) stays; weights 1 and 3."""
    after = Clipped(FedAvg(server_lr=2.0), bound=1.0).aggregate(SERVER, UPLOADS)
    want = [1 + 2 * (0.25 * 0.6), 1 + 2 * (0.25 * 0.8 + 0.75 * 0.5)]
    assert after["params"].tolist() == pytest.approx(want, abs=1e-12)


def test_scaffold_by_hand():
    """Update and control are clipped each by itself; N = 4, 2 of them came."""
    backbone = Clipped(Scaffold(), 1.0, {"control": 2.0})
    server = {**SERVER, "control": vector(0.0, 0.0), "clients": torch.tensor(4.0)}
    uploads = [
        Upload(1.0, {"delta": vector(3.0, 4.0), "control": vector(0.0, 8.0)}),
        Upload(1.0, {"delta": vector(0.0, 0.0), "control": vector(1.0, 0.0)}),
    ]
    after = backbone.aggregate(server, uploads)
    assert after["params"].tolist() == pytest.approx([1.3, 1.4], abs=1e-12)
    assert after["control"].tolist() == pytest.approx([0.5 * 0.5, 0.5 * 1.0], abs=1e-12)


def test_fednova_by_hand():
    """Steps 100 and 2, bound to 10: 6 on average, in the mean direction (0.3, 0.4)."""
    uploads = [
        Upload(1.0, {"delta": vector(3.0, 4.0), "steps": torch.tensor(100.0).double()}),
        Upload(1.0, {"delta": vector(0.0, 0.0), "steps": torch.tensor(2.0).double()}),
    ]
    after = Clipped(FedNova(), 1.0, {"steps": 10.0}).aggregate(SERVER, uploads)
    assert after["params"].tolist() == pytest.approx([1 + 6 * 0.3, 1 + 6 * 0.4], abs=1e-12)


def test_mime_is_clipped_in_its_first_exchange():
    backbone = Clipped(Mime(), 1.0, {"gradient": 5.0})
    uploads = [
        Upload(1.0, {"gradient": vector(30.0, 40.0)}),
        Upload(1.0, {"gradient": vector(0.0, 1.0)}),
    ]
    begun = backbone.begin({**SERVER, "momentum": vector(0.0, 0.0)}, uploads)
    assert begun["control"].tolist() == pytest.approx([1.5, 2.5], abs=1e-12)


@pytest.mark.parametrize("bound", [5.0, 7.0, math.inf])
def test_what_is_short_enough_is_left_alone(bound):
    given = vector(3.0, 4.0)
    assert clip(given, bound) is given


def test_a_clipped_vector_is_as_long_as_its_bound():
    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 1e10, 1e30):
        found = clip(scale * torch.randn(1000, generator=generator), 0.7)
        assert found.dtype == torch.float32
        assert float(found.double().norm()) == pytest.approx(0.7, rel=1e-6)
    assert clip(torch.tensor(-8.0), 2.0).item() == -2.0
    assert clip(vector(0.0, 0.0), 1.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_hidden(value):
    assert not torch.isfinite(clip(vector(value, 1.0), 1.0)).all()


class Talkative(Backbone, tag=True):
    """Sends more than it says."""


def test_what_was_not_declared_is_refused():
    uploads = [Upload(1.0, {"delta": vector(1.0), "diary": vector(1.0)})]
    with pytest.raises(SpecError, match="Talkative sends diary, which Clipped does not know; add"):
        Clipped(Talkative()).aggregate({"params": vector(0.0)}, uploads)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clipped(Scaffold()), "Clipped.bounds: Scaffold also sends control; bound it"),
        (lambda: Private(FedNova()), "Private.bounds: FedNova also sends steps; bound it"),
        (lambda: Clipped(FedOpt(Mime())), "Clipped.bounds: Mime also sends gradient; bound it"),
        (
            lambda: Clipped(Scaffold(), 1.0, {"controls": 1.0}),
            "Clipped.bounds: Scaffold sends no 'controls' besides its update; did you mean 'control'",
        ),
        (lambda: Clipped(bounds={"steps": 1.0}), "FedAvg sends no 'steps' .* known: none"),
        (lambda: Clipped(Clipped()), "Clipped.backbone: updates are clipped twice"),
        (lambda: Private(FedOpt(Clipped())), "Private.backbone: updates are clipped twice"),
        (lambda: Clipped(Private()), "Clipped.backbone: updates are clipped twice"),
        (lambda: Clipped(server_lr=0.5), "Clipped.server_lr: set server_lr of the inner backbone"),
        (lambda: FedOpt(Clipped(FedOpt())), "FedOpt in a FedOpt"),
        (lambda: Clipped(bound=0.0), "Clipped.bound: Expected `float` > 0"),
        (lambda: Private(bound=math.inf), r"Private.bound: Expected `float` <= 1e\+32"),
        (lambda: Private(Scaffold(), 1.0, {"control": math.inf}), "Private.bounds: Expected"),
        (lambda: Private(noise=-1.0), "Private.noise"),
        (lambda: Private(delta=1.0), "Private.delta"),
        (lambda: Private(randomness="dice"), "Private.randomness"),
        (lambda: Method(Private()), "average: Private needs clients of equal weight"),
        (
            lambda: Method(Private(), memory=Taylor(), average="clients"),
            "memory: records of Taylor go to the server",
        ),
        (
            lambda: Method(Private(), weights=Adaptive(), average="clients"),
            "weights: reports for Adaptive go to the server",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("inner", [FedAvg(), Scaffold(), Mime(), Ditto(), FedNova()], ids=str)
def test_wrappers_are_what_their_backbone_is(inner):
    bounds = {entry: 1.0 for entry in inner.upload_keys if entry != "delta"}
    for wrapped in (Clipped(inner, 1.0, bounds), Private(inner, 1.0, bounds)):
        for trait in ("stateful", "two_phase", "fixed_data", "upload_keys", "nonnegative"):
            assert getattr(wrapped, trait) == getattr(inner, trait)
        assert wrapped.private is isinstance(wrapped, Private)
        assert hash(wrapped) == hash(type(wrapped)(inner, 1.0, dict(bounds)))


def test_a_specification_can_name_them():
    table = {
        "backbone": {
            "kind": "private",
            "noise": 0.5,
            "bounds": {"gradient": 2.0},
            "backbone": {"kind": "mimelite", "beta": 0.1},
        },
        "average": "clients",
    }
    method = Method(Private(MimeLite(0.1), bounds={"gradient": 2.0}, noise=0.5), average="clients")
    assert from_table(table, Method) == method == from_table(to_table(method), Method)
    with pytest.raises(SpecError, match=r"^method: average: Private needs clients of equal weight"):
        from_table({**table, "average": "samples"}, Method, "method")
    endless = Method(Clipped(bound=1e30))
    assert from_table(to_table(endless), Method) == endless


# --- Private

EQUAL = [Upload(1.0, upload) for _, upload in UPLOADS]


def test_the_mean_of_clipped_updates_without_noise():
    after = Private(FedAvg(), 1.0, noise=0.0).aggregate({**SERVER, SEED: torch.tensor(1)}, EQUAL)
    assert after.keys() == {"params"}
    assert after["params"].tolist() == pytest.approx([1.3, 1.65], abs=1e-12)


def noise_of(backbone, uploads, seed=0, d=20_000, rounds=range(1)) -> torch.Tensor:
    """What was added to the mean of updates that are zero."""
    server = {"params": torch.zeros(d, dtype=torch.float64)}
    zero = {"delta": torch.zeros(d, dtype=torch.float64)}
    return torch.cat(
        [
            backbone.aggregate(backbone.draw(server, seed, r), [Upload(1.0, zero)] * uploads)[
                "params"
            ]
            for r in rounds
        ]
    )


@pytest.mark.parametrize("randomness", ["seed", "system"])
@pytest.mark.parametrize(
    ("noise", "bound", "clients"), [(1.0, 1.0, 1), (0.5, 3.0, 4), (2.0, 0.1, 50)]
)
def test_deviation_of_the_noise(noise, bound, clients, randomness):
    """z B / n; n = 20000 numbers: the deviation is known to 0.5 %, so 4 % is 8 deviations."""
    found = noise_of(Private(bound=bound, noise=noise, randomness=randomness), clients)
    want = noise * bound / clients
    assert float(found.std()) == pytest.approx(want, rel=0.04)
    assert abs(float(found.mean())) < 8 * want / math.sqrt(len(found))
    within = (found.abs() < want).double().mean()
    assert float(within) == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.03)


def test_noise_belongs_to_seed_round_and_entry():
    backbone = Private()
    first = noise_of(backbone, 2)
    assert torch.equal(first, noise_of(backbone, 2))
    for other in (noise_of(backbone, 2, seed=1), noise_of(backbone, 2, rounds=[1])):
        assert abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 0.05


def test_every_entry_has_noise_of_its_own():
    """In proportion to its bound; Mime's two exchanges differ, too."""
    zero = torch.zeros(20_000, dtype=torch.float64)
    backbone = Private(Scaffold(), 1.0, {"control": 8.0}, noise=0.5)
    start = backbone.draw(backbone.init_server(zero, 2), 0, 0)
    after = backbone.aggregate(start, [Upload(1.0, {"delta": zero, "control": zero})] * 2)
    assert float(after["params"].std()) == pytest.approx(0.25, rel=0.04)
    assert float(after["control"].std()) == pytest.approx(2.0, rel=0.04)
    both = torch.stack([after["params"], after["control"]])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.05
    mime = Private(Mime(beta=0.0), 1.0, {"gradient": 8.0}, noise=0.5)
    begun = mime.begin(
        mime.draw(mime.init_server(zero, 2), 0, 0), [Upload(1.0, {"gradient": zero})] * 2
    )
    assert float(begun["control"].std()) == pytest.approx(2.0, rel=0.04)
    done = mime.aggregate(begun, [Upload(1.0, {"delta": zero})] * 2)
    assert SEED in begun
    assert SEED not in done
    assert abs(float(torch.corrcoef(torch.stack([begun["control"], done["params"]]))[0, 1])) < 0.05


class Nosy(Backbone, tag=True):
    """Publishes everything that it sees."""

    def aggregate(self, server, uploads):
        seen = torch.stack([upload["delta"] for _, upload in uploads])
        return {**super().aggregate(server, uploads), "seen": seen}


def test_the_inner_backbone_sees_nothing_but_the_noisy_mean():
    backbone = Private(Nosy(), noise=1.0)
    after = backbone.aggregate(backbone.draw(SERVER, 0, 0), EQUAL)
    assert torch.equal(after["seen"][0], after["seen"][1])
    assert not any(torch.equal(after["seen"][0], upload["delta"]) for _, upload in EQUAL)
    torch.testing.assert_close(after["params"] - SERVER["params"], after["seen"][0])


def test_unequal_weights_are_refused():
    with pytest.raises(SpecError, match=r"method.average: Private needs clients of equal weight"):
        Private().aggregate({**SERVER, SEED: torch.tensor(1)}, UPLOADS)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_any_number_of_numbers_from_the_system(count):
    assert system_normal(count).shape == (count,)
    assert np.isfinite(system_normal(count)).all()


# --- the accountant


@pytest.mark.parametrize(("order", "want"), [(5, 2.1808e-03), (50, 2.3846e-02), (100, 1.6742e02)])
def test_renyi_divergences_as_published(order, want):
    """TensorFlow Privacy's tests: z = 2.5, q = 0.01, 50 rounds."""
    assert 50 * _log_moment(2.5, 0.01, order) / (order - 1) == pytest.approx(want, rel=1e-4)


def classic(noise, rounds, delta, sampling) -> float:
    """The conversion of Abadi et al. (2016), which is less tight than ours."""
    return min(
        (rounds * _log_moment(noise, sampling, order) - math.log(delta)) / (order - 1)
        for order in range(2, 129)
    )


@pytest.mark.parametrize(
    ("noise", "rounds", "sampling", "want"),
    [
        (4.0, 10_000, 0.01, 1.26),  # Abadi et al. (2016), section 3.2
        (1.3, 20 * 60_000 / 256, 256 / 60_000, 1.34),  # Bu et al. (2020), figure 4
    ],
)
def test_epsilon_as_published(noise, rounds, sampling, want):
    found = classic(noise, round(rounds), 1e-5, sampling)
    assert found == pytest.approx(want, rel=0.02)
    ours = epsilon(noise, round(rounds), 1e-5, sampling)
    assert 0.75 * found < ours < found


def exact(noise, rounds, delta) -> float:
    """Without sampling, t rounds are one Gaussian mechanism (Balle and Wang, 2018, theorem 8)."""

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    mu = math.sqrt(rounds) / noise

    def left_over(e):
        return phi(mu / 2 - e / mu) - math.exp(e) * phi(-mu / 2 - e / mu)

    low, high = 0.0, 300.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if left_over(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (0.5, 3), (5.0, 100), (50.0, 10)])
def test_an_upper_bound_that_is_tight(noise, rounds, delta):
    truth = exact(noise, rounds, delta)
    assert truth < epsilon(noise, rounds, delta) < 1.15 * truth + 0.02


def test_the_exact_value_of_the_literature():
    """Balle and Wang: the least noise of (1, 1e-5) is 3.7304."""
    assert exact(3.7304, 1, 1e-5) == pytest.approx(1.0, abs=1e-3)


def test_more_noise_fewer_rounds_and_rarer_clients_cost_less():
    base = epsilon(1.0, 100, 1e-5, 0.1)
    assert epsilon(1.1, 100, 1e-5, 0.1) < base < epsilon(1.0, 101, 1e-5, 0.1)
    assert epsilon(1.0, 100, 1e-5, 0.05) < base < epsilon(1.0, 100, 1e-6, 0.1)
    assert epsilon(1.0, 100, 1e-5, 1 - 1e-9) == epsilon(1.0, 100, 1e-5)


def test_the_ends():
    assert epsilon(1.0, 0, 1e-5) == epsilon(1.0, 5, 1e-5, sampling=0.0) == 0.0
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(1e4, 1, 1e-2) < 1e-3


def test_several_releases_are_one_with_less_noise():
    """k releases in each of t rounds cost as much as one in each of k t."""
    assert epsilon(combined(2.0, 3), 10, 1e-5) == pytest.approx(epsilon(2.0, 30, 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--noise -1", "--noise: expected a number >= 0, not -1.0"),
        ("--noise nan", "--noise: expected a finite number up to 1e+32, not nan"),
        ("--rounds -3", "--rounds: expected a number >= 0, not -3"),
        ("--delta 0", "--delta: expected a number between 0 and 1, not 0.0"),
        ("--sampling 1.5", "--sampling: expected a number from 0 to 1, not 1.5"),
        ("--releases 0", "--releases: expected a number >= 1, not 0"),
    ],
)
def test_command_line_errors(option, message, capsys):
    assert main(["privacy", "--noise", "1", "--rounds", "10", *option.split()]) == 2
    assert capsys.readouterr().err == f"chronofed: {message}\n"


def test_command_line(capsys):
    arguments = [
        "privacy",
        "--noise",
        "1.0",
        "--rounds",
        "100",
        "--delta",
        "1e-5",
        "--sampling",
        "0.1",
    ]
    assert main(arguments) == 0
    want = epsilon(1.0, 100, 1e-5, 0.1)
    line = f"epsilon = {want:.4g} at delta = 1e-05 after 100 rounds\n"
    assert capsys.readouterr().out == line
    assert main([*arguments, "--releases", "2", "--json"]) == 0
    assert f'"epsilon": {epsilon(combined(1.0, 2), 100, 1e-5, 0.1)}' in capsys.readouterr().out
    assert main(["privacy", "--noise", "0", "--rounds", "1", "--json"]) == 0
    assert '"epsilon": null' in capsys.readouterr().out


def test_the_runs_measure():
    assert Private(noise=2.0).report(10) == {"epsilon": epsilon(2.0, 10, 1e-5)}
    double = Private(MimeLite(), bounds={"gradient": 1.0}, noise=2.0, delta=1e-3)
    want = {"epsilon": epsilon(combined(2.0, 2), 7, 1e-3)}
    assert double.report(7) == FedOpt(double).report(7) == want
    assert Private(noise=0.0).report(3) == Clipped().report(3) == FedProx().report(3) == {}
