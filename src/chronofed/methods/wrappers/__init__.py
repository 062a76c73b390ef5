"""Wrappers: backbones around another backbone."""

from chronofed.methods.wrappers.agem import AGem
from chronofed.methods.wrappers.balanced import Balanced
from chronofed.methods.wrappers.base import Wrapper
from chronofed.methods.wrappers.clipped import Clipped
from chronofed.methods.wrappers.compressed import Compressed
from chronofed.methods.wrappers.fedopt import FedOpt
from chronofed.methods.wrappers.gem import Gem
from chronofed.methods.wrappers.private import Private

__all__ = [
    "AGem",
    "Balanced",
    "Clipped",
    "Compressed",
    "FedOpt",
    "Gem",
    "Private",
    "Wrapper",
]
