"""Short forms, Compressed (FedCOM, FedCOMGATE) and FedGLOMO against identities and written-out algorithms."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chronofed import Compressed, FedAvg, FedCurv, FedGate, FedGlomo, Method, Mifa, Scaffold, Train
from chronofed.core.errors import DivergedError, IncompatibleError
from chronofed.core.seeds import torch_generator
from chronofed.methods.backbones.base import Upload
from chronofed.methods.compression import quantise, restore, spread, top
from tests.helpers.quadratics import QuadraticWorld, apart, models

# Three clients with 1, 2 and 3 samples in five dimensions.
D = 5
RNG = np.random.default_rng(1)
PARTS = [
    [[(RNG.uniform(0.5, 3, D).tolist(), RNG.normal(size=D).tolist()) for _ in range(n)]]
    for n in (1, 2, 3)
]
SOMETIMES = [{0: 0, 1: 0}, {1: 0, 2: 0}, {0: 0, 2: 0}, {0: 0, 1: 0, 2: 0}]
LR, STEPS = 0.1, 3
TOP = {"form": "top", "ratio": 0.4}  # 2 of 5


def world(keys=None, start=0.5):
    return QuadraticWorld(PARTS, keys, start=start)


def equal(backbone):
    return Method(backbone, average="clients")


def first(there):
    return there.initial(0)[0]


def descend(there, i, w, correction=0.0):
    h, b = there.mean(i)
    for _ in range(STEPS):
        w = w - LR * (h * w - b - correction)
    return w


def largest(v, count=2):
    """Zeros but for the largest entries, by sorting."""
    keep = np.argsort(-np.abs(v.numpy()), kind="stable")[:count]
    return torch.from_numpy(np.where(np.isin(np.arange(len(v)), keep), v.numpy(), 0.0))


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


# --- short forms


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_mean_of_many_quantisations_is_the_vector(bits):
    v = torch.from_numpy(np.random.default_rng(bits).normal(size=9))
    generator = torch_generator(0, "test", bits)
    many = restore(quantise(v.repeat(2000), bits, generator), bits, 18000).view(2000, 9)
    step = float(v.abs().max()) / (2 ** (bits - 1) - 1)
    # No entry is off by a level, and deviations are at most half a level.
    assert (many - v).abs().max() < step
    assert (many.mean(0) - v).abs().max() < 5 * step / 2 / 2000**0.5
    levels = many / step
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-12)
    assert len(many.unique(dim=0)) > 1


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_several_entries_share_a_byte(bits):
    """Levels themselves are kept exactly, whatever their number."""
    generator, most = torch_generator(0, "test"), 2 ** (bits - 1) - 1
    for length in range(1, 10):
        levels = torch.randint(-most, most + 1, (length,), generator=generator).double()
        levels[0] = -most
        short = quantise(0.25 * levels, bits, generator)
        assert short["codes"].dtype == torch.uint8
        assert len(short["codes"]) == -(-length * bits // 8)
        assert torch.equal(restore(short, bits, length), 0.25 * levels)


def test_nothing_of_nothing():
    zeros = torch.zeros(3)
    assert torch.equal(restore(quantise(zeros, 8, torch.Generator()), 8, 3), zeros)
    assert torch.equal(spread(top(zeros, 0.5), 3), zeros)


def test_the_largest_entries_against_a_sort():
    rng = np.random.default_rng(0)
    for ratio in (0.01, 0.4, 0.5, 1.0):
        v = torch.from_numpy(rng.normal(size=20))
        assert torch.equal(spread(top(v, ratio), 20), largest(v, max(1, round(20 * ratio))))


def test_short_forms_of_strangers_stay_within_the_vector():
    """Positions beyond the end move to it, and codes beyond it are cut off."""
    strange = {"values": vector(1, 2), "positions": torch.tensor([-5, 99], dtype=torch.int32)}
    assert spread(strange, 3).tolist() == [1.0, 0.0, 2.0]
    codes = torch.full((4,), 255, dtype=torch.uint8)
    assert len(restore({"scale": vector(1)[0], "codes": codes}, 2, 3)) == 3


# --- Compressed


BACKBONES = [Scaffold(), FedGate()]


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda b: type(b).__name__)
def test_everything_kept_is_the_inner_backbone_bit_for_bit(backbone):
    there = world(SOMETIMES)
    whole = Compressed(backbone, form="top", ratio=1.0)
    one, other = (there.train(Method(b), 6)[-1] for b in (whole, backbone))
    assert one.traffic == other.traffic
    assert one.server.keys() == other.server.keys()
    assert all(torch.equal(t, other.server[n]) for n, t in one.server.items())
    for i, state in other.client_states.items():
        mine = one.client_states[i].backbone_state
        torch.testing.assert_close(mine, state.backbone_state, rtol=0, atol=0)


@pytest.mark.parametrize("feedback", [False, True])
def test_fedcom_written_out(feedback):
    """FedAvg of the largest entries; with feedback, of what was not sent before, too."""
    there, gamma = world(SOMETIMES), 0.7
    method = Method(Compressed(FedAvg(server_lr=gamma), feedback=feedback, **TOP))
    got = models(there.train(method, 8, LR, STEPS))
    w, errors, want = first(there), {}, []
    for t in range(8):
        cohort = there.at(t).visits
        sent = {}
        for i in cohort:
            wish = descend(there, i, w) - w + errors.get(i, 0.0)
            sent[i] = largest(wish)
            errors[i] = wish - sent[i] if feedback else 0.0
        total = sum(len(visit.indices) for visit in cohort.values())
        w = w + gamma * sum(len(cohort[i].indices) / total * v for i, v in sent.items())
        want.append(w)
    torch.testing.assert_close(got, torch.stack(want), rtol=0, atol=1e-14)


def test_sums_of_sent_and_kept_are_the_sum_of_updates():
    """With a server that does not move, so that the same update comes every round; quantised, too."""
    there = QuadraticWorld(PARTS[2:], start=0.5)
    update = descend(there, 0, first(there)) - first(there)
    for how in (TOP, {"bits": 2}):
        backbone = Compressed(FedAvg(server_lr=1e-300), feedback=True, **how)
        snapshots = there.train(Method(backbone), 7, LR, STEPS)
        errors = [s.client_states[0].backbone_state["error.delta"] for s in snapshots]
        sent = [
            update + before - after
            for before, after in zip([0 * update, *errors], errors, strict=False)
        ]
        assert min((v - update).abs().max() for v in sent) > 1e-3
        torch.testing.assert_close(sum(sent) + errors[-1], 7 * update, rtol=0, atol=1e-14)
        # What is kept does not grow: after a few rounds every entry has been sent.
        assert errors[-1].abs().max() < 3 * update.abs().max()


def test_feedback_sends_what_compression_alone_never_does():
    """The third entry of 3 is never among the largest third; with feedback the model finds its minimum."""
    there = QuadraticWorld([[[([1.0] * 3, [3.0, 2.0, 1.0])]]])
    how = {"form": "top", "ratio": 0.3, "feedback": True}
    last = there.train(Method(Compressed(**how)), 40, 0.3, 1)[-1]
    torch.testing.assert_close(last.params, vector(3, 2, 1), rtol=0, atol=0.02)


def test_fedcomgate_written_out():
    """d_i += (Q(D_i) - mean Q(D))/K with D = -delta/lr, for everybody; w -= lr gamma mean Q(D)."""
    there, gamma = world(), 0.8
    got = models(there.train(equal(Compressed(FedGate(server_lr=gamma), **TOP)), 10, LR, STEPS))
    w, d, want = first(there), [torch.zeros(D, dtype=torch.float64)] * 3, []
    for _ in range(10):
        sent = [largest(w - descend(there, i, w, d[i])) / LR for i in range(3)]
        mean = sum(sent) / 3
        d = [d[i] + (sent[i] - mean) / STEPS for i in range(3)]
        w = w - LR * gamma * mean
        want.append(w)
    torch.testing.assert_close(got, torch.stack(want), rtol=0, atol=1e-14)


@pytest.mark.parametrize("how", [TOP, {"bits": 4}, {**TOP, "feedback": True}], ids=str)
def test_states_follow_what_arrives(how):
    """What the server knows of everybody is the sum of what clients keep of themselves."""
    there = world()
    scaffold, mifa, fedcurv = (
        there.train(equal(Compressed(b, **how)), 4)[-1] for b in (Scaffold(), Mifa(), FedCurv(0.01))
    )

    def mean(snapshot, entry):
        return sum(snapshot.client_states[i].backbone_state[entry] for i in range(3)) / 3

    close = {"rtol": 0, "atol": 1e-14}
    torch.testing.assert_close(scaffold.server["control"], mean(scaffold, "control"), **close)
    torch.testing.assert_close(mifa.server["mean"], mean(mifa, "last"), **close)
    for entry in ("fisher", "pull"):
        torch.testing.assert_close(fedcurv.server[entry], 3 * mean(fedcurv, entry), **close)


def test_only_feedback_keeps_something():
    assert not Compressed().stateful
    assert Compressed(feedback=True).stateful
    assert Compressed(Scaffold()).stateful
    with pytest.raises(AttributeError, match="ask an instance"):
        _ = Compressed.stateful
    there = world()
    assert there.train(Method(Compressed()), 1)[-1].client_states == {}
    kept = there.train(Method(Compressed(feedback=True)), 1)[-1].client_states[0]
    assert kept.backbone_state.keys() == {"error.delta"}


def test_traffic_is_of_the_short_forms():
    """Of 5 numbers of 8 bytes: codes and a scale, or two values with positions of 4 bytes; numbers stay."""
    there = world()

    def up(backbone):
        return there.train(Method(backbone), 1)[-1].traffic.up_bytes / 3

    assert up(FedAvg()) == 5 * 8
    assert [up(Compressed(bits=b)) for b in (8, 4, 2)] == [5 + 8, 3 + 8, 2 + 8]
    assert up(Compressed(**TOP)) == 2 * (8 + 4)
    assert up(Compressed(FedGate(), bits=2)) == 2 + 8 + 8
    assert up(Compressed(Scaffold(), bits=2)) == 2 * (2 + 8)


def test_every_visit_draws_for_itself():
    """Other clients, other rounds, other entries."""
    there = QuadraticWorld([PARTS[0], PARTS[0]], start=0.5)
    (snapshot,) = there.train(Method(Compressed(bits=2, feedback=True)), 1)
    one, other = (snapshot.client_states[i].backbone_state["error.delta"] for i in (0, 1))
    assert not torch.equal(one, other)


def test_a_model_that_is_no_longer_finite_ends_the_run():
    there = world()
    with pytest.raises(DivergedError, match="no longer finite"):
        there.train(Method(Compressed()), 9, lr=1e32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": Compressed()}, r"Compressed\.backbone: compressed twice"),
        ({"server_lr": 0.5}, r"Compressed\.server_lr: set server_lr of the inner"),
        ({"form": "top", "bits": 2}, r"Compressed\.bits is for form = 'quantise'"),
        ({"ratio": 0.5}, r"Compressed\.ratio is for form = 'top'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Compressed(**settings)


# --- FedGLOMO


@pytest.mark.some(4)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "how",
    [{}, {"momentum": 0.5, "weight_decay": 0.1}, {"optimizer": "adamw"}],
    ids=["plain", "momentum", "adamw"],
)
def test_fedglomo_of_everybody_and_exact_gradients_is_fedavg(beta, how):
    """Updates telescope; the twin from the model before takes its steps with the same optimiser."""
    there = world()
    one, other = (there.train(Method(b), 5, settings=how) for b in (FedGlomo(beta=beta), FedAvg()))
    assert apart(one, other) < 5e-16


def test_fedglomo_of_some_clients_written_out():
    there, beta, gamma = world(SOMETIMES), 0.3, 0.6
    got = there.train(equal(FedGlomo(beta=beta, server_lr=gamma)), 8, LR, STEPS)
    before = w = first(there)
    u = None
    for t, snapshot in enumerate(got):
        cohort = there.at(t).visits
        new = sum(descend(there, i, w) - w for i in cohort) / len(cohort)
        old = sum(descend(there, i, before) - before for i in cohort) / len(cohort)
        u = new if u is None else beta * new + (1 - beta) * (u + new - old)
        before, w = w, w + gamma * u
        torch.testing.assert_close(snapshot.params, w, rtol=0, atol=1e-14)
        torch.testing.assert_close(snapshot.server["momentum"], u, rtol=0, atol=1e-14)
    assert set(got[-1].server) == {"params", "before", "momentum", "first"}


def client_at_work(lr=0.5):
    """A client whose full gradient is 10 w, and whose mini-batch gradients are 3 w + 1, 3 w + 2, ..."""
    drawn = iter(range(1, 100))

    def stochastic_gradients(*points):
        noise = next(drawn)
        return [3 * point + noise for point in points]

    return SimpleNamespace(
        train=Train(lr=lr),
        scratch={},
        full_gradient=lambda params: 10 * params,
        stochastic_gradients=stochastic_gradients,
    )


def test_fedglomos_local_directions_by_hand():
    """From 1: v = 10, so -4. Then v = 3 (-4) - 3 (1) + 10 = -5 and -1.5: the mini-batch's noise is gone.

    From 2, where the other run begins: v = 20, so -8; then v = 3 (-8) - 3 (2) + 20 = -10 and -3.
    Then v = 3 (-1.5) - 3 (-4) - 5 = 2.5, and 3 (-3) - 3 (-8) - 10 = 5, so -5.5.
    """
    backbone, local = FedGlomo(), client_at_work()
    server = {"params": vector(1), "before": vector(2)}
    found = []
    for w in (1.0, -4.0, -1.5):
        params = vector(w)
        direction = backbone.gradient(params, server, local)
        found.append(direction.item())
        # The loop uses it up.
        direction.fill_(99)
        params.fill_(99)
    assert found == [10.0, -5.0, 2.5]
    upload, _ = backbone.finish(vector(-2.75), server, {}, local)
    assert upload["delta"].item() == -3.75
    assert upload["change"].item() == -3.75 - (-5.5 - 2)


def test_fedglomos_server_by_hand():
    """First the mean update, 2; then 1/4 * 4 + 3/4 (2 - 1) = 7/4."""
    backbone = FedGlomo(beta=0.25)

    def uploads(delta, change):
        return [Upload(a, {"delta": vector(delta), "change": vector(change)}) for a in (1.0, 2.0)]

    server = backbone.init_server(vector(1), 2)
    assert backbone.broadcast(server).keys() == {"params", "before"}
    server = backbone.aggregate(server, uploads(2, 9))
    assert [server[n].item() for n in ("params", "before", "momentum")] == [3.0, 1.0, 2.0]
    server = backbone.aggregate(server, uploads(4, -1))
    assert [server[n].item() for n in ("params", "before", "momentum")] == [4.75, 3.0, 1.75]


def test_fedglomo_is_exact_where_fedavg_is_noisy():
    """Samples of one curvature: corrected mini-batches give the full gradient, so there is no noise at all."""
    parts = [[[(1.0, b) for b in (3.0, -1.0, 4.0, 0.0)]], [[(1.0, b) for b in (-2.0, 5.0)]]]
    there, one = QuadraticWorld(parts, start=0.5), {"batch_size": 1}
    exact = there.train(equal(FedAvg()), 6)
    assert apart(there.train(equal(FedGlomo()), 6, settings=one), exact) < 1e-14
    assert apart(there.train(equal(FedAvg()), 6, settings=one), exact) > 0.1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"clip_norm": 1.0}, "clip_norm: FedGLOMO needs gradients that are not clipped"),
        (
            {"momentum": 0.5, "optimizer_state": "keep"},
            "optimizer_state: FedGLOMO trains twice a round",
        ),
    ],
)
def test_fedglomo_refuses_steps_that_do_not_suit_it(how, message):
    with pytest.raises(IncompatibleError, match=message):
        world().train(Method(FedGlomo()), 1, settings=how)


def test_fedglomo_sends_two_models_each_way():
    traffic = world().train(Method(FedGlomo()), 1)[-1].traffic
    assert (traffic.up_bytes, traffic.down_bytes) == (3 * 2 * D * 8,) * 2
