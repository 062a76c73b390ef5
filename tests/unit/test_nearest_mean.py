"""The nearest-mean-of-exemplars classifier, and shares of a core set by class."""

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import (
    ClientState,
    CoreSet,
    Distil,
    Evaluate,
    Experiment,
    Linear,
    MemoryItem,
    Method,
    Regression,
    Remote,
    Samples,
    Subsets,
    Train,
    run,
)
from chronofed.core.errors import SpecError
from chronofed.models.objective import TorchObjective
from chronofed.models.supervised import Score
from chronofed.runs import runner
from chronofed.runs.built import build
from chronofed.training.evaluation import Evaluator
from chronofed.training.nearest_mean import UNKNOWN, class_means, nearest_mean
from tests.helpers.world import slopes


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network() -> tuple[TorchObjective, torch.Tensor]:
    torch.manual_seed(0)
    model = TorchObjective(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)).double())
    return model, model.flat.read()


def holding(*pairs) -> ClientState:
    records = [{"x": x, "y": torch.tensor(y)} for x, y in pairs]
    return ClientState({}, tuple(MemoryItem(0, 0, k, 9, r) for k, r in enumerate(records)))


def features(model, params, x):
    found = model.features(params, x).numpy()
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def scored(model, params, x, means):
    y = torch.zeros(len(x), dtype=torch.int64)
    plain = Score(0.7, np.zeros(len(x), dtype=bool), torch.zeros(len(x), 5))
    return nearest_mean(plain, model, params, Samples(x, y), means)


def test_of_one_exemplar_a_class_it_is_the_nearest_neighbour():
    """In features of norm one; class 4 has no exemplar and is never predicted."""
    model, params = network()
    kept, x = drawn(4, 4), drawn(50, 4, seed=1)
    states = [holding((kept[:1], [0]), (kept[1:3], [1, 2])), holding((kept[3:], [3]))]
    found = scored(model, params, x, class_means(model, params, states, 5))
    one, other = features(model, params, x), features(model, params, kept)
    apart = np.linalg.norm(one[:, None] - other[None], axis=2)
    assert (found.outputs.argmax(1).numpy() == apart.argmin(1)).all()
    assert len(set(apart.argmin(1))) > 1
    np.testing.assert_allclose(found.outputs[:, :4].numpy(), 1 - apart**2 / 2, atol=1e-14)
    assert (found.outputs[:, 4] == UNKNOWN).all()
    assert found.loss == 0.7
    assert (found.correct == (apart.argmin(1) == 0)).all()


def test_means_are_of_all_clients_exemplars_alike_and_have_norm_one():
    model, params = network()
    x = drawn(5, 4)
    states = [holding((x[:3], [0, 1, 0])), holding((x[3:], [0, 1]))]
    means = class_means(model, params, states, 3).numpy()
    phi = features(model, params, x)
    for label, rows in ((0, [0, 2, 3]), (1, [1, 4])):
        mean = phi[rows].mean(0)
        np.testing.assert_allclose(means[label], mean / np.linalg.norm(mean), atol=1e-14)
    assert not means[2].any()


def test_every_measure_of_the_global_model_follows_the_classifier(task, scenario):
    method = Method(memory=Distil(memory=CoreSet(9, "herding")))
    *_, last = run(method, scenario, task, rounds=3, train=Train(steps=2))
    plain, near = (
        Evaluator(task, scenario, method, Evaluate(classifier=name), seed=0)(last).measures
        for name in ("outputs", "nearest-mean")
    )
    kept = [i.record for s in last.client_states.values() for i in s.items if "x" in i.record]
    x, y = (torch.cat([record[name] for record in kept]).numpy() for name in ("x", "y"))
    # The model is linear: features are the inputs.
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    test = task.data.test
    right = (test.x.numpy() @ means.T).argmax(1) == test.y.numpy()
    assert near["test_accuracy"] == pytest.approx(right.mean())
    assert near["test_loss"] == plain["test_loss"]
    assert near["seen_accuracy"] != plain["seen_accuracy"]
    assert near["test_accuracy"] != plain["test_accuracy"]


