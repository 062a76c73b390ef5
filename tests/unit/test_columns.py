"""Files as columns: kinds, missing cells, and one clear line for everything that is wrong."""

import builtins
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronofed.core.errors import DataError, MissingExtraError
from chronofed.data.columns import Categorical, missing
from chronofed.data.readers import read


@pytest.fixture
def csv(tmp_path):
    """Write a CSV file and read it."""

    def csv(text, name="data.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return read(path)

    return csv


@pytest.fixture
def npz(tmp_path):
    def npz(**arrays):
        np.savez(tmp_path / "data.npz", **arrays)
        return read(tmp_path / "data.npz")

    return npz


@pytest.fixture
def parquet(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pip install 'chronofed[parquet]'")
    import pyarrow.parquet as pq

    def parquet(**columns):
        pq.write_table(pa.table(columns), tmp_path / "data.parquet")
        return read(tmp_path / "data.parquet")

    return parquet


def refused(message):
    return pytest.raises(DataError, match=message)


# CSV


def test_csv_kinds_are_numbers_dates_and_text(csv):
    columns = csv("n,d,t\n1,2009-03-01,a\n-2.5e3,2009-03-02T12:30,b\n")
    np.testing.assert_array_equal(columns.values("n"), [1.0, -2500.0])
    assert columns.values("n").dtype == np.float64
    expected = np.array(["2009-03-01", "2009-03-02T12:30"], dtype="datetime64[us]")
    np.testing.assert_array_equal(columns.values("d"), expected, strict=True)
    assert columns.values("t").tolist() == ["a", "b"]
    assert columns.values("t").dtype == object


def test_csv_empty_blank_and_nan_cells_are_missing(csv):
    columns = csv("n,d,t,none\n1,2009-03-01,a,\n,,,\n nan,NaN,  ,\n2,2009-03-02,b,\n")
    for name in ("n", "d", "t"):
        assert missing(columns.values(name)).tolist() == [False, True, True, False]
    assert columns.values("none").dtype == np.float64
    assert missing(columns.values("none")).all()


def test_csv_names_and_text_lose_the_blanks_around_them(csv):
    columns = csv(" a , b\n x ,1\nx, 2 \n")
    assert list(columns.arrays) == ["a", "b"]
    assert columns.values("a").tolist() == ["x", "x"]
    assert columns.values("b").tolist() == [1, 2]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_csv_delimiter_is_the_one_of_the_header(csv, mark):
    columns = csv(mark.join(["a", '"b,c"', "d"]) + "\n" + mark.join("123") + "\n")
    assert {name: columns.values(name).item() for name in columns.arrays} == {
        "a": 1,
        "b,c": 2,
        "d": 3,
    }


def test_csv_byte_order_mark_quotes_and_blank_lines(csv):
    columns = csv('name,n\n"one, ""two""\nthree",1\n\nfour,2\n\n', encoding="utf-8-sig")
    assert columns.values("name").tolist() == ['one, "two"\nthree', "four"]
    assert list(columns.lines) == [3, 5]


def test_csv_longer_than_one_chunk_keeps_its_order(csv):
    count = 4321
    columns = csv("k,text\n" + "".join(f"{k},t{k % 7}\n" for k in range(count)))
    np.testing.assert_array_equal(columns.values("k"), np.arange(count))
    assert columns.values("text").tolist() == [f"t{k % 7}" for k in range(count)]
    assert len(columns["text"].distinct) == 7


def test_csv_dates_with_time_zone_become_utc_and_months_their_first_day(csv):
    columns = csv("d\n2009-03-01T00:30+02:00\n2009-03-01T00:30Z\n2009-03\n")
    utc = ["2009-02-28T22:30", "2009-03-01T00:30", "2009-03-01"]
    np.testing.assert_array_equal(columns.values("d"), np.array(utc, dtype="datetime64[us]"))


def test_csv_identifiers_are_kept_as_written(csv):
    columns = csv("id,part\n007,1_2\n7,12\n9007199254740993,3_4\n")
    assert columns.text("id").tolist() == ["007", "7", "9007199254740993"]
    assert csv("part\n1_2\n3_4\n").values("part").tolist() == ["1_2", "3_4"]


def test_csv_cell_that_is_not_a_number_is_named_with_its_line(csv):
    columns = csv("n,m\n1,1\n\n2,2\nlow,3\n3,4\n")
    with refused(
        r"data\.csv, row 5, column 'n': 'low' is not a number; leave a missing value empty"
    ):
        columns.values("n")
    assert columns.values("m").tolist() == [1, 2, 3, 4]


def test_csv_cell_that_is_not_a_date_is_named_with_its_line(csv):
    columns = csv("d\n2009-03-01\n2009-02-30\n2009-03-03\n")
    with refused(r"row 3, column 'd': '2009-02-30' is not a date such as 2009-03-01"):
        columns.values("d")


def test_csv_kind_is_that_of_at_least_half_of_the_cells(csv):
    assert csv("t\na\nb\n1\n").values("t").tolist() == ["a", "b", "1"]
    with refused("row 2, column 't': 'a' is not a number"):
        csv("t\na\n1\n").values("t")


@pytest.mark.parametrize("cell", ["inf", "-inf", "1e39"])
def test_csv_number_that_float32_cannot_hold(csv, cell):
    with refused("row 3, column 'n': .* is too large; numbers go up to 3.4e"):
        csv(f"n\n1\n{cell}\n2\n").values("n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no columns"),
        ("a,,c\n1,2,3\n", "column 2 has no name"),
        ("a,b,a\n1,2,3\n", "more than one column is named 'a'"),
        ("a,b\n1,2\n3\n", "row 3: 1 cells where the header has 2"),
        ("a,b\n1,2,3\n", "row 2: 3 cells where the header has 2"),
        ('a,b\n1,"2\n', "not a CSV file"),
    ],
)
def test_csv_that_is_malformed(csv, text, message):
    with refused(rf"data\.csv.*{message}"):
        csv(text)


