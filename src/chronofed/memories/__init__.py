"""Approximations of past objectives: what is kept of a round, and what it contributes later."""

from chronofed.memories.base import Keepsake, Memory, Moment
from chronofed.memories.coreset import CoreSet
from chronofed.memories.forget import Forget
from chronofed.memories.generative import Generative
from chronofed.memories.taylor import Taylor

__all__ = ["CoreSet", "Forget", "Generative", "Keepsake", "Memory", "Moment", "Taylor"]
