"""The client store: committed data are there after a crash, forgotten data are nowhere in the file."""

import multiprocessing
import os
import sqlite3
import stat
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from chronofed import CoreSet, Ditto, FedAvg, Generative, Method, Scaffold, Train
from chronofed.clients.client import Client
from chronofed.clients.messages import Order
from chronofed.clients.state import ClientState
from chronofed.clients.store import ClientStore, inspect, store
from chronofed.core.errors import RunError, StorageError
from chronofed.core.types import Samples
from chronofed.data.client_source import ClientData, row_id, to_microseconds
from chronofed.engines import SerialEngine
from chronofed.methods.memories import MemoryItem
from chronofed.methods.memories.base import SEVERAL

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "client.sqlite"


@pytest.fixture
def timer(monkeypatch):
    """Sets the time of the client store, in days after the start."""

    def timer(day):
        monkeypatch.setattr(store, "now", lambda: START + timedelta(day))

    timer(0)
    return timer


def marked(mark: str, n: int = 4) -> torch.Tensor:
    """Samples whose bytes can be searched for."""
    content = np.frombuffer((mark * 40).encode()[:40] * n, np.uint8).copy()
    return torch.from_numpy(content).view(n, 40)


def item(round_, key=None, mark="sample", rows=(1, 2, 3, 4), names="rows"):
    record = {
        "x": marked(mark, len(rows)),
        "y": torch.arange(len(rows)) % 3,
        names: torch.tensor(rows),
    }
    return MemoryItem(round_, 0, round_ if key is None else key, 50, record)


def client_state(*kept, control=1.0):
    return ClientState({"control": torch.full((3,), control)}, kept)


def held(rows, days):
    """Data with time stamps, so many days after the start."""
    n = len(rows)
    samples = Samples(torch.zeros(n, 1), torch.zeros(n, dtype=torch.int64), torch.tensor(rows))
    times = np.array([to_microseconds(START + timedelta(day)) for day in days])
    return ClientData(samples, times, np.arange(n))


def same(one: ClientState, other: ClientState) -> bool:
    def plain(each):
        records = [each.backbone_state, *(k.record for k in each.items)]
        tensors = [{n: (t.dtype, t.tolist()) for n, t in record.items()} for record in records]
        return tensors, [(k.round, k.client, k.key, k.size) for k in each.items]

    return plain(one) == plain(other)


