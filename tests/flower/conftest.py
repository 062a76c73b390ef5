"""Tests with Flower's real processes; they need chronofed[flower] and are run by: make test-flower."""

import importlib.util
import os
from pathlib import Path

import pytest
from trial import here

from chronofed import Experiment

ASKED = os.environ.get("CHRONOFED_TEST_FLOWER") == "1"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if ASKED:
        return
    have = importlib.util.find_spec("flwr") is not None
    reason = "run by: make test-flower" if have else "flwr is not installed (make test-flower does)"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The runs that disturbed ones must equal."""
    known: dict[str, Path] = {}

    def run(experiment: Experiment) -> Path:
        key = experiment.fingerprint()
        if key not in known:
            known[key] = here(experiment, tmp_path_factory.mktemp("serial") / key)
        return known[key]

    return run
