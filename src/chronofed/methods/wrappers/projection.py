"""The base of wrappers that project local gradients, so that steps do not raise the loss of kept samples."""

from abc import abstractmethod
from dataclasses import replace

from chronofed.core.types import Batch, Record, Vector
from chronofed.methods.local import ClientLocal, Local, one_client
from chronofed.methods.wrappers.base import ClientWrapper


class Projected(ClientWrapper):
    """A backbone whose gradients of the present samples are projected by those of the kept ones.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
    """

    @abstractmethod
    def project(self, gradient: Vector, params: Vector, local: ClientLocal) -> Vector:
        """Return the gradient of a step, given that of the present; may modify it in place."""

    def prepare(self, server: Record, local: Local) -> Record:
        """As the inner backbone, on the present samples alone."""
        return self.backbone.prepare(server, present_alone(local))

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Project the inner backbone's gradient, if there are kept samples."""
        gradient = self.backbone.gradient(params, server, present_alone(local))
        both = one_client(local)
        return gradient if both.past.replay is None else self.project(gradient, params, both)

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """As the inner backbone, on the present samples alone."""
        return self.backbone.finish(params, server, client, present_alone(local))


def present_alone(local: Local) -> ClientLocal:
    """Return a client's problem without replayed samples, with as many steps; itself if it has none."""
    both = one_client(local)
    if both.past.replay is None:
        return both
    alone = replace(both, past=replace(both.past, present=1.0, replay=None))
    # The length of an epoch may count replayed samples, too.
    object.__setattr__(alone, "steps", both.steps)
    # Optimisers that are kept belong to the client.
    object.__setattr__(alone, "descents", both.descents)
    return alone


def gradient_of(batch: Batch, params: Vector, local: ClientLocal) -> Vector:
    """Compute the gradient of kept samples, augmented as in training; the model's buffers do not change."""
    objective, buffers = local.objective, local.objective.buffers
    x = objective.augment(batch.x, local.generator)
    gradient = objective.gradient(params, Batch(x, batch.y, batch.weight))
    objective.buffers = buffers
    return gradient
