"""Federated optimisers: the client's step and the server's update."""

from chronofed.methods.backbones.afl import Afl
from chronofed.methods.backbones.base import Backbone
from chronofed.methods.backbones.ditto import Ditto
from chronofed.methods.backbones.fedavg import FedAvg
from chronofed.methods.backbones.fedcurv import FedCurv
from chronofed.methods.backbones.fedgate import FedGate
from chronofed.methods.backbones.fedglomo import FedGlomo
from chronofed.methods.backbones.fedlin import FedLin
from chronofed.methods.backbones.fednova import FedNova
from chronofed.methods.backbones.fedprox import FedProx
from chronofed.methods.backbones.fedreg import FedReg
from chronofed.methods.backbones.fedrep import FedRep
from chronofed.methods.backbones.fedrobust import FedRobust
from chronofed.methods.backbones.fedrod import FedRod
from chronofed.methods.backbones.frozen import Frozen
from chronofed.methods.backbones.l2gd import L2gd
from chronofed.methods.backbones.mifa import Mifa
from chronofed.methods.backbones.mime import Mime
from chronofed.methods.backbones.mimelite import MimeLite
from chronofed.methods.backbones.pfedme import PFedMe
from chronofed.methods.backbones.pvi import Pvi
from chronofed.methods.backbones.qffl import QFfl
from chronofed.methods.backbones.scaffold import Scaffold

__all__ = [
    "Afl",
    "Backbone",
    "Ditto",
    "FedAvg",
    "FedCurv",
    "FedGate",
    "FedGlomo",
    "FedLin",
    "FedNova",
    "FedProx",
    "FedReg",
    "FedRep",
    "FedRobust",
    "FedRod",
    "Frozen",
    "L2gd",
    "Mifa",
    "Mime",
    "MimeLite",
    "PFedMe",
    "Pvi",
    "QFfl",
    "Scaffold",
]
