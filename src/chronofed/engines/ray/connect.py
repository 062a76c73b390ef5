"""Connecting to a Ray cluster, or starting one on this machine.

Ray pickles everything that it sends, so whoever reaches a cluster can run code on it: this engine is for
trusted clusters only, and only if it is asked for. The only module that imports Ray.
"""

import logging
import os
from typing import Any

from chronofed.core.errors import ChronofedError, MissingExtraError
from chronofed.core.user_code import in_one_line
from chronofed.engines.base import usable_cores
from chronofed.engines.cluster import LOCAL, Cluster

QUIET = {
    # No report of how Ray is used.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Leave CUDA_VISIBLE_DEVICES alone for workers without a GPU; otherwise Ray warns about it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Workers are as important as the process that waits for them; Ray's own choice is 15.
    "RAY_worker_niceness": "0",
    # A loaded machine may take longer than Ray's own limit.
    "RAY_raylet_start_wait_time_s": "120",
}
# As on other systems, where Ray binds to the loopback address unless it is told otherwise.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
HERE = ("127.0.0.1:", "localhost:")
"""Starts of addresses of clusters on loopback."""


def connect(cluster: Cluster, workers: int | None = None) -> Any:
    """Return the module ``ray``, connected; a connection that exists already is used as it is.

    Args:
        cluster: Which cluster.
        workers: Workers that a cluster of this machine alone must have room for.

    Raises:
        MissingExtraError: If Ray is not installed.
        ChronofedError: If there is no such cluster, or none can be started.
    """
    local = cluster.address == LOCAL
    here = local or cluster.address.startswith(HERE)
    for name, value in {**QUIET, **(LOOPBACK if here else {})}.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "engine ray") from None
    if ray.is_initialized():
        return ray
    common = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if local:
            cores = max(workers or 0, usable_cores())
            ray.init(LOCAL, num_cpus=cores, include_dashboard=False, **common)
        else:
            ray.init(cluster.address, **common)
    # Ray raises ConnectionError, RuntimeError, ValueError, and its own.
    except Exception as error:
        raise ChronofedError(_no_cluster(cluster, error)) from error
    return ray


def total_workers(ray: Any) -> int:
    """Return the number of workers that a cluster has room for: one for each of its cores."""
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def this_node() -> str:
    """Return the identity of the node that a worker is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _no_cluster(cluster: Cluster, error: Exception) -> str:
    reason = in_one_line(error)[:200]
    if cluster.address == LOCAL:
        return f"engine ray: cannot start Ray here ({reason}); use --engine processes"
    return (
        f"engine ray: no cluster at {cluster.address!r} ({reason}); start one with: ray start --head, "
        "or leave --address out"
    )
