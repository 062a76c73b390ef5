"""A store of lockers is a dictionary, whatever lies on disk; and its files come and go with what needs them."""

import errno
import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chronofed import CoreSet, Ditto, Forget, Method, Scaffold, Subsets, Train, run
from chronofed.deletion import Deletion, apply_deletions
from chronofed.engines import LockerStore, SerialEngine
from chronofed.engines.lockers import PREFIX, LockerView, named
from chronofed.errors import RunError, StorageError
from chronofed.memories import Keepsake
from chronofed.protocol import Locker
from chronofed.records import checkpoint
from chronofed.records.directory import remove_leftovers

SIZE = 3 * 8 + 2  # bytes of a locker's tensors


def locker(number: int) -> Locker:
    """Small, and different for every number."""
    record = {"x": torch.tensor([number, 7], dtype=torch.uint8)}
    state = {"control": torch.tensor([number, 0.5, -1.0], dtype=torch.float64)}
    return Locker(state, (Keepsake(number, 1, 2, 3, record), Keepsake(0, 1, 4, 5, {})))


def picture(kept: Locker):
    tensors = {name: (str(t.dtype), t.tolist()) for name, t in named(kept)}
    return tensors, [(k.round, k.client, k.key, k.size) for k in kept.kept]


def pictures(lockers) -> dict:
    return {client: picture(lockers[client]) for client in lockers}


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


CLIENTS = st.integers(0, 4)
STEPS = st.one_of(
    st.tuples(st.just("set"), CLIENTS, st.integers(0, 200)),
    st.tuples(st.just("get"), CLIENTS),
    st.tuples(st.just("delete"), CLIENTS),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("drop"), st.integers(0, 9)),
    st.tuples(st.just("restore"), st.integers(0, 9)),
    st.tuples(st.just("clear")),
)


class Pair:
    """A store and the dictionary that it must not differ from."""

    def __init__(self, budget: int | None, folder: Path) -> None:
        self.store, self.model = LockerStore(budget, folder), {}
        self.snapshots: list[tuple[LockerView, dict]] = []

    def set(self, client, number):
        self.store[client], self.model[client] = locker(number), picture(locker(number))

    def get(self, client):
        found = self.store.get(client)
        assert (picture(found) if found else None) == self.model.get(client)

    def delete(self, client):
        assert (self.store.pop(client, None) is None) == (self.model.pop(client, None) is None)

    def snapshot(self):
        self.snapshots.append((self.store.snapshot(), dict(self.model)))

    def drop(self, place):
        del self.snapshots[place : place + 1]

    def restore(self, place):
        for view, model in self.snapshots[place : place + 1]:
            self.store.clear()
            self.store.adopt(view)
            self.model = dict(model)

    def clear(self):
        self.store.clear()
        self.model.clear()

    def files_needed(self) -> int:
        views = [self.store.snapshot(), *(view for view, _ in self.snapshots)]
        stored = [handle.stored for view in views for handle in view.handles.values()]
        return len({id(each) for each in stored if each is not None})


