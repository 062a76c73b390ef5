"""The memory of CDA-FedAvg: which samples belong to which concept, and what is replayed."""

import pytest
import torch

from chronofed import (
    BetaRatio,
    Concepts,
    Deletion,
    Distil,
    Linear,
    Merged,
    Method,
    Regression,
    Samples,
    Train,
    run,
)
from chronofed.clients.deletion import without_rows
from chronofed.core.errors import SpecError
from chronofed.methods.memories.base import SEVERAL, MemoryItem, Moment
from tests.helpers.quadratics import QuadraticWorld
from tests.helpers.world import slopes

MEMORY = Concepts(size=6, detector=BetaRatio(window=4))
HIGH, LOW = [0.9, 0.8, 0.85, 0.95, 0.82, 0.91], [0.1, 0.2, 0.15, 0.05, 0.18, 0.12]


def item(key, confidences, round_=0):
    """A data set whose samples are 100 key, 100 key + 1, ..."""
    x = 100 * key + torch.arange(len(confidences))
    record = {"x": x.double()[:, None], "y": x % 2, "rows": x}
    noted = {"confidence": torch.tensor(confidences, dtype=torch.float64)}
    return MemoryItem(round_, 0, key, len(x), {**record, **noted})


def kept(*data_sets, memory=MEMORY, start=(), seed=0):
    items, generator = start, torch.Generator().manual_seed(seed)
    for round_, (key, confidences) in enumerate(data_sets):
        items = memory.retain(items, [item(key, confidences, round_)], generator)
    return items


def concepts(items):
    """The data sets that the samples of every concept came from, and the sizes."""
    *found, state = items
    assert "latest" in state.record
    assert state.size == 0
    assert {k.key for k in items} == {SEVERAL}
    return [(sorted(set(k.record["of"].tolist())), k.size) for k in found]


