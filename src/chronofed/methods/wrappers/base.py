"""The base of backbones around another backbone: on the client, the inner one decides."""

from collections.abc import Callable, Sequence
from typing import Any

from chronofed.core.stacking import stacked
from chronofed.core.types import Objective, Record, Vector
from chronofed.methods.backbones.base import Backbone, Bench, Uploads, plain_gradient
from chronofed.methods.backbones.fedavg import FedAvg
from chronofed.methods.local import Local, Train


class _Inner:
    """A declaration that an instance takes from its inner backbone; the class has none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: "Wrapper | None", owner: type) -> Any:
        if wrapper is None:
            msg = f"{owner.__name__}.{self._name} depends on the inner backbone; ask an instance"
            raise AttributeError(msg)
        return getattr(wrapper.backbone, self._name)


class Computed(_Inner):
    """A declaration that an instance computes from its settings; the class has none."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute

    def __get__(self, wrapper: "Wrapper | None", owner: type) -> Any:
        return super().__get__(wrapper, owner) if wrapper is None else self._compute(wrapper)


class Added(_Inner):
    """Declaration of the inner backbone, and more names.

    Args:
        names: The wrapper's own.
    """

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, wrapper: "Wrapper | None", owner: type) -> Any:
        return (*super().__get__(wrapper, owner), *self._names)


class Wrapper(Backbone):
    """A backbone around any other, which changes what the server does.

    Attributes:
        backbone: The inner backbone.
    """

    stateful = _Inner()
    two_phase = _Inner()
    fixed_data = _Inner()
    private = _Inner()
    upload_keys = _Inner()
    nonnegative = _Inner()
    curvatures = _Inner()
    refines = _Inner()
    needs_samples = _Inner()
    names_clients = _Inner()
    needs_each = _Inner()
    sends_model = _Inner()
    needs_models = _Inner()
    several_models = _Inner()

    backbone: Backbone = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.needs_models and not self.sends_model:
            asks = next(p for p in reversed(parts(self)) if p.needs_models)
            hides = next(p for p in reversed(parts(self)) if not p.sends_model)
            raise ValueError(
                f"{type(self).__name__}.backbone: {type(asks).__name__} needs the models of clients, which "
                f"{type(hides).__name__} does not send as they are; choose another backbone"
            )

    def unsuited(self, train: Train) -> str | None:
        """As the inner backbone."""
        return self.backbone.unsuited(train)

    def init_server(self, params: Vector, clients: int) -> Record:
        """As the inner backbone."""
        return self.backbone.init_server(params, clients)

    def init_layers(self, server: Record, objective: Objective) -> Record:
        """As the inner backbone; other entries are kept."""
        return {**server, **self.backbone.init_layers(server, objective)}

    def enrol(self, server: Record, clients: int) -> Record:
        """As the inner backbone; other entries are kept."""
        return {**server, **self.backbone.enrol(server, clients)}

    def forget(self, server: Record, clients: Sequence[int]) -> Record:
        """As the inner backbone; other entries are kept."""
        return {**server, **self.backbone.forget(server, clients)}

    def init_client(self, params: Vector) -> Record:
        """As the inner backbone."""
        return self.backbone.init_client(params)

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone."""
        return self.backbone.broadcast(server)

    def address(self, sent: Record, client: int) -> Record:
        """As the inner backbone."""
        return self.backbone.address(sent, client)

    def receive(self, sent: Record, objective: Objective) -> Record:
        """As the inner backbone."""
        return self.backbone.receive(sent, objective)

    def prepare(self, server: Record, local: Local) -> Record:
        """As the inner backbone."""
        return self.backbone.prepare(server, local)

    def draw(self, server: Record, seed: int, round_: int) -> Record:
        """As the inner backbone; other entries are kept."""
        return {**server, **self.backbone.draw(server, seed, round_)}

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone; other entries are kept."""
        return {**server, **self.backbone.begin(server, uploads)}

    @stacked
    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """As the inner backbone."""
        return self.backbone.start(server, client, local)

    @stacked
    @plain_gradient
    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """As the inner backbone."""
        return self.backbone.gradient(params, server, local)

    @stacked
    @plain_gradient
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        """As the inner backbone."""
        return self.backbone.direction(grad, params, server, client)

    @stacked
    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """As the inner backbone."""
        return self.backbone.finish(params, server, client, local)

    def settle(self, state: Record, sent: Record, arrived: Record) -> Record:
        """As the inner backbone."""
        return self.backbone.settle(state, sent, arrived)

    def unpack(self, upload: Record, params: Vector) -> Record:
        """As the inner backbone."""
        return self.backbone.unpack(upload, params)

    def refine(self, server: Record, uploads: Uploads, bench: Bench) -> Record:
        """As the inner backbone; other entries are kept."""
        return {**server, **self.backbone.refine(server, uploads, bench)}

    def serve(self, server: Record) -> Record:
        """As the inner backbone; other entries are kept."""
        return {**server, **self.backbone.serve(server)}

    def report(self, rounds: int) -> dict[str, float]:
        """As the inner backbone."""
        return self.backbone.report(rounds)


class ClientWrapper(Wrapper):
    """A wrapper that leaves the step of the server to its inner backbone, with its ``server_lr``.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_lr != 1.0:
            name = type(self).__name__
            raise ValueError(f"{name}.server_lr: set server_lr of the inner backbone instead")

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone."""
        return self.backbone.aggregate(server, uploads)


def parts(backbone: Backbone) -> tuple[Backbone, ...]:
    """Return a backbone and those inside it, if it is a wrapper; the outermost first."""
    return (backbone, *parts(backbone.backbone)) if isinstance(backbone, Wrapper) else (backbone,)
