"""The distillation loss: how far a student's outputs are from a teacher's."""

import torch
from torch import Tensor
from torch.nn import functional

from chronofed.core.errors import IncompatibleError
from chronofed.core.types import OutputForm


def distillation_losses(
    student: Tensor,
    teacher: Tensor,
    temperature: float,
    form: OutputForm = "softmax",
    classes: Tensor | None = None,
    labels: Tensor | None = None,
) -> Tensor:
    r"""Return :math:`-\sum_c q_{jc} \log p_{jc}` of every sample, ``(b,)``, from the logits of both.

    With ``softmax``, :math:`q_j = \mathrm{softmax}(z^*_j / T)` and :math:`p_j = \mathrm{softmax}(z_j / T)`.
    With ``sigmoid``, it is the sum of every class's own cross-entropy. There is no factor :math:`T^2`.

    With ``targets`` the sigmoids of the teacher take the place of the labels of its classes: it is the
    cross-entropy with the one minus that with the other, which is linear,
    :math:`\sum_c (y_{jc} - q_{jc}) z_{jc}`.

    With ``part`` the softmax is over all outputs, and the sum over the chosen ``classes``. With ``not-true``
    both leave out the sample's own class. With ``logits`` it is the mean squared difference of the outputs.

    A single output is a number: the loss is half the squared difference, whatever the temperature.

    Args:
        student: Its logits, ``(b, classes)``.
        teacher: Its logits, likewise.
        temperature: :math:`T`.
        form: The way in which outputs become probabilities.
        classes: Positions of the outputs to compare; by default all.
        labels: The classes of the samples, ``(b,)``, for ``targets`` and ``not-true``.

    Raises:
        IncompatibleError: If there is one output and the form is not ``softmax``.
    """
    outputs = student.shape[1]
    if form == "logits":
        return _chosen((student - teacher).square(), classes).mean(1)
    if outputs == 1 and form == "softmax":
        return (student - teacher).square().sum(1) / 2
    if outputs == 1:
        raise IncompatibleError(
            f"a teacher of the form {form!r} needs classes, but there is one output"
        )
    if form == "targets":
        assert labels is not None
        missed = functional.one_hot(labels, outputs).to(teacher) - teacher.sigmoid()
        return _chosen(missed * student, classes).sum(1)
    if form == "part":
        student, teacher = student / temperature, teacher / temperature
        return -_chosen(teacher.softmax(1) * student.log_softmax(1), classes).sum(1)
    if form == "not-true":
        assert labels is not None
        student, teacher = (_without(each, labels) for each in (student, teacher))
    student, teacher = (_chosen(each, classes) / temperature for each in (student, teacher))
    if form in ("softmax", "not-true"):
        return functional.cross_entropy(student, teacher.softmax(1), reduction="none")
    targets = teacher.sigmoid()
    each = functional.binary_cross_entropy_with_logits(student, targets, reduction="none")
    return each.sum(1)


def _without(values: Tensor, labels: Tensor) -> Tensor:
    """Leave out one output of every sample."""
    kept = torch.ones_like(values, dtype=torch.bool).scatter_(1, labels[:, None], False)
    return values[kept].view(len(values), -1)


def _chosen(values: Tensor, classes: Tensor | None) -> Tensor:
    return values if classes is None else values[:, classes.to(values.device)]
