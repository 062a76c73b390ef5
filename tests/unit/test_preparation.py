"""Preparation is fitted on the first periods only, frozen, and the same code here and on clients elsewhere."""

from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from chronofed import Classification, CoreSet, Linear, Method, Mlp, Periods, Train, run
from chronofed.core.errors import DataError
from chronofed.data.client_source import TableFile
from chronofed.data.columns import Columns
from chronofed.data.encoding import encode_feature, encode_features
from chronofed.data.fitting import fit_numbers
from chronofed.data.preparation import Feature, Preparation
from chronofed.data.table import FIT_ROWS, Table

PERIODS, POISONED = 6, 3
SETTINGS = {"period": "10", "fit_periods": 2, "test": 0.2, "classes": ("no", "yes", "new")}


def clean(client, time, chance):
    return {
        "client": client,
        "time": time,
        "number": round(chance.normal(5, 2), 3),
        "gappy": "" if chance.random() < 0.2 else round(chance.normal(), 3),
        "colour": chance.choice(["red", "blue"]),
        "y": chance.choice(["no", "yes"]),
    }


def poison(row, chance):
    """Outliers, new gaps, categories and classes, and labels at random."""
    return row | {
        "number": chance.choice([1e9, -1e9, ""]),
        "gappy": 1e6,
        "colour": chance.choice(["aqua", "zinc", ""]),
        "y": chance.choice(["no", "yes", "new"]),
    }


def table(folder, poisoned, joining="zoe", **settings):
    """Write 10 rows per client and period, load them; a client joins in the last period."""
    chance, harm = np.random.default_rng(0), np.random.default_rng(1)
    rows = [
        clean(client, 10 * period + k, chance)
        for period in range(PERIODS)
        for client in ("ann", "bob", *([joining] if period == PERIODS - 1 else []))
        for k in range(10)
    ]
    if poisoned:
        rows = [poison(row, harm) if row["time"] >= 10 * POISONED else row for row in rows]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    return Table("data.csv", **SETTINGS | settings).load(folder, seed=0)


def before(samples, period):
    early = torch.from_numpy(period < POISONED)
    return samples[early]


def trained(data, evaluate_on):
    """Parameters after each round before the poison, and the losses on some test samples."""
    task = Classification(data, Mlp((4,)))
    objective, scenario = task.objective(), Periods().on(data, seed=0)
    method = Method(memory=CoreSet(size=3))
    snapshots = run(method, scenario, task, train=Train(lr=0.1, epochs=1))
    early = list(islice(snapshots, POISONED))
    scores = [task.score(objective, s.params, s.buffers, evaluate_on).loss for s in early]
    return [task.initial(0)[0], *(s.params for s in early)], scores


@pytest.mark.parametrize("holdout", ["blocks", "random"])
def test_the_future_is_poison_and_changes_nothing_before_it(tmp_path, holdout):
    settings = {"holdout": holdout, "validation": 0.1}
    good = table(tmp_path, False, **settings)
    # A new client whose name comes first must not change the numbers of others.
    bad = table(tmp_path, True, joining="aaa", **settings)
    assert good.preparation == bad.preparation
    assert good.origin.clients[:2] == bad.origin.clients[:2] == ("ann", "bob")
    for purpose in ("train", "validation", "test"):
        one, other = (
            before(getattr(d, purpose), getattr(d.origin, f"{purpose}_period")) for d in (good, bad)
        )
        assert len(one) > 0
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
    assert not torch.equal(good.train.x[-1], bad.train.x[-1])
    test = before(good.test, good.origin.test_period)
    (params, losses), (same, again) = trained(good, test), trained(bad, test)
    assert losses == again
    for one, other in zip(params, same, strict=True):
        assert torch.equal(one, other)


def test_one_outlier_of_the_last_period_leaves_the_scale_of_the_first_alone(tmp_path):
    data = table(tmp_path, True)
    early = before(data.train, data.origin.train_period).x[:, 0]
    # Scaled over all periods, the spread of the early rows would be about 1e-9.
    assert 0.8 < float(early.std()) < 1.2


def test_what_was_not_there_at_first_has_a_place_and_a_note(tmp_path):
    data = table(tmp_path, True)
    number, gappy, colour = data.preparation.features
    assert number.gaps is False
    assert gappy.gaps is True
    assert (colour.categories, colour.gaps, colour.other) == (("blue", "red"), False, True)
    assert data.shape == (1 + 2 + 3,)
    late = data.train.x[data.origin.train_period >= POISONED]
    assert late[:, -3:].sum(dim=0).tolist() == [0, 0, len(late)]
    assert any("unknown categories" in note for note in data.notes)
    assert any("in columns that had none at first" in note for note in data.notes)


