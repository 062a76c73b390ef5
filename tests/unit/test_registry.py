"""The catalogue: where data is looked for, what is said when it is not there."""

import gzip
import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chronofed.core.errors import DataError, SpecError
from chronofed.data import registry

DEBIAN = Path("/usr/share/datasets")


@pytest.fixture(autouse=True)
def remote(monkeypatch, tmp_path):
    """No data of this machine: an empty cache, no environment, and Debian's folder out of sight."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CHRONOFED_DATA", raising=False)
    found = registry.folders
    monkeypatch.setattr(registry, "folders", lambda extra=None: found(extra)[:-1])
    return found


def put(folder: Path, name: str) -> Path:
    """Empty files with the right names."""
    entry = registry.find(name)
    (folder / entry.folder).mkdir(parents=True)
    for part, _ in entry.parts:
        (folder / entry.folder / part).touch()
    return folder / entry.folder


def test_folders_in_order(remote, monkeypatch, tmp_path):
    cache = tmp_path / "cache" / "chronofed"
    assert remote(None) == [cache, DEBIAN]
    monkeypatch.setenv("CHRONOFED_DATA", "/data/sets")
    assert remote(Path("here")) == [Path("here"), Path("/data/sets"), cache, DEBIAN]


def test_folders_without_a_cache_variable(remote, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in (None, ""):
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        if value is not None:
            monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("CHRONOFED_DATA", "~/sets")
        assert remote()[:2] == [tmp_path / "sets", tmp_path / ".cache/chronofed"]


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "cifar100"])
def test_locate_takes_the_first_place(name, monkeypatch, tmp_path):
    assert registry.locate(name) is None
    cached = put(tmp_path / "cache" / "chronofed", name)
    assert registry.locate(name) == cached
    monkeypatch.setenv("CHRONOFED_DATA", str(tmp_path / "variable"))
    assert registry.locate(name) == cached
    variable = put(tmp_path / "variable", name)
    assert registry.locate(name) == variable
    explicit = put(tmp_path / "explicit", name)
    assert registry.locate(name, tmp_path / "explicit") == explicit
    # The folder of the files themselves will do too.
    assert registry.locate(name, explicit) == explicit


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "cifar100"])
def test_an_incomplete_folder_is_not_located(name, tmp_path):
    folder = put(tmp_path, name)
    (folder / registry.find(name).parts[-1][0]).unlink()
    assert registry.locate(name, tmp_path) is None


def test_locate_decompressed_files(tmp_path):
    folder = put(tmp_path, "fashion-mnist")
    for file in folder.iterdir():
        file.rename(file.with_suffix(""))
    assert registry.locate("fashion-mnist", tmp_path) == folder


@pytest.mark.parametrize(
    ("name", "archive"),
    [("cifar10", "cifar-10-binary.tar.gz"), ("cifar100", "cifar-100-binary.tar.gz")],
)
def test_locate_an_archive(name, archive, tmp_path):
    (tmp_path / archive).touch()
    assert registry.locate(name, tmp_path) == tmp_path / archive
    unpacked = put(tmp_path, name)
    assert registry.locate(name, tmp_path) == unpacked  # quicker to read


def test_the_embedded_set_is_always_there(tmp_path):
    found = registry.locate("fashion-mnist-mini", tmp_path)
    assert found == Path(registry.__file__).parent / "embedded/fashion-mnist-mini"
    assert found.is_dir()


def test_missing_data_says_what_to_do(tmp_path):
    with pytest.raises(DataError) as caught:
        registry.load("fashion-mnist", tmp_path / "mine")
    message = str(caught.value)
    assert "\n" not in message
    assert f"fashion-mnist is not in {tmp_path}/mine, {tmp_path}/cache/chronofed;" in message
    assert "online: chronofed data get fashion-mnist;" in message
    assert "offline: put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-i" in message
    assert "into DIR/fashion-mnist and set CHRONOFED_DATA=DIR or give --data DIR" in message
    assert message.endswith("or apt install dataset-fashion-mnist")


def test_missing_cifar_names_the_archive(tmp_path):
    with pytest.raises(DataError, match=r"put cifar-100-binary.tar.gz into DIR and set") as caught:
        registry.load("cifar100")
    assert "apt" not in str(caught.value)


def test_unknown_name():
    with pytest.raises(SpecError, match=r"'cifar-10': did you mean 'cifar10'\? known are fashion-"):
        registry.load("cifar-10")
    with pytest.raises(SpecError, match=r"'x': known are fashion-mnist-mini, .*, cifar100$"):
        registry.locate("x")


def test_a_subset_is_not_the_whole(tmp_path):
    (tmp_path / "fashion-mnist").symlink_to(registry.EMBEDDED / "fashion-mnist-mini")
    message = (
        r"fashion-mnist: not fashion-mnist: \(10500, 2000\) samples .*, expected \(60000, 10000\)"
    )
    with pytest.raises(DataError, match=message):
        registry.load("fashion-mnist", tmp_path)


def write_records(path: Path, count: int, label_bytes: int) -> None:
    path.write_bytes(bytes([*[3] * label_bytes, *[7] * 3072]) * count)


@pytest.mark.parametrize(("name", "label_bytes"), [("cifar10", 1), ("cifar100", 2)])
def test_load_reads_by_the_entry(name, label_bytes, monkeypatch, tmp_path):
    folder = put(tmp_path, name)
    for part, _ in registry.find(name).parts:
        write_records(folder / part, 2, label_bytes)
    train = 2 * (len(registry.find(name).parts) - 1)
    monkeypatch.setitem(registry.CATALOGUE, name, replace(registry.find(name), train=train, test=2))
    data = registry.load(name, tmp_path)
    assert (data.name, len(data.train), len(data.test)) == (name, train, 2)
    assert data.classes == registry.find(name).classes
    assert (data.test.x == 7).all()
    assert (data.train.y == 3).all()


def test_the_catalogue_is_consistent():
    assert list(registry.CATALOGUE) == [
        "fashion-mnist-mini",
        "fashion-mnist",
        "cifar10",
        "cifar100",
    ]
    for name, entry in registry.CATALOGUE.items():
        assert entry.name == name
        assert len(set(entry.classes)) == len(entry.classes) == (100 if name == "cifar100" else 10)
        assert entry.embedded == (name == "fashion-mnist-mini") == (not entry.files)
        assert all(len(file.md5) == 32 for file in entry.files)
        fixed = sum(size for _, size in entry.parts)
        records = (entry.train + entry.test) * (np.prod(entry.shape) + 1 + (name == "cifar100"))
        assert fixed == (0 if entry.reader == "fashion_mnist" else records)
    assert registry.find("cifar100").classes == tuple(sorted(registry.find("cifar100").classes))
    assert registry.find("fashion-mnist").size == 26_421_880 + 29_515 + 4_422_102 + 5_148


# When the publisher compressed each file; Debian's build removes this and the name from the header.
PACKED_AT = {"train": 1_504_176_606, "t10k": 1_504_176_627}


@pytest.mark.parametrize("file", registry.find("fashion-mnist").files, ids=lambda file: file.name)
def test_debians_files_are_the_published_ones(file):
    path = DEBIAN / file.path
    if not path.exists():
        pytest.skip("no Fashion-MNIST in /usr/share/datasets: apt install dataset-fashion-mnist")
    raw = path.read_bytes()
    assert hashlib.sha256(gzip.decompress(raw)).hexdigest() == file.content
    # With name and time put back into the header, the bytes are those that the publisher offers.
    time = PACKED_AT[file.name.partition("-")[0]].to_bytes(4, "little")
    name = file.name.removesuffix(".gz").encode() + b"\0"
    published = b"\x1f\x8b\x08\x08" + time + b"\0\x03" + name + raw[10:]
    assert len(published) == file.size
    assert hashlib.md5(published).hexdigest() == file.md5


def test_import_does_not_wait_for_torch():
    code = (
        "import sys; from chronofed.data import download, registry;"
        "registry.locate('cifar10'); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
