"""The distillation loss: how far a student's outputs are from a teacher's."""

from torch import Tensor
from torch.nn import functional

from chronofed.core.errors import IncompatibleError
from chronofed.core.types import OutputForm


def distillation_losses(
    student: Tensor, teacher: Tensor, temperature: float, form: OutputForm = "softmax"
) -> Tensor:
    r"""Return :math:`-\sum_c q_{jc} \log p_{jc}` of every sample, ``(b,)``, from the logits of both.

    With ``softmax``, :math:`q_j = \mathrm{softmax}(z^*_j / T)` and :math:`p_j = \mathrm{softmax}(z_j / T)`.
    With ``sigmoid``, it is the sum of every class's own cross-entropy. There is no factor :math:`T^2`.

    Raises:
        IncompatibleError: If there is one output, as in a regression: its softmax is always 1.
    """
    if student.shape[1] == 1 and form == "softmax":
        raise IncompatibleError("a teacher needs classes to speak about, but there is one output")
    student, teacher = student / temperature, teacher / temperature
    if form == "softmax":
        return functional.cross_entropy(student, teacher.softmax(1), reduction="none")
    targets = teacher.sigmoid()
    each = functional.binary_cross_entropy_with_logits(student, targets, reduction="none")
    return each.sum(1)
