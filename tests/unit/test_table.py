"""Tables as data sets: periods, splits and features computed by hand, and what always holds."""

import os
from datetime import date
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chronofed.core.errors import DataError, SpecError
from chronofed.core.seeds import numpy_generator
from chronofed.data.columns import Columns
from chronofed.data.encoding import encode_feature
from chronofed.data.fitting import fit_numbers
from chronofed.data.holdout import Holdout
from chronofed.data.periods import Period
from chronofed.data.table import Table


@pytest.fixture
def load(tmp_path):
    """Write a CSV file, or an npz file of the given arrays, and load it."""

    def load(text="", seed=0, arrays=None, **settings):
        path = tmp_path / ("data.csv" if arrays is None else "data.npz")
        if arrays is None:
            path.write_text(text)
        else:
            np.savez(path, **arrays)
        return Table(path.name, **settings).load(tmp_path, seed)

    return load


def rows(*lines):
    """A CSV file with a client, a time, a target and a feature."""
    return "\n".join(["client,time,y,f", *lines]) + "\n"


def told(data):
    """The notes, but for the one about how few rows there are to fit on."""
    return [note for note in data.notes if "are fitted on" not in note]


def refused(message, kind=DataError):
    return pytest.raises(kind, match=message)


def held_out(client, period, share, seed):
    return Holdout(share, rule="random").split(client, period, seed).test


def prepared(values, train, standardise):
    """Fit on the training rows, and encode all."""
    feature = fit_numbers("x", values[train], standardise)
    return encode_feature(Columns(Path(), {"x": values}), feature, np.arange(len(values)))


DATES = rows(
    "b,2009-04-02,1,5",
    "a,2009-03-01,0,1",
    "a,2009-03-31,1,2",
    "b,2010-01-01,0,6",
    "a,2009-04-01,0,3",
    "b,2009-03-15,1,4",
)  # in time order: f = 1, 4, 2, 3, 5, 6


# Periods


@pytest.mark.parametrize(
    ("period", "names", "codes"),
    [
        ("month", ["2009-03", "2009-04", "2010-01"], [0, 0, 0, 1, 1, 2]),
        ("quarter", ["2009-Q1", "2009-Q2", "2010-Q1"], [0, 0, 0, 1, 1, 2]),
        ("year", ["2009", "2010"], [0, 0, 0, 0, 0, 1]),
        (
            "week",  # 1 March 2009 was a Sunday; 1 January 2010 is in the last week of 2009
            ["2009-W09", "2009-W11", "2009-W14", "2009-W53"],
            [0, 1, 2, 2, 2, 3],
        ),
        (
            "31 days",  # 2010-01-01 is 306 days after the first, in the window from day 279
            ["2009-03-01 to 2009-03-31", "2009-04-01 to 2009-05-01", "2009-12-05 to 2010-01-04"],
            [0, 0, 0, 1, 1, 2],
        ),
        ("2 rows", ["rows 0-1", "rows 2-3"], [0, 0, 0, 1, 0, 1]),
    ],
)
def test_periods_of_dates(load, period, names, codes):
    data = load(DATES, period=period, test=0.0, standardise=False)
    assert data.train.x.flatten().tolist() == [1, 4, 2, 3, 5, 6]
    assert data.train.y.tolist() == [0, 1, 1, 0, 1, 0]
    assert list(data.origin.periods) == names
    assert data.origin.train_period.tolist() == codes
    assert data.origin.clients == ("a", "b")
    assert data.origin.train_client.tolist() == [0, 1, 0, 0, 1, 1]
    assert len(data.test) == len(data.origin.test_client) == 0


def test_period_of_a_day(load):
    data = load(DATES, period="day", test=0.0)
    assert data.origin.periods[:3] == ("2009-03-01", "2009-03-15", "2009-03-31")
    assert data.origin.train_period.tolist() == [0, 1, 2, 3, 4, 5]


