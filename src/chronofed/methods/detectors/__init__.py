"""Detectors: find a change in a stream of numbers, such as a client's losses or confidences."""

from chronofed.methods.detectors.base import Detector
from chronofed.methods.detectors.beta_ratio import BetaRatio
from chronofed.methods.detectors.loss_jump import LossJump
from chronofed.methods.detectors.page_hinkley import PageHinkley

__all__ = ["BetaRatio", "Detector", "LossJump", "PageHinkley"]
