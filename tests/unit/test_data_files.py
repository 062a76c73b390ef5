"""Data files that promise too much, or are not what they seem: one line, and nothing is allocated."""

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from chronofed.core.errors import DataError
from chronofed.core.paths import expand
from chronofed.data import images, limits, registry
from chronofed.data.client_source import TableFile
from chronofed.data.readers import read
from chronofed.data.table import Table

GIB = 2**30


def refused(message):
    # One line.
    return pytest.raises(DataError, match=rf"(?s)^(?!.*\n).*{message}")


def header(text):
    """The bytes of an npy file before its numbers."""
    body = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body


def array_header(shape, kind="<f8"):
    return header(str({"descr": kind, "fortran_order": False, "shape": shape}))


@pytest.fixture
def npz(tmp_path):
    """Write an npz file whose arrays are given as bytes, and read it."""

    def npz(**members):
        path = tmp_path / "data.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(f"{name}.npy", content)
        return read(path)

    return npz


def test_a_small_file_reads_as_before(npz):
    content = io.BytesIO()
    np.save(content, np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    columns = npz(x=content.getvalue(), none=array_header((0,)), one=array_header(()) + b"\0" * 8)
    assert columns.tensor("x").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert columns["none"].shape == (0,)
    assert columns["one"].shape == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            array_header((30_000_000_000,)) + b"\0" * 64,
            "promises 240000000000 bytes, and there are 64",
        ),
        (array_header((2**70, 2**70)), "array 'x' is damaged"),
        (array_header((-1, 8)) + b"\0" * 64, "array 'x' is damaged"),
        (array_header((4,)) + b"\0" * 31, "promises 32 bytes, and there are 31"),
        (array_header((4,)) + b"\0" * 33, "promises 32 bytes, and there are 33"),
        (header("(" * 1000), "array 'x' is damaged"),
        (header("[" * 1000 + "]" * 1000), "array 'x' is damaged"),
        (header("-" * 5000 + "1"), "array 'x' is damaged"),
        (header("{'descr': " + "[" * 50 + "'<f8'" + "]" * 50 + "}"), "array 'x' is damaged"),
        (header("{'a': 1}" + " " * 60_000), "array 'x' is damaged"),
        (header("nonsense"), "array 'x' is damaged"),
        (header(""), "array 'x' is damaged"),
        (array_header((1,), "<q9") + b"\0" * 8, "array 'x' is damaged"),
        (array_header((1,), "|O") + b"\0" * 8, "array 'x' is pickled"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 64, "array 'x' is damaged"),
        (b"", "array 'x' is damaged"),
        (b"no array at all", "array 'x' is damaged"),
    ],
)
def test_headers_that_lie_or_nest(npz, content, message):
    tracemalloc.start()
    try:
        with refused(message):
            npz(x=content)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_a_bomb_is_refused_before_it_is_unpacked(npz, monkeypatch):
    monkeypatch.setattr(limits, "memory_bytes", lambda: 16 * 2**20)
    bomb = array_header((2**21,)) + b"\0" * 2**24
    tracemalloc.start()
    try:
        with refused(r"data\.npz: takes 0\.0 GiB in memory, more than half"):
            npz(x=bomb)
        # The writer of the test needs its content twice.
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_the_memory_of_this_machine_is_known():
    assert 2**28 < limits.memory_bytes() < 2**50