def test_csv_must_be_utf8(csv):
    with refused("not UTF-8 text"):
        csv("a\ncafé\n", encoding="latin-1")


def test_csv_without_rows_has_empty_columns(csv):
    columns = csv("a,b\n")
    assert columns.rows(["a", "b"]) == 0
    assert len(columns.values("a")) == 0


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32) | st.none(), min_size=1))
def test_csv_numbers_survive_writing_and_reading(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("csv") / "n.csv"
    cells = ["" if number is None else repr(number) for number in numbers]
    path.write_text("n,end\n" + "".join(f"{cell},0\n" for cell in cells))
    expected = np.array(numbers, dtype=np.float64)
    np.testing.assert_array_equal(read(path).values("n"), expected)


# Looking up columns, in all formats


def test_unknown_column_names_the_nearest(csv):
    columns = csv("station,date,rain_tomorrow\nA,2009-03-01,0\n")
    with refused(r"data\.csv: no column 'rain_tomorow'; did you mean 'rain_tomorrow'\?"):
        columns["rain_tomorow"]
    with refused(r"no column 'STATION'; did you mean 'station'\?"):
        columns.values("STATION")
    with refused("no column 'xyz'; it has station, date, rain_tomorrow"):
        columns.text("xyz")


def test_times_are_numbers_or_dates(csv, npz):
    assert csv("t\n3\n1\n").times("t").tolist() == [3, 1]
    assert csv("t\n2009-03-01\n").times("t").dtype == "datetime64[us]"
    text = npz(t=np.array(["2009-03-01", ""]))
    assert text.values("t").dtype == object
    np.testing.assert_array_equal(
        text.times("t"), np.array(["2009-03-01", "NaT"], dtype="datetime64[us]")
    )


def test_times_refuse_text(csv):
    with refused("row 3, column 't': '1 March' is neither a date such as 2009-03-01 nor a number"):
        csv("t,n\n,1\n1 March,1\n").times("t")


def test_unknown_ending_and_missing_file(tmp_path):
    with refused(r"data\.xls: unknown extension '\.xls'; use \.csv, \.tsv, \.parquet, \.npz"):
        read(tmp_path / "data.xls")
    with refused(r"data\.csv: no such file"):
        read(tmp_path / "data.csv")


def test_unreadable_file(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "data.csv"
    path.touch()
    monkeypatch.setattr(Path, "open", denied)
    with refused(r"data\.csv: cannot be read \(.*Permission denied"):
        read(path)


# npz


def test_npz_kinds(npz):
    columns = npz(
        n=np.array([1, 2], dtype=np.int8),
        f=np.array([np.nan, 0.5], dtype=np.float32),
        d=np.array(["2009-03-01", "NaT"], dtype="datetime64[D]"),
        t=np.array([" a", ""]),
    )
    np.testing.assert_array_equal(columns.values("n"), np.array([1.0, 2.0]), strict=True)
    np.testing.assert_array_equal(columns.values("f"), np.array([np.nan, 0.5]), strict=True)
    assert columns.values("d").dtype == "datetime64[us]"
    assert columns.values("t").tolist() == ["a", ""]
    assert [missing(columns.values(name)).tolist() for name in "fdt"] == [
        [True, False],
        [False, True],
        [False, True],
    ]


def test_npz_names_of_clients(npz):
    columns = npz(
        i=np.array([2**62 + 1, 2**62 + 2]),
        f=np.array([7.0, np.nan]),
        g=np.array([0.5, -1.0]),
        d=np.array(["2009-03-01", "NaT"], dtype="datetime64[ns]"),
        h=np.array(["2009-03-01T10:30", "2009-03-01"], dtype="datetime64[m]"),
        b=np.array([True, False]),
    )
    assert columns.text("i").tolist() == [str(2**62 + 1), str(2**62 + 2)]
    assert columns.text("f").tolist() == ["7", ""]
    assert columns.text("g").tolist() == ["0.5", "-1"]
    assert columns.text("d").tolist() == ["2009-03-01", ""]
    assert columns.text("h").tolist() == ["2009-03-01T10:30:00", "2009-03-01"]
    assert columns.text("b").tolist() == ["True", "False"]


def test_npz_floats_that_cannot_tell_clients_apart(npz):
    with refused(r"column 'c' holds numbers beyond 2\^53"):
        npz(c=np.array([2.0**60, 1.0])).text("c")


def test_npz_tensor_keeps_its_precision_and_is_checked(npz):
    images = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    half = np.array([[1.0, np.nan], [2.0, np.inf]], dtype=np.float16)
    columns = npz(images=images, half=half, text=np.array([["a"]]))
    assert columns.tensor("images").dtype == np.uint8
    with refused("row 2, column 'half': inf is too large"):
        columns.tensor("half")
    with refused("array 'text' does not hold numbers"):
        columns.tensor("text")


def test_npz_array_with_axes_is_not_a_column(npz):
    columns = npz(y=np.zeros((3, 1)), i=np.zeros((3, 1), dtype=int), d=np.zeros((3, 1), "M8[D]"))
    for use in (columns.values, columns.times, columns.text):
        for name in ("y", "i", "d"):
            with refused(rf"array '{name}' has shape \(3, 1\), where one value per row is needed"):
                use(name)


def test_npz_lengths_must_agree_where_arrays_are_used_together(npz):
    columns = npz(x=np.zeros((3, 2)), y=np.zeros(3), time=np.zeros(4), scale=np.float64(1))
    assert columns.rows(["x", "y"]) == 3
    with refused(r"different numbers of rows: x \(3, 2\), y \(3,\), time \(4,\)"):
        columns.rows(["x", "y", "time"])
    with refused(r"scale \(\)"):
        columns.rows(["scale"])


def test_npz_numbers_that_are_of_no_kind(npz):
    with refused("column 'c' holds neither numbers, dates nor text"):
        npz(c=np.array([1j])).values("c")


def test_npz_pickle_is_refused(tmp_path):
    np.savez(tmp_path / "data.npz", y=np.array([{}, None], dtype=object))
    with refused("array 'y' is pickled, and a pickle can run code"):
        read(tmp_path / "data.npz")


def test_npz_that_is_none(tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"not a zip file")
    with refused("not an npz file"):
        read(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with refused("a single array, not an npz file"):
        read(path)


def test_npz_that_is_damaged(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, y=np.arange(1000))
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(bytes(content))
    with refused("array 'y' is damaged"):
        read(path)


# Parquet


def test_parquet_kinds(parquet):
    import pyarrow as pa

    columns = parquet(
        i=pa.array([1, None], pa.int32()),
        f=pa.array([None, 0.5]),
        b=pa.array([True, None]),
        m=pa.array([Decimal("1.25"), None]),
        day=pa.array([date(2009, 3, 1), None]),
        t=pa.array(["1 ", None]),
        c=pa.array(["x", None]).dictionary_encode(),
    )
    for name, first in {"i": 1, "b": 1, "m": 1.25}.items():
        np.testing.assert_array_equal(columns.values(name), np.array([first, np.nan]), strict=True)
    np.testing.assert_array_equal(columns.values("f"), [np.nan, 0.5])
    assert columns.values("t").tolist() == ["1", ""]
    assert columns.values("c").tolist() == ["x", ""]
    assert isinstance(columns["c"], Categorical)
    np.testing.assert_array_equal(
        columns.values("day"), np.array(["2009-03-01", "NaT"], dtype="datetime64[us]"), strict=True
    )


def test_parquet_time_zones_become_utc_and_text_may_be_dates(parquet):
    import pyarrow as pa

    moment = datetime(2009, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=2)))
    columns = parquet(
        zoned=pa.array([moment], pa.timestamp("ns", "Europe/Berlin")), text=["2009-03-01"]
    )
    assert columns.times("zoned").tolist() == [datetime(2009, 2, 28, 22, 30)]
    assert columns.times("text").tolist() == [datetime(2009, 3, 1)]


def test_parquet_large_integers_stay_exact_as_clients(parquet):
    assert parquet(c=[2**62 + 1, 2**62 + 2]).text("c").tolist() == [str(2**62 + 1), str(2**62 + 2)]
    with refused(r"beyond 2\^53"):
        parquet(c=[2**62 + 1, None]).text("c")


def test_parquet_lists_are_refused_only_where_they_are_used(parquet):
    columns = parquet(y=[1, 2], words=[["a"], ["b"]])
    assert columns.values("y").tolist() == [1, 2]
    with refused("column 'words' holds neither numbers, dates nor text"):
        columns.values("words")


def test_parquet_that_is_none(tmp_path):
    pytest.importorskip("pyarrow", reason="pip install 'chronofed[parquet]'")
    path = tmp_path / "data.parquet"
    path.write_bytes(b"nothing of the kind")
    with refused(r"data\.parquet: not a Parquet file"):
        read(path)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    def absent(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return importer(name, *rest)

    importer = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", absent)
    path = Path(tmp_path / "data.parquet")
    path.touch()
    with pytest.raises(
        MissingExtraError, match=r"needs pyarrow: pip install 'chronofed\[parquet\]'"
    ):
        read(path)
