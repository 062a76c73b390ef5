"""Curvatures against the dense Hessian, in double precision."""

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from chronofed import Exact, Fisher, Hutchinson, SquaredGradient
from chronofed.core.errors import SpecError
from chronofed.core.types import Batch, Samples
from chronofed.methods.memories.curvature import MeanLoss, hessian
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import Cnn, Linear, Mlp, ResNet18

EXACT = {"rtol": 0, "atol": 1e-12}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class World:
    """A model in double precision, samples, and all derivatives written out with torch alone."""

    def __init__(self, settings, shape=(5,), classes=3, n=20):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.module = settings.build(shape, classes).double()
        self.objective = TorchObjective(self.module)
        self.params = self.objective.flat.read()
        x = torch.randn(n, *shape, generator=generator(2), dtype=torch.float64)
        self.samples = Samples(x, torch.randint(classes, (n,), generator=generator(3)))

    def everything(self):
        return (slice(0, len(self.params)),)

    def loss(self, params, x, y):
        parts = {
            name: params[span].view(self.module.get_parameter(name).shape)
            for name, span in self.objective.names.items()
        }
        return functional.cross_entropy(functional_call(self.module.eval(), parts, (x,)), y)

    def hessian(self):
        def loss(params):
            return self.loss(params, self.samples.x, self.samples.y)

        return torch.autograd.functional.hessian(loss, self.params)

    def single_gradients(self):
        """One row a sample."""
        rows = []
        for x, y in zip(self.samples.x, self.samples.y, strict=True):
            params = self.params.clone().requires_grad_()
            rows += torch.autograd.grad(self.loss(params, x[None], y[None]), params)
        return torch.stack(rows)

    def diagonal(self, curvature, spans=None, seed=0):
        spans = spans or self.everything()
        return curvature.expand(self.mean_loss(spans), generator(seed))[1]

    def mean_loss(self, spans):
        return MeanLoss(self.objective, self.params, self.samples, spans)


@pytest.fixture(scope="module")
def small() -> World:
    return World(Mlp((4,)))


def test_hessian_product_is_that_of_the_dense_hessian(small):
    v = torch.randn(len(small.params), generator=generator(), dtype=torch.float64)
    batch = Batch.mean(small.samples)
    product = small.objective.hessian_product(small.params, batch, small.everything(), v)
    torch.testing.assert_close(product, small.hessian() @ v, **EXACT)


def test_gradient_and_products_of_one_pass_are_those_of_single_calls(small):
    """Over all layers, the first, and the last, whose derivatives need no graph of the body."""
    batch, names = Batch.mean(small.samples), small.objective.names
    last = tuple(span for name, span in names.items() if name.startswith("fc."))
    first = (next(iter(names.values())),)
    for spans in (small.everything(), first, last):
        size = small.mean_loss(spans).size
        vectors = [*torch.randn(2, size, generator=generator(), dtype=torch.float64)]
        asked = small.params, batch, spans
        gradient, products = small.mean_loss(spans).gradient_and_products(vectors)
        torch.testing.assert_close(gradient, small.objective.loss_gradient(*asked), **EXACT)
        rows = torch.cat([torch.arange(s.start, s.stop) for s in spans])
        dense = small.hessian()[rows][:, rows]
        for v, product in zip(vectors, products, strict=True):
            assert torch.equal(product, small.objective.hessian_product(*asked, v))
            torch.testing.assert_close(product, dense @ v, **EXACT)


def test_exact_is_the_diagonal_of_the_dense_hessian(small):
    torch.testing.assert_close(small.diagonal(Exact()), small.hessian().diagonal(), **EXACT)


def test_exact_refuses_what_takes_too_long(small, monkeypatch):
    monkeypatch.setattr(hessian, "LARGEST", 38)
    with pytest.raises(SpecError, match=r"exact: 39 parameters need .* more than 38 .* hutchinson"):
        small.diagonal(Exact())
    assert len(small.diagonal(Exact(), (slice(0, 20),))) == 20


def test_fisher_is_the_mean_square_over_single_samples(small):
    want = small.single_gradients().square().mean(0)
    torch.testing.assert_close(small.diagonal(Fisher()), want, **EXACT)


def test_squared_gradient_is_the_square_of_the_mean(small):
    gradients = small.single_gradients()
    torch.testing.assert_close(
        small.diagonal(SquaredGradient()), gradients.mean(0).square(), **EXACT
    )
    assert (small.diagonal(SquaredGradient()) <= small.diagonal(Fisher()) + 1e-15).all()


def test_squared_gradients_count_with_their_weights_beyond_one_chunk():
    world = World(Linear(), n=75)  # single gradients are held for 32 samples at a time
    weight = torch.rand(75, generator=generator(), dtype=torch.float64)
    batch = Batch(world.samples.x, world.samples.y, weight)
    got = world.objective.squared_gradients(world.params, batch, world.everything())
    torch.testing.assert_close(got, weight @ world.single_gradients().square(), **EXACT)


