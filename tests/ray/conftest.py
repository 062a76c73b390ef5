"""A cluster of three nodes for all tests, and engines on it; without Ray, every test is skipped."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from chronofed import Cluster, RayEngine
from tests.helpers.ray_cluster import LocalCluster

HERE = Path(__file__).parent
NODES = 3


def pytest_collection_modifyitems(items):
    if find_spec("ray") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(
                    pytest.mark.skip(reason="Ray is not installed (make test-ray does)")
                )


@pytest.fixture(scope="session")
def cluster():
    # GPUs that only Ray believes in.
    made = LocalCluster(NODES, gpus=1)
    yield made
    made.close()


@pytest.fixture(scope="session")
def engines(cluster, task):
    """Engines by their settings. The cluster has few cores, so one lives at a time; it serves all methods."""
    made = {}

    def engine(workers=2, task=task, **settings):
        key = workers, id(task), tuple(settings.items())
        if key not in made:
            close()
            made[key] = RayEngine(task, workers, cluster=Cluster(cluster.address, **settings))
        return made[key]

    def close():
        while made:
            made.popitem()[1].close()

    yield engine
    close()