def test_windows_of_a_numeric_time_start_at_zero(load):
    text = rows("a,-1,0,1", "a,0,1,2", "b,49,0,3", "a,50,1,4", "b,299,0,5")
    data = load(text, period="50", test=0.0)
    assert data.origin.periods == ("[-50, 0)", "[0, 50)", "[50, 100)", "[250, 300)")
    assert data.origin.train_period.tolist() == [0, 1, 1, 2, 3]


def test_windows_are_not_at_the_mercy_of_binary_fractions(load):
    text = rows(*(f"a,{k / 10},{k % 2},1" for k in range(1000)))
    data = load(text, period="0.1", test=0.0)
    assert data.origin.train_period.tolist() == list(range(1000))
    assert data.origin.periods[3] == "[0.3, 0.4)"
    assert load(rows("a,-0.0,0,1", "a,9,1,1"), period="10").origin.periods == ("[0, 10)",)


def test_without_a_time_column_rows_are_in_time_order(load):
    text = "client,y,f\nb,0,1\na,1,2\nb,1,3\nb,0,4\n"
    data = load(text, time="", period="2 rows", test=0.0, standardise=False)
    assert data.train.x.flatten().tolist() == [1, 2, 3, 4]
    assert data.origin.train_period.tolist() == [0, 0, 0, 1]
    data = load(text, time="", period="3", test=0.0)
    assert data.origin.train_period.tolist() == [0, 0, 0, 1]
    assert data.origin.periods == ("[0, 3)", "[3, 6)")


@given(st.dates(date(1, 1, 1), date(9999, 12, 31)))
def test_calendar_periods_agree_with_the_standard_library(day):
    time, client = np.array([day], dtype="datetime64[us]"), np.zeros(1, dtype=np.int64)
    year, week, _ = day.isocalendar()
    expected = {
        "day": day.isoformat(),
        "week": f"{year}-W{week:02}",
        "month": day.isoformat()[:7],
        "quarter": f"{day.isoformat()[:4]}-Q{(day.month + 2) // 3}",
        "year": day.isoformat()[:4],
    }
    for unit, name in expected.items():
        period = Period.parse(unit)
        assert period.name(period.numbers(time, client)[0]) == name


# Settings


@pytest.mark.parametrize(
    "period", ["", "fortnight", "0", "0 rows", "-5", "1.5 rows", "5 weeks", "5rows", "nan", "1e3"]
)
def test_period_that_is_none_is_refused_with_the_choices(period):
    with refused(
        r"Table.period: .* is not a period; use day, week, .* '50 rows' or '50'", ValueError
    ):
        Table("data.csv", period=period)


def test_singular_windows_are_windows():
    assert Period.parse("1 row") == Period("rows", 1)
    assert Period.parse("1 day") == Period("days", 1)
    assert Period.parse("2.5") == Period("units", 2.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time": ""}, "Table.period: 'month' needs a time column; without one use '50 rows'"),
        ({"features": ("a", "y")}, "Table.features: 'y' is the target"),
        ({"test": 1.5}, "Table.test"),
        ({"min_rows": 0}, "Table.min_rows"),
    ],
)
def test_settings_are_checked(settings, message):
    with refused(message, ValueError):
        Table("data.csv", **settings)


def test_settings_travel_through_a_specification():
    table = Table("data.csv", time="", period="50 rows", features=("a", "b"))
    built = msgspec.to_builtins(table)
    assert built["kind"] == "table"
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(built)), Table) == table
    with pytest.raises(msgspec.ValidationError, match="fortnight"):
        msgspec.convert({"kind": "table", "path": "data.csv", "period": "fortnight"}, Table)


def test_period_must_fit_the_kind_of_time(load):
    with refused("does not fit column 'time', which holds dates: use '50 days'", SpecError):
        load(DATES, period="50")
    for period in ("month", "10 days"):
        with refused("does not fit column 'time', which holds numbers: use a window", SpecError):
            load(rows("a,1,0,1", "a,2,1,1"), period=period)