def test_where_it_cannot_be_it_is_refused(task, scenario):
    settings = Evaluate(classifier="nearest-mean")
    *_, last = run(Method(), scenario, task, rounds=1, train=Train(steps=1))
    with pytest.raises(SpecError, match=r"evaluate\.classifier: 'nearest-mean' finds no samples"):
        Evaluator(task, scenario, Method(), settings, seed=0)(last)
    data = slopes()
    numbers, world = Regression(data, Linear()), Subsets(clients=2, subsets=2).on(data, seed=0)
    with pytest.raises(SpecError, match="needs classes; use 'outputs'"):
        Evaluator(numbers, world, Method(), settings, seed=0)
    with pytest.raises(SpecError, match=r"classifier = 'nearest-mean' needs the clients' data"):
        settings.check(Remote(2).on(task.data, seed=0))


# --- a budget by class


def item(key, *labels):
    y = torch.tensor(labels)
    record = {"x": torch.arange(len(y)), "y": y, "rows": torch.arange(len(y)) + 100 * key}
    return MemoryItem(key, 0, key, len(y), record)


def retained(memory, *items):
    kept = ()
    for one in items:
        kept = memory.retain(kept, [one], torch.Generator())
    return [k.record["y"].tolist() for k in kept], kept


def test_classes_share_the_limit_whatever_their_data_set():
    """Four classes, eight samples; data set 0 has three of the classes, data set 1 one."""
    memory = CoreSet(9, limit=8, by="class")
    found, kept = retained(memory, item(0, 0, 1, 2, 0, 1, 2, 0, 1, 2), item(1, *[3] * 9))
    assert found == [[0, 1, 2, 0, 1, 2], [3, 3]]
    # The first choices stay, with their rows.
    assert kept[0].record["rows"].tolist() == [0, 1, 2, 3, 4, 5]
    found, _ = retained(CoreSet(9, limit=8), item(0, *[0, 1, 2] * 3), item(1, *[3] * 9))
    assert found == [[0, 1, 2, 0], [3, 3, 3, 3]]


def test_data_sets_share_a_class_and_one_without_a_share_goes():
    memory = CoreSet(9, limit=4, by="class")
    found, _ = retained(memory, item(0, 0, 0, 0), item(1, 0, 0, 1, 1))
    assert found == [[0], [0, 1, 1]]
    found, kept = retained(CoreSet(9, limit=2, by="class"), item(0, 0, 0), item(1, 0, 1))
    assert found == [[0, 1]]
    assert kept[0].key == 1


def test_a_class_with_few_samples_leaves_its_share_to_others():
    found, _ = retained(CoreSet(9, limit=6, by="class"), item(0, 0, 1, 1, 1, 1, 1), item(1, 2, 2))
    assert sorted(label for labels in found for label in labels) == [0, 1, 1, 1, 2, 2]


def test_a_budget_by_class_needs_a_limit_and_classes():
    with pytest.raises(ValueError, match=r"CoreSet\.by: 'class' shares a limit; set limit"):
        CoreSet(by="class")
    numbers = Regression(slopes(), Linear())
    with pytest.raises(SpecError, match=r"method\.memory\.by: 'class' needs classes"):
        CoreSet(limit=9, by="class").check(
            numbers.objective(), numbers.initial(0)[0], numbers.data.train[torch.tensor([0])]
        )


def test_remote_clients_are_refused_before_a_directory_is_made(tmp_path):
    built = build(Experiment(rounds=1, evaluate=Evaluate(classifier="nearest-mean")))
    with pytest.raises(SpecError, match="clients on this machine"):
        runner.create(built, tmp_path / "run", remote=True)
    assert not (tmp_path / "run").exists()
