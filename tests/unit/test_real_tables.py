"""Tables as people have them: awkward files, marks for missing values, dates, zones and databases."""

import sqlite3
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronofed.core.errors import DataError
from chronofed.data import arrow_csv
from chronofed.data.arrow_csv import read_arrow_csv
from chronofed.data.cells import MISSING, read_dates
from chronofed.data.columns import Categorical
from chronofed.data.csv_files import read_csv
from chronofed.data.readers import Reading, read
from chronofed.data.table import Table
from chronofed.data.zones import local_times

MARKS = frozenset(MISSING)
AWKWARD = {
    "byte order mark": "\ufeffclient,time,y,f\na,1,0,1\nb,2,1,2\n",
    "semicolons": "client;time;y;f\na;1;0;1\nb;2;1;2\n",
    "tabs": "client\ttime\ty\tf\na\t1\t0\t1\nb\t2\t1\t2\n",
    "bars": "client|time|y|f\na|1|0|1\nb|2|1|2\n",
    "CRLF": "client,time,y,f\r\na,1,0,1\r\nb,2,1,2\r\n",
    "CR": "client,time,y,f\ra,1,0,1\rb,2,1,2\r",
    "no last newline": "client,time,y,f\na,1,0,1\nb,2,1,2",
    "blank lines": "client,time,y,f\n\na,1,0,1\n\n\nb,2,1,2\n\n",
    "blanks around cells": " client , time,y ,f\n a , 1,0 ,1\nb ,2, 1, 2\n",
    "all quoted": '"client","time","y","f"\n"a","1","0","1"\n"b","2","1","2"\n',
    "numbers with signs": "client,time,y,f\na,+1,0,1.0\nb,2e0,+1,.2e1\n",
}


def cells(columns):
    """Every column as text and lines, whichever way it is held."""
    return {name: columns.values(name).tolist() for name in columns.arrays}


def both(path, text=frozenset()):
    """Read a file with both readers; the second may leave it to the first."""
    return read_csv(path, MARKS), read_arrow_csv(path, MARKS, text)


@pytest.fixture
def written(tmp_path):
    def written(text, name="data.csv"):
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    return written


@pytest.fixture
def load(written):
    def load(text, seed=0, **choices):
        path = written(text)
        given = {"period": "month", "test": 0.0, "standardise": False} | choices
        return Table(str(path), **given).load(None, seed)

    return load


def told(data):
    return [note for note in data.notes if "are fitted on" not in note]


def refused(message):
    # One line.
    return pytest.raises(DataError, match=rf"(?s)^(?!.*\n).*{message}")


# Awkward files, by both readers


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD)
def test_awkward_files_say_the_same(load, written, text):
    data = load(text, period="10")
    assert data.origin.clients == ("a", "b")
    assert data.train.y.tolist() == [0, 1]
    assert data.train.x.flatten().tolist() == [1, 2]
    plain, quick = both(written(text))
    assert quick is not None
    assert cells(quick) == cells(plain)
    assert [quick.lines[k] for k in range(2)] == list(plain.lines)


@pytest.mark.parametrize(
    "text",
    [
        'a,b\n"x\ny",1\n"p ""q""",2\n',
        'a,b\n"x,y",1\n"",2\n',
        "a\n\u00e9\n\u4e2d\n",
        "a,b\n",
        "a\n1",
    ],
)
def test_quotes_newlines_and_letters_are_read_alike(written, text):
    plain, quick = both(written(text))
    assert cells(quick) == cells(plain)
    assert [quick.lines[k] for k in range(len(quick.lines))] == list(plain.lines)


@pytest.mark.parametrize("text", ['a,b\nx"y,1\n', 'a,b\n"x"y,1\n', 'a,b\n"x,1\n', 'a,b\n1 "2",3\n'])
def test_strange_quotes_are_left_to_the_standard_library(written, text):
    assert read_arrow_csv(written(text), MARKS, frozenset()) is None


@pytest.mark.parametrize("text", ["a,b\n1\n", "a,b\n1,2,3\n", "a,b\n1,2\n  \n"])
def test_what_pyarrow_refuses_gets_the_message_of_the_other(written, text):
    path = written(text)
    assert read_arrow_csv(path, MARKS, frozenset()) is None
    with refused("cells where the header has 2"):
        read(path)


