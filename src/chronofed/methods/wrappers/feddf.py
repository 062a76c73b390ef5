"""FedDF."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from chronofed.core.config import Count, Positive
from chronofed.core.seeds import global_torch_seed
from chronofed.core.types import Batch, Objective, Record, Vector
from chronofed.methods.backbones.base import Bench, Uploads
from chronofed.methods.surrogate import Teacher
from chronofed.methods.teaching import outputs
from chronofed.methods.wrappers.base import ClientWrapper
from chronofed.methods.wrappers.descent import adam

# Samples of one pass of a teacher; bounds memory.
CHUNK_SAMPLES = 256


class FedDF(ClientWrapper, tag="feddf"):
    r"""Ensemble distillation on the server, around any backbone: the clients' models teach their mean.

    After every round the student starts as the inner backbone's model, and descends on unlabelled samples *x*
    of the server:

    .. math::
        \min_w \; \mathrm{KL}\big(q(x) \,\|\, \mathrm{softmax}(z_w(x) / T)\big), \qquad
        q = \mathrm{softmax}\Big(\sum_i a_i z_{w_i} \big/ T\Big)

    with the logits *z*, and the models :math:`w_i = w + \Delta_i` of the round's clients with their weights
    :math:`a_i`; ``average = "clients"`` is the publication's plain mean. ``avg_losses``, the default of the
    authors' code, is the mean of the divergences from every teacher: :math:`q` is then the mean of
    :math:`\mathrm{softmax}(z_{w_i} / T)`. There is no factor :math:`T^2`. For a regression it is half the
    squared distance from the mean of the outputs. With linear models the mean of logits is that of the mean
    model, and with one client the teacher is the student: both are the inner backbone.

    Steps are Adam's, with a rate that falls to 0 along a cosine. Mini-batches are drawn with replacement. The
    publication has up to 10,000 steps and stops by a validation set; here their number is fixed, and the last
    student is taken. Teachers below chance are not left out. Clients start the next round from the student.

    It needs ``server_data``. Nothing more travels or is kept. A round costs the outputs of all its clients'
    models for the samples that are drawn, and ``steps`` gradients, all on the server. With BatchNorm every
    teacher has its client's statistics, and the student those of its batches; the running ones stay the mean.

    A server that sees a mean alone has no teachers: it is refused in ``private`` and around it. So are
    backbones whose clients do not send their models: ``fednova``, ``mifa``, ``fedrep``, ``cwr``, ``additive``,
    ``heterofl``. Put it inside of ``clusters``: every model then has its own clients as teachers.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
        ensemble: The way in which teachers are joined: ``avg_logits`` or ``avg_losses``.
        temperature: Temperature *T* of both softmaxes.
        steps: Number of steps on the server in a round.
        batch_size: Samples in a mini-batch of the server.
        lr: First learning rate of the server's Adam.
        clip_norm: Largest norm of its gradients.
    """

    reference: ClassVar[str] = (
        "Lin et al. (2020), Ensemble Distillation for Robust Model Fusion in Federated Learning"
    )
    refines = True
    needs_samples = True
    needs_each = True
    needs_models = True

    ensemble: Literal["avg_logits", "avg_losses"] = "avg_logits"
    temperature: Positive = 1.0
    steps: Count = 200
    batch_size: Count = 128
    lr: Positive = 1e-3
    clip_norm: Positive = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backbone.several_models:
            raise ValueError(
                "FedDF.backbone: it has several models, and FedDF distils one; put FedDF inside of it"
            )

    def refine(self, server: Record, uploads: Uploads, bench: Bench) -> Record:
        """Let the inner backbone refine, and distil the clients' models into the result."""
        server = super().refine(server, uploads, bench)
        size = (self.steps, self.batch_size)
        picks = torch.randint(len(bench.samples), size, generator=bench.generator)
        seed = int(torch.randint(2**31, (1,), generator=bench.generator))
        drawn, places = torch.unique(picks, return_inverse=True)
        x = bench.samples[drawn]
        targets = self._targets(_teachers(uploads, bench), x, bench.objective)
        # The student may have dropout.
        with global_torch_seed(seed, "feddf"):
            student = self._distilled(server["params"], x, targets, places, bench.objective)
        return {**server, "params": student}

    def _targets(self, teachers: Sequence[Teacher], x: Tensor, objective: Objective) -> Tensor:
        """Return the logits of the ensemble, ``(n, classes)``."""
        parts = torch.split(x, CHUNK_SAMPLES)
        return torch.cat([self._joined(teachers, part, objective) for part in parts])

    def _joined(self, teachers: Sequence[Teacher], x: Tensor, objective: Objective) -> Tensor:
        total = sum(teacher.weight for teacher in teachers)
        logits = [outputs(teacher, x, objective).clone() for teacher in teachers]
        losses = self.ensemble == "avg_losses" and logits[0].shape[1] > 1
        if losses:
            # In the cross-entropy with several targets only their mean matters.
            logits = [(each / self.temperature).softmax(1) for each in logits]
        joined = torch.zeros_like(logits[0])
        for teacher, each in zip(teachers, logits, strict=True):
            joined.add_(each, alpha=teacher.weight / total)
        least = torch.finfo(joined.dtype).tiny
        return joined.clamp(min=least).log() * self.temperature if losses else joined

    def _distilled(
        self, start: Vector, x: Tensor, targets: Tensor, places: Tensor, objective: Objective
    ) -> Vector:
        """Return the student after its steps; ``places`` are the positions of every mini-batch."""
        weight = torch.full((self.batch_size,), 1 / self.batch_size, dtype=torch.float64)
        # Only the forms that have labels read them.
        labels = torch.zeros(self.batch_size, dtype=torch.int64)

        def gradient(params: Vector, step: int) -> Vector:
            pick = places[step]
            batch = Batch(x[pick], labels, weight)
            return objective.distilled(params, batch, targets[pick], self.temperature)

        return adam(start, gradient, self.steps, self.lr, self.clip_norm)


def _teachers(uploads: Uploads, bench: Bench) -> list[Teacher]:
    """Return the model of every client, with its buffers."""
    sent = bench.before["params"]
    return [
        Teacher(sent + upload["delta"], weight, buffers=buffers if buffers.numel() else None)
        for (weight, upload), buffers in zip(uploads, bench.buffers, strict=True)
    ]
