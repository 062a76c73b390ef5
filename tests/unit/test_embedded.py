"""The data in the package: balanced, small enough, licensed, and what the script makes."""

import gzip
import importlib.util
import zlib
from pathlib import Path

import pytest
import torch

from chronofed.data import images, registry

SCRIPT = Path(__file__).parents[2] / "scripts/make_embedded.py"
SOURCE = Path("/usr/share/datasets/fashion-mnist")


def test_balanced_and_of_the_promised_form():
    data = registry.load("fashion-mnist-mini")
    assert data.shape == (1, 28, 28)
    assert torch.bincount(data.train.y).tolist() == [1050] * 10
    assert torch.bincount(data.test.y).tolist() == [200] * 10
    assert data.classes[9] == "Ankle boot"
    assert data.name == "fashion-mnist-mini"


def test_no_image_is_in_both_sets():
    data = registry.load("fashion-mnist-mini")
    train, test = (
        {bytes(image) for image in part.x.flatten(1).numpy()} for part in (data.train, data.test)
    )
    assert len(train) > 10_400
    assert not train & test


def test_small_enough_for_a_wheel():
    assert sum(file.stat().st_size for file in registry.EMBEDDED.rglob("*")) <= 6_000_000


def test_licence_comes_along():
    licence = (registry.EMBEDDED / "LICENSE").read_text()
    assert "Copyright (c) 2017 Zalando SE" in licence
    assert "Permission is hereby granted, free of charge" in licence
    assert "MERCHANTABILITY" in licence


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("make_embedded", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_script_reproduces_the_files(script, tmp_path):
    if not SOURCE.is_dir():
        pytest.skip("no Fashion-MNIST in /usr/share/datasets: apt install dataset-fashion-mnist")
    size = script.make(SOURCE, tmp_path)
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    shipped = sorted(path for path in registry.EMBEDDED.rglob("*") if path.is_file())
    assert [p.relative_to(tmp_path) for p in made] == [
        p.relative_to(registry.EMBEDDED) for p in shipped
    ]
    assert size == sum(path.stat().st_size for path in shipped)
    for ours, theirs in zip(made, shipped, strict=True):
        unpack = gzip.decompress if ours.suffix == ".gz" else bytes
        assert unpack(ours.read_bytes()) == unpack(theirs.read_bytes())
        # zlib-ng compresses the same content to other bytes.
        if "ng" not in zlib.ZLIB_RUNTIME_VERSION:
            assert ours.read_bytes() == theirs.read_bytes()


def test_script_keeps_the_order_and_the_number(script, monkeypatch):
    monkeypatch.setitem(script.PER_CLASS, "train", 3)
    labels = torch.arange(40).remainder(4).numpy()
    rows = script.chosen(labels, "train")
    assert len(rows) == 12
    assert (rows[1:] > rows[:-1]).all()
    assert sorted(labels[rows]) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    monkeypatch.setattr(script, "SEED", 1)
    assert rows.tolist() != script.chosen(labels, "train").tolist()


def test_script_writes_what_the_reader_reads(script, tmp_path):
    array = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4).numpy()
    (tmp_path / "file.gz").write_bytes(script.idx(array))
    assert images.read_idx(tmp_path / "file.gz").tolist() == array.tolist()
    assert script.idx(array)[4:8] == bytes(4)  # no time in the header
