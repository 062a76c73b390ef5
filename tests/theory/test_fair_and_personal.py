"""q-FFL, AFL, L2GD and FedRep against identities, fixed points and their algorithms written out, in float64."""

import runpy
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pytest
import torch

from chronofed import (
    Afl,
    CoreSet,
    Deletion,
    FedAvg,
    FedRep,
    Forget,
    L2gd,
    Method,
    QFfl,
    Samples,
    Train,
)
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.methods.backbones.afl import projected
from chronofed.methods.backbones.base import Upload
from chronofed.methods.local import ClientLocal, present_loss
from chronofed.methods.surrogate import Pool, Surrogate
from tests.helpers.quadratics import QuadraticWorld, apart, models

# Three clients with 1, 2 and 3 samples in two dimensions, whose losses stay above 0.
PARTS = [
    [[([2.0, 1.0], [0.8, 0.5])]],
    [[([1.0, 0.5], [-0.6, 0.2]), ([1.0, 1.5], [-0.8, 0.4])]],
    [[([3.0, 1.0], [0.5, -0.5]), ([4.0, 2.0], [1.0, 0.0]), ([5.0, 3.0], [2.0, 0.7])]],
]
SOMETIMES = [{0: 0, 1: 0}, {1: 0, 2: 0}, {0: 0, 2: 0}, {0: 0, 1: 0, 2: 0}]
LR, STEPS = 0.1, 3
# Slopes -0.9 and 0.3 at 0, where the losses are equal: the least worst loss is 1, at 0.
UNEQUAL = [[[(1.0, 0.9)]], [[(1.0, -0.3)]]]


def world(keys=None, parts=PARTS, start=0.5):
    return QuadraticWorld(parts, keys, start=start)


def equal(backbone, **others):
    return Method(backbone, average="clients", **others)


def gradient(there, i, w):
    h, b = there.mean(i)
    return h * w - b


def loss(there, i, w):
    h, b = there.mean(i)
    return float(1 + (h * w**2 / 2 - b * w).sum())


def trained(there, i, w, steps=STEPS, lr=LR):
    for _ in range(steps):
        w = w - lr * gradient(there, i, w)
    return w


def first(there):
    return there.initial(0)[0]


# --- q-FFL


