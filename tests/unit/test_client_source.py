"""A client's own data while they grow: what is current, what it is called, what is refused."""

import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest
import torch

from chronofed import (
    Classification,
    CoreSet,
    Dataset,
    Ditto,
    FedAvg,
    Forget,
    Generative,
    Linear,
    Method,
    Mime,
    Scaffold,
    Taylor,
    Train,
)
from chronofed.clients.client import Client
from chronofed.clients.messages import Order
from chronofed.core.errors import DataError, SpecError
from chronofed.core.types import Samples
from chronofed.data.client_source import (
    EachRound,
    Everything,
    Feature,
    LastRows,
    LastTime,
    Sqlite,
    TableFile,
    TableFolder,
    ThisPeriod,
    from_microseconds,
    row_id,
    to_microseconds,
)
from chronofed.data.client_source.load import load_source

NOON = datetime(2026, 3, 15, 12, tzinfo=UTC)  # a Sunday
HEADER = "id,time,f,y\n"


def line(name, when, f=0.0, y="no"):
    return f"{name},{when:%Y-%m-%dT%H:%M:%S},{f},{y}\n"


@pytest.fixture
def file(tmp_path):
    """A growing CSV file."""
    path = tmp_path / "own.csv"
    path.write_text(HEADER)

    def append(*lines):
        with path.open("a") as out:
            out.writelines(lines)
        return path

    return append


def source(path, **settings):
    return TableFile(**{"path": str(path), "classes": ("no", "yes"), "id": "id"} | settings)


def names(held, *known):
    """Which of the known rows are held, in order."""
    by_number = {row_id(name): name for name in known}
    return [by_number[row] for row in held.rows.tolist()]


# --- rows appear --------------------------------------------------------------------------------------


def test_rows_that_are_appended_are_there_in_the_next_round(file):
    own = source(file(line("a", NOON, 1.5, "yes")))
    first = own.read(0, NOON)
    assert first.samples.x.tolist() == [[1.5]]
    assert first.samples.x.dtype == torch.float32
    assert first.samples.y.tolist() == [1]
    file(line("b", NOON + timedelta(minutes=1), 2.5))
    second = own.read(1, NOON + timedelta(hours=1))
    assert names(second, "a", "b") == ["a", "b"]
    assert len(second) == 2
    assert second.samples.rows.tolist() == [row_id("a"), row_id("b")]


def test_the_same_content_has_the_same_key_whenever_it_is_read(file):
    later = NOON + timedelta(days=1)
    own = source(file(line("a", NOON), line("b", NOON)), current=LastTime("2 days"))
    key = own.read(0, NOON).key
    assert 0 <= key < 2**63
    assert own.read(5, later).key == key
    file(line("c", later))
    assert own.read(6, NOON).key == key  # it is in the future there
    assert own.read(6, later).key != key


def test_a_changed_cell_is_another_data_set(tmp_path):
    path = tmp_path / "own.csv"
    keys = []
    for cell in ("1,no", "2,no", "1,yes", "1,no"):
        path.write_text(f"{HEADER}a,2026-03-01,{cell}\n")
        keys.append(source(path).read(0, NOON).key)
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]


def test_order_and_key_do_not_depend_on_the_order_of_the_file(tmp_path):
    lines = [line("a", NOON, 1), line("b", NOON, 2), line("c", NOON - timedelta(1), 3)]
    found = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        path = tmp_path / "own.csv"
        path.write_text(HEADER + "".join(lines[k] for k in order))
        found.append(source(path).read(0, NOON))
    assert len({held.key for held in found}) == 1
    assert len({str(held.samples.x.tolist()) for held in found}) == 1
    assert found[0].samples.x[0].tolist() == [3.0]


def test_rows_of_the_future_wait_and_rows_that_are_late_count_by_their_time(file):
    soon = NOON + timedelta(hours=1)
    own = source(file(line("future", soon), line("now", NOON)), current=ThisPeriod("day"))
    held = own.read(0, NOON)
    assert names(held, "now") == ["now"]
    assert held.notes == ("1 rows left out: in the future",)
    file(line("late", NOON - timedelta(hours=3)), line("too late", NOON - timedelta(days=1)))
    held = own.read(1, soon)
    assert names(held, "now", "late", "future") == ["late", "now", "future"]
    assert held.times.tolist() == [
        to_microseconds(NOON - timedelta(hours=3)),
        to_microseconds(NOON),
        to_microseconds(soon),
    ]
    assert held.times_by_row()[row_id("late")] == to_microseconds(NOON - timedelta(hours=3))


