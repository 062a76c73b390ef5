"""The place of a head in a backbone: what adds up the clients' sums."""

from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from chronofed.core.types import Objective, Record
from chronofed.methods.backbones.base import Backbone, Uploads, weighted_mean
from chronofed.methods.heads.base import (
    ASKED,
    BODY,
    BY_CLIENT,
    CLOCK,
    JUDGED,
    OWN,
    SOLUTION,
    SUMS,
    Head,
)
from chronofed.methods.wrappers.averaged import AVERAGED
from chronofed.methods.wrappers.base import ClientWrapper, Computed, Wrapper
from chronofed.methods.wrappers.clipped import Clipped


class Summed(ClientWrapper):
    """A backbone whose server adds up sums for a head; the client's work adds them to its upload.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
        head: The head.
    """

    upload_keys = Computed(
        lambda self: (
            *self.backbone.upload_keys,
            SUMS,
            *((JUDGED,) if self.head and self.head.judges else ()),
        )
    )
    names_clients = Computed(lambda self: self.head.by_client or self.backbone.names_clients)

    head: Head | None = None

    @property
    def _sure(self) -> Head:
        assert self.head is not None
        return self.head

    def init_layers(self, server: Record, objective: Objective) -> Record:
        """As the inner backbone, without sums; the number of clients comes with :meth:`enrol`."""
        return {**super().init_layers(server, objective), **self._sure.init(objective, 0)}

    def enrol(self, server: Record, clients: int) -> Record:
        """As the inner backbone, with room for the sums of new clients."""
        server = super().enrol(server, clients)
        if not self._sure.by_client:
            return server
        known = server[BY_CLIENT]
        more = known.new_zeros(max(0, clients - len(known)), known.shape[1])
        return {**server, BY_CLIENT: torch.cat([known, more])}

    def forget(self, server: Record, clients: Sequence[int]) -> Record:
        """As the inner backbone; sums of single clients are taken back where they were kept."""
        return self._sure.forget(super().forget(server, clients), clients)

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone; where sums are asked for, also the model whose features count."""
        sent = self.backbone.broadcast(_inner(server))
        if not self._sure.asks(server):
            return sent
        sent = {**sent, **self._sure.sent(server), ASKED: torch.tensor(1)}
        if self._sure.body == "served" and AVERAGED in server:
            return {**sent, BODY: server[AVERAGED]}
        return sent

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """As the inner backbone; add up the sums, if there are any."""
        inner = self.backbone.aggregate(_inner(server), uploads)
        state = {name: server[name] for name in OWN if name in server}
        state[CLOCK] = self._sure.ticked(server[CLOCK])
        if not self._sure.asks(server):
            return {**inner, **state}
        state.pop(SOLUTION, None)
        if self._sure.judges:
            state |= self._sure.judged(state, weighted_mean(uploads, JUDGED))
        state |= self._sure.update(state, _total(uploads))
        if self._sure.by_client:
            most = max(upload.client for upload in uploads) + 1
            kept = state[BY_CLIENT]
            more = kept.new_zeros(max(0, most - len(kept)), kept.shape[1])
            kept = torch.cat([kept, more])
            for upload in uploads:
                kept[upload.client] += upload[1][SUMS].to(kept)
            state[BY_CLIENT] = kept
        return {**inner, **state}


def with_head(backbone: Backbone, head: Head) -> Backbone:
    """Return a backbone that adds up sums for a head, inside of what clips uploads or adds noise to them.

    Raises:
        ValueError: If uploads are clipped and the head has no bound.
    """
    clipped = _inside(backbone)
    if clipped is None:
        return Summed(backbone, head=head)
    return _rebuilt(backbone, clipped, head)


def _total(uploads: Uploads) -> Tensor:
    found = torch.zeros_like(uploads[0][1][SUMS], dtype=torch.float64)
    for _, upload in uploads:
        found.add_(upload[SUMS])
    return found


def _inside(backbone: Backbone) -> Clipped | None:
    part: Backbone = backbone
    while isinstance(part, Wrapper):
        if isinstance(part, Clipped):
            return part
        part = part.backbone
    return None


def _rebuilt(backbone: Backbone, clipped: Clipped, head: Head) -> Backbone:
    if backbone is clipped:
        if head.judges:
            raise ValueError(
                f"head: {type(head).__name__} has clients report on models, which {type(clipped).__name__} "
                "does not cover; choose gaussian or ridge"
            )
        if head.bound is None:
            raise ValueError(
                f"head.bound: missing; {type(clipped).__name__} needs the largest norm of a client's sums"
            )
        bounds = {**clipped.bounds, SUMS: head.bound}
        return replace(clipped, backbone=Summed(clipped.backbone, head=head), bounds=bounds)
    assert isinstance(backbone, Wrapper)
    return replace(backbone, backbone=_rebuilt(backbone.backbone, clipped, head))


def _inner(server: Record) -> Record:
    return {name: tensor for name, tensor in server.items() if name not in OWN}
