"""StateCache behaves like a dict, whatever is on disk, and deletes its files when nothing needs them."""

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
from chronofed.clients.cache import StateCache, StateView
from chronofed.clients.deletion import Deletion, apply_deletions
from chronofed.clients.spill import SPILL_PREFIX
from chronofed.clients.state import ClientState, named_tensors
from chronofed.core.errors import RunError, StorageError
from chronofed.engines import SerialEngine
from chronofed.methods.memories import MemoryItem
from chronofed.runs import checkpoint
from chronofed.runs.directory import remove_leftovers
from tests.helpers.methods import quick_pairs

SIZE = 3 * 8 + 2  # bytes of a client state's tensors


def client_state(number: int) -> ClientState:
    """Small, and different for every number."""
    record = {"x": torch.tensor([number, 7], dtype=torch.uint8)}
    state = {"control": torch.tensor([number, 0.5, -1.0], dtype=torch.float64)}
    return ClientState(state, (MemoryItem(number, 1, 2, 3, record), MemoryItem(0, 1, 4, 5, {})))


def picture(kept: ClientState):
    tensors = {name: (str(t.dtype), t.tolist()) for name, t in named_tensors(kept)}
    return tensors, [(k.round, k.client, k.key, k.size) for k in kept.items]


def pictures(client_states) -> dict:
    return {client: picture(client_states[client]) for client in client_states}


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
    """A cache and the dict that it must equal."""

    def __init__(self, limit_bytes: int | None, folder: Path) -> None:
        self.store, self.model = StateCache(limit_bytes, folder), {}
        self.snapshots: list[tuple[StateView, dict]] = []

    def set(self, client, number):
        self.store[client], self.model[client] = client_state(number), picture(client_state(number))

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


