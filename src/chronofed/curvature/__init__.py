"""Diagonals of a local objective's Hessian: the curvature that a Taylor memory keeps."""

from chronofed.curvature.base import Curvature
from chronofed.curvature.fisher import Fisher, SquaredGradient
from chronofed.curvature.hessian import Exact, Hutchinson

__all__ = ["Curvature", "Exact", "Fisher", "Hutchinson", "SquaredGradient"]
