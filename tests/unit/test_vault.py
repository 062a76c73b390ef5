"""A client's memory on disk: what is committed is there, what is forgotten is nowhere."""

import multiprocessing
import os
import sqlite3
import stat
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from chronofed import CoreSet, Ditto, FedAvg, Generative, Method, Scaffold, Train
from chronofed.engines import SerialEngine
from chronofed.errors import RunError, StorageError
from chronofed.memories import Keepsake
from chronofed.protocol import Client, Locker, Order
from chronofed.sources import Held, row_id, stamp
from chronofed.types import Samples
from chronofed.vault import Vault, inspect, store

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "client.vault"


@pytest.fixture
def clock(monkeypatch):
    """Sets the time of the vault, in days after the start."""

    def clock(day):
        monkeypatch.setattr(store, "now", lambda: START + timedelta(day))

    clock(0)
    return clock


def marked(mark: str, n: int = 4) -> torch.Tensor:
    """Samples whose bytes can be searched for."""
    content = np.frombuffer((mark * 40).encode()[:40] * n, np.uint8).copy()
    return torch.from_numpy(content).view(n, 40)


def keepsake(round_, key=None, mark="sample", rows=(1, 2, 3, 4), names="rows"):
    record = {
        "x": marked(mark, len(rows)),
        "y": torch.arange(len(rows)) % 3,
        names: torch.tensor(rows),
    }
    return Keepsake(round_, 0, round_ if key is None else key, 50, record)


def locker(*kept, control=1.0):
    return Locker({"control": torch.full((3,), control)}, kept)


def held(rows, days):
    """Data with time stamps, so many days after the start."""
    n = len(rows)
    samples = Samples(torch.zeros(n, 1), torch.zeros(n, dtype=torch.int64), torch.tensor(rows))
    times = np.array([stamp(START + timedelta(day)) for day in days])
    return Held(samples, times, np.arange(n))


def same(one: Locker, other: Locker) -> bool:
    def plain(each):
        records = [each.state, *(k.record for k in each.kept)]
        tensors = [{n: (t.dtype, t.tolist()) for n, t in record.items()} for record in records]
        return tensors, [(k.round, k.client, k.key, k.size) for k in each.kept]

    return plain(one) == plain(other)