@pytest.mark.parametrize("limit_bytes", [0, SIZE, 3 * SIZE - 1, None])
@given(steps=st.lists(STEPS, max_size=30))
@settings(max_examples=60)
def test_against_a_dictionary(limit_bytes, steps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spilled")
    pair = Pair(limit_bytes, folder)
    for name, *arguments in steps:
        getattr(pair, name)(*arguments)
        assert list(pair.store) == list(pair.model)
        assert limit_bytes is None or pair.store.cached_bytes <= limit_bytes
        assert len(files(folder)) == pair.files_needed()
    assert pictures(pair.store) == pair.model
    assert [pictures(view) for view, _ in pair.snapshots] == [model for _, model in pair.snapshots]
    del pair
    assert not list(folder.iterdir())


def test_counts_what_only_a_snapshot_refers_to(tmp_path):
    store = StateCache(3 * SIZE, tmp_path)
    store[0] = client_state(0)
    before = store.snapshot()
    store[0] = client_state(1)
    assert store.cached_bytes == 2 * SIZE
    del before
    assert store.cached_bytes == SIZE


def test_the_least_recently_used_is_spilled(tmp_path):
    store = StateCache(2 * SIZE, tmp_path)
    store[0], store[1] = client_state(0), client_state(1)
    assert not list(tmp_path.iterdir())
    assert picture(store[0]) == picture(client_state(0))
    store[2] = client_state(2)
    handles = store.snapshot().handles
    assert [c for c, handle in handles.items() if handle.client_state is None] == [1]
    assert len(files(tmp_path)) == 1


def test_reading_a_snapshot_caches_nothing(tmp_path):
    store = StateCache(SIZE, tmp_path)
    for client in range(5):
        store[client] = client_state(client)
    view = store.snapshot()
    assert [picture(view[client]) for client in view] == [
        picture(client_state(n)) for n in range(5)
    ]
    handles = store.snapshot().handles
    assert [c for c, handle in handles.items() if handle.client_state is not None] == [4]


def test_a_client_state_is_written_once(tmp_path):
    store = StateCache(SIZE, tmp_path)
    store[0], store[1] = client_state(0), client_state(1)
    _ = store[0], store[1], store[0], store[1]
    assert [path.name for path in files(tmp_path)] == ["1.safetensors", "2.safetensors"]


def test_a_client_state_larger_than_the_limit_is_still_served(tmp_path):
    store = StateCache(SIZE - 1, tmp_path)
    store[3] = client_state(3)
    assert store.cached_bytes == 0
    assert picture(store[3]) == picture(client_state(3))
    assert store.cached_bytes == 0


@pytest.mark.parametrize("adopted", [False, True])
def test_parts_of_larger_tensors_are_copied(tmp_path, adopted):
    whole = torch.arange(1000.0)
    record = {"x": whole[3:5], "y": torch.arange(6).view(2, 3).T, "one": whole[:1].expand(4)}
    kept = ClientState({"personal": whole}, (MemoryItem(0, 0, 0, 0, record),))
    store = StateCache(10**6, tmp_path)
    if adopted:
        unlimited = StateCache()
        unlimited[0] = kept
        store.adopt(unlimited.snapshot())
    else:
        store[0] = kept
    kept = store[0].items[0].record
    for name, tensor in record.items():
        assert torch.equal(kept[name], tensor)
        assert kept[name].untyped_storage().nbytes() == tensor.nbytes
        assert kept[name].is_contiguous()
    assert store[0].backbone_state["personal"] is whole  # nothing to gain
    assert store.cached_bytes == 4 * (1000 + 2 + 4) + 8 * 6


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
    store = StateCache(0, tmp_path)
    store[1] = ClientState(tensors)
    assert store[1].backbone_state.keys() == tensors.keys()
    for name, tensor in tensors.items():
        back = store[1].backbone_state[name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        bits = [t.reshape(-1).view(torch.uint8) for t in (back, tensor)]
        assert torch.equal(*bits)


def test_without_a_limit_nothing_is_written(tmp_path):
    store = StateCache(folder=tmp_path / "new")
    for client in range(50):
        store[client] = client_state(client)
    assert pictures(store.snapshot()) == pictures(store)
    assert not list(tmp_path.iterdir())
    first = store[0]
    assert store[0] is first


def test_a_limit_below_zero_is_refused():
    with pytest.raises(ValueError, match="limit_bytes: -1 is below 0"):
        StateCache(-1)


def test_two_caches_are_independent(tmp_path):
    stores = [StateCache(0, tmp_path) for _ in range(2)]
    for number, store in enumerate(stores):
        store[0] = client_state(number)
    assert [picture(store[0]) for store in stores] == [picture(client_state(n)) for n in range(2)]
    del stores[0], store
    assert picture(stores[0][0]) == picture(client_state(1))
    assert len(list(tmp_path.iterdir())) == 1


def test_adopted_states_outlive_the_first_cache(tmp_path):
    first, second = StateCache(0, tmp_path), StateCache(10**6, tmp_path)
    first[0] = client_state(0)
    second.adopt(first.snapshot())
    del first
    assert len(files(tmp_path)) == 1
    assert picture(second[0]) == picture(client_state(0))
    del second[0]
    assert not list(tmp_path.iterdir())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_file_is_one_clear_line(tmp_path, damage):
    store = StateCache(0, tmp_path)
    store[0] = client_state(0)
    (path,) = files(tmp_path)
    damage(path)
    for client_states in (store, store.snapshot()):
        with pytest.raises(RunError, match=r"cannot read back a client state, .*checkpoint"):
            client_states[0]
    with pytest.raises(RunError) as caught:
        store[0]
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    store[0] = client_state(1)  # the store itself goes on
    assert picture(store[0]) == picture(client_state(1))


def test_a_full_disk_is_one_clear_line_and_loses_nothing(tmp_path, monkeypatch):
    store = StateCache(SIZE, tmp_path)
    store[0] = client_state(0)

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
            store[1] = client_state(1)
    assert pictures(store) == {0: picture(client_state(0)), 1: picture(client_state(1))}
    assert store.cached_bytes <= SIZE


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    store = StateCache(0, tmp_path / "file" / "inside")
    with pytest.raises(StorageError, match=r"cannot write .*file/inside: not a directory"):
        store[0] = client_state(0)


PROGRAM = """
import pathlib, sys, torch
from chronofed.clients.cache import StateCache
from chronofed.clients.state import ClientState
store = StateCache(0, pathlib.Path(sys.argv[1]))
store[0] = ClientState({"a": torch.ones(3)})
view = store.snapshot()
assert list(pathlib.Path(sys.argv[1]).rglob("*.safetensors"))
"""


ENDINGS = ["1 / 0", "", "sys.exit(3)"]


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.slow
def test_the_folder_goes_with_the_program_however_it_ends(tmp_path, end):
    command = [sys.executable, "-W", "error", "-c", PROGRAM + end, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Exception ignored" not in done.stderr
    assert (done.returncode == 0) == (end == "")
    assert not list(tmp_path.iterdir())


def test_a_fork_removes_nothing(tmp_path):
    store = StateCache(0, tmp_path)
    store[0] = client_state(0)
    child = os.fork()
    if not child:
        store[0] = client_state(1)
        fine = picture(store[0]) == picture(client_state(1))
        store.clear()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert picture(store[0]) == picture(client_state(0))


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / f"{SPILL_PREFIX}abc").mkdir()
    (tmp_path / f"{SPILL_PREFIX}abc" / "1.safetensors").touch()
    (tmp_path / "checkpoints").mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_threads_may_share_a_cache(tmp_path):
    store = StateCache(2 * SIZE, tmp_path)

    def work(thread):
        for number in range(60):
            client = 10 * thread + number % 5
            store[client] = client_state(number)
            assert picture(store[client]) == picture(client_state(number))
            view = store.snapshot()
            assert picture(view[client]) == picture(client_state(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store.cached_bytes <= 2 * SIZE
    gc.collect()
    assert len(files(tmp_path)) <= 20


METHODS = {
    "core set": Method(memory=CoreSet(5)),
    "reservoir": Method(memory=CoreSet(5, select="reservoir")),
    "scaffold": Method(Scaffold(), Forget()),
    "ditto": Method(Ditto(), CoreSet(3)),
}


@pytest.mark.parametrize(
    ("method", "limit_bytes"),
    [
        pytest.param(method, limit_bytes, marks=marks, id=f"{label}-{limit_bytes}")
        for (label, method), limit_bytes, marks in quick_pairs(
            list(METHODS.items()), [0, 150, None]
        )
    ],
)
def test_the_same_bits_with_any_limit(method, limit_bytes, train_for, task, tmp_path):
    store = StateCache(limit_bytes, tmp_path)
    within = train_for(method, 6, engine=SerialEngine(task, client_states=store))
    plain = train_for(method, 6)
    assert checkpoint.encode(within) == checkpoint.encode(plain)
    assert (limit_bytes is None) or files(tmp_path)
    half = checkpoint.load(checkpoint.save(tmp_path, train_for(method, 3), keep=1))
    resumed = train_for(method, 6, start=half, engine=SerialEngine(task, client_states=store))
    assert checkpoint.encode(resumed) == checkpoint.encode(plain)


def test_deletions_reach_spilled_states(tmp_path):
    def world(store):
        for client in range(4):
            record = {"y": torch.arange(3), "rows": torch.arange(3) + 10 * client}
            store[client] = ClientState({}, (MemoryItem(0, client, 0, 3, record),))
        return store

    due = [Deletion(rows=(11, 20, 21, 22)), Deletion(clients=(3, 9))]
    store, plain = world(StateCache(0, tmp_path)), world({})
    before = {path: path.stat().st_ino for path in files(tmp_path)}
    for client_states in (store, plain):
        apply_deletions(client_states, due)
    assert pictures(store) == pictures(plain)
    assert pictures(store)[1][0]["items/0/rows"][1] == [10, 12]
    assert store[2].items == ()
    kept = [path for path in files(tmp_path) if before.get(path) == path.stat().st_ino]
    assert len(kept) == 1  # client 0 has nothing to delete, so it was not written again


def test_a_run_keeps_no_files_of_old_rounds(task, data, tmp_path):
    """Neither old client states nor the files of old rounds stay behind."""
    world = Subsets(clients=4, subsets=6, client_alpha=1.0, cohort=2).on(data, seed=0)
    store = StateCache(0, tmp_path)
    engine = SerialEngine(task, client_states=store)
    for snapshot in run(
        Method(memory=CoreSet(2)), world, task, rounds=12, train=Train(steps=1), engine=engine
    ):
        assert (
            len(files(tmp_path)) <= len(snapshot.client_states) + 2
        )  # those that the last round replaced
    assert len(files(tmp_path)) == 4
