r"""Losses: the price of a model's output for one sample, :math:`\ell(f, y)`, and its derivative in the output.

Everything else follows from the loss of single samples: a client's objective is a weighted sum of them, and a
sample's gradient in the parameters is the derivative in its output, its *signal*, times that of the output.
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from chronofed.core.config import Kind, Positive

TaskName: TypeAlias = Literal["classification", "regression"]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Loss(Kind):
    """Base of all losses that a specification can name.

    A loss of your own is a subclass with ``__call__``, named as ``module:Class``. The loss of a sample must
    depend on its own output and target alone. Set ``task`` if it serves only one kind of task.
    """

    task: ClassVar[TaskName | None] = None
    """The task that it is made for; ``None`` for both."""
    by_class: ClassVar[bool] = False
    """True if it is a sum over classes, each with a sigmoid of its own; a teacher may then replace labels."""

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample, ``(n,)``.

        Args:
            outputs: The model's outputs: logits ``(n, classes)``, or for a regression ``(n, 1)``.
            targets: Numbers of classes, ``(n,)`` of int64; or for a regression scaled numbers, ``(n,)``.
        """

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of all samples' losses."""
        return self(outputs, targets).sum()

    def signal(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""Return :math:`\partial \ell / \partial f` of every sample, of the shape of ``outputs``."""
        with torch.enable_grad():
            at = outputs.detach().requires_grad_()
            (found,) = torch.autograd.grad(self(at, targets).sum(), at)
        return found

    def of_class_names(self, classes: tuple[str, ...]) -> "Loss":
        """Return the loss for these classes; by default it does not depend on their names."""
        del classes
        return self


class CrossEntropy(Loss, tag="cross-entropy"):
    r"""Cross-entropy, the default for classes: :math:`\ell(f, y) = -c_y \log \mathrm{softmax}(f)_y`.

    The factors :math:`c_y` are written down, not counted: class counts of a whole data set would tell a client
    about other clients, and the present about the future. The loss of a data set is the plain mean of its
    samples' losses, not divided by the sum of their factors, so it remains a sum over samples.

    Attributes:
        class_weights: Factor of every class by its name; 1 for a class that is not listed.
    """

    task: ClassVar[TaskName | None] = "classification"

    class_weights: dict[str, Positive] = msgspec.field(default_factory=dict)

    def __hash__(self) -> int:
        # A dict cannot be hashed.
        return hash(frozenset(self.class_weights.items()))

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropies."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the cross-entropies."""
        return functional.cross_entropy(outputs, targets, reduction="sum")

    def signal(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""Return :math:`\mathrm{softmax}(f) - e_y`."""
        signal = outputs.softmax(1)
        signal[torch.arange(len(signal)), targets] -= 1
        return signal

    def of_class_names(self, classes: tuple[str, ...]) -> Loss:
        """Look up the factor of every class.

        Raises:
            ValueError: If a name is not one of the classes.
        """
        unknown = [name for name in self.class_weights if name not in classes]
        if unknown:
            msg = (
                f"loss.class_weights: no class {unknown[0]!r}; the classes are {', '.join(classes)}"
            )
            raise ValueError(msg)
        if not self.class_weights:
            return self
        return WeightedCrossEntropy(tuple(self.class_weights.get(name, 1.0) for name in classes))


class WeightedCrossEntropy(Loss):
    """Cross-entropy with a factor for each class; made by :class:`CrossEntropy`, which has the classes' names.

    Attributes:
        factors: Factor of every class, in their order.
    """

    task: ClassVar[TaskName | None] = "classification"

    factors: tuple[Positive, ...]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropies times the factors of their classes."""
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return losses * self.factors_of(targets, losses)

    def signal(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""Return :math:`c_y (\mathrm{softmax}(f) - e_y)`."""
        plain = CrossEntropy().signal(outputs, targets)
        return plain * self.factors_of(targets, plain)[:, None]

    def factors_of(self, targets: Tensor, like: Tensor) -> Tensor:
        """Return the factor of every sample, of the shape of ``targets`` and the dtype of ``like``."""
        return torch.tensor(self.factors, dtype=like.dtype, device=like.device)[targets]


class BinaryCrossEntropy(Loss, tag="binary-cross-entropy"):
    r"""One cross-entropy for every class by itself, with sigmoids, as in iCaRL.

    .. math:: \ell(f, y) = -\log \sigma(f_y) - \sum_{c \ne y} \log(1 - \sigma(f_c))

    It is their sum; public code that has their mean divides it by the number of classes. A class whose output
    is minus infinity does not count.
    """

    task: ClassVar[TaskName | None] = "classification"
    by_class: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sums of the classes' cross-entropies."""
        absent = outputs.isneginf()
        one_hot = functional.one_hot(targets, outputs.shape[1]).to(outputs)
        each = functional.binary_cross_entropy_with_logits(
            outputs.masked_fill(absent, 0.0), one_hot, reduction="none"
        )
        return each.masked_fill(absent, 0.0).sum(1)

    def signal(self, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""Return :math:`\sigma(f) - e_y`."""
        signal = outputs.sigmoid() - functional.one_hot(targets, outputs.shape[1]).to(outputs)
        return signal.masked_fill_(outputs.isneginf(), 0.0)


class RegressionLoss(Loss):
    """A loss of the residual :math:`r = f - y` of one output."""

    task: ClassVar[TaskName | None] = "regression"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses."""
        return self.of_residual(_residual(outputs, targets))

    def signal(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the slopes in the outputs, ``(n, 1)``."""
        return self.slope(_residual(outputs, targets))[:, None]

    @abstractmethod
    def of_residual(self, residual: Tensor) -> Tensor:
        """Return the loss of every residual."""

    @abstractmethod
    def slope(self, residual: Tensor) -> Tensor:
        """Return its derivative, as autograd gives it: 0 at a kink."""


class Squared(RegressionLoss, tag="squared"):
    r"""Half the squared error, the default for numbers: :math:`\ell(f, y) = \frac12 (f - y)^2`.

    Up to a constant it is the negative log-likelihood of Gaussian noise with unit variance. The best constant
    is the mean.
    """

    def of_residual(self, residual: Tensor) -> Tensor:
        """Return half the squares."""
        return residual.square() / 2

    def slope(self, residual: Tensor) -> Tensor:
        """Return the residuals."""
        return residual


class Absolute(RegressionLoss, tag="absolute"):
    r"""The absolute error, :math:`\ell(f, y) = |f - y|`: outliers count less. The best constant is the median.

    Its curvature in the output is 0, so a ``taylor`` memory with ``hutchinson`` or ``exact`` curvature keeps
    only its slope; use ``fisher``.
    """

    def of_residual(self, residual: Tensor) -> Tensor:
        """Return the absolute values."""
        return residual.abs()

    def slope(self, residual: Tensor) -> Tensor:
        """Return the signs."""
        return residual.sign()


class Huber(RegressionLoss, tag="huber"):
    r"""Huber's loss: squared for small errors, absolute for large ones.

    .. math:: \ell(f, y) = \begin{cases} \frac12 r^2 & |r| \le \delta \\
        \delta\,(|r| - \frac12 \delta) & \text{else}\end{cases}, \qquad r = f - y

    Attributes:
        delta: The error :math:`\delta` from which on it is absolute, in deviations of the target.
    """

    delta: Positive = 1.0

    def of_residual(self, residual: Tensor) -> Tensor:
        """Return the losses."""
        zeros = torch.zeros_like(residual)
        return functional.huber_loss(residual, zeros, reduction="none", delta=self.delta)

    def slope(self, residual: Tensor) -> Tensor:
        """Return the residuals, clamped."""
        return residual.clamp(-self.delta, self.delta)


class Quantile(RegressionLoss, tag="quantile"):
    r"""The pinball loss of a quantile: :math:`\ell(f, y) = \max(q\,(y - f),\ (1 - q)(f - y))`.

    The best constant is the *q*-quantile: of the targets, the share *q* lies below it. As with ``absolute``,
    its curvature in the output is 0.

    Attributes:
        q: The quantile.
    """

    q: Share = 0.5

    def of_residual(self, residual: Tensor) -> Tensor:
        """Return the losses."""
        return residual.relu() * (1 - self.q) + (-residual).relu() * self.q

    def slope(self, residual: Tensor) -> Tensor:
        """Return :math:`1 - q` above the target and :math:`-q` below it."""
        above, below = (residual > 0).to(residual), (residual < 0).to(residual)
        return above * (1 - self.q) - below * self.q


def _residual(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.squeeze(-1) - targets.to(outputs.dtype)
