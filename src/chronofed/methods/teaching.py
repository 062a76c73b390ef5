"""Teachers in a local gradient: distillation on the samples of training."""

from collections.abc import Sequence

from torch import Tensor

from chronofed.core.errors import IncompatibleError
from chronofed.core.types import Batch, Objective, Vector
from chronofed.methods.surrogate import Teacher


def check_teachers(teachers: Sequence[Teacher], objective: Objective) -> None:
    """Refuse a teacher without buffers of its own, if the model has any.

    Raises:
        IncompatibleError: If there is one: it would speak with the buffers of the model that learns.
    """
    if any(teacher.buffers is None for teacher in teachers) and objective.buffers.numel():
        raise IncompatibleError(
            "the model has buffers (BatchNorm's statistics), but a teacher has none: keep objective.buffers "
            "with its parameters"
        )


def distil_(
    gradient: Vector,
    params: Vector,
    batch: Batch,
    teachers: Sequence[Teacher],
    objective: Objective,
) -> None:
    """Add the gradients of the teachers' distillation losses in place; the batch has the samples' shares."""
    for one in teachers:
        logits, settings = (
            outputs(one, batch.x, objective),
            (one.temperature, one.classes, one.form),
        )
        found = objective.distilled(params, batch, logits, *settings)
        gradient.add_(found, alpha=one.weight)


def outputs(teacher: Teacher, x: Tensor, objective: Objective) -> Tensor:
    """Return a teacher's outputs, with its own buffers; those of the model stay as they are."""
    assert teacher.params is not None
    buffers = objective.buffers
    if teacher.buffers is not None:
        objective.buffers = teacher.buffers
    logits = objective.logits(teacher.params, x)
    objective.buffers = buffers
    return logits