CELLS = st.sampled_from(
    ["1", "-2.5", "1e3", "", "NA", " 7 ", "nan", "x", "007", "2009-03-01", "a b"]
)
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], include_characters='\n",;'),
    max_size=5,
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(CELLS, CELLS | TEXTS), max_size=8), st.sampled_from(",;"), st.integers(1, 3)
)
def test_both_readers_agree(tmp_path_factory, rows, mark, distinct):
    import csv

    path = tmp_path_factory.mktemp("csv") / "data.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=mark, quoting=csv.QUOTE_ALL)
        writer.writerow(["a", "b"])
        writer.writerows(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_csv, "_DISTINCT", distinct)
        patch.setattr(arrow_csv, "_TEXTS", 2 * distinct)
        plain, quick = both(path)
    assert quick is not None
    for name in plain.arrays:
        assert outcome(quick, name) == outcome(plain, name)


def outcome(columns, name):
    """The kind and values of a column, or the error."""
    try:
        values = columns.values(name)
    except DataError as error:
        return str(error)
    return values.dtype.kind, [str(value) for value in values.tolist()]


def test_many_numbers_are_held_as_numbers_and_many_texts_as_they_are(written, monkeypatch):
    monkeypatch.setattr(arrow_csv, "_DISTINCT", 3)
    monkeypatch.setattr(arrow_csv, "_TEXTS", 7)
    monkeypatch.setattr(arrow_csv, "_BLOCK_BYTES", 64)
    lines = [f"{k:03},{k}.5,t{k},{'NA' if k % 3 else k},{k if k < 30 else 'x'}" for k in range(40)]
    path = written("id,n,text,gaps,late\n" + "\n".join(lines) + "\n")
    plain, quick = both(path, frozenset({"id"}))
    assert isinstance(quick["n"], np.ndarray)
    assert isinstance(quick["gaps"], np.ndarray)
    assert isinstance(quick["id"], Categorical)
    assert not isinstance(quick["text"].distinct, list)
    assert quick.text("id").tolist() == plain.text("id").tolist() == [f"{k:03}" for k in range(40)]
    for name in ("n", "text", "gaps"):
        np.testing.assert_array_equal(quick.values(name), plain.values(name), strict=True)
    # Text after numbers: the same message, with the same line.
    for columns in (plain, quick):
        with refused("row 32, column 'late': 'x' is not a number"):
            columns.values("late")


def test_large_files_are_read_with_pyarrow_and_give_the_same_data(load, monkeypatch):
    text = "client,time,y,f,wind\n" + "".join(
        f"{'ab'[k % 2]},2013-{k // 30 + 1:02}-{k % 28 + 1:02},{k % 3},{k / 7:.3f},{'NESW'[k % 4]}\n"
        for k in range(200)
    )
    plain = load(text, test=0.2, standardise=True)
    monkeypatch.setattr("chronofed.data.readers.LARGE_BYTES", 0)
    monkeypatch.setattr(arrow_csv, "_DISTINCT", 5)
    monkeypatch.setattr("chronofed.data.readers.read_csv", None)
    quick = load(text, test=0.2, standardise=True)
    assert quick.train.x.equal(plain.train.x)
    assert quick.test.y.equal(plain.test.y)
    assert (quick.origin.periods, quick.preparation) == (plain.origin.periods, plain.preparation)


# Missing values


def test_marks_for_missing_values(load):
    marks = ["", "NA", "N/A", "NaN", "null", "None", "?", "-"]
    lines = [f"a,{k},{k % 2},{mark},3" for k, mark in enumerate(marks)]
    data = load("client,time,y,f,g\n" + "\n".join([*lines, "a,9,1,5,4"]), period="10")
    assert data.train.x[:, 0].tolist() == [5] * 9
    assert data.train.x[:, 1].tolist() == [1] * 8 + [0]
    assert told(data) == ["8 missing values filled in and marked by 0/1 columns"]