def on_disk(path) -> bytes:
    """All bytes beside and in the client store."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))


# --- committing --------------------------------------------------------------------------------------


def test_a_new_client_store_is_empty_private_and_one_file(path):
    with ClientStore(path) as client_store:
        assert client_store.client_state() is None
        assert client_store.reply("order 1") is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {file.name for file in path.parent.iterdir()} == {"client.sqlite", "client.sqlite.lock"}


def test_what_was_committed_is_there_after_reopening(path):
    first = client_state(item(0), item(1, mark="other"), control=0.5)
    with ClientStore(path) as client_store:
        client_store.commit("order 1", b"reply 1", first)
        assert same(client_store.client_state(), first)
    with ClientStore(path) as client_store:
        assert same(client_store.client_state(), first)
        assert client_store.reply("order 1") == b"reply 1"
        assert client_store.reply("order 2") is None
        second = client_state(*first.items[1:], item(2), control=0.25)
        client_store.commit("order 2", b"reply 2", second)
    with ClientStore(path) as client_store:
        assert same(client_store.client_state(), second)
        assert (client_store.reply("order 1"), client_store.reply("order 2")) == (None, b"reply 2")
        client_store.commit("order 3", b"", None)  # an exchange that keeps nothing
        assert same(client_store.client_state(), second)
        assert client_store.reply("order 3") == b""


def test_an_empty_client_state_is_not_the_same_as_none(path):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"", ClientState())
    with ClientStore(path) as client_store:
        assert client_store.client_state() == ClientState()


def test_every_dtype_and_shape_and_an_empty_record(path):
    state = {
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "bits": torch.tensor([True, False]),
        "half": torch.ones(2, 3, dtype=torch.bfloat16),
        "none": torch.zeros(0, 4),
        "part": torch.arange(10.0)[::3],
    }
    kept = (MemoryItem(3, 1, 2**62, 9, {}), MemoryItem(4, 1, 5, 9, {}))
    with ClientStore(path) as client_store:
        client_store.commit("a", b"r", ClientState(state, kept))
    with ClientStore(path) as client_store:
        assert same(client_store.client_state(), ClientState(state, kept))


def written(path, monkeypatch, action) -> int:
    """Bytes of records that an action puts into the file."""
    total = []
    with ClientStore(path) as client_store:
        file = client_store._database
        file.create_function("noted", 1, lambda size: total.append(size))
        file.execute(
            "CREATE TEMP TRIGGER watch AFTER INSERT ON main.record "
            "BEGIN SELECT noted(length(new.content)); END"
        )
        action(client_store)
    return sum(total)


@pytest.mark.parametrize("reread", [True, False])
def test_an_item_that_is_stored_is_not_written_again(path, monkeypatch, reread):
    old, new = item(0, rows=range(1000)), item(1, mark="new", rows=(7, 8))
    with ClientStore(path) as client_store:
        client_store.commit("a", b"", client_state(old))

    def add(client_store):
        kept = client_store.client_state().items if reread else (old,)
        client_store.commit("b", b"", client_state(*kept, new, control=2.0))

    assert 80 < written(path, monkeypatch, add) < 600  # the new one alone
    with ClientStore(path) as client_store:
        assert same(client_store.client_state(), client_state(old, new, control=2.0))


def test_a_record_that_was_read_is_not_encoded_again(path, monkeypatch):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"", client_state(item(0), item(1)))
        kept = client_store.client_state().items
        encoded = []
        encode = store.codec.encode
        monkeypatch.setattr(
            store.codec, "encode", lambda record: encoded.append(list(record)) or encode(record)
        )
        client_store.commit("b", b"", client_state(*kept, item(2)))
        assert encoded == [["control"], ["x", "y", "rows"]]


@pytest.mark.parametrize("backbone", [FedAvg(), Scaffold(), Ditto()])
@pytest.mark.parametrize(
    "memory", [CoreSet(5), CoreSet(20, "reservoir"), CoreSet(9, limit=30), Generative(4, 2)]
)
def test_a_client_with_a_client_store_does_what_one_in_memory_does(
    path, task, scenario, backbone, memory
):
    """Rounds of the real client code: the same replies and client states, bit for bit."""
    method, kept_state = Method(backbone, memory), None
    params, buffers = task.initial(0)
    train = Train(lr=0.1, batch_size=16, steps=2)
    for round_ in range(4):
        visit = scenario.at(round_).visits[1]
        server = backbone.init_server(params, 4)
        order = Order(round_, 1, server, buffers, method.weights, None, train, 0)
        results = []
        with ClientStore(path) as client_store:
            for kept in (kept_state, client_store.client_state()):
                client = Client(
                    method, order, kept, task.objective(), task.samples(visit.indices), visit.key
                )
                results.append(client.serve())
            (plain, kept_state), (kept, stored) = results
            assert all(torch.equal(t, kept.upload[n]) for n, t in plain.upload.items())
            client_store.commit(f"order {round_}", b"...", stored)
            assert same(client_store.client_state(), kept_state)


# --- one writer, errors --------------------------------------------------------------------------------


def test_a_second_user_gets_one_line_and_inspect_works_meanwhile(path):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"r", client_state(item(0)))
        with pytest.raises(RunError, match="another process is using this client store"):
            ClientStore(path).__enter__()
        assert inspect(path).order == "a"
    with ClientStore(path):
        pass


def commit_often(path, ready, done):
    with ClientStore(path) as client_store:
        number = 0
        while not done.is_set():
            kept = item(number, mark=f"round {number}", rows=range(number % 7 + 1))
            client_store.commit(f"{number % 7 + 1}", b"r" * (number % 7 + 1), client_state(kept))
            number += 1
            if number > 2:
                ready.set()


def test_inspect_during_commits_sees_one_of_them(path):
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=commit_often, args=(path, ready, done))
    process.start()
    assert ready.wait(60)
    seen = [inspect(path) for _ in range(40)]
    done.set()
    process.join()
    assert all(int(each.order) == each.reply_bytes == each.samples for each in seen)
    assert len({each.order for each in seen}) > 1


def hold(path, ready, done):
    with ClientStore(path):
        ready.set()
        done.wait(60)


def test_a_second_process_gets_one_line(path):
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(path, ready, done))
    process.start()
    assert ready.wait(60)
    with pytest.raises(RunError, match=r"client\.sqlite: another process"):
        ClientStore(path).__enter__()
    done.set()
    process.join()
    with ClientStore(path):
        pass


def test_a_client_store_must_be_open(path):
    with pytest.raises(RunError, match="not open"):
        ClientStore(path).client_state()


@pytest.mark.parametrize("setting", [{"limit_bytes": -1}, {"max_age": timedelta(0)}])
def test_settings_that_make_no_sense(path, setting):
    with pytest.raises(ValueError, match=f"ClientStore.{next(iter(setting))}"):
        ClientStore(path, **setting)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"damaged: the file is empty"),
        (b"no SQLite file, whatever its name says" * 99, "damaged: file is not a database"),
    ],
)
def test_a_damaged_file_is_one_line_and_stays_as_it_is(path, content, message):
    path.write_bytes(content)
    with pytest.raises(RunError, match=message) as caught, ClientStore(path):
        pass
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content
    with pytest.raises(RunError, match=message):
        inspect(path)


def test_damage_anywhere_is_noticed_or_harmless(path):
    """Some bytes are overwritten, at many places: the old content or one line, never another content."""
    first = client_state(item(0, rows=range(300)), item(1, mark="other", rows=range(200)))
    with ClientStore(path) as client_store:
        client_store.commit("a", b"reply" * 5000, first)
    content = path.read_bytes()
    noticed = []
    for place in np.linspace(0, len(content) - 16, 80).astype(int).tolist():
        path.write_bytes(content[:place] + bytes(b ^ 0x55 for b in content[place : place + 16])
                         + content[place + 16 :])  # fmt: skip
        try:
            with ClientStore(path) as client_store:
                assert same(client_store.client_state(), first)
                assert client_store.reply("a") == b"reply" * 5000
        except RunError as error:
            noticed.append(str(error))
    assert len(noticed) > 20
    assert all("damaged" in line or "not a client store" in line for line in noticed)


def test_a_changed_table_is_a_checksum_mismatch(path):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"r", client_state(item(0)))
    with sqlite3.connect(path) as file:
        file.execute("UPDATE item SET size = 7")
    file.close()
    with pytest.raises(RunError, match="client store is damaged: checksum mismatch"):
        inspect(path)


def test_a_foreign_database_and_a_later_format(path):
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE t (x)")
    file.close()
    with pytest.raises(RunError, match="not a client store of chronofed"):
        inspect(path)
    path.unlink()
    with ClientStore(path):
        pass
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(RunError, match=r"written by another chronofed .format 99"):
        inspect(path)


def test_nothing_there_to_inspect(path):
    with pytest.raises(RunError, match="no such file"):
        inspect(path)
    assert not path.exists()


def test_a_full_disk_leaves_everything_as_it_was(path):
    first = client_state(item(0))
    with ClientStore(path) as client_store:
        client_store.commit("a", b"r", first)
        pages = client_store._database.execute("PRAGMA page_count").fetchone()[0]
        client_store._database.execute(
            f"PRAGMA max_page_count = {pages + 1}"
        )  # the same as a full disk
        with pytest.raises(StorageError, match=r"cannot write .*client\.sqlite: .* is full"):
            client_store.commit("b", b"r" * 10**6, client_state(item(1)))
        assert client_store.reply("a") == b"r"
        assert same(client_store.client_state(), first)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        ClientStore(tmp_path / "file" / "client.sqlite").__enter__()


def test_a_half_made_file_of_a_killed_process_is_replaced(path):
    path.with_name(".client.sqlite.new").write_bytes(b"half a file")
    with ClientStore(path) as client_store:
        assert client_store.client_state() is None
    assert not path.with_name(".client.sqlite.new").exists()


# --- inspecting ----------------------------------------------------------------------------------------


def test_inspection(path, timer):
    with ClientStore(path) as client_store:
        client_store.commit(
            "a", b"12345", client_state(item(0)), held([1, 2, 3, 4], [-9, -7, -5, -8])
        )
        timer(1)
        kept = client_store.client_state().items
        client_store.commit("b", b"123", client_state(*kept, item(1, mark="other", rows=(5, 6))))
        seen = client_store.inspect()
    assert (seen.order, seen.answered, seen.reply_bytes) == ("b", START + timedelta(1), 3)
    assert seen.path == path
    assert seen.bytes == path.stat().st_size
    assert seen.state_bytes > 12
    assert seen.samples == 6
    one, two = seen.data_sets
    assert (one.key, one.round, one.size, one.samples, one.classes) == (0, 0, 50, 4, 3)
    assert one.bytes > 4 * (40 + 8 + 8)
    assert (one.first_seen, one.last_seen) == (START, START)
    assert (one.oldest, one.newest) == (START - timedelta(9), START - timedelta(5))
    assert (two.samples, two.classes, two.oldest, two.newest) == (2, 2, None, None)
    assert two.first_seen == START + timedelta(1)
    assert inspect(path) == seen


def test_a_data_set_that_comes_back_was_first_seen_before(path, timer):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"", client_state(item(0, key=7)))
        timer(5)
        client_store.commit("b", b"", client_state(item(3, key=7, mark="another choice")))
        (one,) = client_store.inspect().data_sets
    assert (one.first_seen, one.last_seen) == (START, START + timedelta(5))


def test_an_alias_tells_nothing_and_stays(path, tmp_path):
    with ClientStore(path) as client_store, ClientStore(tmp_path / "other") as other:
        alias = client_store.alias(5)
        assert alias not in (5, other.alias(5), client_store.alias(6))
        assert 0 <= alias < 2**63
    with ClientStore(path) as client_store:
        client_store.forget(keys=[1])
        assert client_store.alias(5) == alias


# --- retention -----------------------------------------------------------------------------------------


def test_the_limit_removes_the_oldest_data_sets_and_never_the_state(path):
    size = len(store.codec.encode(item(0).record))
    with ClientStore(path, limit_bytes=2 * size) as client_store:
        kept = ()
        for round_ in range(4):
            kept = (*kept, item(round_, mark=f"round {round_}"))
            client_store.commit(f"{round_}", b"r" * 999, client_state(*kept))
            kept = client_store.client_state().items
        assert [k.round for k in kept] == [2, 3]
    with ClientStore(path, limit_bytes=0) as client_store:
        client_store.commit("z", b"r", client_state(*kept, control=9.0))
        assert same(client_store.client_state(), client_state(control=9.0))
    assert b"round 2" not in on_disk(path)


def test_a_large_old_data_set_does_not_make_room_for_older_small_ones(path):
    small, large, new = item(0), item(1, rows=range(500)), item(2, mark="new")
    with ClientStore(path, limit_bytes=5000) as client_store:
        client_store.commit("a", b"", client_state(small, large, new))
        assert [k.round for k in client_store.client_state().items] == [2]


def test_data_that_are_too_old_go_at_a_commit_and_when_opened(path, timer):
    old, new = item(0, mark="old data"), item(1, mark="new data", rows=(5, 6))
    with ClientStore(path, max_age=timedelta(10)) as client_store:
        client_store.commit("a", b"", client_state(old))
        timer(8)
        client_store.commit("b", b"", client_state(old, new))
        assert len(client_store.client_state().items) == 2
        timer(11)
        client_store.commit("c", b"", client_state(*client_store.client_state().items))
        assert [k.round for k in client_store.client_state().items] == [1]
    timer(30)
    with ClientStore(path) as client_store:
        assert len(client_store.client_state().items) == 1
    with ClientStore(path, max_age=timedelta(10)) as client_store:
        assert same(client_store.client_state(), client_state())
        assert client_store.reply("c") == b""
    assert b"new data" not in on_disk(path)


def test_age_is_that_of_the_samples_where_it_is_known(path, timer):
    with ClientStore(path, max_age=timedelta(10)) as client_store:
        client_store.commit("a", b"", client_state(item(0)), held([1, 2, 3, 4], [-11, -1, -12, -2]))
        (left,) = client_store.client_state().items
        assert left.record["rows"].tolist() == [2, 4]
        assert left.size == 50


# --- forgetting ----------------------------------------------------------------------------------------


def secret_state():
    one = item(0, key=70, mark="SECRET-ONE", rows=(11, 12, 13))
    two = item(1, key=71, mark="SECRET-TWO", rows=(21, 22))
    made = item(2, key=72, mark="SECRET-MADE", rows=(31, 32), names="sources")
    return client_state(one, two, made)


def test_forgetting_a_data_set_leaves_no_byte_of_it(path):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"r", secret_state())
        assert b"SECRET-ONE" in on_disk(path)
        removed = client_store.forget(keys=[70])
        assert (removed.data_sets, removed.samples) == (1, 3)
        assert b"SECRET-ONE" not in on_disk(path)
        assert b"SECRET-TWO" in on_disk(path)
        assert [k.key for k in client_store.client_state().items] == [71, 72]
        assert client_store.client_state().backbone_state["control"].tolist() == [1.0] * 3
        assert client_store.reply("a") == b"r"


def test_forgetting_a_data_set_takes_what_stands_for_several_with_it(path):
    """The sum of online EWC cannot tell which data sets are in it."""
    with ClientStore(path) as client_store:
        kept = (item(1, SEVERAL, "together"), item(2, 70, "first"), item(3, 71, "second"))
        client_store.commit("order", b"", client_state(*kept))
        assert [k.key for k in client_store.client_state().items] == [SEVERAL, 70, 71]
        client_store.forget(keys=[])
        assert len(client_store.client_state().items) == 3
        assert client_store.forget(keys=[70]).data_sets == 2
        assert [k.key for k in client_store.client_state().items] == [71]
    assert b"together" not in on_disk(path)


def test_forgetting_rows_takes_samples_out_and_what_was_made_of_them(path):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"r", secret_state())
        removed = client_store.forget(rows=[12, 31, 99])
        assert (removed.data_sets, removed.samples) == (1, 3)
        one, two = client_store.client_state().items
        assert one.record["rows"].tolist() == [11, 13]
        assert one.record["y"].tolist() == [0, 2]
        assert one.record["x"].shape == (2, 40)
        assert two.record["rows"].tolist() == [21, 22]
        assert b"SECRET-MADE" not in on_disk(path)
        assert client_store.forgotten == {12, 31, 99}


def test_a_reservoir_counts_a_data_set_that_was_forgotten_row_by_row(path):
    one, two = item(0, mark="SECRET-ONE", rows=(1, 2)), item(1, mark="SECRET-TWO", rows=(3,))
    for kept in (one, two):
        kept.record["reservoir"] = torch.ones(len(kept.record["y"]), dtype=torch.bool)
    with ClientStore(path) as client_store:
        client_store.commit("a", b"r", client_state(one, two))
        client_store.forget(rows=[1, 2])
        left = client_store.client_state().items
        assert [(k.key, k.size, len(k.record)) for k in left] == [(0, 50, 0), (1, 50, 4)]
    assert b"SECRET-ONE" not in on_disk(path)


def test_the_bytes_of_a_single_sample_are_gone(path):
    x = torch.cat([marked("KEEP-ME", 2), marked("DELETE-ME", 1), marked("KEEP-ME", 2)])
    record = {"x": x, "y": torch.zeros(5, dtype=torch.int64), "rows": torch.arange(5)}
    with ClientStore(path) as client_store:
        for round_ in range(5):  # so that there are free pages with old content
            client_store.commit(
                f"{round_}", os.urandom(99_999), client_state(MemoryItem(round_, 0, 1, 5, record))
            )
        assert b"DELETE-ME" in on_disk(path)
        client_store.forget(rows=[2])
        assert client_store._database.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert b"DELETE-ME" not in on_disk(path)
        assert b"KEEP-ME" in on_disk(path)
    assert b"DELETE-ME" not in on_disk(path)


def test_the_journal_of_a_killed_process_is_removed(path):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"r", secret_state())
    path.with_name("client.sqlite-journal").write_bytes(bytes(512) + b"SECRET-ONE" * 99)
    with ClientStore(path) as client_store:
        assert len(client_store.client_state().items) == 3
        client_store.forget(keys=[70])
        assert b"SECRET-ONE" not in on_disk(path)


def test_rows_have_names(path):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"", client_state(item(0, rows=(row_id("anna"), row_id("bert")))))
        assert client_store.forget(rows=["anna"]).samples == 1
        (left,) = client_store.client_state().items
        assert left.record["rows"].tolist() == [row_id("bert")]


def test_forgotten_rows_are_not_written_back(path):
    """A client that had read its data before the request."""
    with ClientStore(path) as client_store:
        client_store.forget(rows=[12, 21, 22])
        client_store.commit("a", b"r", secret_state())
        one, made = client_store.client_state().items
        assert one.record["rows"].tolist() == [11, 13]
        assert "sources" in made.record
    assert b"SECRET-TWO" not in on_disk(path)


def test_forgetting_by_time_stamps(path):
    with ClientStore(path) as client_store:
        days = held([11, 12, 13, 21, 22, 31, 32], [1, 5, 2, 9, 9, 9, 4])
        client_store.commit("a", b"", secret_state(), days)
        client_store.forget(before=START + timedelta(4.5))
        one, two = client_store.client_state().items
        assert one.record["rows"].tolist() == [12]
        assert two.record["rows"].tolist() == [21, 22]
        assert client_store.forgotten_before == START + timedelta(4.5)
        assert client_store.inspect().data_sets[0].oldest == START + timedelta(5)
        client_store.forget(before=START)  # an earlier date does not bring anything back
        assert client_store.forgotten_before == START + timedelta(4.5)
        client_store.commit("b", b"", secret_state(), days)
        assert [k.record["rows"].tolist() for k in client_store.client_state().items] == [
            [12],
            [21, 22],
        ]


def test_without_time_stamps_data_are_forgotten_by_the_time_they_were_first_seen(path, timer):
    with ClientStore(path) as client_store:
        client_store.commit("a", b"", client_state(item(0)))
        timer(3)
        client_store.commit("b", b"", client_state(item(0), item(1, mark="new", rows=(5,))))
        assert client_store.forget(before=datetime(2026, 1, 2)).data_sets == 1  # no zone: UTC
        assert [k.round for k in client_store.client_state().items] == [1]


def test_times_follow_samples_into_smaller_records(path):
    """A memory that lets go of some samples; later the rest is forgotten by time."""
    with ClientStore(path) as client_store:
        client_store.commit("a", b"", client_state(item(0)), held([1, 2, 3, 4], [1, 2, 3, 4]))
        record = {name: tensor[1:] for name, tensor in item(0).record.items()}
        client_store.commit("b", b"", client_state(MemoryItem(0, 0, 0, 50, record)))
        client_store.forget(before=START + timedelta(3.5))
        (left,) = client_store.client_state().items
        assert left.record["rows"].tolist() == [4]


def test_a_run_continues_after_forgetting(path, task, scenario):
    """A client state with less in it serves the next round."""
    method = Method(memory=CoreSet(10))
    engine = SerialEngine(task)
    params, buffers = task.initial(0)
    for round_ in range(3):
        order = Order(
            round_,
            0,
            FedAvg().init_server(params, 4),
            buffers,
            method.weights,
            None,
            Train(steps=1),
            0,
        )
        with ClientStore(path) as client_store:
            kept = client_store.client_state()
            engine.client_states = {} if kept is None else {0: kept}
            list(engine.map(method, [order], scenario.at(round_)))
            client_store.commit(str(round_), b"", engine.client_states[0])
            rows = client_store.client_state().items[0].record["rows"]
            client_store.forget(rows=rows[:3].tolist())
    assert inspect(path).forgotten_rows >= 3
