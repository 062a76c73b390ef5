"""The publishers' files are read exactly, and damaged ones are refused in one clear line."""

import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chronofed.core.errors import DataError
from chronofed.data import images, registry

TEN = tuple("abcdefghij")


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)


def refused(message: str):
    return pytest.raises(DataError, match=rf"(?s)^(?!.*\n).*{message}")  # one line


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    compress=st.booleans(),
    seed=st.integers(0),
)
def test_idx_round_trip(tmp_path_factory, shape, compress, seed):
    array = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    # The name says nothing: compressed or plain is seen from the content.
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(idx(array)) if compress else idx(array))
    read = images.read_idx(path)
    assert read.shape == tuple(shape)
    assert read.flags.writeable
    np.testing.assert_array_equal(read, array)


GOOD = idx(pixels(3, 2, 2))
PACKED = gzip.compress(GOOD)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not an IDX file: it starts with nothing"),
        (b"\0\0\x08", "not an IDX file"),
        (b"<html>", "not an IDX file: it starts with 3c 68 74 6d"),
        (b"\0\0\x0d" + GOOD[3:], "type 13 with 3 dimensions"),
        (b"\0\0\x08\0", "type 8 with 0 dimensions"),
        (GOOD[:7], "damaged"),
        (GOOD[:-1], "damaged: 27 bytes where its header promises 28"),
        (GOOD + b"\0", "damaged: 29 bytes"),
        (PACKED[: len(PACKED) // 2], "cannot be read"),
        (PACKED[:-8] + b"\0" * 8, "cannot be read: CRC check failed"),
        (PACKED[:10] + b"\xff" * 20, "cannot be read"),
    ],
    ids=range(11),
)
def test_damaged_idx(tmp_path, raw, message):
    path = tmp_path / "images.gz"
    path.write_bytes(raw)
    with refused(f"images.gz: {message}"):
        images.read_idx(path)


def test_missing_idx(tmp_path):
    with refused("nowhere: no such file"):
        images.read_idx(tmp_path / "nowhere")


def write_mnist(folder: Path, *, train: int = 6, test: int = 3, suffix: str = "") -> None:
    for prefix, count in (("train", train), ("t10k", test)):
        x, y = pixels(count, 28, 28), np.arange(count) % 10
        for kind, array in (("images-idx3", x), ("labels-idx1", y)):
            raw = gzip.compress(idx(array)) if suffix else idx(array)
            (folder / f"{prefix}-{kind}-ubyte{suffix}").write_bytes(raw)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist(tmp_path, suffix):
    write_mnist(tmp_path, suffix=suffix)
    data = images.fashion_mnist(tmp_path, "clothes", TEN)
    assert (data.name, data.classes, data.shape) == ("clothes", TEN, (1, 28, 28))
    assert (data.train.x.dtype, data.train.y.dtype) == (torch.uint8, torch.int64)
    np.testing.assert_array_equal(data.train.x[:, 0], pixels(6, 28, 28))
    assert data.train.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.test.x.shape == (3, 1, 28, 28)
    assert data.test.y.tolist() == [0, 1, 2]


def test_fashion_mnist_files_that_do_not_fit(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(4)))
    with refused(r"the t10k files do not match: images \(3, 28, 28\) and labels \(4,\)"):
        images.fashion_mnist(tmp_path, "clothes", TEN)


def test_fashion_mnist_images_that_are_none(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((6, 784))))
    with refused(r"the train files do not match: images \(6, 784\) and labels \(6,\)"):
        images.fashion_mnist(tmp_path, "clothes", TEN)


def test_fashion_mnist_label_without_a_class(tmp_path):
    write_mnist(tmp_path)
    with refused("label 5 where there are 4 classes"):
        images.fashion_mnist(tmp_path, "clothes", TEN[:4])


def write_cifar10(folder: Path, per_file: int = 2) -> np.ndarray:
    """Six files of the official form; the labels count up to nine and start again."""
    folder.mkdir()
    records = np.concatenate([np.arange(6 * per_file)[:, None] % 10, pixels(6 * per_file, 3072)], 1)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for name, rows in zip(names, np.split(records.astype(np.uint8), 6), strict=True):
        (folder / name).write_bytes(rows.tobytes())
    return records[:, 1:].reshape(-1, 3, 32, 32)


