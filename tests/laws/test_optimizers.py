"""Laws of local training with other step rules: resuming, workers, engines, and what becomes of kept state."""

import pytest
import torch

from chronofed import (
    CoreSet,
    Deletion,
    Ditto,
    FedAvg,
    FedNova,
    FedProx,
    Forget,
    Method,
    Mime,
    Scaffold,
    Train,
    run,
)
from chronofed.clients.cache import StateCache
from chronofed.engines import BatchedEngine, SerialEngine
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.methods import MEMORIES, method, name
from tests.helpers.world import same
from tests.laws.test_batched import check

COMMON = {"lr": 0.05, "batch_size": 16, "steps": 4}
ADAMW = Train(optimizer="adamw", weight_decay=0.01, **COMMON)
KEPT = Train(optimizer="adamw", optimizer_state="keep", **COMMON)
NESTEROV = Train(momentum=0.9, nesterov=True, clip_norm=0.5, **COMMON)
MOMENTUM = Train(momentum=0.9, optimizer_state="keep", **COMMON)
TRAINS = {"adamw": ADAMW, "kept": KEPT, "nesterov": NESTEROV, "momentum": MOMENTUM}
BACKBONES = [FedAvg(), FedProx(), Ditto(), Mime(), Scaffold(option="I"), FedNova(), Scaffold()]
PAIRS = [
    pytest.param(method(b, m), train, id=f"{name(b)}-{name(m)}-{label}")
    for i, b in enumerate(BACKBONES)
    for j, m in enumerate(MEMORIES)
    for k, (label, train) in enumerate(TRAINS.items())
    if b.unsuited(train) is None and (i + j + k) % 3 == 0
]


@pytest.mark.some(2)
@pytest.mark.parametrize(("method", "train"), PAIRS)
def test_resuming_and_workers_do_not_matter(method, train, train_for, task):
    straight = train_for(method, 4, settings=train)
    half = decode(encode(train_for(method, 2, settings=train)))
    assert same(train_for(method, 4, settings=train, start=half), straight)
    engine = ShuffledWorkers(task)
    assert same(train_for(method, 4, settings=train, engine=engine), straight)


@pytest.mark.some(3)
@pytest.mark.parametrize(("method", "train"), PAIRS)
def test_learns(method, train, train_for, task):
    end = train_for(method, 10, settings=train)
    score = task.score(task.objective(), end.params, end.buffers, task.data.test)
    assert score.accuracy > 0.85


@pytest.mark.some(4)
@pytest.mark.parametrize("label", [*TRAINS, "slow"])
@pytest.mark.parametrize("backbone", [FedAvg(), Ditto(), Scaffold(option="I")], ids=name)
def test_the_batched_engine_agrees(backbone, label):
    slow = Train(optimizer="adamw", optimizer_state="keep", slow=0.7, eps=1e-3, **COMMON)
    train = TRAINS.get(label, slow)
    if backbone.unsuited(train) is None:
        check(Method(backbone, CoreSet(size=5)), train)


def test_the_batched_engine_clips(train_for, task):
    """Else it would take the plain steps that it fuses."""
    clipped = Train(clip_norm=0.01, **COMMON)
    with BatchedEngine(task) as engine:
        got = train_for(Method(), 1, settings=clipped, engine=engine)
    far = train_for(Method(), 1, settings=Train(**COMMON))
    assert torch.allclose(got.params, train_for(Method(), 1, settings=clipped).params, atol=1e-6)
    assert (got.params - far.params).abs().max() > 0.01


def test_kept_state_is_not_reset(train_for):
    kept, reset = (train_for(Method(), 3, settings=t) for t in (KEPT, ADAMW))
    assert sorted(kept.client_states) == [0, 1, 2, 3]
    for state in kept.client_states.values():
        assert state.backbone_state == {}
        assert state.optimizer_state["0.steps"].item() == 3 * 4
    assert reset.client_states == {}
    assert not torch.equal(kept.params, reset.params)
    # Nothing of it is sent.
    assert kept.traffic == reset.traffic


def test_a_personal_model_has_an_optimiser_of_its_own(train_for):
    state = train_for(Method(Ditto()), 2, settings=KEPT).client_states[0].optimizer_state
    assert sorted(state) == [f"{k}.{n}" for k in (0, 1) for n in ("mean", "square", "steps")]
    assert not torch.equal(state["0.mean"], state["1.mean"])


def test_kept_state_that_waits_on_disk_is_the_same(train_for, task, tmp_path):
    engine = SerialEngine(task, client_states=StateCache(1, tmp_path))
    spilled = train_for(Method(), 3, settings=KEPT, engine=engine)
    assert same(spilled, train_for(Method(), 3, settings=KEPT))


def test_kept_state_goes_with_its_client(scenario, task):
    deletions = [Deletion(2, clients=(1,))]
    *_, last = run(
        Method(FedAvg(), Forget()), scenario, task, rounds=3, train=KEPT, deletions=deletions
    )
    assert sorted(last.client_states) == [0, 2, 3]
