"""FedDF and CCVR against identities and against their formulas written out, in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import (
    Ccvr,
    Classification,
    Clipped,
    Clusters,
    CoreSet,
    Custom,
    Cwr,
    Dataset,
    FedAvg,
    FedDF,
    FedNova,
    FedOpt,
    HeteroFL,
    Method,
    Mifa,
    Mlp,
    Private,
    Samples,
    Train,
    run,
)
from chronofed.core.errors import SpecError
from chronofed.methods.backbones.base import Bench, Upload
from chronofed.methods.wrappers.ccvr import class_moments, pooled
from chronofed.models.distillation import distillation_losses
from chronofed.scenarios.base import Plan, Visit

CLASSES, WIDTH, SIZE = 4, 3, 60


def double_linear(shape, classes):
    return nn.Linear(shape[0], classes).double()


def double_mlp(shape, classes):
    return Mlp((5,)).build(shape, classes).double()


def with_norm(shape, classes):
    return nn.Sequential(
        nn.Linear(shape[0], 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, classes)
    ).double()


def task(model="double_mlp"):
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(SIZE, WIDTH, generator=draw, dtype=torch.float64)
    samples = Samples(x, torch.arange(SIZE) % CLASSES)
    data = Dataset("rows", samples, samples, tuple("abcd"))
    return Classification(data, Custom(f"{__name__}:{model}"))


UNLABELLED = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(5)).double()


class World:
    """Clients of different size and classes: of every class, most are with one of them."""

    persistent, rounds = True, None

    def __init__(self, *classes):
        self.classes, self.clients = classes or ((0, 1), (1, 2, 3), (0, 3)), len(classes) or 3

    def at(self, t):
        rows = np.arange(SIZE)
        held = {
            i: rows[np.isin(rows % CLASSES, own) & (rows // CLASSES % self.clients == i)]
            for i, own in enumerate(self.classes)
        }
        return Plan(t, {i: Visit(own, 0) for i, own in held.items()})


def trained(backbone, rounds=2, on=None, world=None, average="samples", **others):
    train = Train(lr=0.3, steps=4, batch_size="full")
    method = Method(backbone, average=average, memory=others.pop("memory", CoreSet(3)))
    samples = UNLABELLED if backbone.needs_samples else None
    world, on = world or World(), on or task()
    return [*run(method, world, on, rounds=rounds, train=train, server_samples=samples, **others)]


# FedDF


def test_one_teacher_equal_to_the_student_changes_nothing():
    """Bit for bit: what is left of the gradient is rounding, of which Adam would make full steps."""
    alone = World((0, 1, 2, 3))
    for ensemble in ("avg_logits", "avg_losses"):
        last = trained(FedDF(ensemble=ensemble), world=alone)[-1]
        assert torch.equal(last.params, trained(FedAvg(), world=alone)[-1].params)


def test_a_gradient_above_rounding_does_change_something():
    assert not torch.equal(trained(FedDF(steps=1))[-1].params, trained(FedAvg())[-1].params)


@pytest.mark.parametrize("average", ["samples", "clients"])
def test_linear_models_are_the_inner_backbone(average):
    """The mean of logits is that of the mean model; the mean of probabilities is not."""
    linear = task("double_linear")
    plain = trained(FedAvg(), 3, linear, average=average)[-1].params
    found = trained(FedDF(), 3, linear, average=average)[-1].params
    torch.testing.assert_close(found, plain, rtol=0, atol=4e-16)
    other = trained(FedDF(ensemble="avg_losses"), 3, linear, average=average)[-1].params
    assert (other - plain).abs().max() > 1e-3


def prepared(backbone, model="double_mlp"):
    """A server's state, two uploads and a bench."""
    on = task(model)
    objective, (params, buffers) = on.objective(), on.initial(0)
    objective.buffers = buffers
    draw = torch.Generator().manual_seed(7)
    deltas = [torch.randn(len(params), generator=draw).to(params) for _ in range(2)]
    uploads = [
        Upload(w, {"delta": d}, i) for i, (w, d) in enumerate(zip((1, 3), deltas, strict=True))
    ]
    before = {"params": params}
    own = [buffers, buffers + 1] if len(buffers) else [buffers, buffers]
    bench = Bench(objective, UNLABELLED, before, own, torch.Generator().manual_seed(1))
    return backbone.aggregate(before, uploads), uploads, bench


