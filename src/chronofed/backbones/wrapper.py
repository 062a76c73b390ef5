"""What backbones around another backbone share: clients do what the inner one asks of them."""

from typing import Any

from chronofed.backbones.base import Backbone, Uploads, stacked
from chronofed.backbones.fedavg import FedAvg
from chronofed.local import Local
from chronofed.types import Record, Vector


class _Inner:
    """A declaration that is the inner backbone's; asked of the class, that of the default one."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: "Wrapper | None", owner: type) -> Any:  # noqa: ANN401
        return getattr(FedAvg if wrapper is None else wrapper.backbone, self._name)


class Wrapper(Backbone):
    """A backbone that changes what the server does, around any other.

    Attributes:
        backbone: The inner backbone.
    """

    stateful = _Inner()
    prepares = _Inner()
    fixed_data = _Inner()
    private = _Inner()
    sends = _Inner()
    counts = _Inner()

    backbone: Backbone = FedAvg()

    def init_server(self, params: Vector, clients: int) -> Record:
        """As the inner backbone."""
        return self.backbone.init_server(params, clients)

    def init_client(self, params: Vector) -> Record:
        """As the inner backbone."""
        return self.backbone.init_client(params)

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone."""
        return self.backbone.broadcast(server)

    def prepare(self, server: Record, local: Local) -> Record:
        """As the inner backbone."""
        return self.backbone.prepare(server, local)

    def draw(self, server: Record, seed: int, round_: int) -> Record:
        """As the inner backbone; what else there is stays."""
        return {**server, **self.backbone.draw(server, seed, round_)}

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone; what else there is stays."""
        return {**server, **self.backbone.begin(server, uploads)}

    @stacked
    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """As the inner backbone."""
        return self.backbone.gradient(params, server, local)

    @stacked
    def direction(self, grad: Vector, params: Vector, server: Record, client: Record) -> Vector:
        """As the inner backbone."""
        return self.backbone.direction(grad, params, server, client)

    @stacked
    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """As the inner backbone."""
        return self.backbone.finish(params, server, client, local)

    def report(self, rounds: int) -> dict[str, float]:
        """As the inner backbone."""
        return self.backbone.report(rounds)


def parts(backbone: Backbone) -> tuple[Backbone, ...]:
    """A backbone, and those inside if it is a wrapper; the outermost first."""
    return (backbone, *parts(backbone.backbone)) if isinstance(backbone, Wrapper) else (backbone,)
