"""Local losses: what a method changes about the task's loss on clients."""

from chronofed.methods.losses.base import LocalLoss
from chronofed.methods.losses.class_weighted import ClassWeighted
from chronofed.methods.losses.distillation import NotTrueDistillation, VacantDistillation
from chronofed.methods.losses.fedlc import FedLc
from chronofed.methods.losses.fedrs import FedRs
from chronofed.methods.losses.prior_correction import PriorCorrection

__all__ = [
    "ClassWeighted",
    "FedLc",
    "FedRs",
    "LocalLoss",
    "NotTrueDistillation",
    "PriorCorrection",
    "VacantDistillation",
]
