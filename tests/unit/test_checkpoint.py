"""Checkpoints come back bit for bit, or are known to be damaged."""

import errno
import json
import os
import tracemalloc
import weakref
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chronofed import CoreSet, Method, Snapshot
from chronofed.clients.cache import StateCache, StateView
from chronofed.clients.state import ClientState, item_metadata, named_tensors
from chronofed.core import safetensors_io
from chronofed.core.errors import RunError, StorageError
from chronofed.methods.memories import MemoryItem
from chronofed.runs import checkpoint
from chronofed.training.traffic import Traffic


def snapshot(round_: int = 3) -> Snapshot:
    generator = torch.Generator().manual_seed(round_)
    pixels = torch.randint(256, (4, 1, 2, 2), generator=generator, dtype=torch.uint8)
    kept = (
        MemoryItem(1, 10, 7, 50, {"x": pixels, "y": torch.tensor([0, 1, 2, 3])}),
        MemoryItem(2, 10, 9, 60, {"x": pixels[:1], "y": torch.tensor([1])}),
    )
    client_states = {10: ClientState({"control": torch.ones(3)}, kept), 2: ClientState()}
    server = {"params": torch.randn(5, generator=generator), "momentum": torch.zeros(5)}
    past = (MemoryItem(0, 3, 1, 9, {"linear": torch.rand(2, generator=generator)}),)
    learned = {"drift": torch.tensor([1.0, 2.0])}
    return Snapshot(round_, server, torch.empty(0), client_states, past, learned, Traffic(10, 20))


def test_round_trip():
    original = snapshot()
    copy = checkpoint.decode(checkpoint.encode(original))
    assert copy.round == 3
    assert torch.equal(copy.params, original.params)
    assert set(copy.server) == {"params", "momentum"}
    assert copy.buffers.shape == (0,)
    assert set(copy.client_states) == {2, 10}
    assert copy.client_states[2] == ClientState()
    assert torch.equal(copy.client_states[10].backbone_state["control"], torch.ones(3))
    about = [(k.round, k.client, k.key, k.size) for k in copy.client_states[10].items]
    assert about == [(1, 10, 7, 50), (2, 10, 9, 60)]
    assert torch.equal(copy.past[0].record["linear"], original.past[0].record["linear"])
    assert copy.past[0].client == 3
    assert copy.weighting_state["drift"].tolist() == [1.0, 2.0]
    assert copy.traffic == Traffic(10, 20)
    assert torch.equal(
        copy.client_states[10].items[0].record["x"], original.client_states[10].items[0].record["x"]
    )
    assert copy.client_states[10].items[0].record["x"].dtype == torch.uint8


def test_what_an_engine_knows_of_its_clients():
    """One without has the bytes that it always had."""
    known = {"train upload.delta": torch.tensor([0.5, 1.5], dtype=torch.float64)}
    copy = checkpoint.decode(checkpoint.encode(replace(snapshot(), engine=known)))
    assert copy.engine["train upload.delta"].tolist() == [0.5, 1.5]
    assert set(copy.server) == {"params", "momentum"}
    assert checkpoint.encode(replace(copy, engine={})) == checkpoint.encode(snapshot())


def test_of_a_real_run(train_for):
    original = train_for(Method(memory=CoreSet(5)), 3)
    assert checkpoint.encode(checkpoint.decode(checkpoint.encode(original))) == checkpoint.encode(
        original
    )


def test_keeps_the_latest(tmp_path):
    for round_ in (1, 5, 20, 100):
        checkpoint.save(tmp_path, snapshot(round_), keep=2)
    assert [path.name[:8] for path in sorted(tmp_path.iterdir())] == ["00000020", "00000100"]
    latest, complaints = checkpoint.load_latest(tmp_path)
    assert latest.round == 100
    assert complaints == []


def test_an_empty_folder_has_none(tmp_path):
    assert checkpoint.load_latest(tmp_path) == (None, [])


