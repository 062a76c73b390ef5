"""Read npz files: zip archives of NumPy arrays, whose headers are not trusted."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.cells import cleaned
from chronofed.data.columns import Categorical, Columns
from chronofed.data.limits import check_bytes, check_columns

_MEMBER = ".npy"
# What zipfile raises for damaged content; RuntimeError if it is encrypted.
_DAMAGE = (
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz(path: Path, missing: frozenset[str] = frozenset()) -> Columns:
    """Read all arrays of an npz file; texts that are ``missing`` become empty.

    Raises:
        DataError: If it is damaged, holds pickled objects, or promises more than fits into memory.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (*_DAMAGE, OSError):
        raise DataError(f"{path}: {_kind(path)}") from None
    with archive:
        members = [entry for entry in archive.infolist() if entry.filename.endswith(_MEMBER)]
        check_columns(path, len(members))
        check_bytes(path, sum(entry.file_size for entry in members))
        return Columns(path, dict(_array(path, archive, entry, missing) for entry in members))


def _kind(path: Path) -> str:
    with path.open("rb") as file:
        alone = file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
    return "a single array, not an npz file of named arrays" if alone else "not an npz file"


def _array(
    path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, missing: frozenset[str]
) -> tuple[str, NDArray[Any] | Categorical]:
    name = entry.filename.removesuffix(_MEMBER)
    where = f"{path}: array {name!r}"
    try:
        with archive.open(entry) as file:
            shape, dtype = _header(file)
            if dtype.hasobject:
                complaint = (
                    "is pickled, and a pickle can run code: save it as numbers, text or dates"
                )
                raise DataError(f"{where} {complaint}")
            promised, stored = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
            if promised != stored or min(shape, default=0) < 0:
                sizes = f"its header promises {promised} bytes, and there are {stored}"
                raise DataError(f"{where} is damaged ({sizes})")
            file.seek(0)
            array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    except _DAMAGE as error:
        raise DataError(f"{where} is damaged ({first_line(error)})") from None
    if array.dtype.kind == "U" and array.ndim == 1:
        distinct, codes = np.unique(array, return_inverse=True)
        return name, Categorical([cleaned(cell, missing) for cell in distinct.tolist()], codes)
    return name, array


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of an array; NumPy limits the length of the header."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        shape, _, dtype = read(file)
    except Exception as error:
        # NumPy parses it as Python, which can fail in many ways.
        raise ValueError(f"its header cannot be read: {first_line(error)}") from None
    return shape, dtype


def first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
