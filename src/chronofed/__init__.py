"""chronofed: federated learning on data that keeps changing.

A *method* (backbone x memory x round weights) meets a *scenario* (who is there in round t, with which data)
on an *engine*, and leaves a *run* on disk. Names are imported when they are first used, so that
``import chronofed`` and ``chronofed --help`` are quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronofed.backbones import Backbone as Backbone
    from chronofed.backbones import Clipped as Clipped
    from chronofed.backbones import Ditto as Ditto
    from chronofed.backbones import FedAvg as FedAvg
    from chronofed.backbones import FedNova as FedNova
    from chronofed.backbones import FedOpt as FedOpt
    from chronofed.backbones import FedProx as FedProx
    from chronofed.backbones import Mime as Mime
    from chronofed.backbones import MimeLite as MimeLite
    from chronofed.backbones import Private as Private
    from chronofed.backbones import Scaffold as Scaffold
    from chronofed.curvature import Exact as Exact
    from chronofed.curvature import Fisher as Fisher
    from chronofed.curvature import Hutchinson as Hutchinson
    from chronofed.curvature import SquaredGradient as SquaredGradient
    from chronofed.errors import ChronofedError as ChronofedError
    from chronofed.experiments.spec import Experiment as Experiment
    from chronofed.local import Train as Train
    from chronofed.loop import Snapshot as Snapshot
    from chronofed.loop import run as run
    from chronofed.memories import CoreSet as CoreSet
    from chronofed.memories import Forget as Forget
    from chronofed.memories import Generative as Generative
    from chronofed.memories import Memory as Memory
    from chronofed.memories import Taylor as Taylor
    from chronofed.protocol import Method as Method
    from chronofed.scenarios import Calendar as Calendar
    from chronofed.scenarios import Elsewhere as Elsewhere
    from chronofed.scenarios import Fresh as Fresh
    from chronofed.scenarios import Scenario as Scenario
    from chronofed.scenarios import Subsets as Subsets
    from chronofed.scenarios import Window as Window
    from chronofed.tasks.classification import Classification as Classification
    from chronofed.tasks.dataset import Dataset as Dataset
    from chronofed.tasks.library import load as load_data  # noqa: F401
    from chronofed.tasks.models import Cnn as Cnn
    from chronofed.tasks.models import Cnn1d as Cnn1d
    from chronofed.tasks.models import Linear as Linear
    from chronofed.tasks.models import Mlp as Mlp
    from chronofed.tasks.models import ResNet18 as ResNet18
    from chronofed.tasks.table import Table as Table
    from chronofed.types import Samples as Samples
    from chronofed.weights import Adaptive as Adaptive
    from chronofed.weights import Bounded as Bounded
    from chronofed.weights import Correlated as Correlated
    from chronofed.weights import Covariance as Covariance
    from chronofed.weights import Fixed as Fixed
    from chronofed.weights import Merged as Merged
    from chronofed.weights import Optimal as Optimal
    from chronofed.weights import RoundWeights as RoundWeights
    from chronofed.weights import Uniform as Uniform

    __version__: str

_HOMES = {
    "chronofed.backbones": (
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
    ),
    "chronofed.curvature": ("Exact", "Fisher", "Hutchinson", "SquaredGradient"),
    "chronofed.errors": ("ChronofedError",),
    "chronofed.experiments.spec": ("Experiment",),
    "chronofed.local": ("Train",),
    "chronofed.loop": ("Snapshot", "run"),
    "chronofed.memories": ("CoreSet", "Forget", "Generative", "Memory", "Taylor"),
    "chronofed.protocol": ("Method",),
    "chronofed.scenarios": ("Calendar", "Elsewhere", "Fresh", "Scenario", "Subsets", "Window"),
    "chronofed.tasks.classification": ("Classification",),
    "chronofed.tasks.dataset": ("Dataset",),
    "chronofed.tasks.library": ("load_data",),
    "chronofed.tasks.models": ("Cnn", "Cnn1d", "Linear", "Mlp", "ResNet18"),
    "chronofed.tasks.table": ("Table",),
    "chronofed.types": ("Samples",),
    "chronofed.weights": (
        "Adaptive",
        "Bounded",
        "Correlated",
        "Covariance",
        "Fixed",
        "Merged",
        "Optimal",
        "RoundWeights",
        "Uniform",
    ),
}
_RENAMED = {"load_data": "load"}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "__version__":
        from importlib.metadata import version

        return version("chronofed")
    if name not in _HOME:
        msg = f"module 'chronofed' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_HOME[name]), _RENAMED.get(name, name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