def test_marks_can_be_chosen(load):
    text = "client,time,y,f\na,1,0,-\na,2,1,-999\na,3,1,7\n"
    with refused("row 2, column 'f': '-' is not a number"):
        load(text, period="10", missing=("-999",))
    data = load(text, period="10", missing=("-", "-999"))
    assert data.train.x.tolist() == [[7, 1], [7, 1], [7, 0]]
    words = "client,time,y,f\na,1,0,None\na,2,1,None\na,3,1,x\n"
    assert load(words, period="10", missing=()).preparation.features[0].categories == ("None", "x")


def test_missing_integers_of_classes_and_clients(load):
    data = load("client,time,y,f\n1,1,0,1\n?,1,1,2\n2,1,NA,3\n2,1,1,4\n", period="10")
    assert told(data) == ["1 rows left out: no y", "1 rows left out: no client"]
    assert (data.origin.clients, data.classes) == (("1", "2"), ("0", "1"))


# Dates


@pytest.mark.parametrize(
    ("cell", "moment"),
    [
        ("2013-03-01", "2013-03-01"),
        ("2013/03/01", "2013-03-01"),
        ("2013/3/1 4:05", "2013-03-01T04:05"),
        ("2013.03.01", "2013-03-01"),
        ("31.03.2013 14:00", "2013-03-31T14:00"),
        ("31/03/2013", "2013-03-31"),
        ("31-3-2013", "2013-03-31"),
        ("03/31/2013", "2013-03-31"),
        ("3/31/2013 12:30:15 AM", "2013-03-31T00:30:15"),
        ("3/31/2013 1:30 pm", "2013-03-31T13:30"),
        ("3/31/2013 12:00 PM", "2013-03-31T12:00"),
        ("2013-03-01T00:30:00.25", "2013-03-01T00:30:00.25"),
        ("2013/03/01 00:30 +02:00", "2013-02-28T22:30"),
        ("2013-03", "2013-03-01"),
    ],
)
def test_usual_ways_to_write_a_date(cell, moment):
    found = read_dates([cell])
    assert not found.unread.any()
    assert found.values[0] == np.datetime64(moment)


@pytest.mark.parametrize(
    "cell",
    [
        "13/13/2013",
        "2013-02-30",
        "03.31.2013",
        "1/2/13",
        "1/2-2013",
        "3/31/2013 13:00 PM",
        "x",
        "3/4",
    ],
)
def test_dates_that_are_none(cell):
    assert read_dates([cell]).unread.all()


def test_day_and_month_are_told_apart_by_the_whole_column(load):
    lines = [f"a,{day:02}/03/2013,{day % 2},1" for day in range(1, 20)]
    data = load("client,time,y,f\n" + "\n".join(lines))
    assert data.origin.periods == ("2013-03",)
    assert told(data)[0] == (
        "dates in time are read as day/month/year, the only order that fits all"
    )
    american = load("client,time,y,f\na,03/01/2013,0,1\na,03/31/2013,1,1\n")
    assert american.origin.periods == ("2013-03",)
    assert "month/day/year" in told(american)[0]


def test_dates_that_may_be_two_days_are_refused_until_somebody_decides(load):
    text = "client,time,y,f\na,2013-01-01,0,1\na,01/03/2013,0,1\na,02/03/2013,1,1\n"
    with refused(r"row 3, column 'time': '01/03/2013': day or month first\? .* date_format = "):
        load(text)
    text = text.replace("2013-01-01", "01/01/2013")
    assert load(text, date_format="%d/%m/%Y").origin.periods == ("2013-01", "2013-03")
    assert load(text, date_format="%m/%d/%Y").origin.periods == ("2013-01", "2013-02")
    # The same day in both orders.
    assert (
        load("client,time,y,f\na,01/01/2013,0,1\na,02/02/2013,1,1\n").origin.periods[0] == "2013-01"
    )


def test_a_format_applies_to_all_dates(load):
    text = "client,time,y,f\na,20130301,0,1\na,20130402,1,1\n"
    assert load(text, date_format="%Y%m%d").origin.periods == ("2013-03", "2013-04")
    with refused(r"row 3, column 'time': '20130402' is not a date of the format '%Y0301'"):
        load(text, date_format="%Y0301")


# Time zones


