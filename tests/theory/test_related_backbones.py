"""FedCurv, FedGATE, FedLin, MIFA and pFedMe against identities and their algorithms written out, in float64."""

import pytest
import torch

from chronofed import FedAvg, FedCurv, FedGate, FedLin, Method, Mifa, Mime, PFedMe, Scaffold
from chronofed.core.errors import IncompatibleError
from tests.helpers.quadratics import QuadraticWorld, apart, models

# Three clients with 1, 2 and 3 samples in two dimensions.
PARTS = [
    [[([2.0, 1.0], [2.0, 1.0])]],
    [[([1.0, 0.5], [-3.0, 1.0]), ([1.0, 1.5], [-3.0, 2.0])]],
    [[([3.0, 1.0], [1.0, -1.0]), ([4.0, 2.0], [8.0, 0.0]), ([5.0, 3.0], [15.0, 4.0])]],
]
EVERYBODY = {0: 0, 1: 0, 2: 0}
SOMETIMES = [{0: 0, 1: 0}, {1: 0, 2: 0}, {0: 0, 2: 0}, {0: 0, 1: 0, 2: 0}]
LR, STEPS = 0.1, 3


def world(keys=None, parts=PARTS):
    return QuadraticWorld(parts, keys, start=0.5)


def equal(backbone, **others):
    return Method(backbone, average="clients", **others)


def gradient(there, i, w):
    h, b = there.mean(i)
    return h * w - b


def descend(w, direction, steps=STEPS, scale=1.0):
    for _ in range(steps):
        w = w - LR * scale * direction(w)
    return w


def minimiser(there, weights):
    h, b = (sum(a * there.mean(i)[k] for i, a in enumerate(weights)) for k in (0, 1))
    return b / h


# --- FedCurv


def fedcurv(there, rounds, strength):
    """The penalty summed over the other clients of the round before, one by one."""
    w, before = torch.full((2,), 0.5, dtype=torch.float64), {}
    for t in range(rounds):
        ends = {}
        for i in there.at(t).visits:
            others = [pair for j, pair in before.items() if j != i]

            def direction(y, i=i, others=others):
                return gradient(there, i, y) + sum(2 * strength * f * (y - v) for v, f in others)

            ends[i] = descend(w, direction)
        before = {}
        for i, end in ends.items():
            h, b = there.x[torch.from_numpy(there.positions[i][0])].unbind(1)
            before[i] = end, (h * end - b).square().mean(0)
        w = sum(ends.values()) / len(ends)
        yield w