def test_fitted_on_as_many_first_periods_as_hold_enough_rows(tmp_path):
    data = table(tmp_path, False, fit_periods=None, test=0.0)
    # 20 rows a period
    assert data.preparation.rows == FIT_ROWS
    assert data.preparation.periods == data.origin.periods[:5]
    few = table(tmp_path, False, fit_periods=1, test=0.0)
    assert few.preparation.periods == ("[0, 10)",)
    assert (
        "scaling and categories are fitted on 20 training rows in [0, 10) only: see fit_periods"
        in few.notes
    )


def test_fitted_on_training_rows_only(tmp_path):
    data = table(tmp_path, False, validation=0.2, fit_periods=2)
    early = data.origin.train_period < 2
    assert data.preparation.rows == early.sum()
    x = data.train.x[early][:, 0].double()
    torch.testing.assert_close(x.mean().item(), 0.0, atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(correction=0).item(), 1.0, atol=1e-6, rtol=0)


def write(folder, *rows, head="client,time,y,f"):
    (folder / "data.csv").write_text("\n".join([head, *rows]) + "\n")
    return folder


LATER = ["a,1,9,1", "a,2,10,1", "a,11,1,1", "a,12,0,1", "a,21,-5,1"]


def test_classes_are_those_of_the_periods_that_are_fitted_on(tmp_path):
    settings = Table("data.csv", period="10", test=0.0, fit_periods=1)
    data = settings.load(write(tmp_path, *LATER[:2]), 0)
    assert (data.classes, data.train.y.tolist()) == (("9", "10"), [0, 1])
    together = msgspec.structs.replace(settings, fit_periods=2)
    data = together.load(write(tmp_path, *LATER[:4]), 0)
    assert (data.classes, data.train.y.tolist()) == (("0", "1", "9", "10"), [2, 3, 1, 0])


@pytest.mark.parametrize("fit_periods", [1, 2])
def test_a_class_that_comes_later_is_an_error_with_both_remedies(tmp_path, fit_periods):
    settings = Table("data.csv", period="10", test=0.0, fit_periods=fit_periods)
    name, where, fitted = [
        ("1", r"\[10, 20\)", r"\[0, 10\)"),
        ("-5", r"\[20, 30\)", r"\[0, 10\) to \[10, 20\)"),
    ][fit_periods - 1]
    since = rf"after the periods that are fitted on \({fitted}\)"
    remedies = "list it in data.classes, or set data.other_class = true"
    with pytest.raises(
        DataError, match=rf"class '{name}' of 'y' first appears in {where}, {since}; {remedies}"
    ):
        settings.load(write(tmp_path, *LATER), 0)


def test_the_other_class_takes_what_comes_later(tmp_path):
    settings = Table("data.csv", period="10", test=0.0, fit_periods=1, other_class=True)
    data = settings.load(write(tmp_path, *LATER), 0)
    assert data.classes == data.preparation.classes == ("9", "10", "other")
    assert data.train.y.tolist() == [0, 1, 2, 2, 2]
    # The number of outputs does not depend on the future.
    assert settings.load(write(tmp_path, *LATER[:2]), 0).classes == data.classes
    one = settings.load(write(tmp_path, "a,1,9,1", "a,11,0,1"), 0)
    assert one.classes == ("9", "other")
    listed = msgspec.structs.replace(settings, classes=("0", "9"))
    assert listed.load(write(tmp_path, *LATER), 0).train.y.tolist() == [1, 2, 2, 0, 2]
    with pytest.raises(DataError, match=r"has a class 'other' of its own; leave data\.other_class"):
        settings.load(write(tmp_path, "a,1,other,1", "a,2,x,1"), 0)
    with pytest.raises(
        ValueError, match=r"Table\.other_class: adds a class 'other', which classes"
    ):
        Table("data.csv", classes=("a", "other"), other_class=True)


def test_one_class_at_first_needs_a_list(tmp_path):
    settings = Table("data.csv", period="10", test=0.0, fit_periods=1)
    with pytest.raises(DataError, match=r"only one class, '9', in \[0, 10\), .* in data\.classes"):
        settings.load(write(tmp_path, "a,1,9,1", "a,11,0,1"), 0)