def test_months_are_cut_where_the_clock_says(load):
    # Sydney is 11 hours ahead in summer, and 10 in winter.
    lines = ["2013-03-31T12:59Z", "2013-03-31T13:00Z", "2013-06-30T13:59Z", "2013-06-30T14:00Z"]
    text = "client,time,y,f\n" + "".join(f"a,{t},{k % 2},1\n" for k, t in enumerate(lines))
    there = load(text, time_zone="Australia/Sydney")
    assert there.origin.train_period.tolist() == [0, 1, 2, 3]
    assert there.origin.periods == ("2013-03", "2013-04", "2013-06", "2013-07")
    here = load(text)
    assert here.origin.periods == ("2013-03", "2013-06")
    assert told(here)[0].startswith("dates in time have offsets: periods are those of UTC")


def test_clocks_that_go_back_do_not_swap_rows(load):
    # 2013-04-07 02:30 happened twice in Sydney, before and after the clocks went back.
    lines = [
        "2013-04-07T02:30+11:00,0,1",
        "2013-04-07T02:30+10:00,1,2",
        "2013-04-07T02:45+11:00,0,3",
    ]
    text = "client,time,y,f\n" + "".join(f"a,{line}\n" for line in lines)
    data = load(text, time_zone="Australia/Sydney")
    assert data.train.x.flatten().tolist() == [1, 3, 2]


def test_dates_without_an_offset_are_in_the_zone_already(load):
    text = "client,time,y,f\na,2013-03-31T23:59,0,1\na,2013-04-01T00:00,1,2\n"
    data = load(text, time_zone="Australia/Sydney")
    assert data.origin.periods == ("2013-03", "2013-04")
    mixed = load(
        "client,time,y,f\na,2013-04-01T00:00,0,1\na,2013-03-31T12:00Z,1,2\n",
        time_zone="Australia/Sydney",
    )
    assert mixed.train.x.flatten().tolist() == [2, 1]
    assert mixed.origin.train_period.tolist() == [0, 1]


@given(
    st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), max_size=20),
    st.sampled_from(
        ["Australia/Sydney", "Africa/Monrovia", "Asia/Kathmandu", "Europe/Berlin", "UTC"]
    ),
)
def test_local_times_agree_with_the_standard_library(moments, name):
    zone = ZoneInfo(name)
    # Around each change of Monrovia's clocks in 1972, which was at no quarter of an hour.
    moments = [*moments, *(datetime(1972, 1, 7, 0, 44, 30) + timedelta(0, k) for k in (-1, 0, 1))]
    found = local_times(np.array([*moments, None], dtype="datetime64[us]"), zone)
    utc = ZoneInfo("UTC")
    expected = [m.replace(tzinfo=utc).astimezone(zone).replace(tzinfo=None) for m in moments]
    assert found.tolist() == [*expected, None]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"time_zone": "Mars/Base"}, "Table.time_zone: 'Mars/Base' is not a time zone"),
        ({"time_zone": "../etc"}, "Table.time_zone"),
        ({"time_zone": "Europe"}, "Table.time_zone"),
        ({"date_format": "%d/%m"}, "Table.date_format: '%d/%m' has no year"),
        ({"date_format": "%Y %Y"}, "Table.date_format: '%Y %Y' is not a format"),
        ({"lags": (1,), "horizon": 2}, r"Table.lags: 1 is not known 2 rows ahead \(horizon\)"),
        ({"lags": (1, 1)}, "Table.lags: expected different ones"),
        ({"lag_columns": ("f",)}, "Table.lag_columns: needs lags"),
        ({"time": "", "period": "5 rows", "query": "SELECT 1"}, "Table.query: .* add ORDER BY"),
        ({"period": -5}, "Table.period"),
        ({"period": float("nan")}, "Table.period"),
    ],
)
def test_settings_are_checked(choices, message):
    with pytest.raises(ValueError, match=message):
        Table("data.csv", **choices)


def test_numbers_where_numbers_are_meant():
    assert Table("data.csv", period=50) == Table("data.csv", period="50")
    assert Table("data.csv", period=0.5).period == "0.5"
    assert Table("data.csv", classes=(0, 1)) == Table("data.csv", classes=("0", "1"))


