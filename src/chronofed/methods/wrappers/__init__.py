"""Wrappers: backbones around another backbone."""

from chronofed.methods.wrappers.base import Wrapper
from chronofed.methods.wrappers.clipped import Clipped
from chronofed.methods.wrappers.fedopt import FedOpt
from chronofed.methods.wrappers.private import Private

__all__ = ["Clipped", "FedOpt", "Private", "Wrapper"]
