"""Wrappers: backbones around another backbone."""

from chronofed.methods.wrappers.additive import Additive
from chronofed.methods.wrappers.agem import AGem
from chronofed.methods.wrappers.averaged import Averaged
from chronofed.methods.wrappers.balanced import Balanced
from chronofed.methods.wrappers.base import Wrapper
from chronofed.methods.wrappers.ccvr import Ccvr
from chronofed.methods.wrappers.clipped import Clipped
from chronofed.methods.wrappers.clusters import Clusters
from chronofed.methods.wrappers.compressed import Compressed
from chronofed.methods.wrappers.cwr import Cwr
from chronofed.methods.wrappers.fedacg import FedAcg
from chronofed.methods.wrappers.feddf import FedDF
from chronofed.methods.wrappers.fedexp import FedExp
from chronofed.methods.wrappers.fedopt import FedOpt
from chronofed.methods.wrappers.gem import Gem
from chronofed.methods.wrappers.heterofl import HeteroFL
from chronofed.methods.wrappers.pnn import Pnn
from chronofed.methods.wrappers.private import Private
from chronofed.methods.wrappers.si import Si

__all__ = [
    "AGem",
    "Additive",
    "Averaged",
    "Balanced",
    "Ccvr",
    "Clipped",
    "Clusters",
    "Compressed",
    "Cwr",
    "FedAcg",
    "FedDF",
    "FedExp",
    "FedOpt",
    "Gem",
    "HeteroFL",
    "Pnn",
    "Private",
    "Si",
    "Wrapper",
]