def on_disk(path) -> bytes:
    """All bytes beside and in the vault."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))


# --- committing --------------------------------------------------------------------------------------


def test_a_new_vault_is_empty_private_and_one_file(path):
    with Vault(path) as vault:
        assert vault.locker() is None
        assert vault.reply("order 1") is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {file.name for file in path.parent.iterdir()} == {"client.vault", "client.vault.lock"}


def test_what_was_committed_is_there_after_reopening(path):
    first = locker(keepsake(0), keepsake(1, mark="other"), control=0.5)
    with Vault(path) as vault:
        vault.commit("order 1", b"reply 1", first)
        assert same(vault.locker(), first)
    with Vault(path) as vault:
        assert same(vault.locker(), first)
        assert vault.reply("order 1") == b"reply 1"
        assert vault.reply("order 2") is None
        second = locker(*first.kept[1:], keepsake(2), control=0.25)
        vault.commit("order 2", b"reply 2", second)
    with Vault(path) as vault:
        assert same(vault.locker(), second)
        assert (vault.reply("order 1"), vault.reply("order 2")) == (None, b"reply 2")
        vault.commit("order 3", b"", None)  # an exchange that keeps nothing
        assert same(vault.locker(), second)
        assert vault.reply("order 3") == b""


def test_an_empty_locker_is_not_the_same_as_none(path):
    with Vault(path) as vault:
        vault.commit("a", b"", Locker())
    with Vault(path) as vault:
        assert vault.locker() == Locker()


def test_every_dtype_and_shape_and_an_empty_record(path):
    state = {
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "bits": torch.tensor([True, False]),
        "half": torch.ones(2, 3, dtype=torch.bfloat16),
        "none": torch.zeros(0, 4),
        "part": torch.arange(10.0)[::3],
    }
    kept = (Keepsake(3, 1, 2**62, 9, {}), Keepsake(4, 1, 5, 9, {}))
    with Vault(path) as vault:
        vault.commit("a", b"r", Locker(state, kept))
    with Vault(path) as vault:
        assert same(vault.locker(), Locker(state, kept))


def written(path, monkeypatch, action) -> int:
    """Bytes of records that an action puts into the file."""
    total = []
    with Vault(path) as vault:
        file = vault._file
        file.create_function("noted", 1, lambda size: total.append(size))
        file.execute(
            "CREATE TEMP TRIGGER watch AFTER INSERT ON main.record "
            "BEGIN SELECT noted(length(new.content)); END"
        )
        action(vault)
    return sum(total)


@pytest.mark.parametrize("reread", [True, False])
def test_a_keepsake_that_is_stored_is_not_written_again(path, monkeypatch, reread):
    old, new = keepsake(0, rows=range(1000)), keepsake(1, mark="new", rows=(7, 8))
    with Vault(path) as vault:
        vault.commit("a", b"", locker(old))

    def add(vault):
        kept = vault.locker().kept if reread else (old,)
        vault.commit("b", b"", locker(*kept, new, control=2.0))

    assert 80 < written(path, monkeypatch, add) < 600  # the new one alone
    with Vault(path) as vault:
        assert same(vault.locker(), locker(old, new, control=2.0))


def test_what_was_read_is_not_even_looked_at_again(path, monkeypatch):
    with Vault(path) as vault:
        vault.commit("a", b"", locker(keepsake(0), keepsake(1)))
        kept = vault.locker().kept
        encoded = []
        encode = store.blobs.encode
        monkeypatch.setattr(
            store.blobs, "encode", lambda record: encoded.append(list(record)) or encode(record)
        )
        vault.commit("b", b"", locker(*kept, keepsake(2)))
        assert encoded == [["control"], ["x", "y", "rows"]]


@pytest.mark.parametrize("backbone", [FedAvg(), Scaffold(), Ditto()])
@pytest.mark.parametrize(
    "memory", [CoreSet(5), CoreSet(20, "reservoir"), CoreSet(9, limit=30), Generative(4, 2)]
)
def test_a_client_with_a_vault_does_what_one_in_memory_does(path, task, scenario, backbone, memory):
    """Rounds of the real client code: the same replies and lockers, bit for bit."""
    method, locker_ = Method(backbone, memory), None
    params, buffers = task.initial(0)
    train = Train(lr=0.1, batch_size=16, steps=2)
    for round_ in range(4):
        visit = scenario.at(round_).visits[1]
        server = backbone.init_server(params, 4)
        order = Order(round_, 1, server, buffers, method.weights, None, train, 0)
        results = []
        with Vault(path) as vault:
            for kept in (locker_, vault.locker()):
                client = Client(
                    method, order, kept, task.objective(), task.samples(visit.indices), visit.key
                )
                results.append(client.serve())
            (plain, locker_), (kept, stored) = results
            assert all(torch.equal(t, kept.upload[n]) for n, t in plain.upload.items())
            vault.commit(f"order {round_}", b"...", stored)
            assert same(vault.locker(), locker_)


# --- one writer, errors --------------------------------------------------------------------------------


def test_a_second_user_gets_one_line_and_inspect_works_meanwhile(path):
    with Vault(path) as vault:
        vault.commit("a", b"r", locker(keepsake(0)))
        with pytest.raises(RunError, match="another process is using this client's memory"):
            Vault(path).__enter__()
        assert inspect(path).order == "a"
    with Vault(path):
        pass


def commit_often(path, ready, done):
    with Vault(path) as vault:
        number = 0
        while not done.is_set():
            kept = keepsake(number, mark=f"round {number}", rows=range(number % 7 + 1))
            vault.commit(f"{number % 7 + 1}", b"r" * (number % 7 + 1), locker(kept))
            number += 1
            if number > 2:
                ready.set()


def test_whoever_looks_during_commits_sees_one_of_them(path):
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
    with Vault(path):
        ready.set()
        done.wait(60)


def test_a_second_process_gets_one_line(path):
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(path, ready, done))
    process.start()
    assert ready.wait(60)
    with pytest.raises(RunError, match=r"client\.vault: another process"):
        Vault(path).__enter__()
    done.set()
    process.join()
    with Vault(path):
        pass


def test_a_vault_must_be_open(path):
    with pytest.raises(RunError, match="not open"):
        Vault(path).locker()


@pytest.mark.parametrize("setting", [{"budget": -1}, {"max_age": timedelta(0)}])
def test_settings_that_make_no_sense(path, setting):
    with pytest.raises(ValueError, match=f"Vault.{next(iter(setting))}"):
        Vault(path, **setting)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"damaged \(it is empty\)"),
        (b"no SQLite file, whatever its name says" * 99, "damaged .file is not a database"),
    ],
)
def test_a_damaged_file_is_one_line_and_stays_as_it_is(path, content, message):
    path.write_bytes(content)
    with pytest.raises(RunError, match=message) as caught, Vault(path):
        pass
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content
    with pytest.raises(RunError, match=message):
        inspect(path)


def test_damage_anywhere_is_noticed_or_harmless(path):
    """Some bytes are overwritten, at many places: the old content or one line, never another content."""
    first = locker(keepsake(0, rows=range(300)), keepsake(1, mark="other", rows=range(200)))
    with Vault(path) as vault:
        vault.commit("a", b"reply" * 5000, first)
    content = path.read_bytes()
    noticed = []
    for place in np.linspace(0, len(content) - 16, 80).astype(int).tolist():
        path.write_bytes(content[:place] + bytes(b ^ 0x55 for b in content[place : place + 16])
                         + content[place + 16 :])  # fmt: skip
        try:
            with Vault(path) as vault:
                assert same(vault.locker(), first)
                assert vault.reply("a") == b"reply" * 5000
        except RunError as error:
            noticed.append(str(error))
    assert len(noticed) > 20
    assert all("damaged" in line or "not the memory" in line for line in noticed)


def test_parts_that_do_not_belong_together(path):
    with Vault(path) as vault:
        vault.commit("a", b"r", locker(keepsake(0)))
    with sqlite3.connect(path) as file:
        file.execute("UPDATE keepsake SET size = 7")
    file.close()
    with pytest.raises(RunError, match="its parts do not belong together"):
        inspect(path)


def test_a_foreign_database_and_a_later_format(path):
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE t (x)")
    file.close()
    with pytest.raises(RunError, match="not the memory of a chronofed client"):
        inspect(path)
    path.unlink()
    with Vault(path):
        pass
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(RunError, match="format 99 is of a later chronofed"):
        inspect(path)


def test_nothing_there_to_inspect(path):
    with pytest.raises(RunError, match="no such file"):
        inspect(path)
    assert not path.exists()


def test_a_full_disk_leaves_everything_as_it_was(path):
    first = locker(keepsake(0))
    with Vault(path) as vault:
        vault.commit("a", b"r", first)
        pages = vault._file.execute("PRAGMA page_count").fetchone()[0]
        vault._file.execute(f"PRAGMA max_page_count = {pages + 1}")  # the same as a full disk
        with pytest.raises(StorageError, match=r"cannot write .*client\.vault: .* is full"):
            vault.commit("b", b"r" * 10**6, locker(keepsake(1)))
        assert vault.reply("a") == b"r"
        assert same(vault.locker(), first)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        Vault(tmp_path / "file" / "client.vault").__enter__()


def test_what_a_killed_maker_left_is_no_hindrance(path):
    path.with_name(".client.vault.new").write_bytes(b"half a file")
    with Vault(path) as vault:
        assert vault.locker() is None
    assert not path.with_name(".client.vault.new").exists()


# --- inspecting ----------------------------------------------------------------------------------------


def test_inspection(path, clock):
    with Vault(path) as vault:
        vault.commit("a", b"12345", locker(keepsake(0)), held([1, 2, 3, 4], [-9, -7, -5, -8]))
        clock(1)
        kept = vault.locker().kept
        vault.commit("b", b"123", locker(*kept, keepsake(1, mark="other", rows=(5, 6))))
        seen = vault.inspect()
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


def test_a_data_set_that_comes_back_was_first_seen_before(path, clock):
    with Vault(path) as vault:
        vault.commit("a", b"", locker(keepsake(0, key=7)))
        clock(5)
        vault.commit("b", b"", locker(keepsake(3, key=7, mark="another choice")))
        (one,) = vault.inspect().data_sets
    assert (one.first_seen, one.last_seen) == (START, START + timedelta(5))


def test_an_alias_tells_nothing_and_stays(path, tmp_path):
    with Vault(path) as vault, Vault(tmp_path / "other") as other:
        alias = vault.alias(5)
        assert alias not in (5, other.alias(5), vault.alias(6))
        assert 0 <= alias < 2**63
    with Vault(path) as vault:
        vault.forget(keys=[1])
        assert vault.alias(5) == alias


# --- retention -----------------------------------------------------------------------------------------


def test_the_budget_lets_the_oldest_data_sets_go_and_never_the_state(path):
    size = len(store.blobs.encode(keepsake(0).record))
    with Vault(path, budget=2 * size) as vault:
        kept = ()
        for round_ in range(4):
            kept = (*kept, keepsake(round_, mark=f"round {round_}"))
            vault.commit(f"{round_}", b"r" * 999, locker(*kept))
            kept = vault.locker().kept
        assert [k.round for k in kept] == [2, 3]
    with Vault(path, budget=0) as vault:
        vault.commit("z", b"r", locker(*kept, control=9.0))
        assert same(vault.locker(), locker(control=9.0))
    assert b"round 2" not in on_disk(path)


def test_a_large_old_data_set_does_not_make_room_for_older_small_ones(path):
    small, large, new = keepsake(0), keepsake(1, rows=range(500)), keepsake(2, mark="new")
    with Vault(path, budget=5000) as vault:
        vault.commit("a", b"", locker(small, large, new))
        assert [k.round for k in vault.locker().kept] == [2]


def test_data_that_are_too_old_go_at_a_commit_and_when_opened(path, clock):
    old, new = keepsake(0, mark="old data"), keepsake(1, mark="new data", rows=(5, 6))
    with Vault(path, max_age=timedelta(10)) as vault:
        vault.commit("a", b"", locker(old))
        clock(8)
        vault.commit("b", b"", locker(old, new))
        assert len(vault.locker().kept) == 2
        clock(11)
        vault.commit("c", b"", locker(*vault.locker().kept))
        assert [k.round for k in vault.locker().kept] == [1]
    clock(30)
    with Vault(path) as vault:
        assert len(vault.locker().kept) == 1
    with Vault(path, max_age=timedelta(10)) as vault:
        assert same(vault.locker(), locker())
        assert vault.reply("c") == b""
    assert b"new data" not in on_disk(path)


def test_age_is_that_of_the_samples_where_it_is_known(path, clock):
    with Vault(path, max_age=timedelta(10)) as vault:
        vault.commit("a", b"", locker(keepsake(0)), held([1, 2, 3, 4], [-11, -1, -12, -2]))
        (left,) = vault.locker().kept
        assert left.record["rows"].tolist() == [2, 4]
        assert left.size == 50


# --- forgetting ----------------------------------------------------------------------------------------


def secret_locker():
    one = keepsake(0, key=70, mark="SECRET-ONE", rows=(11, 12, 13))
    two = keepsake(1, key=71, mark="SECRET-TWO", rows=(21, 22))
    made = keepsake(2, key=72, mark="SECRET-MADE", rows=(31, 32), names="sources")
    return locker(one, two, made)


def test_forgetting_a_data_set_leaves_no_byte_of_it(path):
    with Vault(path) as vault:
        vault.commit("a", b"r", secret_locker())
        assert b"SECRET-ONE" in on_disk(path)
        removed = vault.forget(keys=[70])
        assert (removed.data_sets, removed.samples) == (1, 3)
        assert b"SECRET-ONE" not in on_disk(path)
        assert b"SECRET-TWO" in on_disk(path)
        assert [k.key for k in vault.locker().kept] == [71, 72]
        assert vault.locker().state["control"].tolist() == [1.0] * 3
        assert vault.reply("a") == b"r"


def test_forgetting_rows_takes_samples_out_and_what_was_made_of_them(path):
    with Vault(path) as vault:
        vault.commit("a", b"r", secret_locker())
        removed = vault.forget(rows=[12, 31, 99])
        assert (removed.data_sets, removed.samples) == (1, 3)
        one, two = vault.locker().kept
        assert one.record["rows"].tolist() == [11, 13]
        assert one.record["y"].tolist() == [0, 2]
        assert one.record["x"].shape == (2, 40)
        assert two.record["rows"].tolist() == [21, 22]
        assert b"SECRET-MADE" not in on_disk(path)
        assert vault.forgotten == {12, 31, 99}


def test_the_bytes_of_a_single_sample_are_gone(path):
    x = torch.cat([marked("KEEP-ME", 2), marked("DELETE-ME", 1), marked("KEEP-ME", 2)])
    record = {"x": x, "y": torch.zeros(5, dtype=torch.int64), "rows": torch.arange(5)}
    with Vault(path) as vault:
        for round_ in range(5):  # so that there are free pages with old content
            vault.commit(f"{round_}", os.urandom(99_999), locker(Keepsake(round_, 0, 1, 5, record)))
        assert b"DELETE-ME" in on_disk(path)
        vault.forget(rows=[2])
        assert vault._file.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert b"DELETE-ME" not in on_disk(path)
        assert b"KEEP-ME" in on_disk(path)
    assert b"DELETE-ME" not in on_disk(path)


def test_what_a_killed_process_left_in_its_journal_is_gone(path):
    with Vault(path) as vault:
        vault.commit("a", b"r", secret_locker())
    path.with_name("client.vault-journal").write_bytes(bytes(512) + b"SECRET-ONE" * 99)
    with Vault(path) as vault:
        assert len(vault.locker().kept) == 3
        vault.forget(keys=[70])
        assert b"SECRET-ONE" not in on_disk(path)


def test_rows_have_names(path):
    with Vault(path) as vault:
        vault.commit("a", b"", locker(keepsake(0, rows=(row_id("anna"), row_id("bert")))))
        assert vault.forget(rows=["anna"]).samples == 1
        (left,) = vault.locker().kept
        assert left.record["rows"].tolist() == [row_id("bert")]


def test_forgotten_rows_are_not_written_back(path):
    """A client that had read its data before the request."""
    with Vault(path) as vault:
        vault.forget(rows=[12, 21, 22])
        vault.commit("a", b"r", secret_locker())
        one, made = vault.locker().kept
        assert one.record["rows"].tolist() == [11, 13]
        assert "sources" in made.record
    assert b"SECRET-TWO" not in on_disk(path)


def test_forgetting_by_time_stamps(path):
    with Vault(path) as vault:
        days = held([11, 12, 13, 21, 22, 31, 32], [1, 5, 2, 9, 9, 9, 4])
        vault.commit("a", b"", secret_locker(), days)
        vault.forget(before=START + timedelta(4.5))
        one, two = vault.locker().kept
        assert one.record["rows"].tolist() == [12]
        assert two.record["rows"].tolist() == [21, 22]
        assert vault.horizon == START + timedelta(4.5)
        assert vault.inspect().data_sets[0].oldest == START + timedelta(5)
        vault.forget(before=START)  # an earlier date does not bring anything back
        assert vault.horizon == START + timedelta(4.5)
        vault.commit("b", b"", secret_locker(), days)
        assert [k.record["rows"].tolist() for k in vault.locker().kept] == [[12], [21, 22]]


def test_forgetting_by_first_sight_where_there_are_no_time_stamps(path, clock):
    with Vault(path) as vault:
        vault.commit("a", b"", locker(keepsake(0)))
        clock(3)
        vault.commit("b", b"", locker(keepsake(0), keepsake(1, mark="new", rows=(5,))))
        assert vault.forget(before=datetime(2026, 1, 2)).data_sets == 1  # no zone: UTC
        assert [k.round for k in vault.locker().kept] == [1]


def test_times_follow_samples_into_smaller_records(path):
    """A memory that lets go of some samples; later the rest is forgotten by time."""
    with Vault(path) as vault:
        vault.commit("a", b"", locker(keepsake(0)), held([1, 2, 3, 4], [1, 2, 3, 4]))
        record = {name: tensor[1:] for name, tensor in keepsake(0).record.items()}
        vault.commit("b", b"", locker(Keepsake(0, 0, 0, 50, record)))
        vault.forget(before=START + timedelta(3.5))
        (left,) = vault.locker().kept
        assert left.record["rows"].tolist() == [4]


def test_a_run_goes_on_after_forgetting(path, task, scenario):
    """A locker with less in it serves the next round."""
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
        with Vault(path) as vault:
            kept = vault.locker()
            engine.lockers = {} if kept is None else {0: kept}
            list(engine.map(method, [order], scenario.at(round_)))
            vault.commit(str(round_), b"", engine.lockers[0])
            rows = vault.locker().kept[0].record["rows"]
            vault.forget(rows=rows[:3].tolist())
    assert inspect(path).forgotten_rows >= 3