# Hold-out


def test_holdout_takes_the_rounded_share_of_every_group_but_never_all(load):
    sizes = {("a", 0): 1, ("a", 1): 2, ("a", 2): 3, ("b", 0): 5, ("b", 1): 8, ("b", 2): 12}
    lines = [f"{c},{p},{k % 2},{k}" for (c, p), n in sizes.items() for k in range(n)]
    for share, expected in {
        0.2: [0, 0, 1, 1, 2, 2],
        0.5: [0, 1, 2, 3, 4, 6],
        1.0: [0, 1, 2, 4, 7, 11],
    }.items():
        origin = load(rows(*lines), period="1", test=share).origin
        held = np.bincount(3 * origin.test_client + origin.test_period, minlength=6)
        kept = np.bincount(3 * origin.train_client + origin.train_period, minlength=6)
        assert held.tolist() == expected
        assert (held + kept).tolist() == list(sizes.values())


def test_holdout_rounds_as_decimals_do():
    one = np.zeros(50, dtype=np.int64)
    assert held_out(one, one, 0.29, seed=0).sum() == 15  # 14.5


def test_holdout_is_that_of_the_seed(load):
    text = rows(*(f"{'ab'[k % 2]},{k},{k % 3},{k}" for k in range(200)))
    first, again, other = (load(text, seed=seed, period="50").test.x for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_holdout_is_uniform_within_a_group():
    client, period = np.zeros(10, dtype=np.int64), np.zeros(10, dtype=np.int64)
    held = sum(held_out(client, period, 0.3, seed).astype(int) for seed in range(2000))
    assert held.sum() == 6000
    np.testing.assert_allclose(held, 600, atol=110)  # more than 5 deviations of 20.5


def test_holdout_draws_from_its_own_generator():
    one = np.zeros(60, dtype=np.int64)
    smallest = np.argsort(numpy_generator(3, "holdout").random(60))[:20]
    assert np.flatnonzero(held_out(one, one, 1 / 3, seed=3)).tolist() == sorted(smallest)


@given(st.permutations(range(24)), st.integers(0, 3))
def test_holdout_ignores_the_order_of_the_file_and_later_periods(tmp_path_factory, order, seed):
    folder = tmp_path_factory.mktemp("table")
    lines = [f"{'abc'[k % 3]},{k},{k % 2},{k}" for k in range(24)]
    settings = {"period": "8", "test": 0.3, "holdout": "random", "standardise": False}

    def test_rows(lines):
        (folder / "data.csv").write_text(rows(*lines))
        return Table("data.csv", **settings).load(folder, seed).test.x.flatten().tolist()

    straight = test_rows(lines)
    assert test_rows([lines[k] for k in order]) == straight
    assert test_rows(lines[:16]) == [f for f in straight if f < 16]


@st.composite
def tables(draw):
    """Rows (client, time, target) of which some are incomplete."""
    cell = st.tuples(
        st.sampled_from(["a", "b", "10", "9", ""]),
        st.integers(0, 30).map(str) | st.just(""),
        st.sampled_from(["0", "1", "0", "1", ""]),
    )
    return [("a", "0", "0")] * 5 + [("a", "0", "1")] * 5 + draw(st.lists(cell, max_size=60))


@given(
    tables(),
    st.sampled_from(["10", "7 rows"]),
    st.floats(0, 1),
    st.integers(1, 4),
    st.integers(0, 2**40),
)
def test_every_row_is_in_training_or_test_or_left_out(
    tmp_path_factory, table, period, share, least, seed
):
    folder = tmp_path_factory.mktemp("table")
    lines = [f"{c},{t},{y},{k}" for k, (c, t, y) in enumerate(table)]
    (folder / "data.csv").write_text(rows(*lines))
    settings = Table("data.csv", period=period, test=share, min_rows=least, standardise=False)
    data, again = settings.load(folder, seed), settings.load(folder, seed)
    train, test = (part.x.flatten().long().tolist() for part in (data.train, data.test))
    assert not set(train) & set(test)
    left_out = sum(int(note.split()[0]) for note in data.notes if "left out" in note)
    assert len(train) + len(test) + left_out == len(table)
    assert again.train.x.flatten().long().tolist() == train
    for part, who, y in (
        (train, data.origin.train_client, data.train.y),
        (test, data.origin.test_client, data.test.y),
    ):
        assert [data.origin.clients[k] for k in who] == [table[k][0] for k in part]
        assert [data.classes[k] for k in y] == [table[k][2] for k in part]
        times = [int(table[k][1]) for k in part]
        assert times == sorted(times)


# Rows that are left out


def test_rows_without_target_client_or_time_are_left_out_and_counted(load):
    text = rows("a,1,0,1", ",1,0,2", "a,,0,3", "a,1,,4", ",,,5", "b,2,1,6", "a,3,,7")
    data = load(text, period="10", test=0.0, standardise=False)
    assert data.train.x.flatten().tolist() == [1, 6]
    assert told(data) == [
        "3 rows left out: no y",
        "1 rows left out: no client",
        "1 rows left out: no time",
    ]


def test_small_groups_are_left_out_and_counted(load):
    text = rows("a,1,0,1", "a,2,1,2", "a,11,0,3", "b,12,0,4", "b,13,1,5", "c,21,1,6")
    data = load(text, period="10", test=0.0, standardise=False, min_rows=2)
    assert data.train.x.flatten().tolist() == [1, 2, 4, 5]
    assert told(data) == ["2 rows left out: 2 client-periods below 2 rows"]
    assert data.origin.clients == ("a", "b")
    assert data.origin.periods == ("[0, 10)", "[10, 20)")


def test_groups_too_small_for_a_test_row_are_noted(load):
    data = load(rows("a,1,0,1", "b,1,1,2"), period="10")
    assert told(data) == ["no test rows: 0.2 of every client-period is less than one"]
    assert data.test.x.shape == (0, 1)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (rows(), {}, "no rows left: the file has none"),
        (rows("a,1,,1"), {}, "no rows left: 1 rows left out: no y"),
        (rows("a,1,0,1", "a,1,1,1"), {"min_rows": 3}, "2 rows left out: 1 client-periods below 3"),
        (rows("a,1,0,1", "a,1,0,1"), {}, "target 'y' has only one class, '0'"),
        (
            rows("a,1,0,1", "a,1,0.5,1"),
            {"task": "classification"},
            "row 3, column 'y': 0.5 is not a class",
        ),
        (rows("a,1,2009-01-01,1"), {}, "target 'y' holds dates, not classes"),
        (rows("a,1,0,2009-01-01", "a,1,1,"), {}, "column 'f' holds dates, not features; name it"),
        (rows("a,1,0,1", "a,1,1,x"), {}, "row 3, column 'f': 'x' is not a number"),
        (rows("a,1,0,1"), {"target": "yy"}, r"no column 'yy'; did you mean 'y'\?"),
        (rows("a,1,0,1"), {"features": ("g",)}, "no column 'g'"),
        ("client,time,y\na,1,0\na,2,1\n", {}, "no columns to predict 'y' from"),
    ],
)
def test_bad_tables_get_one_clear_line(load, text, settings, message):
    with refused(rf"data\.csv.*{message}") as caught:
        load(text, **{"period": "10"} | settings)
    assert "\n" not in str(caught.value)