@pytest.mark.parametrize("settings", [Linear(), Mlp((4,))], ids=["softmax", "relu"])
def test_fisher_with_the_models_own_labels_is_the_exact_diagonal(settings):
    """Logits are linear in every single weight, so the diagonal has no second derivatives of them."""
    world = World(settings)
    chances = world.objective.logits(world.params, world.samples.x).softmax(1).clone()
    x = world.samples.x.repeat_interleave(3, 0)
    batch = Batch(x, torch.arange(3).repeat(len(chances)), chances.flatten() / len(chances))
    fisher = world.objective.squared_gradients(world.params, batch, world.everything())
    torch.testing.assert_close(fisher, world.diagonal(Exact()), **EXACT)


def test_hutchinson_is_unbiased_with_the_variance_of_the_formula(small):
    dense = small.hessian()
    probes = 1000
    estimate = small.diagonal(Hutchinson(probes))
    deviation = ((dense.square().sum(1) - dense.diagonal().square()) / probes).sqrt()
    off = (estimate - dense.diagonal()) / deviation.clamp(min=1e-12)
    assert off.abs().max() < 4.5
    assert 0.5 < off.square().mean() < 2  # neither noisier nor more exact than it should be


def test_hutchinson_is_the_mean_over_its_probes(small):
    one = Hutchinson(1)
    source = generator(7)
    loss = small.mean_loss(small.everything())
    each = [one.expand(loss, source)[1] for _ in range(3)]
    _, three = Hutchinson(3).expand(loss, generator(7))
    torch.testing.assert_close(three, sum(each) / 3, **EXACT)
    assert not torch.equal(each[0], each[1])


@pytest.mark.parametrize(
    ("curvature", "signed"),
    [(Hutchinson(2), True), (Exact(), True), (Fisher(), False), (SquaredGradient(), False)],
    ids=str,
)
def test_estimates_keep_their_sign_and_say_if_they_have_one(curvature, signed, small):
    """A ReLU network's exact diagonal has no negative entry, but another module's may."""
    assert curvature.nonnegative is not signed
    if not isinstance(curvature, Exact):
        assert bool((small.diagonal(curvature) < 0).any()) is signed


@pytest.mark.parametrize("curvature", [Fisher(), SquaredGradient(), Exact()], ids=str)
def test_parts_of_the_vector_one_after_the_other(curvature, small):
    names = small.objective.names
    spans = (names["features.fc1.bias"], names["fc.bias"])
    whole = small.diagonal(curvature)
    torch.testing.assert_close(
        small.diagonal(curvature, spans), torch.cat([whole[s] for s in spans]), **EXACT
    )


def test_hutchinson_sees_only_its_part_of_the_hessian(small):
    spans = (small.objective.names["fc.bias"],)
    block = small.hessian()[spans[0], spans[0]]
    deviation = ((block.square().sum(1) - block.diagonal().square()) / 500).sqrt()
    estimate = small.diagonal(Hutchinson(500), spans)
    assert ((estimate - block.diagonal()).abs() < 4.5 * deviation).all()


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("settings", "shape"),
    [(ResNet18(4), (3, 8, 8)), (ResNet18(4, "group"), (3, 8, 8)), (Cnn((2, 3), 6), (1, 8, 8))],
    ids=["batch norm", "group norm", "cnn"],
)
def test_convolutions_and_normalisations(settings, shape):
    world = World(settings, shape, n=6)
    world.objective.gradient(world.params, Batch.mean(world.samples))  # statistics of its own
    before = world.objective.buffers
    spans = (world.objective.names["fc.weight"], world.objective.names["fc.bias"])
    gradients = torch.cat([world.single_gradients()[:, s] for s in spans], dim=1)
    torch.testing.assert_close(world.diagonal(Fisher(), spans), gradients.square().mean(0), **EXACT)
    torch.testing.assert_close(
        world.diagonal(SquaredGradient(), spans), gradients.mean(0).square(), **EXACT
    )
    # Softmax regression on features: the diagonal is that of the classifier alone.
    z = world.objective.features(world.params, world.samples.x)
    p = world.objective.logits(world.params, world.samples.x).softmax(1)
    v = p * (1 - p)  # (n, classes)
    want = torch.cat([(v.T @ z.square() / len(z)).flatten(), v.mean(0)])
    torch.testing.assert_close(world.diagonal(Exact(), spans), want, **EXACT)
    estimate = world.diagonal(Hutchinson(100), spans)
    assert (estimate - want).norm() < 0.5 * want.norm()
    assert torch.equal(world.objective.buffers, before)