def test_given_classes_are_all(tmp_path):
    settings = Table("data.csv", period="10", test=0.0, classes=("x", "1", "2"))
    data = settings.load(write(tmp_path, "a,1,2,1", "a,2,1,1"), 0)
    assert data.classes == ("x", "1", "2")
    assert data.train.y.tolist() == [2, 1]
    with pytest.raises(DataError, match=r"row 3, column 'y': '7' is not a known class: x, 1, 2"):
        settings.load(write(tmp_path, "a,1,2,1", "a,2,7,1"), 0)
    for wrong in (("a",), ("a", "a")):
        with pytest.raises(
            ValueError, match=r"Table\.classes: expected at least two different ones"
        ):
            Table("data.csv", classes=wrong)


def test_the_first_periods_decide_what_a_column_holds(tmp_path):
    numbers = [f"a,{k},{k % 2},{k}" for k in range(4)]
    text = [f"a,{k},{k % 2},t{k}" for k in range(10, 20)]
    settings = Table("data.csv", period="10", test=0.0, fit_periods=1)
    with pytest.raises(DataError, match=r"row 6, column 'f': 't10' is not a number"):
        settings.load(write(tmp_path, *numbers, *text), 0)
    text = [f"a,{k},{k % 2},t" for k in range(4)]
    numbers = [f"a,{k},{k % 2},{k}" for k in range(10, 20)]
    data = settings.load(write(tmp_path, *text, *numbers), 0)
    assert data.train.x.tolist() == [[1, 0]] * 4 + [[0, 1]] * 10


def test_a_column_without_values_at_first_stays_zero_whatever_comes(tmp_path):
    rows = ["a,1,0,,5,1", "a,2,1,,5,2", "a,11,0,text,6,3", "a,12,1,7,5,4"]
    head = "client,time,y,later,constant,f"
    settings = Table("data.csv", period="10", test=0.0, fit_periods=1)
    data = settings.load(write(tmp_path, *rows, head=head), 0)
    assert data.train.x[:, :3].tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert "columns with a single value in [0, 10) are always 0: later, constant" in data.notes


def test_a_preparation_travels_through_json(tmp_path):
    data = table(tmp_path, True)
    again = Preparation.from_json(data.preparation.to_json())
    assert again == data.preparation
    x = np.random.default_rng(0).normal(size=(9, 4, 2)) / 3
    x[2, 1, 0] = np.nan
    deep = fit_numbers("x", x, standardise=True)
    assert deep.gaps == (0,)
    whole = Preparation((deep,), ("a", "b"), ("p",), 9)
    back = Preparation.from_json(whole.to_json())
    columns = Columns(Path(), {"x": x})
    one, other = (encode_features(columns, p.features, np.arange(9)) for p in (whole, back))
    np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"features": [], "classes": 3}', b"[" * 100_000, b"\xff"]
)
def test_damaged_json_is_one_line(content):
    with pytest.raises(DataError, match=r"preparation\.json: damaged") as caught:
        Preparation.from_json(content)
    assert "\n" not in str(caught.value)


def test_clients_elsewhere_prepare_rows_with_the_same_code(tmp_path):
    data = table(tmp_path, True, test=0.0)
    source = TableFile(
        path=str(tmp_path / "data.csv"),
        classes=data.classes,
        time="",
        features=data.preparation.features,
    )
    own = source.read(0).samples
    # The table's rows are in time order, those of the file by period and client.
    rows = sorted(zip(own.x.tolist(), own.y.tolist(), strict=True))
    assert rows == sorted(zip(data.train.x.tolist(), data.train.y.tolist(), strict=True))


def test_channels_must_be_those_it_was_fitted_on():
    columns = Columns(Path("data.npz"), {"x": np.zeros((3, 2))})
    with pytest.raises(DataError, match=r"array 'x' has 2 channels, and is prepared for 3"):
        encode_feature(columns, Feature("x", mean=(1.0, 2.0, 3.0)), np.arange(3))


def test_a_run_keeps_its_preparation(tmp_path):
    from chronofed import Experiment, run_experiment

    data = table(tmp_path, False)
    settings = Table(str(tmp_path / "data.csv"), **SETTINGS)
    experiment = Experiment(data=settings, scenario=Periods(), model=Linear(), rounds=1)
    run_experiment(experiment, tmp_path / "run")
    kept = (tmp_path / "run" / "preparation.json").read_bytes()
    assert Preparation.from_json(kept) == data.preparation