def flip(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


@pytest.mark.parametrize("damage", [flip, lambda c: c[: len(c) // 2], lambda c: b""])
def test_a_damaged_one_is_skipped(tmp_path, damage):
    checkpoint.save(tmp_path, snapshot(1), keep=3)
    last = checkpoint.save(tmp_path, snapshot(2), keep=3)
    last.write_bytes(damage(last.read_bytes()))
    latest, complaints = checkpoint.load_latest(tmp_path)
    assert latest.round == 1
    assert len(complaints) == 1
    assert f"{last.name} is damaged" in complaints[0]


def written(folder, content: bytes):
    path = folder / f"00000009-{checkpoint._digest([content])}.safetensors"
    path.write_bytes(content)
    return path


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(RunError, match="cannot be read"):
        checkpoint.load(written(tmp_path, b"not safetensors at all"))


@pytest.mark.parametrize("number", [b"2", b"9"])
def test_one_of_another_version_is_never_skipped(tmp_path, number):
    """A damaged one is, but this one is whole: going back to an earlier one would lose its rounds."""
    checkpoint.save(tmp_path, snapshot(1), keep=3)
    name = b"checkpoint-" + number
    written(tmp_path, checkpoint.encode(snapshot()).replace(b"checkpoint-3", name))
    with pytest.raises(
        checkpoint.FormatError, match=rf"has format '.*{name.decode()}'.*version that wrote it"
    ):
        checkpoint.load_latest(tmp_path)


def test_those_of_later_rounds_do_not_count(tmp_path):
    """They are left from before a damaged run went back."""
    for round_ in (8, 9, 1, 2, 3):
        checkpoint.save(tmp_path, snapshot(round_), keep=2)
    assert [int(path.name[:8]) for path in checkpoint.files(tmp_path)] == [9, 8, 3, 2]
    checkpoint.save(tmp_path, snapshot(10), keep=2)
    assert [int(path.name[:8]) for path in checkpoint.files(tmp_path)] == [10, 9]


def test_those_before_a_deletion_go_at_once(tmp_path):
    for round_ in (1, 2, 3, 4):
        checkpoint.save(tmp_path, snapshot(round_), keep=9)
    checkpoint.save(tmp_path, snapshot(5), keep=9, forgotten=3)
    assert [int(path.name[:8]) for path in checkpoint.files(tmp_path)] == [5, 4]


def test_what_it_says_about_its_run(tmp_path):
    point = checkpoint.RunPoint({"metrics.jsonl": (12, "ab")}, {"data": "cd"})
    path = checkpoint.save(tmp_path, snapshot(), 1, point)
    _, found = checkpoint.load_with_point(path)
    assert dict(found.identity) == point.identity
    assert {name: tuple(value) for name, value in found.records.items()} == point.records


def by_the_package(original: Snapshot) -> bytes:
    """As the package would write it, all at once."""
    tensors = {"model/buffers": original.buffers}
    places = {"server": original.server, "weighting_state": original.weighting_state}
    places |= {f"past/{k}": kept.record for k, kept in enumerate(original.past)}
    tensors |= {f"{place}/{n}": t for place, r in places.items() for n, t in r.items()}
    for client, client_state in original.client_states.items():
        tensors |= {
            f"client/{client}/{name}": tensor for name, tensor in named_tensors(client_state)
        }
    rest = {
        "format": "chronofed-checkpoint-3",
        "round": original.round,
        "traffic": [original.traffic.down_bytes, original.traffic.up_bytes],
        "past": item_metadata(original.past),
        "client_states": {
            c: item_metadata(k.items) for c, k in sorted(original.client_states.items())
        },
        "run": {"records": {}, "identity": {}},
    }
    whole = {name: tensor.clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(whole, {"about": json.dumps(rest)})


def in_a_store(original: Snapshot, folder) -> Snapshot:
    store = StateCache(0, folder)
    store.update(original.client_states)
    return replace(original, client_states=store.snapshot())


def test_the_bytes_are_those_of_the_safetensors_package(tmp_path):
    content = by_the_package(snapshot())
    assert checkpoint.encode(snapshot()) == content
    assert checkpoint.encode(in_a_store(snapshot(), tmp_path / "spilled")) == content
    path = checkpoint.save(tmp_path, snapshot(), keep=1)
    assert path.read_bytes() == content
    assert set(safetensors.torch.load_file(path)) >= {"server/params", "client/10/items/0/x"}
    assert checkpoint.encode(checkpoint.load(path)) == content


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(st.dictionaries(names, st.tuples(st.sampled_from(list(safetensors_io.CODES)), shapes)))
@settings(max_examples=200)
def test_streams_are_what_safetensors_writes(about):
    tensors = {name: torch.ones(shape).to(dtype) for name, (dtype, shape) in about.items()}
    tensors.pop("__metadata__", None)
    content = b"".join(safetensors_io.save(tensors, {"a": 'b"\n'}))
    assert content == safetensors.torch.save(tensors, {"a": 'b"\n'})
    metadata, places = safetensors_io.read_header(safetensors_io.Bytes(content))
    assert metadata == {"a": 'b"\n'}
    for name, tensor in tensors.items():
        back = safetensors_io.read(safetensors_io.Bytes(content), places[name])
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert bytes(safetensors_io.numbers(back)) == bytes(safetensors_io.numbers(tensor))


def header(**about) -> bytes:
    table = {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | about}
    text = json.dumps(table, separators=(",", ":"))
    return len(text).to_bytes(8, "little") + text.encode() + bytes(8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        (2**60).to_bytes(8, "little"),
        b"\2" + bytes(7) + b"[]",
        header()[:-1],
        header(shape=[3]),
        header(data_offsets=[-8, 0]),
        header(data_offsets=[8, 16]),
        header(dtype="F31"),
    ],
)
def test_what_is_not_safetensors_is_refused(content):
    with pytest.raises(ValueError, match=r"."):
        safetensors_io.read_header(safetensors_io.Bytes(content))
    assert set(safetensors_io.read_header(safetensors_io.Bytes(header()))[1]) == {"t"}


class Watched(StateView):
    """Notes how many of its client states are alive at once."""

    alive, most, reads = 0, 0, 0

    def __getitem__(self, client):
        client_state = super().__getitem__(client)
        self.alive, self.reads = self.alive + 1, self.reads + 1
        self.most = max(self.most, self.alive)
        first = next(iter(client_state.backbone_state.values()))
        weakref.finalize(first, self._gone)
        return client_state

    def _gone(self):
        self.alive -= 1


def crowd(folder, clients: int, numbers: int) -> Snapshot:
    store = StateCache(0, folder)
    for client in range(clients):
        kept = (MemoryItem(0, client, 0, 1, {"y": torch.full((3,), client)}),)
        store[client] = ClientState({"personal": torch.full((numbers,), float(client))}, kept)
    return Snapshot(1, {"params": torch.ones(2)}, torch.empty(0), store.snapshot())


def test_one_client_state_at_a_time_is_in_memory(tmp_path):
    original = crowd(tmp_path / "spilled", 30, 4)
    watched = Watched(original.client_states.handles)
    path = checkpoint.save(tmp_path, replace(original, client_states=watched), keep=1)
    assert watched.most <= 2  # the last one goes when the next has come
    assert watched.reads == 3 * 30  # outlines, then both kinds of numbers
    copy = checkpoint.load(path)
    assert all(handle.client_state is None for handle in copy.client_states.handles.values())
    store = StateCache(100, tmp_path)
    store.adopt(copy.client_states)
    assert store.cached_bytes == 0  # nothing was read
    assert store[7].backbone_state["personal"].tolist() == [7.0] * 4
    assert store.cached_bytes == 4 * 4 + 3 * 8


def test_memory_does_not_grow_with_the_client_states(tmp_path):
    original = crowd(tmp_path / "spilled", 40, 250_000)  # 40 MB
    tracemalloc.start()
    path = checkpoint.save(tmp_path, original, keep=1)
    checkpoint.load(path)
    _, peak = tracemalloc.get_traced_memory()  # files as bytes; tensors are seen above
    tracemalloc.stop()
    assert peak < 4e6
    assert path.stat().st_size > 40e6


def test_a_loaded_one_outlives_its_file(tmp_path):
    path = checkpoint.save(tmp_path, snapshot(), keep=1)
    copy = checkpoint.load(path)
    checkpoint.save(tmp_path, snapshot(9), keep=1)
    assert not path.exists()
    assert copy.client_states[10].backbone_state["control"].tolist() == [1.0] * 3
    before = len(os.listdir("/proc/self/fd"))
    del copy
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_file_truncated_while_in_use_is_a_clear_error(tmp_path):
    path = checkpoint.save(tmp_path, snapshot(), keep=1)
    copy = checkpoint.load(path)
    os.truncate(path, 900)
    with pytest.raises(
        RunError, match=r"in use can no longer be read: .* ends too early"
    ) as caught:
        copy.client_states[10]
    assert "\n" not in str(caught.value)


def test_a_disk_that_fills_up_leaves_the_one_before(tmp_path, monkeypatch):
    first = checkpoint.save(tmp_path, snapshot(1), keep=1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*00000002: no space left on device"):
        checkpoint.save(tmp_path, snapshot(2), keep=1)
    assert list(tmp_path.iterdir()) == [first]


def test_a_spilled_client_state_that_is_damaged_leaves_no_half_checkpoint(tmp_path):
    original = in_a_store(snapshot(), tmp_path / "spilled")
    for path in (tmp_path / "spilled").rglob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(RunError, match="cannot read back a client state"):
        checkpoint.save(tmp_path, original, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["spilled"]