def test_unused_columns_may_hold_anything(load):
    text = "client,time,y,f,note\na,1,0,1,2009-01-01\na,2,1,2,x\n"
    assert load(text, period="10", features=("f",)).shape == (1,)


def test_missing_file_is_named_with_its_folder(tmp_path):
    with refused(f"{tmp_path}/absent.csv: no such file"):
        Table("absent.csv").load(tmp_path, 0)


def test_relative_paths_count_from_the_folder_or_from_here(tmp_path, monkeypatch):
    (tmp_path / "data.csv").write_text(DATES)
    monkeypatch.chdir(tmp_path)
    assert len(Table("data.csv").load(None, 0).train) == 6
    assert len(Table(str(tmp_path / "data.csv")).load(Path("remote"), 0).train) == 6


# Clients and classes


def test_clients_are_sorted_as_people_would(load):
    names = ["s10", "10", "s2", "9", "-1", "s", "9.5", "a"]
    data = load(rows(*(f"{name},1,{k % 2},1" for k, name in enumerate(names))), period="10")
    assert data.origin.clients == ("-1", "9", "9.5", "10", "a", "s", "s2", "s10")


def test_classes_are_sorted_whole_numbers_or_text(load):
    data = load(rows("a,1,10,1", "a,2,9,1", "a,3,-1,1"), period="10", test=0.0)
    assert data.classes == ("-1", "9", "10")
    assert data.train.y.tolist() == [2, 1, 0]
    data = load(rows("a,1,wet,1", "a,2,dry,1"), period="10", test=0.0)
    assert data.classes == ("dry", "wet")
    assert data.train.y.tolist() == [1, 0]
    assert data.train.y.dtype == torch.int64