def written_out(backbone, model="double_mlp"):
    """torch.optim, a closure over autograd, and every teacher's divergence by itself."""
    server, uploads, bench = prepared(backbone, model)
    picks = torch.randint(50, (backbone.steps, backbone.batch_size), generator=bench.generator)
    net = task(model).objective().flat.module
    size = sum(p.numel() for p in net.parameters())
    w = nn.Parameter(server["params"].clone())
    adam = torch.optim.Adam([w], lr=backbone.lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, backbone.steps)
    teachers = [bench.before["params"] + upload["delta"] for _, upload in uploads]
    assert len(w) == size

    def outputs(vector, x):
        parts = torch.split(vector, [p.numel() for p in net.parameters()])
        named = zip(net.named_parameters(), parts, strict=True)
        return torch.func.functional_call(net, {n: v.view(p.shape) for (n, p), v in named}, x)

    for pick in picks:
        x, scale = UNLABELLED[pick], backbone.temperature
        each = [outputs(teacher, x).detach() for teacher in teachers]
        mine = (outputs(w, x) / scale).log_softmax(1)
        if backbone.ensemble == "avg_logits":
            targets = [((each[0] + 3 * each[1]) / 4 / scale).softmax(1)]
        else:
            targets = [(z / scale).softmax(1) for z in each]
        shares = [1.0] if len(targets) == 1 else [0.25, 0.75]
        kl = sum(
            a * nn.functional.kl_div(mine, q, reduction="batchmean")
            for a, q in zip(shares, targets, strict=True)
        )
        adam.zero_grad()
        kl.backward()
        # torch's own adds 1e-6 to the norm.
        w.grad *= min(1.0, backbone.clip_norm / float(w.grad.norm()))
        adam.step()
        cosine.step()
    return w.detach()


@pytest.mark.parametrize("ensemble", ["avg_logits", "avg_losses"])
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 3.0, "lr": 0.05}, {"clip_norm": 1e-3, "lr": 0.01}], ids=str
)
def test_distillation_written_out(ensemble, settings):
    backbone = FedDF(ensemble=ensemble, steps=20, batch_size=8, **settings)
    found = backbone.refine(*prepared(backbone))["params"]
    torch.testing.assert_close(found, written_out(backbone), rtol=0, atol=1e-14)
    assert (found - prepared(backbone)[0]["params"]).abs().max() > 1e-3


def test_the_student_comes_nearer_to_the_ensemble():
    backbone = FedDF(lr=0.01)
    server, uploads, bench = prepared(backbone)
    models = [bench.before["params"] + upload["delta"] for _, upload in uploads]
    one, other = (bench.objective.logits(model, UNLABELLED).clone() for model in models)
    target = (one + 3 * other) / 4

    def distance(params):
        return float(
            distillation_losses(bench.objective.logits(params, UNLABELLED), target, 1.0).mean()
        )

    assert distance(backbone.refine(server, uploads, bench)["params"]) < distance(server["params"])


def test_every_teacher_has_the_buffers_of_its_client():
    """And those of the model stay as they are."""
    backbone = FedDF(steps=3)
    server, uploads, bench = prepared(backbone, "with_norm")
    buffers = bench.objective.buffers.clone()
    found = backbone.refine(server, uploads, bench)["params"]
    assert torch.equal(bench.objective.buffers, buffers)
    server, uploads, bench = prepared(backbone, "with_norm")
    same = Bench(bench.objective, UNLABELLED, bench.before, [buffers] * 2, bench.generator)
    assert not torch.equal(backbone.refine(server, uploads, same)["params"], found)


def test_feddf_needs_samples_on_the_server():
    with pytest.raises(SpecError, match=r"^server_data: missing; FedDF refines the model on"):
        next(run(Method(FedDF()), World(), task(), rounds=1))


