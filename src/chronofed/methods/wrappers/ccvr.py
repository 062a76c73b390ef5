"""CCVR."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional

from chronofed.core.config import Count, Positive
from chronofed.core.types import Objective, Record, Samples, Vector
from chronofed.methods.backbones.base import Bench, Uploads
from chronofed.methods.class_sums import features_at, packed, sums_by_class, unpacked
from chronofed.methods.layers import Layer, head_of
from chronofed.methods.local import Local, one_client
from chronofed.methods.wrappers.base import Added, ClientWrapper
from chronofed.methods.wrappers.descent import adam

COUNTS, FEATURES, PRODUCTS = "class_counts", "class_features", "class_products"
DUE = "ccvr_due"
"""Has one entry in a round in which the head is refitted, and none in others."""
CHANGE = "ccvr_change"
"""Change of the model by the last refit, which the next round takes back."""


class Ccvr(ClientWrapper, tag="ccvr"):
    r"""Classifier calibration with virtual representations: the head is refitted on the server.

    Clients send sums over their samples of every class *c*: the number :math:`n_c`, and those of the features
    :math:`f`, the inputs of the last layer, and of their products :math:`f f^\top`. The server pools them,

    .. math::
        \mu_c = \frac{1}{n_c} \sum_j f_j, \qquad
        \Sigma_c = \frac{1}{n_c - 1} \Big(\sum_j f_j f_j^\top - n_c\, \mu_c \mu_c^\top\Big),

    draws ``samples`` virtual features :math:`N(\mu_c, \Sigma_c)` of every class, and refits the last layer on
    them, from where it is: full steps of Adam with a rate that falls to 0 along a cosine, on the
    cross-entropy, in which all classes count alike. These are the moments of all samples together. With
    ``average = "clients"`` clients count equally in them.

    The head is refitted after every round, or after every ``every`` rounds: with the number of rounds of the
    run, only at its end, as in the publication. It is the head of the model that is evaluated and saved, but
    **clients do not start from it**: the next round takes the change back, so training is the inner backbone's.

    Features are those of the model that clients were sent, which is the same for all, and so a round older than
    the head's own model. The publication has another exchange after the last round for features of the final
    model, which this contract has not; in a trial those gave clearly better heads. A class with fewer than two
    samples in the round has no covariance: it is left out of the softmax, and keeps its row.

    In a round with a refit, a client sends :math:`C k (k + 3) / 2` more numbers of double precision for *C*
    classes and *k* features, computes the features once, and the server needs :math:`C` eigenvalue problems of
    size *k*. The server keeps one more vector. Replayed samples count as others. Sums are sent divided by the
    number of a client's samples, so that clients with more do not look suspicious. A regression has no classes:
    there, and in a model without a linear last layer, it is the inner backbone. It is refused in ``private``.
    With ``heterofl`` the units that a client lacks count as features of 0.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
        samples: Virtual features of a class.
        steps: Steps of a refit.
        lr: Its first learning rate.
        every: Rounds from one refit to the next.
        layer: Name of the last layer, such as ``fc``; by default the last one whose weights are a matrix.
    """

    reference: ClassVar[str] = (
        "Luo et al. (2021), No Fear of Heterogeneity: Classifier Calibration for Federated Learning with "
        "Non-IID Data"
    )
    upload_keys = Added(COUNTS, FEATURES, PRODUCTS)
    nonnegative = Added(COUNTS)
    refines = True

    samples: Count = 200
    steps: Count = 100
    lr: Positive = 0.01
    every: Count = 1
    layer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backbone.several_models:
            raise ValueError(
                "Ccvr.backbone: it has several models, and Ccvr refits one; put Ccvr inside of it"
            )

    def init_server(self, params: Vector, clients: int) -> Record:
        """As the inner backbone, without a refit."""
        return {**self.backbone.init_server(params, clients), CHANGE: torch.zeros_like(params)}

    def draw(self, server: Record, seed: int, round_: int) -> Record:
        """Take the last refit back; note whether this round has one, if not every round has."""
        change = server[CHANGE]
        trained = {**server, "params": server["params"] - change, CHANGE: torch.zeros_like(change)}
        drawn = super().draw(trained, seed, round_)
        if self.every == 1:
            return drawn
        return {**drawn, DUE: torch.ones(int((round_ + 1) % self.every == 0))}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone, and whether there is a refit."""
        due = {DUE: server[DUE]} if DUE in server else {}
        return {**self.backbone.broadcast(_inner(server)), **due}

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """As the inner backbone, and the moments of the features of every class."""
        upload, state = self.backbone.finish(params, server, client, local)
        one, head = one_client(local), self._head(local.objective)
        if head is None or one.samples.y.is_floating_point() or not self._due(server):
            none = torch.zeros(0, dtype=torch.float64)
            counts = torch.zeros(0, dtype=torch.int64)
            return {**upload, COUNTS: counts, FEATURES: none, PRODUCTS: none}, state
        buffers = one.objective.buffers if one.buffers is None else one.buffers
        samples, layer = one.pool.samples, head.name or None
        features = features_at(one.objective, server["params"], buffers, samples, layer).double()
        return {**upload, **class_moments(features, samples, head.outputs)}, state

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone."""
        return self.backbone.aggregate(_inner(server), uploads)

    def refine(self, server: Record, uploads: Uploads, bench: Bench) -> Record:
        """Let the inner backbone refine, and refit the head of the result."""
        server = super().refine(server, uploads, bench)
        before = server["params"]
        after = self._calibrated(before, uploads, bench)
        return {**server, "params": after, CHANGE: after - before}

    def _calibrated(self, params: Vector, uploads: Uploads, bench: Bench) -> Vector:
        """Return the model with a new head; the same if there is nothing to fit it to."""
        head = self._head(bench.objective)
        if head is None or not uploads[0][1][COUNTS].numel():
            return params
        gaussians = pooled(uploads)
        if not len(gaussians.classes):
            return params
        virtual = gaussians.draw(self.samples, bench.generator)
        return self._refitted(params, head, gaussians, virtual)

    def _due(self, server: Record) -> bool:
        return self.every == 1 or len(server[DUE]) > 0

    def _head(self, objective: Objective) -> Layer | None:
        """Return the last layer; ``None`` if it is not linear, or has a single output."""
        head = head_of(objective, self.layer)
        return None if head is None or len(head.shape) != 2 else head

    def _refitted(
        self, params: Vector, head: Layer, gaussians: "Gaussians", virtual: Tensor
    ) -> Vector:
        """Return the model with a head that fits virtual features, ``(classes, n, k)``."""
        spans = [head.weight] if head.bias is None else [head.weight, head.bias]
        sizes = [span.stop - span.start for span in spans]
        x = virtual.flatten(0, 1).to(params)
        labels = torch.arange(len(virtual)).repeat_interleave(virtual.shape[1]).to(params.device)

        def gradient(point: Vector, _: int) -> Vector:
            point = point.detach().requires_grad_()
            weight, *bias = torch.split(point, sizes)
            rows = weight.view(head.shape)[gaussians.classes]
            logits = functional.linear(x, rows, bias[0][gaussians.classes] if bias else None)
            (found,) = torch.autograd.grad(functional.cross_entropy(logits, labels), point)
            return found

        start = torch.cat([params[span] for span in spans])
        params = params.clone()
        fitted = torch.split(adam(start, gradient, self.steps, self.lr), sizes)
        for span, part in zip(spans, fitted, strict=True):
            params[span] = part
        return params


@dataclass(frozen=True, slots=True)
class Gaussians:
    """A normal distribution of features for every class that has enough samples.

    Attributes:
        classes: Numbers of these classes, ``(c,)``.
        means: Their means, ``(c, k)``.
        covariances: Their covariances, ``(c, k, k)``.
    """

    classes: Tensor
    means: Tensor
    covariances: Tensor

    def draw(self, count: int, generator: Generator) -> Tensor:
        """Draw features, ``(c, count, k)``; what clipping made negative has no spread.

        A difference of products leaves eigenvalues of the size of rounding where features do not vary, and a
        root would make 1e-8 of 1e-16: they count as 0.
        """
        values, vectors = torch.linalg.eigh(self.covariances)
        size_sq = values[:, -1:].abs() + self.means.square().sum(1, keepdim=True)
        least = self.means.shape[1] * torch.finfo(values.dtype).eps * size_sq
        values = values.where(values > least, 0.0)
        # The symmetric root does not depend on the signs of eigenvectors.
        root: Tensor = (vectors * values.sqrt()[:, None, :]) @ vectors.mT
        size = (len(self.classes), count, self.means.shape[1])
        noise = torch.randn(size, generator=generator, dtype=torch.float64)
        return noise.matmul(root).add_(self.means[:, None, :])


def class_moments(features: Tensor, samples: Samples, classes: int) -> Record:
    """Return the sums of a client that its server pools, those of features per sample.

    Of the products, which are symmetric, the upper triangle is sent, row by row.

    Args:
        features: The features of the samples, ``(n, k)``.
        samples: The samples.
        classes: Number of classes.
    """
    f, y = features.double(), samples.y.to(features.device)
    products = [(own := f[y == c]).mT @ own for c in range(classes)]
    return {
        COUNTS: torch.bincount(y, minlength=classes),
        FEATURES: sums_by_class(f, y, classes) / len(y),
        PRODUCTS: packed(torch.stack(products)) / len(y),
    }


def pooled(uploads: Uploads) -> Gaussians:
    """Return mean and covariance of every class over all clients, of classes with two samples or more."""
    first = uploads[0][1]
    counts = torch.zeros_like(first[COUNTS])
    share = torch.zeros(len(counts), dtype=torch.float64)
    sums, products = torch.zeros_like(first[FEATURES]), torch.zeros_like(first[PRODUCTS])
    for weight, upload in uploads:
        counts += upload[COUNTS]
        share.add_(upload[COUNTS].double() / upload[COUNTS].sum().clamp(min=1), alpha=weight)
        sums.add_(upload[FEATURES], alpha=weight)
        products.add_(upload[PRODUCTS], alpha=weight)
    classes = ((counts >= 2) & (share > 0)).nonzero().flatten()
    k, n, share = sums.shape[1], counts[classes].double(), share[classes]
    means = sums[classes] / share[:, None]
    square = unpacked(products[classes] / share[:, None], k)
    square = square - means[:, :, None] * means[:, None, :]
    return Gaussians(classes, means, square * (n / (n - 1))[:, None, None])


def _inner(server: Record) -> Record:
    return {name: tensor for name, tensor in server.items() if name not in (DUE, CHANGE)}
