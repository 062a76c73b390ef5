"""Private."""

import math
import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from chronofed.core.config import NonNegative
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.seeds import entropy, torch_generator
from chronofed.core.types import Record
from chronofed.methods.accountant import combined, epsilon
from chronofed.methods.backbones.base import Upload, Uploads, weighted_mean
from chronofed.methods.wrappers.base import parts
from chronofed.methods.wrappers.clipped import Clipped

SEED = "private_seed"
Probability = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Private(Clipped, tag="private"):
    r"""Central differential privacy of whole clients, around any backbone: clip, average, add noise.

    Of *n* clients' vectors, each clipped to its bound :math:`B` (see ``clipped``), the inner backbone sees only
    the noisy mean

    .. math:: \bar v = \frac1n \sum_i v_i + \mathcal N\!\Big(0, \frac{z^2 B^2}{n^2} I\Big),

    as if every client had sent it. So everything that it computes from the mean is private too. The model after
    *t* rounds is :math:`(\epsilon, \delta)`-private against the removal of all contributions of one client, by
    :func:`chronofed.methods.accountant.epsilon`. Each vector that clients send is a separate release:
    with *k* of them (scaffold, mime, mimelite, fednova, fedgate, fedglomo: 2; fedlin, fedcurv, q-ffl: 3) the
    noise is worth :math:`z/\sqrt k`. The run reports the measure ``epsilon``, without amplification by sampling
    of clients.

    Everything that the server publishes must be covered. So these are refused: clients weighted by their
    samples (``average = "samples"``), memories on the server, weights that learn from reports, and models with
    buffers (BatchNorm). Memories on the client are fine. The names of clients are hidden from the inner
    backbone, since noise does not cover who took part, and one that refines the model on the server is refused.

    The server must be trusted, and so must everyone who knows the noise. With ``randomness = "seed"`` the noise
    follows from the run's seed, so there is no privacy against those who know or guess the seed. Use it for
    simulations, and ``system`` for real data.

    Attributes:
        backbone: The inner backbone.
        bound: Largest l2 norm :math:`B` of an update.
        bounds: Largest norms of the other entries that clients send, by name, such as ``{ control = 10.0 }``.
        noise: Noise multiplier :math:`z`.
        delta: The :math:`\delta` of the run's measure ``epsilon``; choose it below one over the number of
            clients.
        randomness: Source of the noise. ``seed``: the run's seed, so that a run can be repeated. ``system``:
            the operating system's entropy, so that a run cannot be repeated, and a resumed run differs.
        server_lr: Unused: set that of the inner backbone.
    """

    private: ClassVar[bool] = True
    reference: ClassVar[str] = (
        "McMahan et al. (2018), Learning Differentially Private Recurrent Language Models"
    )

    noise: NonNegative = 1.0
    delta: Probability = 1e-5
    randomness: Literal["seed", "system"] = "seed"

    def __post_init__(self) -> None:
        # Before the bounds: no bound would help.
        if self.backbone.names_clients:
            inner = type([p for p in parts(self.backbone) if p.names_clients][-1]).__name__
            raise ValueError(
                f"Private.backbone: {inner} must know which client sent an upload, which Private hides; choose "
                "another backbone"
            )
        if self.backbone.needs_each:
            inner = type([p for p in parts(self.backbone) if p.needs_each][-1]).__name__
            raise ValueError(
                f"Private.backbone: {inner} needs the upload of every client, and Private gives only a noisy "
                "mean; choose another backbone"
            )
        super().__post_init__()

    __hash__ = Clipped.__hash__

    def draw(self, server: Record, seed: int, round_: int) -> Record:
        """Add a seed for this round's noise, unless the noise comes from the system."""
        drawn = super().draw(server, seed, round_)
        if self.randomness == "system":
            return drawn
        return {**drawn, SEED: torch.tensor(entropy(seed, "private", round_))}

    def broadcast(self, server: Record) -> Record:
        """As the inner backbone; the seed of the noise is never sent."""
        return self.backbone.broadcast(_without_seed(server))

    def begin(self, server: Record, uploads: Uploads) -> Record:
        """Pass a noisy mean of the extra exchange to the inner backbone."""
        begun = self.backbone.begin(_without_seed(server), self._released(server, uploads, "begin"))
        return {**server, **begun}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Pass a noisy mean to the inner backbone; the seed of the noise is not kept."""
        released = self._released(server, uploads, "aggregate")
        return self.backbone.aggregate(_without_seed(server), released)

    def report(self, rounds: int) -> dict[str, float]:
        """Return the privacy loss so far, if every client took part in every round."""
        found = epsilon(combined(self.noise, len(self.upload_keys)), rounds, self.delta)
        return {"epsilon": found} if math.isfinite(found) else {}

    def _released(self, server: Record, uploads: Uploads, exchange: str) -> Uploads:
        """Replace every upload by the noisy mean."""
        weights = [weight for weight, _ in uploads]
        if min(weights) != max(weights):
            raise SpecError("method.average: Private needs clients of equal weight: 'clients'")
        if len({(n, t.shape) for _, record in uploads for n, t in record.items()}) > len(
            uploads[0][1]
        ):
            raise IncompatibleError(
                "method.backbone: clients send parts of different sizes, of which Private cannot release "
                "the mean; choose another backbone, or none that is private"
            )
        clipped = self._clipped(uploads)
        mean = {
            entry: self._noisy(weighted_mean(clipped, entry), entry, len(uploads), server, exchange)
            for entry in clipped[0][1]
        }
        # Nobody learns who took part.
        return [Upload(weight, mean) for weight in weights]

    def _noisy(
        self, mean: Tensor, entry: str, clients: int, server: Record, exchange: str
    ) -> Tensor:
        deviation = self.noise * self._bound(entry) / clients
        if self.randomness == "system":
            noise = torch.from_numpy(system_normal(mean.numel())).view(mean.shape)
        else:
            generator = torch_generator(int(server[SEED]), exchange, entry)
            noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
        return mean.add(noise.to(mean), alpha=deviation)


def system_normal(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Draw standard normal numbers from the operating system's entropy (Box and Muller, 1958)."""
    pairs = -(-count // 2)
    bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64) >> np.uint64(11)
    # Strictly between 0 and 1.
    uniform = (bits + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _without_seed(server: Record) -> Mapping[str, Tensor]:
    return {name: tensor for name, tensor in server.items() if name != SEED}
