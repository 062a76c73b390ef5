"""Checkpoints come back bit for bit, or are known to be damaged."""

import pytest
import torch

from chronofed import CoreSet, Method, Snapshot
from chronofed.errors import RunError
from chronofed.memories import Keepsake
from chronofed.protocol import Locker
from chronofed.records import checkpoint
from chronofed.traffic import Traffic


def snapshot(round_: int = 3) -> Snapshot:
    generator = torch.Generator().manual_seed(round_)
    pixels = torch.randint(256, (4, 1, 2, 2), generator=generator, dtype=torch.uint8)
    kept = (
        Keepsake(1, 10, 7, 50, {"x": pixels, "y": torch.tensor([0, 1, 2, 3])}),
        Keepsake(2, 10, 9, 60, {"x": pixels[:1], "y": torch.tensor([1])}),
    )
    lockers = {10: Locker({"control": torch.ones(3)}, kept), 2: Locker()}
    server = {"params": torch.randn(5, generator=generator), "momentum": torch.zeros(5)}
    past = (Keepsake(0, 3, 1, 9, {"linear": torch.rand(2, generator=generator)}),)
    learned = {"drift": torch.tensor([1.0, 2.0])}
    return Snapshot(round_, server, torch.empty(0), lockers, past, learned, Traffic(10, 20))


def test_round_trip():
    original = snapshot()
    copy = checkpoint.decode(checkpoint.encode(original))
    assert copy.round == 3
    assert torch.equal(copy.params, original.params)
    assert set(copy.server) == {"params", "momentum"}
    assert copy.buffers.shape == (0,)
    assert set(copy.lockers) == {2, 10}
    assert copy.lockers[2] == Locker()
    assert torch.equal(copy.lockers[10].state["control"], torch.ones(3))
    about = [(k.round, k.client, k.key, k.size) for k in copy.lockers[10].kept]
    assert about == [(1, 10, 7, 50), (2, 10, 9, 60)]
    assert torch.equal(copy.past[0].record["linear"], original.past[0].record["linear"])
    assert copy.past[0].client == 3
    assert copy.weights["drift"].tolist() == [1.0, 2.0]
    assert copy.traffic == Traffic(10, 20)
    assert torch.equal(
        copy.lockers[10].kept[0].record["x"], original.lockers[10].kept[0].record["x"]
    )
    assert copy.lockers[10].kept[0].record["x"].dtype == torch.uint8


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
def test_a_damaged_one_is_passed_over(tmp_path, damage):
    checkpoint.save(tmp_path, snapshot(1), keep=3)
    last = checkpoint.save(tmp_path, snapshot(2), keep=3)
    last.write_bytes(damage(last.read_bytes()))
    latest, complaints = checkpoint.load_latest(tmp_path)
    assert latest.round == 1
    assert len(complaints) == 1
    assert f"{last.name} is damaged" in complaints[0]


@pytest.mark.parametrize(
    "content",
    [
        b"not safetensors at all",
        checkpoint.encode(snapshot()).replace(b"checkpoint-1", b"checkpoint-9"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / f"00000001-{checkpoint._digest(content)}.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunError, match="cannot be read"):
        checkpoint.load(path)