def pack(folder: Path, archive: Path, leave_out: str = "") -> Path:
    with tarfile.open(archive, "w:gz") as out:
        out.addfile(tarfile.TarInfo(f"{folder.name}/readme.html"), io.BytesIO())
        for file in sorted(folder.iterdir()):
            if file.name != leave_out:
                out.add(file, f"{folder.name}/{file.name}")
    return archive


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10(tmp_path, packed):
    path = tmp_path / "cifar-10-batches-bin"
    expected = write_cifar10(path)
    if packed:
        path = pack(path, tmp_path / "cifar-10-binary.tar.gz")
    data = images.cifar10(path, "cifar10", TEN)
    assert (data.name, data.classes, data.shape) == ("cifar10", TEN, (3, 32, 32))
    assert (data.train.x.dtype, data.train.y.dtype) == (torch.uint8, torch.int64)
    np.testing.assert_array_equal(data.train.x, expected[:10])
    np.testing.assert_array_equal(data.test.x, expected[10:])
    assert data.train.y.tolist() == list(range(10))
    assert data.test.y.tolist() == [0, 1]


@pytest.mark.parametrize("packed", [False, True])
def test_cifar100_takes_the_fine_label(tmp_path, packed):
    path = tmp_path / "cifar-100-binary"
    path.mkdir()
    for name, coarse, fine in (("train.bin", 19, 42), ("test.bin", 7, 99)):
        (path / name).write_bytes(bytes([coarse, fine]) + pixels(3072).tobytes())
    if packed:
        path = pack(path, tmp_path / "cifar-100-binary.tar.gz")
    data = images.cifar100(path, "cifar100", registry.find("cifar100").classes)
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([42], [99])
    np.testing.assert_array_equal(data.train.x[0], pixels(3072).reshape(3, 32, 32))
    assert data.classes[42] == "leopard"


def test_cifar_file_that_is_cut(tmp_path):
    folder = tmp_path / "bin"
    write_cifar10(folder)
    for raw in ((folder / "data_batch_3.bin").read_bytes()[:-1], b""):
        (folder / "data_batch_3.bin").write_bytes(raw)
        with refused(f"data_batch_3.bin: damaged: {len(raw)} bytes are not a whole number of rec"):
            images.cifar10(folder, "cifar10", TEN)


def test_cifar_label_without_a_class(tmp_path):
    write_cifar10(tmp_path / "bin")
    with refused("label 9 where there are 9 classes"):
        images.cifar10(tmp_path / "bin", "cifar10", TEN[:9])


def test_cifar_file_that_is_missing(tmp_path):
    write_cifar10(tmp_path / "bin")
    archive = pack(tmp_path / "bin", tmp_path / "a.tar.gz", leave_out="data_batch_2.bin")
    with refused("a.tar.gz: incomplete archive without data_batch_2.bin"):
        images.cifar10(archive, "cifar10", TEN)
    (tmp_path / "bin" / "test_batch.bin").unlink()
    with refused("test_batch.bin: no such file"):
        images.cifar10(tmp_path / "bin", "cifar10", TEN)
    with refused("remote: no such file or folder"):
        images.cifar10(tmp_path / "remote", "cifar10", TEN)


@pytest.mark.parametrize("keep", [0, 5, 100, 20_000])
def test_cifar_archive_that_is_cut(tmp_path, keep):
    write_cifar10(tmp_path / "bin")
    archive = pack(tmp_path / "bin", tmp_path / "a.tar.gz")
    archive.write_bytes(archive.read_bytes()[:keep])
    with refused("a.tar.gz: damaged archive: .*; remove it and download it again"):
        images.cifar10(archive, "cifar10", TEN)


def test_real_cifar10():
    folder = Path(os.environ.get("CHRONOFED_DATA", "/nowhere")) / "cifar-10-batches-bin"
    if not folder.is_dir():
        pytest.skip(
            "no CIFAR-10: run `python ../shared/data/unpack.py DIR` and set CHRONOFED_DATA=DIR"
        )
    classes = registry.find("cifar10").classes
    assert classes == tuple((folder / "batches.meta.txt").read_text().split())
    data = images.cifar10(folder, "cifar10", classes)
    assert torch.bincount(data.train.y).tolist() == [5000] * 10
    assert torch.bincount(data.test.y).tolist() == [1000] * 10
    assert classes[data.train.y[0]] == "frog"
    # The well-known means of red, green and blue, which a wrong order of the planes would permute.
    sums = data.train.x.sum((0, 2, 3), dtype=torch.int64)
    means = sums.double() / (255 * 50_000 * 1024)
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