@pytest.mark.parametrize("outer", [FedDF, lambda b: FedDF(FedOpt(b))])
@pytest.mark.parametrize("inner", [FedNova(), Mifa(), Cwr(), HeteroFL()], ids=repr)
def test_backbones_that_do_not_send_models_are_refused(outer, inner):
    hides = type(inner).__name__
    with pytest.raises(ValueError, match=f"FedDF needs the models of clients, which {hides} does"):
        outer(inner)


def test_feddf_inside_of_what_changes_uploads_is_refused():
    for outer in (Cwr, HeteroFL):
        with pytest.raises(ValueError, match=f"^{outer.__name__}.backbone: FedDF needs the models"):
            outer(FedDF())


def test_several_models_go_outside():
    for outer in (FedDF, Ccvr):
        with pytest.raises(ValueError, match="it has several models"):
            outer(Clusters())
        trained(Clusters(outer(steps=3)), memory=CoreSet(3))


def test_private_is_refused():
    with pytest.raises(ValueError, match=r"^Private\.backbone: FedDF needs the upload of every"):
        Private(FedDF())
    bounds = {name: 1.0 for name in Ccvr().upload_keys if name != "delta"}
    for backbone in (Private(Ccvr(), bounds=bounds), Ccvr(Private()), FedDF(Private())):
        with pytest.raises(ValueError, match="refine sees what single clients sent"):
            Method(backbone, average="clients")


# CCVR


def uploads_of(world, on, params):
    """The moments that clients send, and all features and labels together."""
    sent, everything = [], []
    for i, visit in world.at(0).visits.items():
        samples = on.samples(visit.indices)
        features = on.objective().features(params, samples.x)
        sent.append(Upload(len(samples), class_moments(features, samples, CLASSES), i))
        everything.append((features, samples.y))
    f, y = (torch.cat(part).numpy() for part in zip(*everything, strict=True))
    return sent, f, y


def test_pooled_moments_are_those_of_the_union():
    on = task()
    sent, f, y = uploads_of(World(), on, on.initial(0)[0])
    found = pooled(sent)
    assert found.classes.tolist() == [0, 1, 2, 3]
    for c in range(CLASSES):
        np.testing.assert_allclose(found.means[c], f[y == c].mean(0), rtol=0, atol=5e-16)
        want = np.cov(f[y == c].T)
        np.testing.assert_allclose(found.covariances[c], want, rtol=0, atol=5e-16)


def test_pooled_moments_by_the_formula_of_the_publication():
    on = task()
    sent, f, y = uploads_of(World(), on, on.initial(0)[0])
    found, c, start, parts = pooled(sent), 1, 0, []
    for weight, _ in sent:
        own = f[start : start + weight][y[start : start + weight] == c]
        start += weight
        if len(own):
            parts.append((len(own), own.mean(0), np.cov(own.T)))
    n = sum(k for k, _, _ in parts)
    mean = sum(k * m for k, m, _ in parts) / n
    spread = sum((k - 1) * s + k * np.outer(m, m) for k, m, s in parts) - n * np.outer(mean, mean)
    np.testing.assert_allclose(found.covariances[c], spread / (n - 1), rtol=0, atol=1e-15)


def test_virtual_features_have_the_moments():
    on = task()
    found = pooled(uploads_of(World(), on, on.initial(0)[0])[0])
    drawn = found.draw(100_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(1), found.means, rtol=0, atol=0.01)
    for c in range(CLASSES):
        torch.testing.assert_close(drawn[c].mT.cov(), found.covariances[c], rtol=0, atol=0.01)


def test_features_that_do_not_vary_have_no_spread():
    """Rounding of 1e-16 in a covariance must not become 1e-8 in the features."""
    f = torch.full((30, 2), 0.1, dtype=torch.float64)
    f[:, 0] = torch.linspace(0, 1, 30)
    samples = Samples(f, torch.zeros(30, dtype=torch.int64))
    found = pooled([Upload(30, class_moments(f, samples, 2), 0)])
    drawn = found.draw(50, torch.Generator().manual_seed(0))
    assert (drawn[0, :, 1] - 0.1).abs().max() < 1e-14
    assert drawn[0, :, 0].std() > 0.1