def test_without_a_client_column_all_rows_belong_to_one(load):
    data = load("time,y,f\n1,0,1\n2,1,2\n", client="", period="10")
    assert data.origin.clients == ("all",)
    assert data.origin.train_client.tolist() == [0, 0]
    assert data.shape == (1,)


# Folders of Parquet files


def test_a_folder_of_parquet_files_with_keys(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pip install 'chronofed[parquet]'")
    from pyarrow import parquet

    for year, numbers in {2014: [3], 2013: [1.5, 2]}.items():
        for k, number in enumerate(numbers):
            folder = tmp_path / "a=b" / "data" / f"year={year}"
            folder.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pa.table({"f": [number], "y": ["x"]}), folder / f"{k}.parquet")
    (folder / "_leftover.parquet").write_text("no Parquet file")
    columns = read(tmp_path / "a=b" / "data")
    assert columns.values("f").tolist() == [1.5, 2, 3]
    assert columns.values("year").tolist() == ["2013", "2013", "2014"]
    assert "a" not in columns.arrays
    parquet.write_table(pa.table({"f": ["text"]}), folder / "9.parquet")
    with refused("its files have different columns"):
        read(tmp_path / "a=b" / "data")
    (tmp_path / "empty").mkdir()
    with refused("no .parquet files in this folder"):
        read(tmp_path / "empty")


# Databases

ROWS = [("b", "2013-03-02", 1, 0.5), ("a", "2013-03-01", 0, None), ("a", "2013-04-01", 1, 2.5)]


@pytest.fixture
def sqlite(tmp_path):
    path = tmp_path / "own.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE visits (client, time, y, f)")
        database.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", ROWS)
    database.close()
    return path


@pytest.fixture
def duck(tmp_path):
    duckdb = pytest.importorskip("duckdb", reason="pip install 'chronofed[duckdb]'")
    path = tmp_path / "own.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE visits (client TEXT, time DATE, y INTEGER, f DOUBLE)")
        database.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", ROWS)
    return path


QUERY = "WITH v AS (SELECT * FROM visits) SELECT client, time, y, f FROM v WHERE y >= 0; "


@pytest.mark.parametrize("kind", ["sqlite", "duck"])
def test_the_answer_of_a_query_is_a_table(request, kind):
    path = request.getfixturevalue(kind)
    data = Table(str(path), query=QUERY, test=0.0, standardise=False).load(None, 0)
    assert data.origin.periods == ("2013-03", "2013-04")
    assert data.origin.clients == ("a", "b")
    assert data.train.x.tolist() == [[1.5, 1], [0.5, 0], [2.5, 0]]
    # Without ORDER BY, rows are sorted by all columns.
    assert read(path, reading=Reading(query=QUERY)).text("client").tolist() == ["a", "a", "b"]
    backwards = Reading(query="SELECT * FROM visits ORDER BY time DESC")
    assert read(path, reading=backwards).text("client").tolist() == ["a", "b", "a"]


@pytest.mark.parametrize("kind", ["sqlite", "duck"])
@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM visits",
        "SELECT 1 AS a; SELECT 2 AS a",
        "DROP TABLE visits",
        "SELECT * FROM nowhere",
        "ATTACH '/tmp/x.db' AS x",
        "PRAGMA journal_mode = WAL",
        "SELECT load_extension('x') AS a",
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY visits TO '/tmp/chronofed-stolen.csv'",
        "INSTALL httpfs",
        "no SQL at all",
        "SELECT y, y FROM visits",
    ],
)
def test_a_query_reads_the_file_and_does_nothing_else(request, kind, query):
    path = request.getfixturevalue(kind)
    before = path.read_bytes()
    with refused(r"the query (failed|must)"):
        read(path, reading=Reading(query=query))
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name]


def test_queries_and_databases_need_each_other(sqlite, written):
    with refused("a database needs a query, such as 'SELECT"):
        read(sqlite)
    with refused("a query is for databases"):
        read(written("a\n1\n"), reading=Reading(query="SELECT 1"))
    sqlite.write_bytes(b"not a database at all, but long enough to be looked at")
    with refused("the query failed: file is not a database"):
        read(sqlite, reading=Reading(query=QUERY))