# Features


def test_numbers_are_standardised_with_the_training_rows_only(load):
    text = rows(*(f"a,{k},{k % 2},{k * k}" for k in range(20)))
    raw = load(text, period="20", standardise=False)
    data = load(text, period="20")
    mean, deviation = raw.train.x.mean(), raw.train.x.std(correction=0)
    assert (len(data.train), len(data.test)) == (16, 4)
    torch.testing.assert_close(data.train.x, (raw.train.x - mean) / deviation)
    torch.testing.assert_close(data.test.x, (raw.test.x - mean) / deviation)
    assert data.train.x.dtype == data.test.x.dtype == torch.float32


def test_missing_numbers_become_the_mean_and_get_a_column():
    values = np.array([[1.0, 5.0], [np.nan, 5.0], [3.0, 7.0], [100.0, 6.0]])
    train = np.array([True, True, True, False])
    filled = prepared(values, train, standardise=False)
    np.testing.assert_allclose(filled, [[1, 5, 0], [2, 5, 1], [3, 7, 0], [100, 6, 0]])
    scaled = prepared(values, train, standardise=True)
    np.testing.assert_allclose(scaled[:, 0], [-1, 0, 1, 98], rtol=1e-6)
    np.testing.assert_array_equal(scaled[:, 2], [0, 1, 0, 0])