def test_a_class_with_one_sample_keeps_its_row():
    """And so does one that nobody has; others do not."""
    f = torch.randn(9, 5, generator=torch.Generator().manual_seed(2)).double()
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
    record = class_moments(f, Samples(f, y), CLASSES)
    assert pooled([Upload(9, record, 0)]).classes.tolist() == [0, 1]
    backbone, on = Ccvr(), task()
    params = on.initial(0)[0]
    bench = Bench(on.objective(), torch.empty(0), {}, [], torch.Generator().manual_seed(0))
    after = backbone.refine({"params": params}, [Upload(9, record, 0)], bench)["params"]
    # Four rows of five weights, and the bias.
    moved = (after - params)[-24:-4].view(4, 5).abs().amax(1)
    assert (moved[:2] > 0).all()
    assert (moved[2:] == 0).all()
    assert ((after - params)[-4:] != 0).tolist() == [True, True, False, False]
    assert torch.equal(after[:-24], params[:-24])


def test_only_the_head_is_refitted_and_it_fits_better():
    on = task()
    plain, found = trained(FedAvg(), 1, on)[-1].params, trained(Ccvr(), 1, on)[-1].params
    assert torch.equal(plain[:-24], found[:-24])
    assert not torch.equal(plain[-24:], found[-24:])


@pytest.mark.parametrize("every", [2, 3])
def test_every_few_rounds(every):
    """Before the first refit it is the inner backbone, and moments travel in rounds with a refit only."""
    plain, found = trained(FedAvg(), every + 1), trained(Ccvr(every=every), every + 1)
    for t in range(every - 1):
        assert torch.equal(plain[t].params, found[t].params)
    assert not torch.equal(plain[every - 1].params, found[every - 1].params)
    up = np.diff([0, *(s.traffic.up_bytes for s in found)])
    usual = np.diff([0, *(s.traffic.up_bytes for s in plain)])
    # Per client and class: a count, 5 features and 15 products.
    assert (up - usual).tolist() == [
        3 * 8 * CLASSES * 21 if t == every - 1 else 0 for t in range(every + 1)
    ]


def test_clients_do_not_start_from_the_new_head():
    """Without the last refit, the model is that of the inner backbone in every round."""
    for plain, found in zip(trained(FedAvg(), 4), trained(Ccvr(), 4), strict=True):
        change = found.server["ccvr_change"]
        torch.testing.assert_close(found.params - change, plain.params, rtol=0, atol=1e-14)
        assert change[-24:].abs().max() > 1e-3
        assert not change[:-24].any()


def test_features_have_the_buffers_that_came_with_the_model():
    on = task("with_norm")
    sent, _, _ = uploads_of(World(), on, on.initial(0)[0])
    seen = []

    class Spy(FedOpt, tag="test-spy-ccvr"):
        def aggregate(self, server, uploads):
            seen.extend(uploads)
            return super().aggregate(server, uploads)

    trained(Spy(Ccvr()), 1, on)
    for one, other in zip(sent, seen, strict=True):
        for name, tensor in one[1].items():
            torch.testing.assert_close(other[1][name], tensor, rtol=0, atol=1e-14)


def test_clipped_moments_still_give_a_model():
    bounds = {"class_counts": 1.0, "class_features": 1e-3, "class_products": 1e-6}
    last = trained(Clipped(Ccvr(), 1e30, bounds))[-1]
    assert torch.isfinite(last.params).all()
    free = trained(Clipped(Ccvr(), 1e30, dict.fromkeys(bounds, 1e30)))[-1].params
    assert torch.equal(free, trained(Ccvr())[-1].params)
    for name in ("class_features", "class_products"):
        tight = {**dict.fromkeys(bounds, 1e30), name: 1e-3}
        assert not torch.equal(trained(Clipped(Ccvr(), 1e30, tight))[-1].params, free)


def test_both_together():
    for backbone in (FedDF(Ccvr(), steps=3), Ccvr(FedDF(steps=3))):
        assert torch.isfinite(trained(backbone)[-1].params).all()
