"""Diagonals of a local objective's Hessian: the curvature that a Taylor memory keeps."""

from chronofed.methods.memories.curvature.base import Curvature, MeanLoss
from chronofed.methods.memories.curvature.fisher import Fisher, SquaredGradient
from chronofed.methods.memories.curvature.hessian import Exact, Hutchinson

__all__ = ["Curvature", "Exact", "Fisher", "Hutchinson", "MeanLoss", "SquaredGradient"]