def test_data_sets_without_a_change_are_one_concept():
    items = kept((0, HIGH), (1, HIGH), (2, HIGH))
    assert [size for _, size in concepts(items)] == [18]
    record = items[0].record
    assert len(record["y"]) == 6
    assert torch.equal(record["x"][:, 0].long(), record["rows"])
    assert torch.equal(record["of"], record["rows"] // 100)
    assert items[-1].record["detector_values"].tolist() == 3 * HIGH
    assert items[-1].record["sources"].tolist() == [100 * k + j for k in range(3) for j in range(6)]


def test_the_sample_of_a_concept_is_uniform():
    """Each of 12 samples is kept in half of the cases."""
    counts = torch.zeros(12)
    for seed in range(100):
        rows = kept((0, HIGH), (1, HIGH), seed=seed)[0].record["rows"]
        counts[6 * (rows // 100) + rows % 100] += 1
    # 50 expected, deviation 5
    assert counts.min() > 30
    assert counts.max() < 70


def test_what_follows_a_change_begins_a_concept():
    items = kept((0, HIGH), (1, LOW), (2, LOW))
    assert concepts(items) == [([0], 6), ([1, 2], 12)]
    assert [k.round for k in items] == [0, 2, 2]
    assert items[-1].record["detector_values"].tolist() == 2 * LOW
    assert items[-1].record["sources"].tolist() == [*range(100, 106), *range(200, 206)]


def test_a_change_inside_a_data_set_divides_it():
    items = kept((0, HIGH), (1, HIGH[:3] + LOW), (2, LOW))
    (first, second, _) = items
    assert (first.size, second.size) == (9, 12)
    assert set(second.record["rows"].tolist()) <= {*range(103, 109), *range(200, 206)}
    assert concepts(kept((0, HIGH + LOW))) == [([0], 6), ([0], 6)]


def test_a_change_that_is_found_late_begins_with_the_data_set_at_hand():
    """Seven numbers are too few for two windows of four; the next data set shows it."""
    items = kept((0, HIGH), (1, LOW[:1]), (2, LOW[1:]))
    assert items[0].size == 7
    assert concepts(items)[1] == ([2], 5)
    assert items[-1].record["detector_values"].tolist() == LOW


def test_a_data_set_that_stays_counts_once_and_one_that_comes_back_resumes_its_concept():
    items = kept((0, HIGH), (0, LOW), (0, LOW))
    assert concepts(items) == [([0], 6)]
    assert [k.round for k in items] == [2, 2]
    assert items[-1].record["detector_values"].tolist() == HIGH
    again = kept((0, HIGH), (1, LOW), (0, LOW))
    assert concepts(again) == [([1], 6), ([0], 6)]
    assert again[-1].record.keys() == {"latest"}
    # The detector starts anew, so that the next data set cannot differ from it.
    assert concepts(kept((3, LOW), start=again)) == [([1], 6), ([0, 3], 12)]
    # Also if none of its samples was kept.
    few = Concepts(size=1, detector=MEMORY.detector)
    lost = next(
        found
        for found in (kept((0, HIGH), (1, HIGH), memory=few, seed=s) for s in range(20))
        if found[0].record["of"].tolist() == [0]
    )
    assert kept((1, HIGH), memory=few, start=lost)[0].size == 12


def test_all_concepts_are_replayed_but_for_the_present_data_set():
    items = kept((0, HIGH), (1, LOW), (2, LOW))
    past = MEMORY.recalled(items, Moment(3, 2, 6))
    assert [set(k.record["of"].tolist()) for k in past] == [{0}, {1}]
    surrogate = MEMORY.recall(items, Merged(), Moment(3, 2, 6))
    assert len(surrogate.replay) == sum(len(k.record["y"]) for k in past)
    assert MEMORY.recalled(kept((0, HIGH)), Moment(1, 0, 6)) == ()
    assert MEMORY.recall((), Merged(), Moment(0, 0, 6)).replay is None


def test_a_deleted_sample_leaves_its_concept_and_the_detector():
    items = kept((0, HIGH), (1, LOW))
    gone = torch.tensor([int(items[0].record["rows"][0])])
    left = tuple(k for k in (without_rows(k, gone) for k in items) if k is not None)
    assert [len(k.record["of"]) for k in left[:2]] == [5, 6]
    assert len(left) == 3  # the detector compares with the new concept only
    gone = items[1].record["rows"][:1]
    left = tuple(k for k in (without_rows(k, gone) for k in items) if k is not None)
    assert [len(k.record) for k in left] == [4, 4]
    # It starts anew, and the data set is known by its samples.
    assert concepts(kept((1, LOW), start=left)) == [([0], 6), ([1], 6)]
    assert concepts(kept((2, HIGH), start=left)) == [([0], 6), ([1, 2], 12)]


def test_confidences_are_those_of_the_model_that_arrived():
    """Through the real loop: exp(-loss) at the server's model, not at the trained one."""
    parts = [[[(1.0, 1.0), (2.0, 1.0)]]]
    there = QuadraticWorld(parts, start=0.5)
    (last,) = there.train(Method(memory=MEMORY), 1, lr=0.5, steps=1)
    *_, state = last.client_states[0].items
    want = torch.tensor([1 + 0.125 - 0.5, 1 + 0.25 - 0.5], dtype=torch.float64).neg().exp()
    torch.testing.assert_close(state.record["detector_values"], want)
    assert last.params.item() != 0.5


def test_confidence_of_the_label_and_of_the_prediction(task):
    samples = task.samples(torch.arange(5).numpy())
    params, _ = task.initial(0)
    objective = task.objective()
    chances = objective.logits(params, samples.x).double().softmax(1)
    label = MEMORY.preview(objective, params, samples)["confidence"]
    torch.testing.assert_close(label, chances[range(5), samples.y], rtol=1e-5, atol=1e-6)
    chosen = Concepts(confidence="prediction")
    chosen.check(objective, params, samples)
    torch.testing.assert_close(
        chosen.preview(objective, params, samples)["confidence"], chances.amax(1)
    )
    numbers = Samples(samples.x, samples.x[:, 0])
    with pytest.raises(SpecError, match="'prediction' needs classes; use 'label'"):
        chosen.check(objective, params, numbers)


def test_the_gradient_of_an_item_is_that_of_as_many_samples_as_are_kept():
    there = QuadraticWorld([[[(1.0, float(b)) for b in range(12)]]])
    samples = there.samples(there.positions[0][0])
    record = {"x": samples.x, "y": samples.y, "confidence": torch.ones(12)}
    new = MemoryItem(0, 0, 0, 12, record)
    w = torch.zeros(1, dtype=torch.float64)
    _, gradient = MEMORY.approximate(there.objective(), w, new)
    assert gradient.item() == -(0 + 2 + 4 + 6 + 8 + 10) / 6


@pytest.mark.parametrize("regression", [False, True])
def test_deletions_of_a_run(task, scenario, regression):
    """A deleted client has no memory, and no deleted row stays anywhere."""
    chosen = Regression(slopes(), Linear()) if regression else task
    rows = tuple(scenario.at(1).visits[1].indices[:40].tolist())
    gone = [Deletion(round=3, rows=rows, clients=(2,))]
    train = Train(steps=2, batch_size=8)
    *_, last = run(Method(memory=MEMORY), scenario, chosen, rounds=5, train=train, deletions=gone)
    assert 2 not in last.client_states
    for state in last.client_states.values():
        for one in state.items:
            for name in ("rows", "sources"):
                assert not set(one.record.get(name, torch.empty(0)).tolist()) & set(rows)


def test_it_goes_inside_a_memory_with_teachers(task, scenario):
    """What it noted before training reaches it, and the samples that it keeps are the same."""
    train = Train(steps=2, batch_size=8)
    kept = []
    for memory in (MEMORY, Distil(past=0.0, memory=MEMORY)):
        *_, last = run(Method(memory=memory), scenario, task, rounds=3, train=train)
        items = last.client_states[1].items
        kept.append([k.record["rows"].tolist() for k in items if "of" in k.record])
    assert kept[0] == kept[1] != []
