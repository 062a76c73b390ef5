"""Settings of an engine that uses several machines."""

from chronofed.core.config import Config, NonNegative

LOCAL = "local"
"""The address of a cluster of this machine alone, which is started when it is needed."""


class Cluster(Config):
    """Machines that share the clients of a round, for ``engine = "ray"``.

    Attributes:
        address: Ray cluster to use: ``auto`` for the one that this machine belongs to, or ``HOST:PORT`` of its
            head. ``local`` starts one on this machine alone, which listens on loopback only.
        gpus: Share of a GPU that every worker owns; 0.5 puts two workers on each. See also ``device``.
        cache_mb: Megabytes of client states that every worker keeps, so that they need not travel again.
    """

    address: str = LOCAL
    gpus: NonNegative = 0.0
    cache_mb: NonNegative = 64.0
