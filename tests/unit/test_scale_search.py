"""The search of a scale and its budget: the trials that are left, their keys, and what a table costs."""

import json
import runpy
from pathlib import Path

import pytest

from chronofed.core import toml
from chronofed.core.spec_io import from_table
from chronofed.runs.spec import Experiment
from chronofed.studies.load_recipe import load, shipped

FOLDER = Path(__file__).parents[2] / "benchmarks" / "scale"


@pytest.fixture(scope="module")
def search():
    return runpy.run_path(str(FOLDER / "search.py"))


@pytest.fixture(scope="module")
def budget():
    return runpy.run_path(str(FOLDER / "budget.py"))


def test_every_trial_is_a_valid_specification_on_validation_rows(search):
    found = list(search["trials"](toml.load(FOLDER / "search.toml")))
    assert len({search["fingerprint"](table) for _, _, table in found}) == len(found)
    tables_seeds = {s for name in shipped() for s in load(name).scale("cpu").seeds}
    for trial, method, table in found:
        experiment = from_table(table, Experiment)
        assert experiment.evaluate.on == "validation", (trial, method)
        assert experiment.seed not in tables_seeds
        assert search["steps"](experiment) > 0


def test_what_is_recorded_is_not_run_again(search, tmp_path):
    trials, results = FOLDER / "search.toml", tmp_path / "search.jsonl"
    first, *rest = search["pending"](trials, results)
    results.write_text(json.dumps({"spec": first[2]}) + "\n")
    assert [one[2] for one in search["pending"](trials, results)] == [one[2] for one in rest]


def test_a_key_does_not_depend_on_defaults(search):
    table = {"rounds": 3, "train": {"lr": 0.1}}
    assert search["fingerprint"](table) == search["fingerprint"](dict(reversed(table.items())))
    assert search["fingerprint"](table) != search["fingerprint"]({**table, "rounds": 4})


def test_recorded_lines_say_what_they_cost(search):
    for line in map(json.loads, (FOLDER / "search.jsonl").read_text().splitlines()):
        expected = line["steps_a_round"] * line["cpu_ms_a_step"] / 1000
        rounds = from_table(
            next(
                table
                for trial, method, table in search["trials"](toml.load(FOLDER / "search.toml"))
                if search["fingerprint"](table) == line["spec"]
            ),
            Experiment,
        ).rounds
        assert line["minutes_on_two_cores"] == pytest.approx(expected * rounds / 120, rel=0.02)
        assert line["curve"][-1][1] == pytest.approx(line["last"], abs=1e-9)


def test_the_steps_of_a_round_are_those_of_the_clients(search):
    """45,000 images among 7 x 30 data sets are 214 each: seven mini-batches of 32."""
    table = next(search["trials"](toml.load(FOLDER / "search.toml")))[2]
    assert search["steps"](from_table(table, Experiment)) == 7 * 7


def test_every_cell_of_the_budget_is_counted_once(budget):
    counted = sum(len(new) for *_, new in budget["rows"]("cpu"))
    names = {name for name, _ in budget["ORDER"]}
    cells = [c for n in names for c in load(n).cells("cpu", load(n).scale("cpu").seeds)]
    assert counted == len({cell.experiment.fingerprint() for cell in cells})
    # Every recipe that trains is in the order of importance.
    assert len(names) == 9


def test_the_table_of_the_budget_adds_up(budget):
    line = {"recipe": "a", "row": "A", "column": "", "runs": 6, "rounds": 500, "s_a_round": 1.2}
    lines = [line, {**line, "row": "B", "runs": 3, "s_a_round": 2.4}, {**line, "s_a_round": None}]
    text = budget["table"]([*lines, {**line, "recipe": "b"}])
    assert "| `a` | 9 | 10.0 to 20.0 | 1.0 | 1.0 |" in text
    assert "| `b` | 6 | 10.0 to 10.0 | 0.5 | 1.5 |" in text


def test_the_scale_of_two_cores():
    """A network that learns, evaluated on a part between, with both readings of the prior."""
    cells = {(c.row, c.column): c.experiment for c in load("table-baselines").cells("cpu", [0])}
    assert {column for _, column in cells} == {"alpha 0.1", "alpha 0.2", "alpha 0.1, shares"}
    priors = [cells["FedAvg", c].scenario.prior for c in ("alpha 0.1", "alpha 0.1, shares")]
    assert priors == ["symmetric", "shares"]
    for one in cells.values():
        assert (one.evaluate.sample, one.evaluate.past_at, one.rounds) == (2000, "last", 1500)
        assert one.train.schedule.rounds == one.rounds
    methods = load("table-methods")
    assert methods.headings("cpu") == ["Fashion-MNIST", "CIFAR-10", "CIFAR-100"]


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_a_schedule_ends_with_the_run(scale):
    for name in shipped():
        for cell in load(name).cells(scale, [0]):
            schedule = cell.experiment.train.schedule
            assert schedule is None or schedule.rounds == cell.experiment.rounds, (name, cell.name)
