"""Records for later readers of a run: round weights, the scenario, main classes."""

import json

import numpy as np
import pytest
import torch

from chronofed import (
    CoreSet,
    Experiment,
    Forget,
    Linear,
    Merged,
    Method,
    Optimal,
    Snapshot,
    Taylor,
    Train,
)
from chronofed.clients.state import ClientState
from chronofed.core.errors import RunError, SpecError
from chronofed.methods.memories import MemoryItem, Moment
from chronofed.reports.figures import canvas
from chronofed.reports.figures.maps import draw_heatmap, draw_round_weights, recorded_grid
from chronofed.reports.runs import RunView
from chronofed.runs import runner
from chronofed.scenarios import Subsets
from chronofed.training.evaluate import Evaluate
from chronofed.training.evaluation import Evaluator
from chronofed.training.round_weights import AGES, round_weights
from chronofed.training.scenario_summary import CLIENTS, ROUNDS, describe

WEIGHTS = Optimal(time_drift_sq=1.0, information_loss_sq=0.3)


def test_round_weights_are_those_that_clients_use(train_for):
    method = Method(memory=CoreSet(5), weights=WEIGHTS)
    snapshot = train_for(method, 5)
    found = round_weights(method, snapshot)
    used = []
    for client_state in snapshot.client_states.values():
        last = max(client_state.items, key=lambda item: item.round)
        moment = Moment(last.round, last.key, last.size)
        used.append(method.memory.recall(client_state.items, WEIGHTS, moment).present)
    assert found["present"] == pytest.approx(np.mean(used), abs=1e-5)
    assert found["present"] + sum(found["past"]) + found["older"] == pytest.approx(1, abs=1e-4)
    assert found["round"] == 5
    assert 1 <= len(found["past"]) <= 4


def test_the_newest_past_comes_first():
    """Merged weights are in proportion to sizes: 10, 20, 30 and a typical 20."""
    items = tuple(MemoryItem(t, 0, t, 10 * (t + 1), {"linear": torch.ones(1)}) for t in range(3))
    snapshot = Snapshot(3, {"params": torch.ones(1)}, torch.empty(0), past=items)
    found = round_weights(Method(memory=Taylor(), weights=Merged()), snapshot)
    assert found == {"round": 3, "present": 0.25, "past": [0.375, 0.25, 0.125], "older": 0.0}


def kept_items(*sizes: int) -> tuple[MemoryItem, ...]:
    """One data set of 100 samples a round, of which so many are kept; the last is the present one."""
    return tuple(
        MemoryItem(t, 0, t, 100, {"x": torch.ones(n, 1), "y": torch.zeros(n).long()} if n else {})
        for t, n in enumerate(sizes)
    )


@pytest.mark.parametrize(
    ("select", "sizes", "past"),
    [
        # Of a reservoir of 10, two data sets have nothing left: they have no weight, either.
        ("reservoir", (0, 6, 0, 4, 1), [4 / 110, 6 / 110]),
        # Samples that are kept count, not those that were seen.
        ("uniform", (20, 5, 7), [5 / 125, 20 / 125]),
    ],
)
def test_kept_samples_count_and_empty_items_do_not(select, sizes, past):
    method, items = Method(memory=CoreSet(10, select), weights=Merged()), kept_items(*sizes)
    state = {0: ClientState({}, items)}
    snapshot = Snapshot(9, {"params": torch.ones(1)}, torch.empty(0), client_states=state)
    found = round_weights(method, snapshot)
    now = len(sizes) - 1
    used = method.memory.recall(items, method.weights, Moment(now, now, 100))
    assert found["present"] == pytest.approx(used.present, abs=1e-5)
    assert found["present"] == pytest.approx(1 - sum(past), abs=1e-5)
    assert found["past"] == pytest.approx(past, abs=1e-5)


def test_round_weights_of_a_memory_on_the_server(train_for):
    method = Method(memory=Taylor(buffer=6), weights=WEIGHTS)
    snapshot = train_for(method, 4)
    found = round_weights(method, snapshot)
    assert len(found["past"]) == len(snapshot.past) == 6
    assert found["present"] + sum(found["past"]) == pytest.approx(1, abs=1e-4)


def test_many_remembered_rounds_are_summed_up(train_for):
    method = Method(memory=Taylor(buffer=AGES + 20), weights=WEIGHTS)
    found = round_weights(method, train_for(method, 15))
    assert len(found["past"]) == AGES
    assert found["older"] > 0
    assert found["present"] + sum(found["past"]) + found["older"] == pytest.approx(1, abs=1e-3)


