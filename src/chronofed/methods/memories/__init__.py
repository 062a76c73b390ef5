"""Memories: approximations of past objectives."""

from chronofed.methods.memories.base import Memory, MemoryItem, Moment, timeline
from chronofed.methods.memories.concepts import Concepts
from chronofed.methods.memories.coreset import CoreSet
from chronofed.methods.memories.distil import Distil
from chronofed.methods.memories.ewc import Ewc
from chronofed.methods.memories.forget import Forget
from chronofed.methods.memories.generative import Generative
from chronofed.methods.memories.generator import Generator
from chronofed.methods.memories.taylor import Taylor

__all__ = [
    "Concepts",
    "CoreSet",
    "Distil",
    "Ewc",
    "Forget",
    "Generative",
    "Generator",
    "Memory",
    "MemoryItem",
    "Moment",
    "Taylor",
    "timeline",
]