def test_a_parquet_file_of_one_value_is_a_bomb_too(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow", reason="pip install 'chronofed[parquet]'")
    from pyarrow import parquet

    path = tmp_path / "data.parquet"
    parquet.write_table(pa.table({"x": np.zeros(2**20)}), path)
    assert len(read(path)["x"].shape) == 1
    monkeypatch.setattr(limits, "memory_bytes", lambda: 2**23)
    with refused(r"data\.parquet: takes"):
        read(path)


def test_columns_have_a_limit(tmp_path, npz, monkeypatch):
    monkeypatch.setattr(limits, "MOST_COLUMNS", 100)
    names = [f"c{k}" for k in range(101)]
    path = tmp_path / "data.csv"
    path.write_text(",".join(names))
    with refused(r"data\.csv: 101 columns, more than 100"):
        read(path)
    path.write_text(",".join(names[1:]))
    assert len(read(path).arrays) == 100
    with refused(r"data\.npz: 101 columns, more than 100"):
        npz(**dict.fromkeys(names, b""))


KEYS = {"y": np.array([0, 1, 0, 1]), "client": np.zeros(4), "time": np.arange(4)}


@pytest.mark.parametrize("shape", [(4, 0), (4, 3, 0), (4, 0, 3)])
def test_arrays_without_numbers_are_refused(tmp_path, shape):
    np.savez(tmp_path / "data.npz", x=np.zeros(shape), **KEYS)
    for standardise in (True, False):
        table = Table("data.npz", period="10", standardise=standardise)
        with refused(r"data\.npz: features of shape \(.*0.*\) hold no numbers: x"):
            table.load(tmp_path, 0)
    source = TableFile(path=str(tmp_path / "data.npz"), classes=("0", "1"))
    with refused("hold no numbers"):
        source.read(0)


def test_zip_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros(3))
    content = bytearray(path.read_bytes())
    # Marked as encrypted, in both headers of the member.
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        content[content.index(mark) + (6 if mark[2] == 3 else 8)] |= 1
    path.write_bytes(bytes(content))
    with refused("array 'x' is damaged"):
        read(path)


# Images


def archive(path, add):
    with tarfile.open(path, "w:gz") as tar:
        add(tar)
    return path


def link(tar, name, target, kind):
    entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
    entry.type, entry.linkname = kind, target
    tar.addfile(entry)


BATCHES = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["nowhere", "data_batch_1.bin", "/etc/passwd", "../../../x"])
def test_an_archive_of_links_is_incomplete(tmp_path, kind, target):
    def add(tar):
        for name in BATCHES:
            link(tar, name, target, kind)

    path = archive(tmp_path / "cifar.tar.gz", add)
    with refused(r"cifar\.tar\.gz: incomplete archive without data_batch_1\.bin"):
        images.cifar10(path, "cifar10", tuple("abcdefghij"))


def test_a_member_that_promises_too_much(tmp_path):
    entry = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
    entry.size = 224 * GIB
    path = tmp_path / "cifar.tar.gz"
    path.write_bytes(gzip.compress(entry.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024))
    with refused("test_batch.bin: damaged: more than 1,073,741,824 bytes unpacked"):
        images.cifar10(path, "cifar10", tuple("abcdefghij"))


def test_a_gzip_bomb(tmp_path, monkeypatch):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0" * 2**20))
    monkeypatch.setattr(images, "IMAGE_FILE_BYTES", 2**16)
    with refused("damaged: more than 65,536 bytes unpacked"):
        images.read_idx(path)


# Paths


def test_the_home_of_nobody(tmp_path, monkeypatch):
    nobody = "~nosuchuser-chronofed/x.csv"
    with refused("no home folder is known for ~nosuchuser-chronofed; write the whole path"):
        expand(nobody)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("~/x") == tmp_path / "x"
    for use in (
        lambda: Table(nobody).load(None, 0),
        lambda: TableFile(path=nobody, classes=("a", "b")).read(0),
        lambda: registry.folders(nobody),
    ):
        with refused("~nosuchuser-chronofed"):
            use()


def test_the_home_of_nobody_on_the_command_line(cli, workdir):
    (workdir / "spec.toml").write_text('[data]\nkind = "table"\npath = "~nosuchuser/x.csv"\n')
    for arguments in (["scenario", "spec.toml"], ["data", "where", "--data", "~nosuchuser/x"]):
        code, _, err = cli(*arguments)
        assert code == 3
        assert "no home folder is known for ~nosuchuser" in err
        assert err.count("\n") == 1