@pytest.mark.parametrize("budget", [0, SIZE, 3 * SIZE - 1, None])
@given(steps=st.lists(STEPS, max_size=30))
@settings(max_examples=60)
def test_against_a_dictionary(budget, steps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spilled")
    pair = Pair(budget, folder)
    for name, *arguments in steps:
        getattr(pair, name)(*arguments)
        assert list(pair.store) == list(pair.model)
        assert budget is None or pair.store.held <= budget
        assert len(files(folder)) == pair.files_needed()
    assert pictures(pair.store) == pair.model
    assert [pictures(view) for view, _ in pair.snapshots] == [model for _, model in pair.snapshots]
    del pair
    assert not list(folder.iterdir())


def test_counts_what_only_a_snapshot_refers_to(tmp_path):
    store = LockerStore(3 * SIZE, tmp_path)
    store[0] = locker(0)
    before = store.snapshot()
    store[0] = locker(1)
    assert store.held == 2 * SIZE
    del before
    assert store.held == SIZE


def test_the_least_recently_used_is_spilled(tmp_path):
    store = LockerStore(2 * SIZE, tmp_path)
    store[0], store[1] = locker(0), locker(1)
    assert not list(tmp_path.iterdir())
    assert picture(store[0]) == picture(locker(0))
    store[2] = locker(2)
    handles = store.snapshot().handles
    assert [c for c, handle in handles.items() if handle.locker is None] == [1]
    assert len(files(tmp_path)) == 1


def test_looking_through_a_snapshot_changes_nothing(tmp_path):
    store = LockerStore(SIZE, tmp_path)
    for client in range(5):
        store[client] = locker(client)
    view = store.snapshot()
    assert [picture(view[client]) for client in view] == [picture(locker(n)) for n in range(5)]
    handles = store.snapshot().handles
    assert [c for c, handle in handles.items() if handle.locker is not None] == [4]


def test_a_locker_is_written_once(tmp_path):
    store = LockerStore(SIZE, tmp_path)
    store[0], store[1] = locker(0), locker(1)
    _ = store[0], store[1], store[0], store[1]
    assert [path.name for path in files(tmp_path)] == ["1.safetensors", "2.safetensors"]


def test_a_locker_larger_than_the_budget_is_still_served(tmp_path):
    store = LockerStore(SIZE - 1, tmp_path)
    store[3] = locker(3)
    assert store.held == 0
    assert picture(store[3]) == picture(locker(3))
    assert store.held == 0


@pytest.mark.parametrize("adopted", [False, True])
def test_parts_of_larger_tensors_are_copied(tmp_path, adopted):
    whole = torch.arange(1000.0)
    record = {"x": whole[3:5], "y": torch.arange(6).view(2, 3).T, "one": whole[:1].expand(4)}
    kept = Locker({"personal": whole}, (Keepsake(0, 0, 0, 0, record),))
    store = LockerStore(10**6, tmp_path)
    if adopted:
        unlimited = LockerStore()
        unlimited[0] = kept
        store.adopt(unlimited.snapshot())
    else:
        store[0] = kept
    kept = store[0].kept[0].record
    for name, tensor in record.items():
        assert torch.equal(kept[name], tensor)
        assert kept[name].untyped_storage().nbytes() == tensor.nbytes
        assert kept[name].is_contiguous()
    assert store[0].state["personal"] is whole  # nothing to gain
    assert store.held == 4 * (1000 + 2 + 4) + 8 * 6


def test_bits_survive(tmp_path):
    strange = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    tensors = {
        "strange": strange,
        "half": torch.ones(2, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(3),
        "none": torch.empty(0, 4),
        "a/b": torch.ones(1),
    }
    store = LockerStore(0, tmp_path)
    store[1] = Locker(tensors)
    assert store[1].state.keys() == tensors.keys()
    for name, tensor in tensors.items():
        back = store[1].state[name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        bits = [t.reshape(-1).view(torch.uint8) for t in (back, tensor)]
        assert torch.equal(*bits)


def test_without_a_limit_nothing_is_written(tmp_path):
    store = LockerStore(folder=tmp_path / "new")
    for client in range(50):
        store[client] = locker(client)
    assert pictures(store.snapshot()) == pictures(store)
    assert not list(tmp_path.iterdir())
    first = store[0]
    assert store[0] is first


def test_a_budget_below_zero_is_refused():
    with pytest.raises(ValueError, match="budget: -1 is below 0"):
        LockerStore(-1)


def test_two_stores_do_not_disturb_each_other(tmp_path):
    stores = [LockerStore(0, tmp_path) for _ in range(2)]
    for number, store in enumerate(stores):
        store[0] = locker(number)
    assert [picture(store[0]) for store in stores] == [picture(locker(n)) for n in range(2)]
    del stores[0], store
    assert picture(stores[0][0]) == picture(locker(1))
    assert len(list(tmp_path.iterdir())) == 1


def test_what_one_store_took_over_outlives_the_other(tmp_path):
    first, second = LockerStore(0, tmp_path), LockerStore(10**6, tmp_path)
    first[0] = locker(0)
    second.adopt(first.snapshot())
    del first
    assert len(files(tmp_path)) == 1
    assert picture(second[0]) == picture(locker(0))
    del second[0]
    assert not list(tmp_path.iterdir())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_file_is_one_clear_line(tmp_path, damage):
    store = LockerStore(0, tmp_path)
    store[0] = locker(0)
    (path,) = files(tmp_path)
    damage(path)
    for lockers in (store, store.snapshot()):
        with pytest.raises(RunError, match=r"cannot read back what a client keeps, .*checkpoint"):
            lockers[0]
    with pytest.raises(RunError) as caught:
        store[0]
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    store[0] = locker(1)  # the store itself goes on
    assert picture(store[0]) == picture(locker(1))


def test_a_full_disk_is_one_clear_line_and_loses_nothing(tmp_path, monkeypatch):
    store = LockerStore(SIZE, tmp_path)
    store[0] = locker(0)

    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, part):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_: Full())
        with pytest.raises(StorageError, match=r"cannot write .*: no space left on device; free"):
            store[1] = locker(1)
    assert pictures(store) == {0: picture(locker(0)), 1: picture(locker(1))}
    assert store.held <= SIZE


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    store = LockerStore(0, tmp_path / "file" / "inside")
    with pytest.raises(StorageError, match=r"cannot write .*file/inside: not a directory"):
        store[0] = locker(0)


PROGRAM = """
import pathlib, sys, torch
from chronofed.engines import LockerStore
from chronofed.protocol import Locker
store = LockerStore(0, pathlib.Path(sys.argv[1]))
store[0] = Locker({"a": torch.ones(3)})
view = store.snapshot()
assert list(pathlib.Path(sys.argv[1]).rglob("*.safetensors"))
"""


@pytest.mark.parametrize("end", ["", "1 / 0", "sys.exit(3)"])
def test_the_folder_goes_with_the_program_however_it_ends(tmp_path, end):
    command = [sys.executable, "-W", "error", "-c", PROGRAM + end, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Exception ignored" not in done.stderr
    assert (done.returncode == 0) == (end == "")
    assert not list(tmp_path.iterdir())


def test_a_copy_of_the_process_removes_nothing(tmp_path):
    store = LockerStore(0, tmp_path)
    store[0] = locker(0)
    child = os.fork()
    if not child:
        store[0] = locker(1)
        fine = picture(store[0]) == picture(locker(1))
        store.clear()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert picture(store[0]) == picture(locker(0))


def test_what_a_killed_process_left_in_a_run_directory_is_removed(tmp_path):
    (tmp_path / f"{PREFIX}abc").mkdir()
    (tmp_path / f"{PREFIX}abc" / "1.safetensors").touch()
    (tmp_path / "checkpoints").mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_threads_may_share_a_store(tmp_path):
    store = LockerStore(2 * SIZE, tmp_path)

    def work(thread):
        for number in range(60):
            client = 10 * thread + number % 5
            store[client] = locker(number)
            assert picture(store[client]) == picture(locker(number))
            view = store.snapshot()
            assert picture(view[client]) == picture(locker(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store.held <= 2 * SIZE
    gc.collect()
    assert len(files(tmp_path)) <= 20


METHODS = {
    "core set": Method(memory=CoreSet(5)),
    "reservoir": Method(memory=CoreSet(5, select="reservoir")),
    "scaffold": Method(Scaffold(), Forget()),
    "ditto": Method(Ditto(), CoreSet(3)),
}


@pytest.mark.parametrize("budget", [0, 150, None])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_same_bits_within_any_budget(method, budget, train_for, task, tmp_path):
    store = LockerStore(budget, tmp_path)
    within = train_for(method, 6, engine=SerialEngine(task, store))
    plain = train_for(method, 6)
    assert checkpoint.encode(within) == checkpoint.encode(plain)
    assert (budget is None) or files(tmp_path)
    half = checkpoint.load(checkpoint.save(tmp_path, train_for(method, 3), keep=1))
    resumed = train_for(method, 6, start=half, engine=SerialEngine(task, store))
    assert checkpoint.encode(resumed) == checkpoint.encode(plain)


def test_deletions_reach_what_is_spilled(tmp_path):
    def world(store):
        for client in range(4):
            record = {"y": torch.arange(3), "rows": torch.arange(3) + 10 * client}
            store[client] = Locker({}, (Keepsake(0, client, 0, 3, record),))
        return store

    due = [Deletion(rows=(11, 20, 21, 22)), Deletion(clients=(3, 9))]
    store, plain = world(LockerStore(0, tmp_path)), world({})
    before = {path: path.stat().st_ino for path in files(tmp_path)}
    for lockers in (store, plain):
        apply_deletions(lockers, due)
    assert pictures(store) == pictures(plain)
    assert pictures(store)[1][0]["kept/0/rows"][1] == [10, 12]
    assert store[2].kept == ()
    kept = [path for path in files(tmp_path) if before.get(path) == path.stat().st_ino]
    assert len(kept) == 1  # client 0 has nothing to delete, so it was not written again


def test_a_run_lets_go_of_what_it_started_from(task, data, tmp_path):
    """Neither old lockers nor the files of old rounds stay behind."""
    world = Subsets(clients=4, subsets=6, client_alpha=1.0, cohort=2).on(data, seed=0)
    store = LockerStore(0, tmp_path)
    engine = SerialEngine(task, store)
    for snapshot in run(
        Method(memory=CoreSet(2)), world, task, rounds=12, train=Train(steps=1), engine=engine
    ):
        assert (
            len(files(tmp_path)) <= len(snapshot.lockers) + 2
        )  # those that the last round replaced
    assert len(files(tmp_path)) == 4
