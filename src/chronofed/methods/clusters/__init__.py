"""Assignments of clients to several global models, for the wrapper ``clusters``."""

from chronofed.methods.clusters.base import Assignment
from chronofed.methods.clusters.block import Block
from chronofed.methods.clusters.centres import Centres
from chronofed.methods.clusters.scores import Scores

__all__ = ["Assignment", "Block", "Centres", "Scores"]