def qffl(there, rounds, q, server_lr):
    """The publication's q-FedAvg: gradients by L = 1/lr, and a denominator of its own."""
    w, big = first(there), 1 / LR
    for t in range(rounds):
        top, bottom = torch.zeros_like(w), 0.0
        for i in there.at(t).visits:
            g, f = big * (w - trained(there, i, w)), loss(there, i, w) + 1e-10
            top += f**q * g
            bottom += q * f ** (q - 1) * float(g @ g) + big * f**q
        w = w - server_lr * top / bottom
        yield w


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_qffl_written_out(q):
    there = world(SOMETIMES)
    got = models(there.train(equal(QFfl(q=q, server_lr=0.7)), 8, LR, STEPS))
    want = torch.stack([*qffl(there, 8, q, 0.7)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-14)


def test_qffl_by_hand():
    """Losses 1 at 0 for all; updates 1/2 and -1 by one step of 1/2, so L = 2.

    Numerator 1/2 - 1 = -1/2, denominator (1 + 2 * 1/4) + (1 + 2 * 1) = 9/2 for q = 1.
    """
    there = QuadraticWorld([[[(1.0, 1.0)]], [[(1.0, -2.0)]]])
    (snapshot,) = there.train(equal(QFfl(q=1.0)), 1, lr=0.5, steps=1)
    assert snapshot.params.item() == pytest.approx(-1 / 9, abs=1e-10)


@pytest.mark.parametrize("average", ["clients", "samples"])
def test_qffl_of_zero_is_fedavg_bit_for_bit(average):
    there = world(SOMETIMES)
    one, other = (Method(b, average=average) for b in (QFfl(q=0.0), FedAvg()))
    assert apart(there.train(one, 8), there.train(other, 8)) == 0


@pytest.mark.parametrize(
    "q", [20.0, *(pytest.param(q, marks=pytest.mark.slow) for q in (2.0, 80.0))]
)
def test_qffl_balances_powers_of_the_losses(q):
    """Where sum F^q grad F = 0: (F_1/F_0)^q = (0.9 - w)/(w + 0.3). Large q end near the least worst loss, 1."""
    there = world(parts=UNEQUAL, start=0.2)
    w = there.train(equal(QFfl(q=q)), 150 if q == 20 else 400, 0.6, 1)[-1].params
    worst, best = loss(there, 1, w), loss(there, 0, w)
    assert (worst / best) ** q == pytest.approx(float((0.9 - w) / (w + 0.3)), rel=1e-6)
    fair = there.train(equal(FedAvg()), 30, 0.3, 1)[-1].params
    assert 0 < worst - 1 < (loss(there, 1, fair) - 1) / q**0.5


@pytest.mark.slow
def test_qffl_narrows_the_spread_over_clients():
    """And lifts the worst client, on three seeds; the mean falls by less than ten points."""
    fairness = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fairness.py"))
    for seed in range(3):
        plain, fair = (fairness["accuracies"](b, seed, rounds=100) for b in (FedAvg(), QFfl(q=1.0)))
        assert pstdev(fair) < 0.8 * pstdev(plain)
        assert min(fair) > min(plain)
        assert fmean(fair) > fmean(plain) - 10


def test_qffl_survives_extreme_powers_and_losses():
    """Powers are relative to the largest; a loss below 0, which noise may make, counts as 0."""
    backbone, w = QFfl(q=300.0), torch.zeros(1, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)

    def upload(value, at):
        numbers = {"loss": value, "per_lr": 1e-9}
        tensors = {n: torch.tensor(v, dtype=torch.float64) for n, v in numbers.items()}
        return Upload(1.0, {"delta": at, **tensors})

    many = backbone.aggregate({"params": w}, [upload(1e4, one), upload(9e3, -one)])["params"]
    assert many.item() == pytest.approx(1.0, abs=1e-6)
    none = backbone.aggregate({"params": w}, [upload(-5.0, one), upload(-1.0, one)])["params"]
    assert 0 < none.item() <= 1


def local_of(there, i, **others):
    samples = there.samples(there.positions[i][0])
    train = Train(lr=LR, steps=2, batch_size=1)
    return ClientLocal(there.objective(), samples, Surrogate(), train, torch.Generator(), **others)


@pytest.mark.parametrize("backbone", [QFfl(), Afl()], ids=["QFfl", "Afl"])
def test_losses_are_of_all_present_samples_at_the_model_that_was_sent(backbone):
    there, w = world(), torch.tensor([0.3, -0.2], dtype=torch.float64)
    one = local_of(there, 2)
    past = Surrogate(
        present=0.5,
        replay=Pool(Samples(9 * one.samples.x, one.samples.y), torch.full((3,), 1 / 6).double()),
    )
    replaying = ClientLocal(one.objective, one.samples, past, one.train, one.generator)
    for local in (one, replaying):
        upload, _ = backbone.finish(w + 7, {"params": w}, {}, local)
        assert upload["loss"].item() == pytest.approx(loss(there, 2, w), abs=1e-15)
        assert torch.equal(upload["delta"], w + 7 - w)


def test_losses_are_computed_with_the_buffers_of_the_server():
    class Normalised(type(world().objective())):
        def losses(self, params, batch):
            return self.buffers.expand(len(batch.y))

    there, before, after = world(), *(torch.tensor([x], dtype=torch.float64) for x in (3.0, 4.0))
    objective = Normalised(2, buffers=after)
    parts = objective, there.samples(np.arange(2)), Surrogate(), Train(), torch.Generator()
    assert present_loss(first(there), ClientLocal(*parts, buffers=before)) == 3.0
    assert present_loss(first(there), ClientLocal(*parts)) == 4.0
    assert objective.buffers is after


# --- AFL


def nearest(values, total):
    """Projection by bisection of the threshold."""
    low, high = float(values.min()) - total - 1, float(values.max())
    for _ in range(200):
        middle = (low + high) / 2
        above = np.maximum(values - middle, 0).sum() > total
        low, high = (middle, high) if above else (low, middle)
    return np.maximum(values - high, 0)


def test_projection_against_bisection():
    rng = np.random.default_rng(0)
    for number in range(21):
        values, total = rng.normal(size=1 + number % 7) * 3, [1.0, 0.2, 5.0][number % 3]
        got = projected(torch.from_numpy(values), total).numpy()
        np.testing.assert_allclose(got, nearest(values, total), rtol=0, atol=1e-14)
        assert got.sum() == pytest.approx(total, abs=1e-14)
    assert projected(torch.zeros(3), 0.0).tolist() == [0.0] * 3


def afl(there, rounds, rate):
    w, weights = first(there), np.full(3, 1 / 3)
    for t in range(rounds):
        who = [*there.at(t).visits]
        losses, mine = np.array([loss(there, i, w) for i in who]), weights[who]
        step = sum(a * (trained(there, i, w) - w) for a, i in zip(mine, who, strict=True))
        w = w + step / mine.sum()
        weights[who] = nearest(mine + rate * losses, mine.sum())
        yield w, weights.copy()


@pytest.mark.parametrize("keys", [None, SOMETIMES], ids=["everybody", "sometimes"])
@pytest.mark.parametrize("average", ["clients", "samples"])
def test_afl_written_out(keys, average):
    there = world(keys)
    got = there.train(Method(Afl(weights_lr=0.4), average=average), 8, LR, STEPS)
    for snapshot, (w, weights) in zip(got, afl(there, 8, 0.4), strict=True):
        torch.testing.assert_close(snapshot.params, w, rtol=0, atol=1e-14)
        np.testing.assert_allclose(snapshot.server["weights"], weights, rtol=0, atol=1e-14)


def test_afl_without_a_rate_is_fedavg_of_equal_clients():
    there = world(SOMETIMES)
    one, other = Method(Afl(weights_lr=0.0)), equal(FedAvg())
    assert apart(there.train(one, 8), there.train(other, 8)) == 0


def test_afl_finds_the_least_worst_loss():
    """1 at 0; the weights there balance the slopes: 0.9 a = 0.3 (1 - a), so a = 1/4."""
    there = world(parts=UNEQUAL, start=0.2)
    snapshots = there.train(Method(Afl(weights_lr=0.2)), 100, 0.4, 1)
    worst = [max(loss(there, i, s.params) for i in (0, 1)) - 1 for s in snapshots]
    assert worst[0] > 0.024
    assert max(worst[-20:]) < 0.0002
    assert snapshots[-1].server["weights"].tolist() == pytest.approx([0.25, 0.75], abs=1e-3)


def test_afl_stays_where_it_is_if_nobody_who_came_has_weight():
    there = world()
    backbone, w = Afl(), first(there)
    weights = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    upload = {"delta": w, "loss": torch.tensor(3.0, dtype=torch.float64)}
    server = {"params": w, "weights": weights}
    after = backbone.aggregate(server, [Upload(1.0, upload, i) for i in (1, 2)])
    assert torch.equal(after["params"], w)
    assert torch.equal(after["weights"], weights)


def test_afl_enrols_clients_with_the_mean_weight():
    weights = torch.tensor([0.1, 0.9], dtype=torch.float64)
    server = {"params": torch.zeros(1), "weights": weights}
    assert Afl().enrol(server, 2) is server
    joined = Afl().enrol(server, 4)["weights"].tolist()
    assert joined == pytest.approx([0.05, 0.45, 0.25, 0.25])


def test_afl_of_clients_that_never_come_back_is_fedavg_of_equal_clients():
    """Numbers of clients go on growing, beyond those that were there at first."""
    there = world([{0: 0}, {1: 0, 2: 0}])
    backbone = Afl()
    server = backbone.init_server(first(there), 1)
    for t in range(2):
        uploads = [
            Upload(
                1.0,
                {
                    "delta": trained(there, i, server["params"]) - server["params"],
                    "loss": torch.tensor(float(i)),
                },
                i,
            )
            for i in there.at(t).visits
        ]
        server = backbone.aggregate(server, uploads)
    assert len(server["weights"]) == 3
    want = there.train(equal(FedAvg()), 2, LR, STEPS)[-1].params
    torch.testing.assert_close(server["params"], want, rtol=0, atol=1e-15)


def test_afl_forgets_deleted_clients():
    there = world()
    gone = [Deletion(round=3, clients=(2,))]
    *_, before, after = there.train(Method(Afl(weights_lr=0.3)), 4, deletions=gone)
    kept, left = before.server["weights"], after.server["weights"]
    assert kept[2] > 0
    assert left[2] == 0
    assert float(left.sum()) == pytest.approx(1, abs=1e-15)
    server = {"params": first(there), "weights": torch.tensor([0.0, 0.0, 1.0])}
    assert Afl().forget(server, [2, 7])["weights"].tolist() == [0.5, 0.5, 0.0]


# --- L2GD


def l2gd(there, rounds, pull, coins, shares):
    """Every client's own model, and the mean of those that came last."""
    mean, own = first(there), {}
    for t in range(rounds):
        cohort = [*there.at(t).visits]
        for i in cohort:
            x = own.get(i, mean)
            own[i] = trained(there, i, x + coins[t] * pull * (mean - x))
        total = sum(shares[i] for i in cohort)
        mean = sum(shares[i] * own[i] for i in cohort) / total
        yield mean, {**own}


@pytest.mark.parametrize("probability", [1.0, 0.5])
def test_l2gd_written_out(probability):
    there = world(SOMETIMES)
    got = there.train(Method(L2gd(pull=0.3, probability=probability)), 8, LR, STEPS)
    coins = [s.server["pulls"].item() for s in got]
    assert set(coins) == ({1.0} if probability == 1 else {0.0, 1.0})
    for snapshot, (mean, own) in zip(got, l2gd(there, 8, 0.3, coins, [1, 2, 3]), strict=True):
        torch.testing.assert_close(snapshot.params, mean, rtol=0, atol=1e-14)
        for i, x in own.items():
            kept = snapshot.client_states[i].backbone_state["personal"]
            torch.testing.assert_close(kept, x, rtol=0, atol=1e-14)


def test_l2gd_with_a_whole_pull_is_fedavg_bit_for_bit():
    there = world(SOMETIMES)
    assert apart(there.train(Method(L2gd(pull=1.0)), 8), there.train(Method(FedAvg()), 8)) == 0


def test_l2gd_with_a_whole_pull_now_and_then_is_fedavg_of_random_numbers_of_steps():
    there = world()
    got = there.train(equal(L2gd(pull=1.0, probability=0.4)), 20, LR, 1)
    coins = [s.server["pulls"].item() for s in got]
    w = mean = first(there)
    since = 0
    for snapshot, coin in zip(got, coins, strict=True):
        if coin:
            w, since = mean, 0
        since += 1
        mean = sum(trained(there, i, w, since) for i in range(3)) / 3
        torch.testing.assert_close(snapshot.params, mean, rtol=0, atol=1e-14)
    assert 3 < sum(coins) < 17


def test_l2gd_without_a_pull_is_local_training():
    there = world(SOMETIMES)
    last = there.train(Method(L2gd(pull=0.0)), 4, LR, STEPS)[-1]
    # Client 2 begins with the mean that it finds when it comes first.
    start = there.train(Method(FedAvg()), 1, LR, STEPS)[0].params
    for i, begun, visits in ((0, first(there), 3), (1, first(there), 3), (2, start, 3)):
        kept = last.client_states[i].backbone_state["personal"]
        want = trained(there, i, begun, visits * STEPS)
        torch.testing.assert_close(kept, want, rtol=0, atol=1e-14)


def test_l2gd_ends_in_the_minimum_of_its_objective():
    """Before the step: h_i y - b_i + lambda (y_i - mean y) = 0, with lambda = p/((1 - p) lr)."""
    there, p, lr = world(), 0.2, 0.4
    last = there.train(equal(L2gd(pull=p)), 70, lr, 1)[-1]
    own = [last.client_states[i].backbone_state["personal"] for i in range(3)]
    tie = p / ((1 - p) * lr)
    pulled = [(1 - p) * x + p * last.params for x in own]
    centre = sum(pulled) / 3
    for i, y in enumerate(pulled):
        h, b = there.mean(i)
        torch.testing.assert_close(y, (b + tie * centre) / (h + tie), rtol=0, atol=1e-15)
    assert min((own[0] - own[1]).abs()) > 1e-2


# --- FedRep


class Product(type(world().objective())):
    """The loss ``x (u v - y)^2 / 2`` of a body u and a head v: each one's gradient depends on the other."""

    @property
    def names(self):
        return {"body": slice(0, 1), "head": slice(1, 2)}

    def gradient(self, params, batch):
        (u, v), (x, y) = params, batch.x[:, :, 0].T
        error = batch.weight * x * (u * v - y)
        return torch.stack([(error * v).sum(), (error * u).sum()])


class ProductWorld(QuadraticWorld):
    def objective(self):
        return Product(2)

    def initial(self, seed):
        return torch.tensor([0.8, 0.6], dtype=torch.float64), torch.zeros(0, dtype=torch.float64)


PRODUCTS = [[[(1.0, 2.0)]], [[(1.0, -1.0), (2.0, -1.5)]], [[(0.5, 1.0)]]]


def slope(there, i, u, v):
    x, y = there.x[torch.from_numpy(there.positions[i][0])][:, :, 0].T
    return float((x * (u * v - y)).mean())


def fedrep(there, rounds, passes, decay, shares):
    body, heads = 0.8, {}
    for t in range(rounds):
        cohort, ends = [*there.at(t).visits], {}
        for i in cohort:
            u, v = body, heads.get(i, 0.6)
            for _ in range(passes * STEPS):
                v -= LR * (u * slope(there, i, u, v) + decay * v)
            for _ in range(STEPS):
                u -= LR * (v * slope(there, i, u, v) + decay * u)
            heads[i], ends[i] = v, u
        total = sum(shares[i] for i in cohort)
        body += 0.5 * (sum(shares[i] * ends[i] for i in cohort) / total - body)
        yield body, {i: (ends[i], heads[i]) for i in cohort}


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("passes", [1, 3])
def test_fedrep_written_out(passes, decay):
    """The head with the body still, then the body; only the body is averaged, and decay moves no other."""
    there = ProductWorld(PRODUCTS, SOMETIMES)
    backbone = FedRep(layers=("head",), head_passes=passes, server_lr=0.5)
    got = there.train(Method(backbone), 6, LR, STEPS, settings={"weight_decay": decay})
    for snapshot, (body, own) in zip(got, fedrep(there, 6, passes, decay, [1, 2, 1]), strict=True):
        assert snapshot.params.tolist() == pytest.approx([body, 0.6], rel=0, abs=1e-14)
        for i, pair in own.items():
            kept = snapshot.client_states[i].backbone_state["personal"]
            assert kept.tolist() == pytest.approx(pair, rel=0, abs=1e-14)


def test_fedrep_without_a_head_is_fedavg_bit_for_bit():
    there = world(SOMETIMES)
    assert apart(there.train(Method(FedRep(layers=())), 8), there.train(Method(FedAvg()), 8)) == 0


def test_fedrep_of_nothing_but_a_head_is_local_training():
    there = world(SOMETIMES)
    last = there.train(Method(FedRep(layers=("w*",))), 4, LR, STEPS)[-1]
    assert torch.equal(last.params, first(there))
    assert last.traffic.up_bytes == 0
    for i in range(3):
        kept = last.client_states[i].backbone_state["personal"]
        want = trained(there, i, first(there), 3 * STEPS)
        torch.testing.assert_close(kept, want, rtol=0, atol=1e-14)


def test_the_body_does_not_depend_on_the_heads_that_others_have():
    """What the server holds in the head's place is never read by a client that has a head."""
    there, method = ProductWorld(PRODUCTS), Method(FedRep(layers=("head",)))
    *_, before, last = there.train(method, 3, LR, STEPS)
    other = before.server["params"].clone()
    other[1] = 1e3
    start = type(before)(
        before.round,
        {"params": other},
        before.buffers,
        before.client_states,
        weighting_state=before.weighting_state,
    )
    (again,) = there.train(method, 3, LR, STEPS, start=start)
    assert again.params[0] == last.params[0]
    for i in range(3):
        one, two = (s.client_states[i].backbone_state["personal"] for s in (again, last))
        assert torch.equal(one, two)


def test_fedrep_sends_the_body_alone():
    there = ProductWorld(PRODUCTS)
    traffic = there.train(Method(FedRep(layers=("head",))), 1)[-1].traffic
    assert (traffic.up_bytes, traffic.down_bytes) == (3 * 8, 3 * 16)


@pytest.mark.parametrize("how", [{"momentum": 0.5}, {"optimizer": "adamw"}], ids=str)
def test_fedrep_holds_still_with_any_optimiser(how):
    there = ProductWorld(PRODUCTS)
    got = there.train(Method(FedRep(layers=("head",))), 3, settings=how)
    assert [s.params[1].item() for s in got] == [0.6] * 3
    assert len({s.params[0].item() for s in got}) == 3


def test_fedrep_refuses_what_would_move_the_part_held_still_and_unknown_layers():
    there = ProductWorld(PRODUCTS)
    decay = {"optimizer": "adamw", "weight_decay": 0.1}
    with pytest.raises(IncompatibleError, match="weight_decay: adamw's would shrink the part"):
        there.train(Method(FedRep(layers=("head",))), 1, settings=decay)
    with pytest.raises(SpecError, match=r"layers: no parameter of the model matches fc\.\*; its"):
        there.train(Method(FedRep()), 1)


# --- all of them


@pytest.mark.parametrize(
    "backbone", [QFfl(), Afl(), L2gd(), FedRep(layers=("w1",))], ids=lambda b: type(b).__name__
)
def test_a_memory_has_its_part(backbone):
    """Replayed samples change the steps of every one of them."""
    there = QuadraticWorld(
        [[[([2.0, 1.0], [0.8, 0.5])], [([1.0, 2.0], [-0.8, 0.1])]]], [{0: 0}, {0: 1}]
    )
    kept, alone = (there.train(Method(backbone, m), 4) for m in (CoreSet(size=1), Forget()))
    assert apart(kept, alone) > 1e-3


def test_what_travels():
    there, vector, number = world(), 2 * 8, 8

    def up_and_down(backbone):
        traffic = there.train(Method(backbone), 1)[-1].traffic
        return traffic.up_bytes / 3, traffic.down_bytes / 3

    assert up_and_down(QFfl()) == (vector + 2 * number, vector)
    assert up_and_down(Afl()) == (vector + number, vector)
    assert up_and_down(L2gd()) == (vector, vector + number)