def test_nothing_is_remembered(train_for):
    method = Method(memory=Forget())
    assert round_weights(method, train_for(method, 2)) == {}


def test_a_scenario_in_numbers(data, scenario):
    about = describe(scenario, data, 6)
    assert about["shown"] == list(range(6))
    assert (about["clients"], about["returning"], about["rounds"]) == (4, True, 6)
    for client in range(4):
        for column, round_ in enumerate(about["shown"]):
            visit = scenario.at(round_).visits[client]
            key, classes = about["held"][client][column]
            counts = np.bincount(data.labels[visit.indices], minlength=3)
            assert key == visit.key
            assert dict(map(tuple, classes)) == {k: n for k, n in enumerate(counts) if n}
    json.dumps(about)


def test_a_large_scenario_is_cut_to_what_fits(data):
    many = Subsets(clients=60, subsets=3, client_alpha=1.0).on(data, seed=0)
    about = describe(many, data, 500)
    assert len(about["shown"]) == ROUNDS
    assert (about["shown"][0], about["shown"][-1]) == (0, 499)
    assert len(about["held"]) == CLIENTS
    assert about["clients"] == 60  # so that a reader knows


def test_new_data_sets_say_what_they_hold(data, task, scenario, train_for):
    evaluator = Evaluator(task, scenario, Method(), Evaluate(), seed=0)
    seen = set()
    for rounds in (1, 4):
        line = evaluator(train_for(Method(), rounds)).records["period_accuracy"]
        new = {(c, k) for c, k, _ in line["held"]}
        assert len(line["tested"]) == len(new)
        assert all(line["tested"])
        assert new == {(c, k) for c, k, _ in line["accuracy"]} - seen
        seen |= new
    visit = scenario.at(3).visits[0]
    held = {(c, k): dict(map(tuple, classes)) for c, k, classes in line["held"]}
    if (0, visit.key) in held:
        share = np.bincount(data.labels[visit.indices], minlength=3) / len(visit.indices)
        for kind, part in held[0, visit.key].items():
            assert part == pytest.approx(share[kind], abs=0.006)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run with everything recorded."""
    path = tmp_path_factory.mktemp("real") / "run"
    experiment = Experiment(
        rounds=4,
        model=Linear(),
        method=Method(memory=CoreSet(3)),
        train=Train(steps=1),
        scenario=Subsets(clients=3, subsets=4),
        evaluate=Evaluate(every=2, seen=0),
    )
    runner.run(experiment, path)
    return RunView.read(path)


def test_figures_are_made_from_records(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = []
    save = canvas.save
    monkeypatch.setattr(canvas, "save", lambda f, path: drawn.append(f) or save(f, path))
    draw_heatmap([run, run], tmp_path / "h.svg")
    axes = drawn[0].axes
    assert [a.get_title() for a in axes[:2]] == ["run, seed 0, round 4"] * 2
    history = run.periods()
    _, now, best = history.downsample(9)
    client, key = history.pairs[0]
    lost = (int(best[-1, 0]) - int(now[-1, 0])) / 2
    assert axes[0].images[0].get_array()[client, key] == pytest.approx(lost)
    draw_heatmap([run], tmp_path / "a.png", "accuracy", round_=3)
    assert drawn[1].axes[0].get_title().endswith("round 2")
    assert drawn[1].axes[0].images[0].get_array()[client, key] == pytest.approx(now[0, 0] / 2)
    with pytest.raises(SpecError, match="was first evaluated after round 2"):
        draw_heatmap([run], tmp_path / "a.png", round_=1)
    draw_round_weights([run], tmp_path / "w.pdf")
    table = drawn[-1].axes[0].images[0].get_array()
    assert table[0, -1] == pytest.approx(run.record("round_weights")[-1]["present"])


def test_the_recorded_scenario_can_be_drawn(run):
    grid, classes = recorded_grid(run, 3)
    assert grid.rounds == (0, 2, 3)
    assert len(classes) == 10
    about = run.directory.scenario()
    assert grid.counts[1, 2].sum() == sum(n for _, n in about["held"][1][3][1])


def test_runs_without_the_records(run, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "spec.toml").write_text((run.path / "spec.toml").read_text())
    (tmp_path / "old" / "metrics.jsonl").touch()
    old = RunView.read(tmp_path / "old")
    with pytest.raises(RunError, match=r"has no scenario\.json; draw its scenario from the data"):
        recorded_grid(old, 3)
    with pytest.raises(RunError, match="did not follow single data sets"):
        draw_heatmap([old], tmp_path / "a.png")
    with pytest.raises(RunError, match="has no round weights"):
        draw_round_weights([old], tmp_path / "a.png")
