"""Every membership in the registry: on every engine, and after a resumption, the same clients take part."""

import pytest
import torch

from chronofed import CoreSet, Method, Scaffold, Subsets
from chronofed.core.config import kind_of
from chronofed.core.errors import IncompatibleError
from chronofed.core.spec_io import alternatives
from chronofed.engines import BatchedEngine, ProcessEngine, ThreadEngine
from chronofed.flower.node import RoundData
from chronofed.runs.checkpoint import decode, encode
from chronofed.scenarios import Membership
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.methods import SHIPPED
from tests.helpers.world import same
from tests.laws.test_flower import same as same_but_clients
from tests.laws.test_flower import world

__all__ = ["world"]

CLIENTS, ROUNDS = 4, 4
# Those without settings that fit, and those whose defaults are for more clients and rounds.
SETTINGS = {
    "fixed-clients": {"clients": (0, 2)},
    "schedule": {"spans": ((0, 1, 3), (2, 0, 2), (2, 3, 4))},
    "available": {"probability": 0.5},
    "one-shot": {"per_round": 2},
    "diurnal": {"per_round": 2, "period": 3},
    "blocks": {"blocks": 2},
}
MEMBERSHIPS = [
    cls(**SETTINGS.get(kind, {}))
    for kind, cls in alternatives(Membership).items()
    if cls.__module__.startswith(SHIPPED)
]
every = pytest.mark.parametrize("membership", MEMBERSHIPS, ids=kind_of)
STATEFUL, STATELESS = Method(Scaffold(), CoreSet(size=5)), Method()


@pytest.fixture
def there(membership, data):
    settings = Subsets(clients=CLIENTS, subsets=6, client_alpha=1.0, membership=membership)
    return settings.on(data, seed=0)


def method_for(membership) -> Method:
    return STATEFUL if membership.persistent else STATELESS


@pytest.fixture
def after(membership, there, train_for):
    def after(rounds=ROUNDS, **others):
        rounds = min(rounds, there.rounds or rounds)
        return train_for(method_for(membership), rounds, scenario=there, **others)

    return after


@every
def test_same_bits_on_every_engine_and_resumed(membership, there, after, task):
    whole = after()
    assert same(after(start=decode(encode(after(1)))), whole)
    assert same(after(engine=ShuffledWorkers(task)), whole)
    with ThreadEngine(task, 2) as threads:
        assert same(after(engine=threads), whole)
    with BatchedEngine(task) as batched:
        torch.testing.assert_close(after(engine=batched).params, whole.params, rtol=1e-4, atol=1e-5)
    came = {i for t in range(ROUNDS) for i in there.at(t).visits}
    assert came
    assert set(whole.client_states) == (came if membership.persistent else set())


@every
@pytest.mark.product
def test_processes_agree(membership, after, task):
    with ProcessEngine(task, 2) as processes:
        assert same(after(engine=processes), after())


@every
@pytest.mark.some(2)
def test_flower_ends_with_the_same_bits(membership, there, after, world, task):
    def share(experiment, order, client_store):
        visit = there.at(order.round).visits[order.client]
        return RoundData(task.samples(visit.indices), visit.key, task.objective())

    elsewhere = world(method_for(membership), provider=share)
    assert same_but_clients(after(engine=elsewhere.engine), after())


@pytest.mark.parametrize("membership", [m for m in MEMBERSHIPS if not m.persistent], ids=kind_of)
def test_clients_that_never_come_back_can_keep_nothing(membership, there, train_for):
    with pytest.raises(IncompatibleError, match="keeps its state on the client"):
        train_for(STATEFUL, 1, scenario=there)
