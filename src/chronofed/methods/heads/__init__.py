"""Heads: last layers in closed form, from sums that clients send."""

from chronofed.methods.heads.auto import Auto
from chronofed.methods.heads.base import Head
from chronofed.methods.heads.gaussian import Gaussian
from chronofed.methods.heads.ridge import Ridge

__all__ = ["Auto", "Gaussian", "Head", "Ridge"]
