"""Read image data from their publishers' own files: IDX and the binary version of CIFAR.

Nothing is unpacked on disk and nothing is converted: pixels stay ``uint8`` until the model scales them.
"""

import gzip
import math
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.core.types import Samples
from chronofed.data.dataset import Dataset
from chronofed.data.limits import IMAGE_FILE_BYTES
from chronofed.data.registry import stored

Bytes = NDArray[np.uint8]

_GZIP_MAGIC = b"\x1f\x8b"
_IDX_UNSIGNED_BYTE = 8
_CIFAR_PIXELS = 3 * 32 * 32
# What gzip and tarfile raise for damaged content.
_DAMAGE = (
    OSError,
    EOFError,
    zlib.error,
    tarfile.TarError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    RecursionError,
    MemoryError,
)


def read_idx(path: Path) -> Bytes:
    """Read an array of unsigned bytes from an IDX file, gzipped or plain.

    The header is two zero bytes, the element type, the number of dimensions, and each dimension as
    four bytes, most significant first.

    Raises:
        DataError: If the file is missing, truncated or not an IDX file of unsigned bytes.
    """
    raw = _contents(path)
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise DataError(f"{path}: not an IDX file: it starts with {raw[:4].hex(' ') or 'nothing'}")
    if raw[2] != _IDX_UNSIGNED_BYTE or raw[3] == 0:
        raise DataError(f"{path}: type {raw[2]} with {raw[3]} dimensions; expected unsigned bytes")
    start = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[at : at + 4]) for at in range(4, start, 4)]
    if len(raw) != start + math.prod(shape):
        promised = start + math.prod(shape)
        raise DataError(f"{path}: damaged: {len(raw)} bytes where its header promises {promised}")
    # A copy, because torch needs a writable array.
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def fashion_mnist(folder: Path, name: str, classes: tuple[str, ...]) -> Dataset:
    """Read the four IDX files of Fashion-MNIST, or of any data set in MNIST's layout, in ``folder``."""
    return Dataset(
        name,
        train=_idx_split(folder, "train", len(classes)),
        test=_idx_split(folder, "t10k", len(classes)),
        classes=classes,
    )


def cifar10(path: Path, name: str, classes: tuple[str, ...]) -> Dataset:
    """Read the binary version of CIFAR-10: the folder ``cifar-10-batches-bin`` or its archive."""
    train = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return _cifar(path, name, classes, train, "test_batch.bin", label_bytes=1)


def cifar100(path: Path, name: str, classes: tuple[str, ...]) -> Dataset:
    """Read the binary version of CIFAR-100 with fine labels: ``cifar-100-binary`` or its archive."""
    return _cifar(path, name, classes, ["train.bin"], "test.bin", label_bytes=2)


def _contents(path: Path) -> bytes:
    """Read a file, decompressed if it is gzipped, whatever its name."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if packed else file
            raw = stream.read(IMAGE_FILE_BYTES + 1)
        _check_size(path, len(raw))
        return raw
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except _DAMAGE as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _idx_split(folder: Path, prefix: str, classes: int) -> Samples:
    pixels = read_idx(stored(folder / f"{prefix}-images-idx3-ubyte.gz"))
    labels = read_idx(stored(folder / f"{prefix}-labels-idx1-ubyte.gz"))
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
        shapes = f"images {pixels.shape} and labels {labels.shape}"
        raise DataError(f"{folder}: the {prefix} files do not match: {shapes}")
    return _samples(pixels[:, None], labels, classes, f"{folder}/{prefix}-labels-idx1-ubyte")


def _cifar(
    path: Path,
    name: str,
    classes: tuple[str, ...],
    train: Sequence[str],
    test: str,
    label_bytes: int,
) -> Dataset:
    files = _members(path, {*train, test})

    def split(members: Sequence[str]) -> Samples:
        # A record is its labels, the fine one last, and the red, green and blue planes.
        records = [_records(path / m, files.pop(m), label_bytes + _CIFAR_PIXELS) for m in members]
        pixels = np.concatenate([record[:, label_bytes:] for record in records])
        labels = np.concatenate([record[:, label_bytes - 1] for record in records])
        return _samples(pixels.reshape(-1, 3, 32, 32), labels, len(classes), str(path))

    return Dataset(name, train=split(train), test=split([test]), classes=classes)


def _members(path: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Read the wanted files of a folder, or of a ``.tar.gz`` archive, by name."""
    if path.is_dir():
        return {member: _contents(path / member) for member in wanted}
    found = _archive_members(path, frozenset(wanted))
    if missing := sorted(set(wanted) - set(found)):
        raise DataError(f"{path}: incomplete archive without {', '.join(missing)}")
    return found


def _archive_members(path: Path, wanted: frozenset[str]) -> dict[str, bytes]:
    found = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for entry in archive:
                member = PurePosixPath(entry.name).name
                # Links are not followed: they may lead anywhere, or in circles.
                if member in wanted and entry.isreg():
                    _check_size(path / member, entry.size)
                    found[member] = _extracted(archive, entry)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file or folder") from None
    except _DAMAGE as error:
        raise DataError(
            f"{path}: damaged archive: {error}; remove it and download it again"
        ) from None
    return found


def _extracted(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    return b"" if file is None else file.read()


def _check_size(path: Path, size: int) -> None:
    if size > IMAGE_FILE_BYTES:
        limit = f"more than {IMAGE_FILE_BYTES:,} bytes unpacked"
        raise DataError(f"{path}: damaged: {limit}; remove it and download it again")


def _records(path: Path, raw: bytes, width: int) -> Bytes:
    if not raw or len(raw) % width:
        what = f"{len(raw)} bytes are not a whole number of records of {width}"
        raise DataError(f"{path}: damaged: {what}")
    return np.frombuffer(raw, np.uint8).reshape(-1, width)


def _samples(pixels: Bytes, labels: Bytes, classes: int, where: str) -> Samples:
    if len(labels) and labels.max() >= classes:
        raise DataError(f"{where}: damaged: label {labels.max()} where there are {classes} classes")
    return Samples(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))
