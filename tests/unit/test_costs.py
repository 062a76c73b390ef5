"""Measured costs agree with known cases."""

import pytest

from chronofed import (
    CoreSet,
    Ditto,
    Ewc,
    FedAvg,
    FedCurv,
    FedGate,
    FedLin,
    FedOpt,
    Forget,
    Method,
    Mifa,
    MimeLite,
    Scaffold,
    Taylor,
)
from chronofed.studies.costs import Costs, costs

MODEL = 32  # parameters of the small run: 15 features, 2 classes


def test_fedavg_sends_the_model_both_ways_and_keeps_nothing():
    assert costs(Method(FedAvg(), Forget())) == Costs(1.0, 1.0, 0.0, 0.0, client_samples=False)


@pytest.mark.parametrize(
    ("backbone", "down", "up", "client"),
    [
        (MimeLite(), 2.0, 2.0, 0.0),
        (Scaffold(), 2.1, 2.0, 1.0),
        (Ditto(), 1.0, 1.0, 1.0),
        (Mifa(), 1.0, 1.0, 1.0),
        (FedGate(), 2.0, 1.1, 1.0),
        (FedCurv(), 3.1, 3.0, 2.1),
        (FedLin(), 3.1, 2.1, 0.0),  # two exchanges a round
        (FedOpt(), 1.0, 1.0, 0.0),  # the optimiser's state stays on the server
    ],
)
def test_backbones(backbone, down, up, client):
    found = costs(Method(backbone))
    assert (found.down_models, found.up_models, found.client_models) == (down, up, client)


def test_a_core_set_travels_nowhere():
    found = costs(Method(memory=CoreSet(5)))
    assert (found.down_models, found.up_models, found.client_samples) == (1.0, 1.0, True)


def test_taylor_sends_three_vectors_each_way_beside_the_model():
    found = costs(Method(memory=Taylor()))
    # Besides the vectors, their bounds are sent.
    assert found.up_models == pytest.approx(4.0, abs=0.3)
    # In the first of two rounds the memory is empty.
    assert found.down_models == pytest.approx(2.0, abs=0.3)
    assert found.server_models == pytest.approx(3.0, abs=0.3)


def test_ewc_travels_nowhere_and_keeps_two_models_for_a_data_set():
    found = costs(Method(memory=Ewc()))
    assert (found.down_models, found.up_models, found.client_samples) == (1.0, 1.0, False)
    # Besides the vectors, their bounds are kept.
    assert found.client_models == pytest.approx(2.0, abs=0.3)
