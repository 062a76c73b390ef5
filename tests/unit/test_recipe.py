"""Recipes: what is in a file becomes experiments, and what is wrong with it one line."""

import tomllib
from pathlib import Path

import pytest

from chronofed import CoreSet, Forget, Linear, Mlp, Taylor
from chronofed.core.errors import SpecError
from chronofed.studies import load_recipe
from chronofed.studies.claims import Beats
from chronofed.studies.load_recipe import load, shipped
from chronofed.studies.recipe import merged
from chronofed.studies.views import SummaryTable

MINI = """
title = "Mini"
label = "mini"
order = 1
[base]
rounds = 6
[base.model]
kind = "mlp"
hidden = [9]
[scales.small]
hours = 0.1
overrides = { rounds = 2, model = { kind = "linear" } }
rows = { CFL = { train = { lr = 0.2 } } }
columns = { late = { train = { batch_size = 5 } } }
[scales.large]
hours = 1
exclude = ["late"]
[rows.FedAvg]
[rows.CFL.method.memory]
kind = "core-set"
size = 7
[columns.early.train]
steps = 1
[columns.late.train]
steps = 3
lr = 0.5
[view]
kind = "summary-table"
[paper]
CFL = [50.0, 60.0]
[[claims]]
kind = "beats"
says = "it helps"
better = ["CFL"]
worse = ["FedAvg"]
columns = ["late"]
"""


@pytest.fixture
def mini(tmp_path):
    def write(text=MINI, name="mini.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_what_a_scale_says_about_a_column_comes_after_the_column(mini):
    """A tuned setting of one column replaces the column's own."""
    tuned = "columns = { late = { train = { lr = 0.7 } } }"
    recipe = load(mini(MINI.replace("columns = { late = { train = { batch_size = 5 } } }", tuned)))
    rates = {(c.column, c.row): c.experiment.train.lr for c in recipe.cells("small", [0])}
    assert rates["late", "FedAvg"] == rates["late", "CFL"] == 0.7
    assert rates["early", "FedAvg"] == 0.05


def test_a_setting_of_one_cell_comes_last(mini):
    """A rate that was tuned for one row in one column leaves all other cells alone."""
    tuned = "cells = { CFL = { late = { train = { lr = 0.9 } } } }"
    recipe = load(mini(MINI.replace("rows = { CFL = { train = { lr = 0.2 } } }", tuned)))
    rates = {(c.column, c.row): c.experiment.train.lr for c in recipe.cells("small", [0])}
    assert rates.pop(("late", "CFL")) == 0.9
    assert rates == {("early", "FedAvg"): 0.05, ("early", "CFL"): 0.05, ("late", "FedAvg"): 0.5}


def test_cells_are_base_scale_column_and_row_together(mini):
    recipe = load(mini())
    cells = list(recipe.cells("small", [3, 4]))
    assert [(c.seed, c.column, c.row) for c in cells] == [
        (s, c, r) for s in (3, 4) for c in ("early", "late") for r in ("FedAvg", "CFL")
    ]
    first, second, third, fourth = (cell.experiment for cell in cells[:4])
    assert {e.rounds for e in (first, second, third, fourth)} == {2}
    assert {e.model for e in (first, second, third, fourth)} == {Linear()}
    assert [type(e.method.memory) for e in (first, second)] == [Forget, CoreSet]
    assert second.method.memory.size == 7
    assert [e.train.steps for e in (first, third)] == [1, 3]
    # a tuned row yields to the column, which is the more special one
    assert [e.train.lr for e in (first, second, third, fourth)] == [0.05, 0.2, 0.5, 0.5]
    assert [e.train.batch_size for e in (first, second, third, fourth)] == [32, 32, 5, 5]
    assert cells[1].name == "CFL, early, seed 3"


def test_another_scale_is_another_size_and_may_lack_columns(mini):
    recipe = load(mini())
    (fedavg, cfl) = recipe.cells("large", [0])
    assert fedavg.experiment.rounds == 6
    assert fedavg.experiment.model == Mlp((9,))
    assert {fedavg.column, cfl.column} == {"early"}
    assert recipe.headings("large") == ["early"]


def test_the_papers_numbers_belong_to_columns(mini):
    recipe = load(mini())
    assert [recipe.published("CFL", c) for c in ("early", "late")] == [50.0, 60.0]
    assert recipe.published("FedAvg", "late") is None
    assert recipe.claims == (
        Beats(says="it helps", better=("CFL",), worse=("FedAvg",), columns=("late",)),
    )


def test_a_recipe_takes_from_another_what_it_does_not_say(mini):
    """Named as seen from its own folder."""
    other = f"""
    title = "Other"
    label = "other"
    order = 2
    extends = "{Path(mini()).name}"
    rows = ["CFL"]
    columns = ["late"]
    base = {{ rounds = 9 }}
    view = {{ kind = "curves" }}
    """
    recipe = load(mini(other, "other.toml"))
    (cell,) = recipe.cells("small", [0])
    assert recipe.base == {"rounds": 9, "model": {"kind": "mlp", "hidden": [9]}}
    assert list(recipe.rows) == ["CFL"]
    assert cell.experiment.method.memory == CoreSet(7)
    assert recipe.claims == ()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('label = "mini"', "", "label: missing"),
        (
            'worse = ["FedAvg"]',
            'worse = ["Fedavg"]',
            "claims[0]: no row 'Fedavg'; there are: FedAvg, CFL",
        ),
        ('columns = ["late"]', 'columns = ["noon"]', "no column 'noon'; there are: early, late"),
        ("CFL = [50.0, 60.0]", "CFL = [50.0]", "paper.CFL: expected 2 numbers"),
        ("CFL = [50.0, 60.0]", "SGD = [50.0, 60.0]", "paper: no row 'SGD'"),
        ('exclude = ["late"]', 'exclude = ["noon"]', "scales.large.exclude: no column 'noon'"),
        ("rows = { CFL", "rows = { SGD", "scales.small.rows: no row 'SGD'"),
        ("columns = { late", "columns = { noon", "scales.small.columns: no column 'noon'"),
        ("columns = { late", "cells = { SGD", "scales.small.cells: no row 'SGD'"),
        ("columns = { late", "cells.CFL = { noon", "scales.small.cells.CFL: no column 'noon'"),
        ("size = 7", "sise = 7", "CFL, early: method.memory.sise: unknown key"),
        ("hours = 0.1", "hours = -1", "scales.small"),
        ('kind = "summary-table"', 'kind = "sumary-table"', "view.kind"),
        ("title", "title title", "mini.toml"),
    ],
)
def test_an_error_names_its_place(mini, old, new, complaint):
    assert old in MINI
    with pytest.raises(SpecError) as error:
        load(mini(MINI.replace(old, new, 1)))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value).strip()


