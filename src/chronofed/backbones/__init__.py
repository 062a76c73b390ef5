"""Federated optimisers: what happens to a gradient on the client, and to the updates on the server."""

from chronofed.backbones.base import Backbone
from chronofed.backbones.clipped import Clipped
from chronofed.backbones.ditto import Ditto
from chronofed.backbones.fedavg import FedAvg
from chronofed.backbones.fednova import FedNova
from chronofed.backbones.fedopt import FedOpt
from chronofed.backbones.fedprox import FedProx
from chronofed.backbones.mime import Mime
from chronofed.backbones.mimelite import MimeLite
from chronofed.backbones.private import Private
from chronofed.backbones.scaffold import Scaffold
from chronofed.backbones.wrapper import Wrapper

__all__ = [
    "Backbone",
    "Clipped",
    "Ditto",
    "FedAvg",
    "FedNova",
    "FedOpt",
    "FedProx",
    "Mime",
    "MimeLite",
    "Private",
    "Scaffold",
    "Wrapper",
]
