"""Method: backbone x memory x round weights, and all checks that its parts fit together."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from chronofed.core.config import Config
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones import Backbone, FedAvg
from chronofed.methods.heads import Auto, Head
from chronofed.methods.heads.summed import with_head
from chronofed.methods.local import Train
from chronofed.methods.losses import LocalLoss
from chronofed.methods.memories import CoreSet, Forget, Memory
from chronofed.methods.weighting import Adaptive, Merged, RoundWeights
from chronofed.methods.wrappers import Averaged
from chronofed.scenarios.base import Scenario


class Method(Config):
    """A point of the product space that the paper explores: backbone x memory x round weights.

    Attributes:
        backbone: The federated optimiser.
        memory: The approximation of past objectives.
        weights: The weights of the present and of each remembered round.
        average: Weights of the clients: by their number of samples, or equal (the paper's 1/S).
        loss: What changes about the task's loss on clients, if anything.
        head: The last layer of the model that is evaluated and saved, if it is computed in closed form.

    >>> from chronofed import CoreSet, FedProx, Method, Optimal
    >>> weights = Optimal(time_drift_sq=1.0, information_loss_sq=0.5)
    >>> Method(FedProx(mu=0.1), CoreSet(size=100), weights).stateful
    True
    """

    backbone: Backbone = FedAvg()
    memory: Memory = Forget()
    weights: RoundWeights = Merged()
    average: Literal["samples", "clients"] = "samples"
    words: ClassVar[Mapping[str, Mapping[str, Any]]] = {"auto": {"head": {"kind": "auto"}}}

    loss: LocalLoss | None = None
    head: Head | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head is not None and self.backbone.several_models:
            raise ValueError("head: the backbone has several models, and a head is for one")
        # A bound that is missing, or names that are hidden, are refused here.
        composed = self.composed
        assert composed is not None
        leak = _leak(self) if self.backbone.private else None
        if leak is not None:
            raise ValueError(leak)

    @property
    def is_auto(self) -> bool:
        """True for ``method = "auto"`` before it is fitted to a scenario."""
        return isinstance(self.head, Auto) and self == Method(head=self.head)

    def fitted(self, scenario: Scenario) -> "Method":
        """Return ``method = "auto"`` with the parts that suit a scenario; any other method as it is.

        The server then chooses what to serve from what it sees (:class:`~chronofed.Auto`).
        """
        if not self.is_auto:
            return self
        memory: Memory = CoreSet() if scenario.persistent else Forget()
        weights: RoundWeights = Adaptive() if scenario.persistent else Merged()
        return Method(Averaged(FedAvg()), memory, weights, head=self.head)

    @property
    def composed(self) -> Backbone:
        """The backbone with what the head needs: this is what engines and servers run."""
        return self.backbone if self.head is None else with_head(self.backbone, self.head)

    def serve(self, server: Record) -> Record:
        """Return the server state at the end of a round, with the model to evaluate."""
        server = self.backbone.serve(server)
        return server if self.head is None else self.head.serve(server)

    @property
    def stateful(self) -> bool:
        """True if clients must come back (``Applicable Scenarios for Different Algorithms``)."""
        return self.backbone.stateful or self.memory.location == "client"


def _leak(method: Method) -> str | None:
    """Describe what would leave a client beyond what a private backbone covers, in one line."""
    if method.backbone.refines:
        return "backbone: refine sees what single clients sent, which Private does not cover; remove it"
    if method.average == "samples":
        return "average: Private needs clients of equal weight; set average = 'clients'"
    uncovered = "go to the server, which Private does not cover; choose"
    if method.memory.location == "server":
        return f"memory: records of {type(method.memory).__name__} {uncovered} another memory"
    if method.weights.probes:
        return f"weights: reports for {type(method.weights).__name__} {uncovered} other weights"
    return None


def check(
    method: Method, scenario: Scenario, rounds: int | None = None, train: Train | None = None
) -> None:
    """Check a method against a scenario and against local training before anything starts.

    Raises:
        IncompatibleError: If clients keep something and never come back, or local steps do not suit the method.
        SpecError: If the scenario ends before the run does.
    """
    if method.stateful and not scenario.persistent:
        place = "memory" if method.memory.location == "client" else "backbone"
        part = type(getattr(method, place)).__name__
        msg = (
            f"method.{place}: {part} keeps its state on the client, but in this scenario a client "
            "never comes back; choose one that needs no returning clients (see: chronofed methods)"
        )
        raise IncompatibleError(msg)
    _check_train(method, scenario, train or Train())
    if rounds is not None and scenario.rounds is not None and rounds > scenario.rounds:
        msg = (
            f"rounds: the scenario ends after {scenario.rounds} rounds, but {rounds} are requested"
        )
        raise SpecError(msg)


def check_task(method: Method, regression: bool) -> None:
    """Refuse a local loss or a head for another task.

    Raises:
        IncompatibleError: If one does not fit.
    """
    for part in (method.loss, method.head):
        if part is not None:
            part.check_task(regression)


def check_samples(method: Method, samples: Tensor | None) -> None:
    """Refuse a backbone that needs samples on the server, if there are none.

    Raises:
        SpecError: If they are missing.
    """
    if method.backbone.needs_samples and (samples is None or not len(samples)):
        name = type(method.backbone).__name__
        raise SpecError(
            f"server_data: missing; {name} refines the model on unlabelled samples of the server, so name "
            "their source"
        )


def _check_train(method: Method, scenario: Scenario, train: Train) -> None:
    if train.keeps_state and not scenario.persistent:
        msg = (
            "train.optimizer_state: 'keep' needs returning clients, but in this scenario a client "
            "never comes back; use 'reset'"
        )
        raise IncompatibleError(msg)
    reason = method.backbone.unsuited(train)
    if reason is not None:
        raise IncompatibleError(f"train.{reason}")


def check_buffers(method: Method, buffers: Vector) -> None:
    """Refuse buffers with a private backbone: they are averaged as they are, without noise.

    Raises:
        IncompatibleError: If the model has buffers and the backbone is private.
    """
    if method.backbone.private and buffers.numel():
        msg = (
            "model: its buffers (BatchNorm's statistics) are not covered by a private backbone; "
            "choose a model without them"
        )
        raise IncompatibleError(msg)