@pytest.mark.parametrize("keys", [None, SOMETIMES], ids=["everybody", "sometimes"])
def test_fedcurv_is_the_sum_over_the_others_of_the_round_before(keys):
    """A client that was away has no term to take out; one whose term is two rounds old neither."""
    there = world(keys)
    got = models(there.train(equal(FedCurv(0.02)), 8, LR, STEPS))
    want = torch.stack([*fedcurv(there, 8, 0.02)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-14)
    assert apart(there.train(equal(FedAvg()), 8), there.train(equal(FedCurv(0.02)), 8)) > 1e-3


def test_fedcurv_by_hand():
    """Clients (h, b) = (1, 1), (1, -1), one step of 1/2 from 0: ends 1/2 and -1/2, squares 1/4 each.

    Mean 0. Then client 0 descends (0 - 1) + 2 * 1 * 1/4 (0 + 1/2) = -3/4 and ends in 3/8, the other in -3/8.
    """
    there = QuadraticWorld([[[(1.0, 1.0)]], [[(1.0, -1.0)]]])
    first, second = there.train(equal(FedCurv(1.0)), 2, lr=0.5, steps=1)
    assert first.server["fisher"].item() == 0.5
    assert first.server["pull"].item() == 0.0
    ends = [second.client_states[i].backbone_state for i in (0, 1)]
    assert [s["fisher"].item() for s in ends] == [(3 / 8 - 1) ** 2] * 2
    assert [s["pull"].item() for s in ends] == [3 / 8 * (3 / 8 - 1) ** 2, -3 / 8 * (3 / 8 - 1) ** 2]


def test_fedcurv_without_strength_and_of_one_client_is_fedavg_bit_for_bit():
    there, alone = world(SOMETIMES), world([{2: 0}])
    assert apart(there.train(Method(FedCurv(0.0)), 6), there.train(Method(FedAvg()), 6)) == 0
    assert apart(alone.train(Method(FedCurv(9.0)), 6), alone.train(Method(FedAvg()), 6)) == 0


def test_fedcurv_has_no_penalty_where_noise_made_curvature_negative():
    backbone, w = FedCurv(1.0), torch.tensor([1.0, 1.0])
    server = {"fisher": torch.tensor([-1.0, 2.0]), "pull": torch.tensor([5.0, 1.0])}
    server |= {"rounds": torch.tensor([3.0])}
    step = backbone.direction(torch.zeros(2), w, server, backbone.init_client(w))
    assert step.tolist() == [0.0, 2.0]


# --- FedLin


def test_fedlin_of_equal_steps_is_mime_without_momentum_bit_for_bit():
    there = world(SOMETIMES)
    assert apart(there.train(Method(FedLin()), 6), there.train(Method(Mime(0.0)), 6)) == 0


def test_fedlin_of_unequal_steps_written_out():
    """One epoch of batches of one: clients take 1, 2 and 3 steps; weights by samples, 14/6 steps on average."""
    parts = [[[sets[0][0]] * n for sets in [client]] for n, client in enumerate(PARTS, start=1)]
    there = world(parts=parts)
    how = {"batch_size": 1, "epochs": 1.0}
    (snapshot,) = there.train(Method(FedLin()), 1, LR, None, settings=how)
    w, weights = torch.full((2,), 0.5, dtype=torch.float64), [1 / 6, 2 / 6, 3 / 6]
    c = sum(a * gradient(there, i, w) for i, a in enumerate(weights))
    want = torch.zeros_like(w)
    for i, a in enumerate(weights):

        def direction(y, i=i):
            return gradient(there, i, y) - gradient(there, i, w) + c

        want += a * descend(w, direction, steps=i + 1, scale=14 / 6 / (i + 1))
    torch.testing.assert_close(snapshot.params, want, rtol=0, atol=1e-15)
    assert set(snapshot.server) == {"params"}


@pytest.mark.slow
def test_fedlin_finds_the_minimum_whoever_is_slow():
    there, slow = world(), {"slow": 1.0}
    best = minimiser(there, [1 / 6, 2 / 6, 3 / 6])
    ends = {
        kind: there.train(Method(kind()), 300, 0.05, 6, settings=slow)[-1].params
        for kind in (FedLin, FedAvg)
    }
    # Within two units in the last place of numbers of order 1.
    torch.testing.assert_close(ends[FedLin], best, rtol=0, atol=5e-16)
    assert (ends[FedAvg] - best).abs().max() > 1e-3


def test_fedlin_counts_steps_with_momentum():
    """As FedNova does: with equal steps the factor is 1, too."""
    there, how = world(), {"momentum": 0.5}
    one = there.train(Method(FedLin()), 4, settings=how)
    assert apart(one, there.train(Method(Mime(0.0)), 4, settings=how)) == 0


# --- FedGATE


@pytest.mark.parametrize(
    "how", [{}, {"momentum": 0.5}, {"momentum": 0.5, "nesterov": True}], ids=str
)
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_fedgate_with_everybody_is_scaffold(server_lr, how):
    there = world()
    one = there.train(equal(FedGate(server_lr=server_lr)), 20, settings=how)
    other = there.train(equal(Scaffold(server_lr=server_lr)), 20, settings=how)
    assert apart(one, other) < 1e-15


def fedgate(there, rounds):
    """As its paper has it, but that a client which was away sees the latest mean."""
    w, kept, mean = torch.full((2,), 0.5, dtype=torch.float64), {}, None
    for t in range(rounds):
        cohort = there.at(t).visits
        sizes = {i: len(visit.indices) for i, visit in cohort.items()}
        d = {i: kept[i] - mean if i in kept else torch.zeros_like(w) for i in cohort}
        ends = {i: descend(w, lambda y, i=i, d=d: gradient(there, i, y) - d[i]) for i in cohort}
        slopes = {i: (w - end) / (STEPS * LR) for i, end in ends.items()}
        kept |= {i: d[i] + slopes[i] for i in cohort}
        mean = sum(sizes[i] * slopes[i] for i in cohort) / sum(sizes.values())
        w = sum(sizes[i] * ends[i] for i in cohort) / sum(sizes.values())
        yield w


def test_fedgate_of_some_clients_written_out():
    there = world(SOMETIMES)
    got = models(there.train(Method(FedGate()), 8, LR, STEPS))
    torch.testing.assert_close(got, torch.stack([*fedgate(there, 8)]), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_fedgate_minimises_the_weighted_objective_also_of_unequal_steps():
    """Every client divides by its own number of steps, which is random."""
    there = world()
    last = there.train(Method(FedGate()), 400, 0.04, 6, settings={"slow": 1.0})[-1]
    best = minimiser(there, [1 / 6, 2 / 6, 3 / 6])
    torch.testing.assert_close(last.params, best, rtol=0, atol=1e-9)


# --- MIFA


def test_mifa_of_everybody_is_fedavg():
    there = world()
    assert apart(there.train(equal(Mifa()), 20), there.train(equal(FedAvg()), 20)) < 5e-16
    half = there.train(equal(Mifa(server_lr=0.5)), 9), there.train(equal(FedAvg(server_lr=0.5)), 9)
    assert apart(*half) < 5e-16


@pytest.mark.parametrize("average", ["samples", "clients"])
def test_mifa_of_some_clients_written_out(average):
    """All clients count equally, and those that have not come yet count with 0."""
    there = world(SOMETIMES)
    got = models(there.train(Method(Mifa(), average=average), 8, LR, STEPS))
    w, last, want = torch.full((2,), 0.5, dtype=torch.float64), {}, []
    for t in range(8):
        cohort = there.at(t).visits
        last |= {i: descend(w, lambda y, i=i: gradient(there, i, y)) - w for i in cohort}
        w = w + sum(last.values()) / 3
        want.append(w)
    torch.testing.assert_close(got, torch.stack(want), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_mifa_does_not_favour_clients_that_come_often():
    """Client 2 comes every fourth round. With short steps MIFA ends near the minimum, FedAvg does not."""
    often = world([{0: 0, 1: 0}] * 3 + [EVERYBODY])
    best = minimiser(often, [1 / 3] * 3)
    mifa, fedavg = (often.train(equal(b), 500, 0.02, 1)[-1].params for b in (Mifa(), FedAvg()))
    assert (mifa - best).abs().max() < 0.02
    assert (fedavg - best).abs().max() > 0.2


# --- pFedMe


def envelope(w, h, b, tie):
    """The exact personal model, and the gradient of the envelope."""
    theta = (b + tie * w) / (h + tie)
    return theta, tie * (w - theta)


@pytest.mark.slow
def test_pfedme_of_many_inner_steps_is_exact():
    there, tie = world(), 3.0
    backbone = PFedMe(tie, inner=300, inner_lr=0.1, server_lr=0.5)
    got = there.train(equal(backbone), 6, LR, STEPS)
    w = torch.full((2,), 0.5, dtype=torch.float64)
    for snapshot in got:
        ends = [w.clone() for _ in range(3)]
        for i in range(3):
            h, b = there.mean(i)
            for _ in range(STEPS):
                ends[i] = ends[i] - LR * envelope(ends[i], h, b, tie)[1]
            kept = snapshot.client_states[i].backbone_state["personal"]
            want = envelope(ends[i], h, b, tie)[0]
            torch.testing.assert_close(kept, want, rtol=0, atol=5e-16)
        w = w + 0.5 * (sum(ends) / 3 - w)
        torch.testing.assert_close(snapshot.params, w, rtol=0, atol=5e-16)


def test_pfedme_by_hand():
    """Client (h, b) = (1, 1) at 0, tie 2, two inner steps of 1/4: 1/4, then 1/4 - (-3/4 + 1/2)/4 = 5/16.

    So the step of 1/2 is along 2 (0 - 5/16) and ends in 5/16.
    """
    there = QuadraticWorld([[[(1.0, 1.0)]]])
    (snapshot,) = there.train(Method(PFedMe(2.0, inner=2, inner_lr=0.25)), 1, 0.5, 1)
    assert snapshot.params.item() == 5 / 16


def test_pfedme_with_a_large_tie_is_fedavg():
    there, tie = world(), 1e7
    one = there.train(Method(PFedMe(tie, inner=9, inner_lr=1 / tie)), 4)
    # The models differ by a multiple of 1/tie.
    assert apart(one, there.train(Method(FedAvg()), 4)) < 3 / tie


def test_pfedme_takes_all_inner_steps_of_a_local_step_on_one_mini_batch():
    """Samples pull to 1 and -1. Of one each, personal models lie near these; mixed ones would lie between."""
    there = QuadraticWorld([[[(1.0, 1.0), (1.0, -1.0)]]])
    ends = there.train(
        Method(PFedMe(0.01, inner=200, inner_lr=0.1)), 5, 1e-9, 1, settings={"batch_size": 1}
    )
    kept = [abs(s.client_states[0].backbone_state["personal"].item()) for s in ends]
    assert kept == pytest.approx([1 / 1.01] * 5, abs=1e-6)


def test_pfedme_refuses_inner_steps_that_diverge():
    with pytest.raises(
        ValueError, match=r"PFedMe\.inner_lr: inner_lr \* tie = 3, but steps diverge"
    ):
        PFedMe(30.0, inner_lr=0.1)


@pytest.mark.parametrize("backbone", [FedLin(), FedGate()], ids=["FedLin", "FedGate"])
def test_steps_that_cannot_be_counted_are_refused(backbone):
    there, method = world(), Method(backbone)
    with pytest.raises(
        IncompatibleError, match="steps of adamw have no known number of plain steps"
    ):
        there.train(method, 1, settings={"optimizer": "adamw"})
    kept = {"momentum": 0.5, "optimizer_state": "keep"}
    with pytest.raises(IncompatibleError, match="kept momentum holds gradients of earlier rounds"):
        there.train(method, 1, settings=kept)
    with pytest.raises(IncompatibleError, match="FedLin needs gradients that are not clipped"):
        there.train(Method(FedLin()), 1, settings={"clip_norm": 1.0})


def test_what_travels():
    there = world()
    vector = 2 * 8
    number = 8

    def up_and_down(backbone):
        traffic = there.train(Method(backbone), 1, settings={})[-1].traffic
        return traffic.up_bytes / 3, traffic.down_bytes / 3

    assert up_and_down(FedAvg()) == (vector, vector)
    assert up_and_down(PFedMe()) == (vector, vector)
    assert up_and_down(Mifa()) == (vector, vector)
    assert up_and_down(FedCurv()) == (3 * vector, 3 * vector + number)
    assert up_and_down(FedGate()) == (vector + number, 2 * vector)
    assert up_and_down(FedLin()) == (2 * vector + number, 3 * vector + number)