def test_unknown_recipes_and_scales(mini):
    with pytest.raises(SpecError, match=r"no recipe 'tabel'; there are: .*table-baselines"):
        load("tabel")
    with pytest.raises(SpecError, match="no scale 'huge'; there are: small, large"):
        load(mini()).scale("huge")


def test_settings_of_another_kind_replace_the_whole():
    base = {"model": {"kind": "cnn", "fc": 3}, "train": {"lr": 1}}
    assert merged(base, {"model": {"kind": "linear"}})["model"] == {"kind": "linear"}
    assert merged(base, {"model": {"fc": 4}})["model"] == {"kind": "cnn", "fc": 4}
    assert base == {"model": {"kind": "cnn", "fc": 3}, "train": {"lr": 1}}


PAPER = Path(__file__).parents[3] / "shared" / "paper" / "cfl.tex"


def test_every_shipped_recipe_can_be_read_at_both_scales():
    names = shipped()
    assert len(names) == len(set(names)) == 14
    for name in names:
        recipe = load(name)
        assert {"cpu", "paper"} <= set(recipe.scales)
        for scale in ("cpu", "paper"):
            list(recipe.cells(scale, [0]))
    orders = [load(name).order for name in names]
    assert orders == sorted(orders)


@pytest.mark.skipif(
    not PAPER.exists(), reason="the paper's source is not shipped: put it in ../shared"
)
def test_labels_are_the_papers():
    text = PAPER.read_text()
    for name in shipped():
        assert load(name).label in text, name


def test_the_paper_scale_is_the_papers_protocol():
    for name in ("table-baselines", "table-methods", "table-stateless", "table-overlap"):
        for cell in load(name).cells("paper", [0]):
            experiment = cell.experiment
            assert experiment.rounds == 500
            assert experiment.train.lr == 0.01
            assert (experiment.scenario.clients, experiment.scenario.subsets) == (7, 30)
            if cell.column != "Fashion-MNIST":
                assert type(experiment.model).__name__ == "ResNet18"
    for cell in load("table-ablation").cells("paper", [0]):
        assert (cell.experiment.rounds, cell.experiment.scenario.clients) == (300, 10)
        assert cell.experiment.scenario.client_alpha == 0.2
    full = next(load("table-methods").cells("paper", [0]))
    assert isinstance(load("table-methods").view, SummaryTable)
    assert full.row == "FedAvg"


def test_identical_cells_of_different_recipes_have_the_same_fingerprint():
    def prints(name):
        return {
            (c.row, c.seed): c.experiment.fingerprint()
            for c in load(name).cells("cpu", [0, 1])
            if c.column in ("CIFAR-10", "alpha 0.1")
        }

    methods, baselines = prints("table-methods"), prints("table-baselines")
    curves = prints("figure-convergence")
    for row in ("FedAvg", "CFL-Regularization", "CFL-Core-Set"):
        assert methods[row, 1] == baselines[row, 1] == curves[row, 1]
    assert len(set(baselines.values())) == len(baselines)


def test_shipped_files_say_nothing_twice():
    for path in load_recipe.SHIPPED.glob("*.toml"):
        table = tomllib.loads(path.read_text())
        if "extends" in table:
            assert "data" not in table.get("base", {}), path


def test_regularisation_of_the_top_layers_is_the_default():
    cells = {c.row: c.experiment for c in load("table-methods").cells("cpu", [0])}
    assert cells["CFL-Regularization"].method.memory == Taylor(mode="practice")
    assert cells["CFL-Regularization-Full"].method.memory == Taylor(
        layers={"*": 1.0}, mode="practice"
    )
