"""Heads and the mean of models against their formulas written out in NumPy, in float64."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import (
    Averaged,
    Classification,
    Clipped,
    Clusters,
    Custom,
    Dataset,
    FedAvg,
    FedOpt,
    Gaussian,
    Linear,
    Method,
    Mlp,
    Private,
    Regression,
    Ridge,
    Samples,
    SerialEngine,
    Subsets,
    Train,
    run,
)
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.methods.accountant import combined, epsilon
from chronofed.methods.backbones.base import SERVED
from chronofed.methods.heads.base import (
    ASKED,
    BODY,
    BY_CLIENT,
    DECAYS,
    SCORES,
    SEEN,
    SOLUTION,
    SUMS,
    TOTALS,
)
from chronofed.methods.heads.shrinking import factor, oas, shrunk
from chronofed.methods.heads.sums import Sums
from chronofed.runs.checkpoint import decode, encode
from chronofed.scenarios.base import Plan, Visit
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluation import Evaluator
from chronofed.training.own_priors import personal_models

CLASSES, WIDTH, SIZE = 4, 3, 80
STILL = Train(lr=1e-30, steps=1)
TRAIN = Train(lr=0.2, steps=3, batch_size=8)


def double_linear(shape, classes):
    return nn.Linear(shape[0], classes).double()


def double_mlp(shape, classes):
    return Mlp((6,)).build(shape, classes).double()


def without_bias(shape, classes):
    return nn.Linear(shape[0], classes, bias=False)


def task(model="double_linear", regression=False):
    draw = torch.Generator().manual_seed(3)
    y = torch.arange(SIZE) % CLASSES
    x = torch.randn(SIZE, WIDTH, generator=draw, dtype=torch.float64) + y[:, None] * 0.7
    target = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3
    samples = Samples(x, target if regression else y)
    data = Dataset("rows", samples, samples, () if regression else tuple("abcd"))
    return (Regression if regression else Classification)(data, Custom(f"{__name__}:{model}"))


class World:
    """Three clients of different size with one or two classes; every round brings other rows."""

    persistent, rounds, clients = True, None, 3
    classes = ((0, 1), (1, 2, 3), (0, 3))

    def at(self, t):
        rows = np.arange(SIZE)
        mine = {i: np.isin(rows % CLASSES, own) for i, own in enumerate(self.classes)}
        fresh = rows // CLASSES % 4 == t % 4
        return Plan(t, {i: Visit(rows[own & fresh], t % 4) for i, own in mine.items()})


def last_of(method, learned=None, rounds=4, train=STILL, **others):
    *_, last = run(method, World(), learned or task(), rounds=rounds, train=train, **others)
    return last


def pooled(rounds=4, decay=1.0):
    """All samples that came, with the weights of their rounds."""
    every, weights = [], []
    for t in range(rounds):
        for visit in World().at(t).visits.values():
            every.append(visit.indices)
            weights += [decay ** (rounds - 1 - t)] * len(visit.indices)
    rows, data = np.concatenate(every), task().data.train
    return data.x.numpy()[rows], data.y.numpy()[rows], np.array(weights)


def analysis(x, y, w, rho, prior=None):
    """Discriminant functions as scikit-learn has them with solver ``lsqr``, with weights of samples."""
    n = np.array([w[y == c].sum() for c in range(CLASSES)])
    mean = np.stack([np.average(x[y == c], axis=0, weights=w[y == c]) for c in range(CLASSES)])
    within = sum(
        n[c] / n.sum() * np.cov(x[y == c].T, ddof=0, aweights=w[y == c]) for c in range(CLASSES)
    )
    within = (1 - rho) * within + rho * np.trace(within) / WIDTH * np.eye(WIDTH)
    coefficients = np.linalg.lstsq(within, mean.T, rcond=None)[0].T
    share = n / n.sum() if prior is None else prior
    return coefficients, -0.5 * np.diag(mean @ coefficients.T) + np.log(share), within


def probabilities(weight, bias, x):
    logits = x @ weight.T + bias
    found = np.exp(logits - logits.max(1, keepdims=True))
    return found / found.sum(1, keepdims=True)


def of_model(snapshot, learned):
    x = learned.data.test.x
    return learned.objective().logits(snapshot.params, x).softmax(1).numpy()


@pytest.mark.parametrize("decay", [1.0, 0.6])
@pytest.mark.parametrize("rho", [0.0, 0.2])
def test_it_is_the_discriminant_analysis_of_all_data_pooled(decay, rho):
    learned = task()
    head = Gaussian(decay=decay, shrinkage=rho, prior="recent", samples="all", every=1)
    found = of_model(last_of(Method(head=head), learned), learned)
    weight, bias, _ = analysis(*pooled(decay=decay), rho)
    want = probabilities(weight, bias, learned.data.test.x.numpy())
    # Clients send single precision if the model has it; this one has double.
    np.testing.assert_allclose(found, want, atol=1e-9)


def test_clients_may_count_equally():
    learned = task()
    method = Method(average="clients", head=Gaussian(decay=1.0, shrinkage=0.1, prior="recent"))
    found = of_model(last_of(method, learned, rounds=1), learned)
    x, y, _ = pooled(1)
    sizes = [len(v.indices) for v in World().at(0).visits.values()]
    weight, bias, _ = analysis(x, y, np.repeat(1 / np.array(sizes), sizes), 0.1)
    np.testing.assert_allclose(
        found, probabilities(weight, bias, learned.data.test.x.numpy()), atol=1e-9
    )


def test_shrinkage_by_formula():
    x, y, w = pooled()
    _, _, within = analysis(x, y, w, 0.0)
    trace, square, n, p = np.trace(within), np.trace(within @ within), len(y), WIDTH
    want = ((1 - 2 / p) * square + trace**2) / ((n + 1 - 2 / p) * (square - trace**2 / p))
    covariance = torch.from_numpy(within)
    assert oas(covariance, n) == pytest.approx(want)
    assert oas(torch.eye(3).double(), 5) == 1.0
    want = 0.7 * within + 0.3 * np.trace(within) / 3 * np.eye(3)
    np.testing.assert_allclose(shrunk(covariance, 0.3), want)
    last = last_of(Method(head=Gaussian(decay=1.0)))
    assert Gaussian(decay=1.0).report(last.server)["head_shrinkage"] == pytest.approx(
        oas(covariance, n)
    )


@pytest.mark.parametrize(
    ("head", "train", "want"),
    [
        (Gaussian(every=1), Train(epochs=1), 5),
        (Gaussian(every=1), Train(epochs=0.25), 2),
        (Gaussian(every=1), Train(steps=2, batch_size=16), 4),
        (Gaussian(every=1), Train(epochs=30), 40),
        (Gaussian(every=1), Train(batch_size="full", epochs=2), 10),
        (Gaussian(), Train(epochs=1), 40),
        (Gaussian(), Train(epochs=0.25), 10),
        (Gaussian(every=2), Train(epochs=1), 10),
        (Gaussian(decay=1.0), Train(epochs=1), 40),
        (Gaussian(decay=1.0, by_client=True, prior="seen"), Train(epochs=1), 40),
        (Gaussian(samples="all"), Train(epochs=1), 40),
        (Gaussian(samples=12), Train(epochs=1), 12),
        (Gaussian(samples=99, decay=1.0), Train(epochs=1), 40),
    ],
)
def test_some_samples_are_drawn(head, train, want):
    samples = Samples(torch.arange(40.0), torch.arange(40))
    found = [head.drawn(samples, train, torch.Generator().manual_seed(k)).y for k in range(20)]
    assert {len(set(y.tolist())) for y in found} == {want}
    assert all(torch.equal(y, y.sort().values) for y in found)
    assert torch.equal(torch.cat(found).unique(), samples.y) == (want * 20 > 100)


def test_some_samples_stand_for_all():
    """Sums of some are those of all on average; their counts are exact, and they are worth fewer."""
    head, objective = Gaussian(samples=4), task().objective()
    every = task().data.train[torch.arange(20)]
    sent = {"params": objective.flat.read()}
    given = objective, sent, objective.buffers
    whole, total = head.observe(*given, every, False), 0
    for k in range(1000):
        some = head.drawn(every, STILL, torch.Generator().manual_seed(k))
        found = head.observe(*given, some, False, len(every))
        assert float(found[0]) == pytest.approx(20)
        assert float(found[-1]) == pytest.approx(20 * 20 / 4)
        total = total + found / 1000
    assert float(whole[-1]) == 20
    torch.testing.assert_close(total[:-1], whole[:-1], rtol=0.1, atol=1.5)
    equal = head.observe(*given, some, True, len(every))
    torch.testing.assert_close(equal[:-1] * 20, found[:-1])
    with pytest.raises(ValueError, match=r"^Gaussian.samples: with by_client all count"):
        Gaussian(decay=1.0, prior="seen", by_client=True, samples=4)


def test_sums_are_asked_for_in_some_rounds():
    """In those between nothing is sent for the head, and it stays."""
    learned, head, asked, received = task("double_mlp"), Gaussian(every=3), [], []

    class Spy(SerialEngine):
        def map(self, method, orders, plan):
            asked.append({name for order in orders for name in order.server})
            for result in super().map(method, orders, plan):
                received.append(SUMS in result.upload)
                yield result

    method = Method(Averaged(), head=head)
    engine = Spy(learned)
    snapshots = list(run(method, World(), learned, rounds=60, train=TRAIN, engine=engine))
    due = [*range(32), *range(33, 48, 2), *range(50, 60, 3)]
    with_sums = {"params", BODY, ASKED}
    assert asked == [with_sums if t in due else {"params"} for t in range(60)]
    assert received == [t in due for t in range(60) for _ in World.classes]
    spans = learned.objective().names
    last = slice(spans["fc.weight"].start, spans["fc.bias"].stop)
    for t, (one, other) in enumerate(pairwise(snapshots), 1):
        still = t not in due
        assert torch.equal(one.server[TOTALS], other.server[TOTALS]) == still
        assert torch.equal(one.params[last], other.params[last]) == still
        assert not torch.equal(one.params, other.params)
    assert [head.asks(s.server) for s in snapshots] == [t in due for t in range(1, 61)]


def test_all_rounds_count_where_nothing_fades():
    assert Gaussian(decay=1.0).period == Ridge(decay=1.0, by_client=True).period == 1
    assert (Gaussian().period, Gaussian(decay=0.9).period, Gaussian(every=7).period) == (8, 8, 7)
    with pytest.raises(ValueError, match=r"^Ridge.every: with by_client all rounds count"):
        Ridge(decay=1.0, by_client=True, every=2)


def test_the_last_layer_is_solved_again_only_for_other_sums(monkeypatch):
    learned, solved = task("double_mlp"), []
    real = Gaussian.solve
    monkeypatch.setattr(Gaussian, "solve", lambda *given: solved.append(1) or real(*given))
    head = Gaussian(decay=0.9, every=2)
    server = last_of(Method(head=head), learned, 40, TRAIN).server
    assert len(solved) == 32 + 4
    forgotten = head.forget({**server, BY_CLIENT: torch.ones(2, server[TOTALS].shape[1])}, [0])
    assert SOLUTION in server
    assert SOLUTION not in forgotten


def test_older_rounds_are_worth_fewer_samples():
    decay, last = 0.5, last_of(Method(head=Gaussian(decay=0.5, samples="all", every=1)))
    sizes = np.array([sum(len(v.indices) for v in World().at(t).visits.values()) for t in range(4)])
    weights = decay ** np.arange(3, -1, -1)
    want = (weights @ sizes) ** 2 / (weights**2 @ sizes)
    assert Gaussian(decay=0.5)._effective(last.server, 0) == pytest.approx(want)


@pytest.mark.parametrize(
    ("prior", "want"),
    [("uniform", np.full(4, 0.25)), ("seen", None), ("recent", "recent")],
)
def test_priors(prior, want):
    learned = task()
    head = Gaussian(decay=0.3, shrinkage=0.1, prior=prior, samples="all", every=1)
    found = of_model(last_of(Method(head=head), learned), learned)
    x, y, w = pooled(decay=0.3)
    if prior == "seen":
        want = np.bincount(pooled()[1]) / len(y)
    share = None if prior == "recent" else want
    weight, bias, _ = analysis(x, y, w, 0.1, share)
    np.testing.assert_allclose(
        found, probabilities(weight, bias, learned.data.test.x.numpy()), atol=1e-9
    )


def test_a_class_that_nobody_has_had_is_rare_and_all_is_finite():
    head = Gaussian(decay=1.0, shrinkage=0.1)
    f = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.2, 0.3]], dtype=torch.float64)
    counts = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    sums = Sums(3.0, counts, torch.stack([f[0] + f[1], f[2], 0 * f[0]]), f.T @ f)
    state = {"head_seen": counts, "head_priors": torch.zeros(3)}
    weight, bias = head.solve(sums, 3.0, state)
    chance = (f @ weight.T + bias).softmax(1)
    assert torch.isfinite(chance).all()
    assert (chance[:, 2] < 0.5).all()


def test_ridge_solves_the_normal_equations():
    learned = task("double_linear", regression=True)
    last = last_of(Method(head=Ridge(decay=1.0, shrinkage=0.3)), learned)
    x, _, _ = pooled()
    rows = np.concatenate([v.indices for t in range(4) for v in World().at(t).visits.values()])
    y = learned.data.train.y.numpy()[rows]
    centred = x - x.mean(0)
    covariance = centred.T @ centred / len(x)
    covariance = 0.7 * covariance + 0.3 * np.trace(covariance) / WIDTH * np.eye(WIDTH)
    weight = np.linalg.solve(covariance, centred.T @ (y - y.mean()) / len(x))
    np.testing.assert_allclose(last.params.numpy()[:WIDTH], weight, atol=1e-9)
    assert last.params[WIDTH] == pytest.approx(y.mean() - weight @ x.mean(0))


def test_ridge_for_classes_is_least_squares_of_indicators():
    last = last_of(Method(head=Ridge(decay=1.0, shrinkage=0.0)))
    x, y, _ = pooled()
    design = np.column_stack([x, np.ones(len(x))])
    want = np.linalg.lstsq(design, np.eye(CLASSES)[y], rcond=None)[0]
    weight = last.params.numpy()[: CLASSES * WIDTH].reshape(CLASSES, WIDTH)
    np.testing.assert_allclose(weight.T, want[:-1], atol=1e-9)
    np.testing.assert_allclose(last.params.numpy()[CLASSES * WIDTH :], want[-1], atol=1e-9)


@pytest.mark.parametrize("head", [Gaussian(), Ridge()], ids=["gaussian", "ridge"])
def test_features_that_stand_still_are_kept_and_others_fade(head):
    """The evidence is for old rounds where nothing moves, and against them where features are new."""
    learned, found = task("double_mlp"), {}
    features = learned.data.train.x

    def moved(speed):
        objective, state = task().objective(), None
        state = head.init(objective, 0)
        for t in range(40):
            rows = torch.from_numpy(
                np.concatenate([v.indices for v in World().at(t).visits.values()])
            )
            turn = torch.tensor(speed * t)
            x = features[rows] * (1 + turn.sin()) + 2 * turn.cos()
            sent = {"params": torch.zeros(16, dtype=torch.float64)}
            samples = Samples(x, learned.data.train.y[rows])
            sums = head.observe(objective, sent, objective.buffers, samples, False)
            state = {**state, **head.update(state, sums)}
        return state

    found = {speed: DECAYS[head.best(moved(speed))] for speed in (0.0, 0.05, 2.0)}
    assert found[0.0] >= 0.95
    assert found[0.05] < found[0.0]
    assert moved(0.0)[SCORES].isfinite().all()


def test_a_sums_likelihood_is_that_of_single_samples():
    head = Gaussian(decay=1.0, shrinkage=0.1, prior="seen")
    x, y, w = pooled(2)
    _, _, within = analysis(x, y, w, 0.1)
    mean = np.stack([x[y == c].mean(0) for c in range(CLASSES)])
    new_x, new_y = x[:7] + 0.5, y[:7]
    off = new_x - mean[new_y]
    each = (
        -(np.einsum("ni,ij,nj->n", off, np.linalg.inv(within), off) + np.linalg.slogdet(within)[1])
        / 2
    )

    def sums(x, y):
        one_hot = np.eye(CLASSES)[y]
        parts = one_hot.sum(0), one_hot.T @ x, x.T @ x
        return Sums(float(len(y)), *(torch.from_numpy(part) for part in parts))

    state = {SEEN: torch.ones(4).double()}
    found = head.score(sums(x, y), 1e9, state, sums(new_x, new_y))
    assert found == pytest.approx(each.mean())


def test_a_squared_error_from_sums_is_that_of_single_samples():
    head = Ridge(decay=1.0, shrinkage=0.1)
    x, y, _ = pooled(1)
    one_hot = np.eye(CLASSES)[y]
    sums = Sums(float(len(y)), *map(torch.from_numpy, (one_hot.sum(0), one_hot.T @ x, x.T @ x)))
    state = {"head_place": torch.tensor([0, 0, 0, 0, CLASSES, WIDTH])}
    weight, bias = head.solve(sums, 1.0, state)
    error = ((x @ weight.numpy().T + bias.numpy() - one_hot) ** 2).sum(1).mean()
    assert head.score(sums, 1.0, state, sums) == pytest.approx(1 - error)


def test_training_is_the_backbones_and_written_back_it_is_not():
    learned, train = task("double_mlp"), Train(lr=0.1, steps=3, batch_size=8)
    plain = last_of(Method(), learned, train=train)
    for method in (Method(head=Gaussian()), Method(Averaged(), head=Gaussian())):
        last = last_of(method, learned, train=train)
        assert torch.equal(last.server["params"], plain.params)
        assert not torch.equal(last.params, plain.params)
    back = last_of(Method(head=Gaussian(write_back=True)), learned, train=train)
    assert not torch.equal(back.server["params"], plain.params)
    spans = learned.objective().names
    head = [back.server["params"][spans[n]] for n in ("fc.weight", "fc.bias")]
    once = last_of(Method(head=Gaussian(write_back=True)), learned, 1, train)
    before = last_of(Method(), learned, 1, train).params
    norms = [
        torch.cat([params[spans[n]] for n in ("fc.weight", "fc.bias")]).norm()
        for params in (once.server["params"], before)
    ]
    assert norms[0] == pytest.approx(norms[1])
    assert all(torch.isfinite(part).all() for part in head)


def test_features_are_those_of_the_model_that_is_served():
    """With the mean of models its features count, and clients are sent both."""
    learned, train = task("double_mlp"), Train(lr=0.5, steps=3, batch_size=8)
    before = last_of(Method(Averaged()), learned, 2, train)
    for body, params in (("served", before.params), ("trained", before.server["params"])):
        head = Gaussian(
            decay=1e-300, shrinkage=0.1, prior="recent", body=body, samples="all", every=1
        )
        last = last_of(Method(Averaged(), head=head), learned, 3, train)
        objective = learned.objective()
        rows = np.concatenate([v.indices for v in World().at(2).visits.values()])
        f = objective.features(params, learned.data.train.x[rows]).numpy()
        y = learned.data.train.y.numpy()[rows]
        means = np.stack([f[y == c].mean(0) for c in range(CLASSES)])
        got = Sums.of(last.server["head_totals"][0], (CLASSES, 6))
        np.testing.assert_allclose(got.features / got.counts[:, None], means, atol=1e-9)
        # The head is on the body that its features are from.
        base = last.server["averaged"] if body == "served" else last.server["params"]
        first = learned.objective().names["fc.weight"].start
        assert torch.equal(last.params[:first], base[:first])


def test_the_mean_of_models():
    learned, train = task("double_mlp"), Train(lr=0.2, steps=3, batch_size=8)
    every = [s.params for s in run(Method(FedOpt()), World(), learned, rounds=6, train=train)]
    mean = every[0]
    for t, params in enumerate(every):
        d = min(0.6, t / (t + 2.0))
        mean = d * mean + (1 - d) * params
    last = last_of(Method(Averaged(FedOpt(), decay=0.6, warm_up=2.0)), learned, 6, train)
    torch.testing.assert_close(last.params, mean)
    assert torch.equal(last.server["params"], every[-1])
    # With 1 it is the plain mean.
    plain = last_of(Method(Averaged(FedOpt(), decay=0.999, warm_up=1.0)), learned, 6, train)
    torch.testing.assert_close(plain.params, torch.stack(every).mean(0))
    none = last_of(Method(Averaged(FedOpt(), decay=0.0)), learned, 6, train)
    assert torch.equal(none.params, every[-1])
    # Inside of another wrapper it averages what that makes of it.
    inside = last_of(Method(FedOpt(Averaged(decay=0.6, warm_up=2.0))), learned, 6, train)
    assert torch.equal(inside.params, last.params)


def test_what_is_served_does_not_travel_and_resumes():
    method = Method(Averaged(), head=Gaussian())
    learned, train = task("double_mlp"), Train(lr=0.2, steps=3, batch_size=8)
    straight = last_of(method, learned, 5, train)
    half = decode(encode(last_of(method, learned, 2, train)))
    assert SERVED in half.server
    assert encode(last_of(method, learned, 5, train, start=half)) == encode(straight)
    seen = set()

    class Spy(Averaged):
        def start(self, server, client, local):
            seen.update(server)
            return super().start(server, client, local)

    last_of(Method(Spy(), head=Gaussian()), learned, 3, train)
    assert seen == {"params", "head_body", "head_asked"}


def test_a_client_is_forgotten_as_if_it_had_never_come():
    class Without(World):
        def at(self, t):
            plan = super().at(t)
            return Plan(t, {i: v for i, v in plan.visits.items() if i != 1})

    head = Gaussian(decay=1.0, prior="seen", by_client=True)
    method, learned = Method(head=head), task()
    last = last_of(method, learned)
    never = [*run(method, Without(), learned, rounds=4, train=STILL)][-1]
    server = method.serve(method.composed.forget(last.server, [1]))
    torch.testing.assert_close(server[SERVED], never.params, rtol=0, atol=1e-9)
    # Sums that were not kept only fade.
    faded = Method(head=Gaussian())
    kept = last_of(faded, learned).server
    assert torch.equal(faded.composed.forget(kept, [1])["head_totals"], kept["head_totals"])


def test_noise_covers_the_sums_and_is_accounted_for():
    inner = Private(bound=1.0, noise=2.0)
    method = Method(Averaged(inner), average="clients", head=Gaussian(bound=5.0))
    assert method.composed.report(7)["epsilon"] == epsilon(combined(2.0, 2), 7, 1e-5)
    assert method.composed.upload_keys == ("delta", SUMS)
    quiet = Method(Private(bound=1.0, noise=1e-9), average="clients", head=Gaussian(bound=100.0))
    free = Method(average="clients", head=Gaussian(bound=1e9))
    one, other, loud = (last_of(m).server["head_totals"] for m in (quiet, free, method))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    assert float((loud - other).abs().max()) > 0.1
    tight = Method(Clipped(bound=1e9), average="clients", head=Gaussian(bound=0.01))
    clipped = last_of(tight, rounds=1).server["head_totals"]
    assert float(clipped[0].norm()) <= 3 * 0.01 + 1e-9
    assert torch.isfinite(last_of(method).params).all()


def test_indefinite_covariances_are_made_definite():
    noisy = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    root = factor(noisy)
    values = torch.linalg.eigvalsh(root @ root.mT)
    torch.testing.assert_close(
        values, torch.tensor([1.0, 3.0], dtype=torch.float64), rtol=1e-3, atol=1e-9
    )
    assert torch.isfinite(factor(torch.zeros(2, 2).double())).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"head\.bound: missing; Private needs the largest norm"):
        Method(Private(), average="clients", head=Gaussian())
    with pytest.raises(ValueError, match=r"Gaussian\.by_client: sums can be taken back only with"):
        Gaussian(by_client=True)
    with pytest.raises(ValueError, match=r"evidence for a prior cannot be taken back"):
        Gaussian(decay=1.0, by_client=True)
    kept = Gaussian(decay=1.0, prior="seen", by_client=True, bound=1.0)
    with pytest.raises(ValueError, match=r"Summed must know which client sent an upload"):
        Method(Private(), average="clients", head=kept)
    with pytest.raises(ValueError, match=r"^head: the backbone has several models"):
        Method(Clusters(), head=Gaussian())
    with pytest.raises(ValueError, match=r"^Averaged\.backbone: it has several models"):
        Averaged(Clusters())
    with pytest.raises(IncompatibleError, match="Gaussian is for classification"):
        last_of(Method(head=Gaussian()), task(regression=True))
    with pytest.raises(IncompatibleError, match="last layer is not linear with a bias"):
        last_of(
            Method(head=Ridge()), Classification(task().data, Custom(f"{__name__}:without_bias"))
        )
    with pytest.raises(SpecError, match=r"method\.head\.layer: the model has no layer 'fx'"):
        last_of(Method(head=Ridge(layer="fx")), Classification(task().data, Linear()))
    assert FedAvg() == Method().composed


def test_a_clients_own_prior_moves_the_bias_alone():
    learned = task("double_mlp")
    head = Gaussian(decay=1.0, shrinkage=0.1, prior="seen", personal=True)
    server = last_of(Method(head=head), learned).server
    counts = torch.tensor([9, 0, 1, 0])
    own = head.personalised(server, counts)
    x, total = learned.data.test.x, server[SEEN] / server[SEEN].sum()
    objective = learned.objective()
    here, there = (objective.logits(params, x).softmax(1) for params in (own, server[SERVED]))
    prior = (counts + 0.5) / (counts + 0.5).sum()
    want = there * prior / total
    torch.testing.assert_close(here, want / want.sum(1, keepdim=True))
    assert Gaussian().personalised(server, counts) is None
    assert Ridge().personalised(server, counts) is None


def test_own_priors_are_measured(data, train_rounds):
    """On clients that hold few classes, and always the same."""
    learned = Classification(data, Mlp((8,)))
    scenario = Subsets(clients=4, subsets=1, client_alpha=0.1).on(data, seed=0)
    head = Gaussian(personal=True)
    *_, last = train_rounds(Method(head=head), rounds=3, task=learned, scenario=scenario)
    parts = (learned, scenario, Method(head=head), Evaluate(seen=0), 0)
    found = Evaluator(*parts)(last).measures
    assert found["personal_accuracy"] > found["client_accuracy"]
    assert [i for i, _ in personal_models(Method(head=head), scenario, learned, last)] == [
        0,
        1,
        2,
        3,
    ]
    assert not list(personal_models(Method(), scenario, learned, last))
