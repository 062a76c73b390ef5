"""Federated optimisers: what happens to a gradient on the client, and to the updates on the server."""

from chronofed.backbones.base import Backbone
from chronofed.backbones.fedavg import FedAvg
from chronofed.backbones.fedprox import FedProx

__all__ = ["Backbone", "FedAvg", "FedProx"]