def test_constant_columns_become_zero():
    values = np.array([[0.1, np.nan], [0.1, np.nan], [0.1, np.nan], [7.0, 3.0]])
    train = np.array([True, True, True, False])
    expected = [[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
    np.testing.assert_array_equal(prepared(values, train, standardise=True), expected)
    tiny = np.array([[0.0], [1e-200]])  # the squares of which are 0
    assert prepared(tiny, np.array([True, True]), standardise=True).tolist() == [[0], [0]]


@given(st.lists(st.floats(-1e6, 1e6, width=32) | st.just(np.nan), min_size=2, max_size=30))
def test_prepared_numbers_are_finite_with_mean_zero_and_deviation_at_most_one(numbers):
    values = np.array(numbers)[:, None]
    result = prepared(values, np.ones(len(values), dtype=bool), standardise=True)
    assert result.dtype == np.float32
    assert np.isfinite(result).all()
    assert result.shape[1] == 1 + int(np.isnan(values).any())
    assert abs(result[:, 0].mean()) < 1e-4
    assert result[:, 0].std() < 1 + 1e-4


def test_text_becomes_one_column_per_category_in_sorted_order(load):
    text = "client,time,y,wind,n\na,1,0,W,1\na,2,1,E,2\na,3,0,,3\na,4,1,E,4\n"
    data = load(text, period="10", test=0.0, standardise=False)
    # E, W, missing, other, n
    expected = [[0, 1, 0, 0, 1], [1, 0, 0, 0, 2], [0, 0, 1, 0, 3], [1, 0, 0, 0, 4]]
    assert data.train.x.tolist() == expected
    assert told(data) == ["1 missing values filled in and marked by 0/1 columns"]


def test_text_of_too_many_kinds_is_refused(load):
    lines = [f"a,{k},{k % 2},t{k % 101}" for k in range(404)]
    settings = {"period": "404", "test": 0.0}
    assert load(rows(*lines[:100] * 2), **settings).shape == (101,)
    with refused("column 'f' has 101 different texts .* more than 100 categories"):
        load(rows(*lines), **settings)
    assert load(rows(*lines[:20]), **settings).shape == (21,)
    with refused("column 'f' has 21 different texts in the 21 rows .* more than 20 categories"):
        load(rows(*lines[:21]), **settings)


def test_features_are_the_listed_columns_in_their_order(load):
    text = "g,client,time,y,f\n5,a,1,0,1\n6,b,2,1,2\n"
    settings = {"period": "10", "test": 0.0, "standardise": False}
    assert load(text, **settings).train.x.tolist() == [[5, 1], [6, 2]]
    listed = load(text, features=("f", "g", "client"), **settings)
    assert listed.train.x.tolist() == [[1, 5, 1, 0, 0], [2, 6, 0, 1, 0]]


# npz

KEYS = {"y": np.array([0, 1, 0, 1]), "client": np.array([2, 2, 10, 10]), "time": np.arange(4)}
PLAIN = {"period": "10", "test": 0.0}


def test_npz_array_x_is_standardised_per_channel(load):
    x = np.arange(4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2) * np.float32([1, 100])
    data = load(arrays={"x": x, "extra": np.zeros(4), **KEYS}, **PLAIN)
    assert data.shape == (3, 2)
    assert data.origin.clients == ("2", "10")
    expected = (x - x.mean(axis=(0, 1))) / x.std(axis=(0, 1))
    np.testing.assert_allclose(data.train.x.numpy(), expected, rtol=1e-5)


def test_npz_channel_with_gaps_gets_a_channel(load):
    x = np.array([[[1, 5], [3, 5]]] * 4, dtype=np.float32)
    x[0, 1, 1] = np.nan
    data = load(arrays={"x": x, **KEYS}, **PLAIN)
    assert data.train.x[0].tolist() == [[-1, 0, 0], [1, 0, 1]]
    assert data.train.x[1:].tolist() == [[[-1, 0, 0], [1, 0, 0]]] * 3


def test_npz_images_stay_as_they_are_stored(load):
    x = np.arange(4 * 2 * 2 * 3, dtype=np.uint8).reshape(4, 2, 2, 3)
    data = load(arrays={"x": x, **KEYS}, standardise=False, **PLAIN)
    np.testing.assert_array_equal(data.train.x.numpy(), x, strict=True)
    assert load(arrays={"x": x, **KEYS}, **PLAIN).train.x.dtype == torch.float32
    other = load(arrays={"x": x.astype(np.float64), **KEYS}, standardise=False, **PLAIN)
    np.testing.assert_array_equal(other.train.x.numpy(), x.astype(np.float32), strict=True)


def test_npz_of_plain_columns_and_other_names(load):
    arrays = {"label": KEYS["y"], "who": KEYS["client"], "a": np.arange(4.0), "b": -np.arange(4.0)}
    names = {"target": "label", "client": "who", "time": "", "standardise": False}
    assert load(arrays=arrays, **names, **PLAIN).train.x[3].tolist() == [3, -3]
    wide = {"signal": np.ones((4, 2)), **arrays}
    listed = load(arrays=wide, features=("signal", "a"), **names, **PLAIN)
    assert listed.train.x[3].tolist() == [1, 1, 3]


@pytest.mark.parametrize(
    ("arrays", "settings", "message"),
    [
        ({"x": np.zeros((3, 2))}, {}, r"different numbers of rows: y \(4,\), .* x \(3, 2\)"),
        ({"x": np.zeros((4, 2, 2)), "a": np.zeros(4)}, {"features": ("a", "x")}, "'x' has 3 axes"),
        ({"x": np.full((4, 2), np.inf)}, {}, "row 1, column 'x': inf is too large"),
        ({"x": np.zeros((4, 1)), "y": np.zeros((4, 1))}, {}, r"array 'y' has shape \(4, 1\)"),
    ],
)
def test_bad_arrays_get_one_clear_line(load, arrays, settings, message):
    with refused(rf"data\.npz.*{message}"):
        load(arrays=KEYS | arrays, **PLAIN, **settings)


def test_parquet_gives_the_same_as_csv(load, tmp_path):
    pytest.importorskip("pyarrow", reason="pip install 'chronofed[parquet]'")
    import pyarrow.csv
    import pyarrow.parquet

    expected = load(DATES)
    table = pyarrow.csv.read_csv(tmp_path / "data.csv")
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet")
    data = Table("data.parquet").load(tmp_path, 0)
    assert torch.equal(data.train.x, expected.train.x)
    assert data.origin.periods == expected.origin.periods
    np.testing.assert_array_equal(data.origin.train_period, expected.origin.train_period)


# Real data


def real(name):
    """The folder with a real file; the test is skipped where it is not."""
    folder = Path(os.environ.get("CHRONOFED_DATA", "."))
    if not (folder / name).is_file():
        pytest.skip(f"no {name}: python ../shared/data/unpack.py DIR, then CHRONOFED_DATA=DIR")
    return folder


def test_rain_in_australia():
    table = Table("rain.csv", target="rain_tomorrow", client="station", time="date", fit_periods=24)
    data = table.load(real("rain.csv"), 0)
    origin = data.origin
    assert (len(origin.clients), origin.clients[0]) == (49, "Canberra")
    assert (len(origin.periods), origin.periods[0]) == (113, "2007-11")  # 3 months are in no file
    assert len(data.train) + len(data.test) == 110316 + 31877
    assert data.notes[0] == "3267 rows left out: no rain_tomorrow"
    assert int(data.train.y.sum() + data.test.y.sum()) == 31877
    assert len(data.test) == pytest.approx(0.2 * 142193, rel=0.02)
    assert data.shape == (20 + 20,)
    assert bool(torch.isfinite(data.train.x).all())
    fitted = origin.train_period < 24
    np.testing.assert_allclose(data.train.x[fitted][:, 0].mean(), 0, atol=1e-4)
    assert (np.diff(origin.train_period) >= 0).all()


def test_activities_of_people():
    data = Table("hapt.npz", period="50 rows", classes=tuple("012345")).load(real("hapt.npz"), 0)
    assert data.origin.clients == tuple(str(k) for k in range(1, 31))
    assert data.shape == (128, 6)
    assert data.classes == tuple("012345")
    assert len(data.train) + len(data.test) == 10017
    assert data.origin.periods[:2] == ("rows 0-49", "rows 50-99")
    assert data.notes == ()
    fitted = data.train.x[data.origin.train_period < 1]
    np.testing.assert_allclose(fitted.std(dim=(0, 1)), 1, atol=1e-3)
    # In the first minutes nobody walks.
    assert Table("hapt.npz", period="50 rows").load(real("hapt.npz"), 0).classes == tuple("345012")
    by_window = Table("hapt.npz", period="50").load(real("hapt.npz"), 0)
    np.testing.assert_array_equal(by_window.origin.train_period, data.origin.train_period)