def test_the_present_is_now_by_default(file):
    ago = datetime.now(UTC) - timedelta(hours=1)
    path = file(line("past", ago), line("future", ago + timedelta(days=1)))
    assert names(source(path).read(0), "past") == ["past"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_row_that_is_being_written_waits(file, cut):
    whole = line("b", NOON, 7.25, "yes")
    own = source(file(line("a", NOON - timedelta(1))))
    file(whole[: -min(cut, len(whole) - 1)])
    assert names(own.read(0, NOON), "a") == ["a"]
    path = file(whole[-min(cut, len(whole) - 1) :])
    assert names(source(path).read(0, NOON), "a", "b") == ["a", "b"]


def test_half_a_character_a_cell_of_several_lines_and_half_a_header(tmp_path):
    path = tmp_path / "own.csv"
    own = source(path, id="", features=(Feature("f"),))
    text = '"note é",time,f,y\n"one\nline",2026-01-01,1,no\n"é ""x""\nmore\n",2026-01-02,2,yes\n'
    content = text.encode()
    counts = []
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        counts.append(len(own.read(0, NOON)))
    assert sorted(counts) == counts
    assert (counts[0], counts[-2], counts[-1]) == (0, 1, 2)
    path.write_bytes(content + b'"a quote that never ends\n' * 200)
    with pytest.raises(DataError, match=r"own\.csv"):
        own.read(0, NOON)


def test_somebody_writes_while_we_read(file):
    own = source(file(), features=(Feature("f"),))
    path = file()
    stop = threading.Event()

    def write():
        with path.open("a", buffering=1) as out:
            for k in range(3000):
                out.write(line(f"r{k}", NOON, k)[:9])
                out.flush()
                out.write(line(f"r{k}", NOON, k)[9:])
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    counts = [len(own.read(0, NOON))]
    while not stop.is_set():
        counts.append(len(own.read(0, NOON)))
    writer.join()
    assert counts == sorted(counts)
    assert len(own.read(0, NOON)) == 3000


# --- what is current ----------------------------------------------------------------------------------


DAYS = [f"d{k}" for k in range(40)]


@pytest.mark.parametrize(
    ("current", "wanted"),
    [
        (Everything(), DAYS[39::-1]),
        (LastRows(3), ["d2", "d1", "d0"]),
        (LastRows(99), DAYS[39::-1]),
        (LastTime("7 days"), DAYS[6::-1]),
        (LastTime("36 hours"), ["d1", "d0"]),
        (LastTime("1 week"), DAYS[6::-1]),
        (ThisPeriod("day"), ["d0"]),
        (ThisPeriod("week"), DAYS[6::-1]),
        (ThisPeriod("month"), DAYS[14::-1]),
        (ThisPeriod("quarter"), DAYS[39::-1]),
        (EachRound(15), DAYS[24:9:-1]),
    ],
)
def test_window_policies(file, current, wanted):
    path = file(*(line(name, NOON - timedelta(k)) for k, name in enumerate(DAYS)))
    assert names(source(path, current=current).read(1, NOON), *DAYS) == wanted


def test_without_time_stamps_the_order_of_the_file_is_that_of_time(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("f,y\n3,no\n1,yes\n2,no\n")
    own = source(path, id="", time="", current=LastRows(2))
    held = own.read(0)
    assert held.samples.x.flatten().tolist() == [1.0, 2.0]
    assert held.times is None
    assert held.times_by_row() == {}
    with pytest.raises(ValueError, match="current: needs time stamps"):
        source(path, time="", current=ThisPeriod("day"))


def test_nothing_current_is_no_error(file, tmp_path):
    held = source(file(), current=LastRows(3)).read(0, NOON)
    assert (len(held), held.samples.x.shape) == (0, (0, 1))
    (tmp_path / "folder").mkdir()
    empty = TableFolder(path=str(tmp_path / "folder"), classes=("no", "yes")).read(0, NOON)
    assert len(empty) == 0
    assert isinstance(empty.key, int)


@pytest.mark.parametrize("length", ["7", "days", "0 days", "7 fortnights", "-1 days", "7days"])
def test_durations_that_are_refused(length):
    with pytest.raises(ValueError, match="not a duration such as '7 days'"):
        LastTime(length)


def test_seconds_since_1970_are_times(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(f"time,f,y\n{NOON.timestamp()},1,no\n{NOON.timestamp() + 60},2,no\n,3,no\n")
    held = source(path, id="").read(0, NOON)
    assert held.samples.x.tolist() == [[1.0]]
    assert from_microseconds(int(held.times[0])) == NOON
    assert held.notes == ("1 rows left out: no time", "1 rows left out: in the future")
    path.write_text(f"time,f,y\n{NOON.timestamp() * 1000},1,no\n")
    with pytest.raises(DataError, match=r"row 2, column 'time': .* too large for seconds"):
        source(path, id="").read(0, NOON)


def test_times_with_a_zone(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("time,f,y\n2026-03-15T13:30:00+02:00,1,no\n")
    (when,) = source(path, id="").read(0, NOON).times.tolist()
    assert from_microseconds(when) == NOON - timedelta(minutes=30)


# --- names of rows ------------------------------------------------------------------------------------


def test_without_an_id_column_a_row_is_named_by_its_content(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("time,f,y\n2026-01-01,1,no\n2026-01-01,1,no\n2026-01-01,2,no\n")
    own = source(path, id="")
    first = own.read(0, NOON)
    assert len(first) == 3
    assert len(set(first.rows.tolist())) == 2  # equal rows are forgotten together
    with path.open("a") as out:
        out.write("2025-12-31,9,no\n")
    assert set(first.rows.tolist()) < set(own.read(0, NOON).rows.tolist())


def test_a_row_delivered_twice_counts_once_and_two_rows_need_two_names(file):
    path = file(line("a", NOON, 1), line("b", NOON, 2), line("a", NOON, 1))
    assert names(source(path).read(0, NOON), "a", "b") in (["a", "b"], ["b", "a"])
    file(line("a", NOON, 3))
    with pytest.raises(DataError, match="'id' has the same name for different rows"):
        source(path).read(0, NOON)


def test_a_row_without_a_name_is_refused(file):
    with pytest.raises(DataError, match="row 2, column 'id': empty"):
        source(file(line("", NOON))).read(0, NOON)


def test_without_what_was_forgotten(file):
    days = [NOON - timedelta(k) for k in range(3)]
    held = source(file(*(line(f"d{k}", day) for k, day in enumerate(days)))).read(0, NOON)
    assert held.without() is held
    assert held.without([row_id("unknown")], NOON - timedelta(9)) is held
    fewer = held.without([row_id("d1")])
    assert names(fewer, "d0", "d2") == ["d2", "d0"]
    assert fewer.key != held.key
    assert len(fewer.times) == 2
    assert names(held.without(before=days[1]), "d0", "d1") == ["d1", "d0"]
    assert names(held.without([row_id("d0")], before=days[1]), "d1") == ["d1"]


# --- features and classes ------------------------------------------------------------------------------


def test_features_are_what_was_agreed_whatever_the_rows(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(
        "time,f,colour,y\n2026-01-01,30,red,no\n2026-01-02,,,yes\n2026-01-03,10,blue,no\n"
    )
    features = (
        Feature("f", mean=20.0, deviation=10.0, gaps=True),
        Feature("colour", categories=("red", "green", "blue")),
    )
    own = source(path, id="", features=features)
    assert own.read(0, NOON).samples.x.tolist() == [
        [1, 0, 1, 0, 0],
        [0, 1, 0, 0, 0],
        [-1, 0, 0, 0, 1],
    ]
    last = msgspec.structs.replace(own, current=LastRows(1))
    assert last.read(0, NOON).samples.x.tolist() == [[-1, 0, 0, 0, 1]]
    marked = source(
        path, id="", features=(Feature("colour", categories=("red", "blue"), gaps=True),)
    )
    assert marked.read(0, NOON).samples.x.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        ("a,2026-01-01,1,maybe", {}, "row 2, column 'y': 'maybe' is not a known class: no, yes"),
        ("a,2026-01-01,red,no", {}, "feature 'f' contains text; list its categories"),
        ("a,2026-01-01,2020-01-01,no", {}, "feature 'f' contains dates"),
        (
            "a,2026-01-01,red,no",
            {"features": (Feature("f", categories=("blue",)),)},
            "row 2, column 'f': 'red' is not a known category: blue",
        ),
        ("a,2026-01-01,1,no", {"target": "z"}, "no column 'z'"),
        ("a,2026-01-01,1,no", {"features": (Feature("g"),)}, "no column 'g'"),
        ("a,someday,1,no", {}, "row 2, column 'time': 'someday' is neither a date"),
    ],
)
def test_what_does_not_fit_is_one_line(file, row, settings, message):
    path = file(row + "\n")
    with pytest.raises(DataError, match=message) as caught:
        source(path, **settings).read(0, NOON)
    assert "\n" not in str(caught.value)


def test_an_unknown_class_outside_the_window_is_ignored(file):
    path = file(line("a", NOON - timedelta(99), 1, "maybe"), line("b", NOON))
    assert len(source(path, current=LastRows(1)).read(0, NOON)) == 1
    file("c,,1,no\n", f"d,{NOON:%Y-%m-%d},1,\n")
    held = source(path, current=LastRows(1)).read(0, NOON)
    assert "1 rows left out: no target" in held.notes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": ("no",)}, "at least two different"),
        ({"classes": ("no", "no")}, "at least two different"),
        ({"features": (Feature("y"),)}, "must not predict itself"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        source("own.csv", **settings)


# --- other places ---------------------------------------------------------------------------------------


def test_images_in_an_npz_file_stay_as_they_are(tmp_path):
    path = tmp_path / "own.npz"
    x = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    when = np.array(["2026-01-02", "2026-01-01"], "datetime64[D]")
    np.savez(path, x=x, y=np.array([1, 0]), time=when)
    held = source(path, id="", classes=("0", "1")).read(0, NOON)
    assert held.samples.x.dtype == torch.uint8
    assert torch.equal(held.samples.x, torch.from_numpy(x[::-1].copy()))
    assert held.samples.y.tolist() == [0, 1]
    scaled = source(path, id="", classes=("0", "1"), features=(Feature("x", deviation=2.0),))
    assert scaled.read(0, NOON).samples.x.dtype == torch.float32


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "own.parquet"
    columns = {"id": [1, 2], "time": [NOON, NOON], "f": [0.5, None], "y": ["no", "yes"]}
    pq.write_table(pa.table(columns), path)
    held = source(path).read(0, NOON)
    assert sorted(names(held, "1", "2")) == ["1", "2"]
    assert sorted(held.samples.x.flatten().tolist()) == [0.0, 0.5]


def test_a_folder_to_which_files_are_added(tmp_path):
    own = TableFolder(path=str(tmp_path), classes=("no", "yes"), id="id", current=LastRows(3))
    (tmp_path / "monday.csv").write_text(HEADER + line("a", NOON, 1) + line("b", NOON, 2))
    (tmp_path / ".tuesday.csv").write_text("half a file")
    (tmp_path / "readme.txt").write_text("nothing")
    first = own.read(0, NOON)
    assert sorted(names(first, "a", "b")) == ["a", "b"]
    text = HEADER + line("d", NOON - timedelta(2), 4) + line("c", NOON - timedelta(1), 3)
    (tmp_path / "an older day.csv").write_text(text)
    held = own.read(1, NOON)
    assert names(held, "a", "b", "c")[0] == "c"
    assert held.samples.x[0].tolist() == [3.0]
    (tmp_path / "odd.csv").write_text(f"id,time,f,g,y\ne,{NOON:%Y-%m-%dT%H:%M},1,2,no\n")
    with pytest.raises(DataError, match=r"odd\.csv: not the same columns as an older day\.csv"):
        own.read(2, NOON)
    listed = msgspec.structs.replace(own, features=(Feature("f"),))
    assert len(listed.read(2, NOON)) == 3
    with pytest.raises(DataError, match="no such folder"):
        TableFolder(path=str(tmp_path / "none"), classes=("no", "yes")).read(0)


def test_columns_in_another_order_are_the_same_features(tmp_path):
    (tmp_path / "a.csv").write_text("time,f,g,y\n2026-01-01,1,2,no\n")
    (tmp_path / "b.csv").write_text("g,f,time,y\n4,3,2026-01-02,no\n")
    held = TableFolder(path=str(tmp_path), classes=("no", "yes")).read(0, NOON)
    assert held.samples.x.tolist() == [[1, 2], [3, 4]]


def test_arrays_of_different_shapes(tmp_path):
    for name, shape in (("a", (1, 2, 2)), ("b", (1, 3, 3))):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros(shape), y=np.array([0]))
    with pytest.raises(DataError, match="arrays of different shapes"):
        TableFolder(path=str(tmp_path), classes=("0", "1"), time="").read(0, NOON)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "own.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE visits (id INTEGER, at TEXT, f REAL, kind TEXT, y TEXT, b BLOB)")
        rows = [
            (2**60 + 1, "2026-03-01", 1.5, "x", "no", b""),
            (2**60, "2026-03-02 10:00", None, "z", "yes", b""),
        ]
        file.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", rows)
    file.close()
    return path


def query(path, text, **settings):
    plain = {"path": str(path), "classes": ("no", "yes"), "query": text}
    return Sqlite(**plain | {"time": "at", "id": "id"} | settings)


def test_a_database_with_a_query(database):
    features = (Feature("f", gaps=True), Feature("kind", categories=("x", "z")))
    own = query(database, "SELECT * FROM visits", features=features)
    held = own.read(0, NOON)
    assert names(held, str(2**60), str(2**60 + 1)) == [str(2**60 + 1), str(2**60)]
    assert held.samples.x.tolist() == [[1.5, 0, 1, 0], [0, 1, 0, 1]]
    with sqlite3.connect(database) as file:
        file.execute("INSERT INTO visits VALUES (7, '2026-03-03', 4, 'x', 'yes', NULL)")
    file.close()
    assert len(own.read(1, NOON)) == 3
    numbers = query(database, "SELECT id, at, f, y FROM visits WHERE id > 7")
    assert numbers.read(1, NOON).samples.x.flatten().tolist() == [1.5, 0.0]
    assert len(query(database, "SELECT id, at, f, y FROM visits WHERE 0").read(1, NOON)) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM nowhere", "the query failed: no such table"),
        ("DELETE FROM visits", "the query failed: not authorized; it must be one SELECT"),
        ("SELECT id, id FROM visits", "columns with different names"),
        ("SELECT id, at, y, b FROM visits", "'b' holds neither numbers, dates nor text"),
        ("SELECT 1; SELECT 2", "the query failed"),
    ],
)
def test_queries_that_fail_are_one_line(database, text, message):
    with pytest.raises(DataError, match=message):
        query(database, text).read(0, NOON)


def test_no_database(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        query(tmp_path / "none.db", "SELECT 1").read(0)
    assert not (tmp_path / "none.db").exists()


# --- settings of a client ------------------------------------------------------------------------------


def test_a_client_s_own_settings(tmp_path, file):
    file(line("a", NOON, 30))
    path = tmp_path / "client.toml"
    path.write_text(
        "[source]\nkind = 'table-file'\npath = 'own.csv'\nclasses = ['no', 'yes']\nid = 'id'\n"
        "[source.current]\nkind = 'last-time'\nlength = '2 days'\n"
        "[[source.features]]\nname = 'f'\nmean = 20.0\n"
    )
    own = load_source(path)
    assert own.current == LastTime("2 days")
    assert own.read(0, NOON).samples.x.tolist() == [[10.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no table \\[source\\]"),
        ("[source", "cannot be read"),
        ("[source]\nkind = 'tabel-file'\n", "did you mean 'table-file'"),
        ("[source]\nkind = 'table-file'\nclasses = ['a', 'b']\n", "source.path: missing"),
    ],
)
def test_settings_that_cannot_be_read(tmp_path, text, message):
    path = tmp_path / "client.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        load_source(path)
    with pytest.raises(SpecError, match="cannot be read"):
        load_source(tmp_path / "none.toml")


# --- what leaves the client ------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", [FedAvg(), Scaffold(), Mime(), Ditto()])
@pytest.mark.parametrize(
    "memory", [Forget(), CoreSet(5), Generative(4, 2), Taylor(layers={"*": 1.0})]
)
def test_a_result_has_neither_names_nor_times_of_rows_and_names_change_no_bit(
    file, backbone, memory
):
    rows = [line(f"r{k}", NOON - timedelta(k), k / 7, "yes" if k % 2 else "no") for k in range(20)]
    held = source(file(*rows)).read(0, NOON)
    method = Method(backbone, memory)
    task = Classification(Dataset("own", held.samples, held.samples, ("no", "yes")), Linear())
    params, buffers = task.initial(0)
    server = backbone.init_server(params, 1)
    if backbone.two_phase:
        server = {**server, "control": torch.zeros_like(params)}  # as after the first exchange
    order = Order(0, 0, server, buffers, method.weights, None, Train(steps=3), 0)
    nameless = Samples(held.samples.x, held.samples.y)
    named, plain = (
        Client(method, order, None, task.objective(), samples, 1).serve()[0]
        for samples in (held.samples, nameless)
    )
    for part in ("upload", "record", "probe"):
        sent, without = getattr(named, part), getattr(plain, part)
        assert set(sent) == set(without)
        assert not {"rows", "sources", "x", "y"} & set(sent)
        assert all(torch.equal(sent[name], without[name]) for name in sent)
    assert (named.key, named.size) == (1, 20)
