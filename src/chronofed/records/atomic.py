"""Writing files so that a reader, or a crash, meets the old content or the new, never a part."""

import os
from contextlib import suppress
from pathlib import Path

from chronofed.errors import StorageError


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``: first beside it, then flushed to disk, then renamed.

    Raises:
        StorageError: If it cannot be written; what was there before is untouched.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _flush_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise cannot_write(path, error) from error


def append_line(path: Path, line: bytes) -> None:
    """Append one line in a single write.

    A line cut short by a full disk is taken back, so that the file holds whole lines only.

    Raises:
        StorageError: If it cannot be written.
    """
    try:
        with path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                _write_all(file.fileno(), line + b"\n")
            except OSError:
                os.ftruncate(file.fileno(), before)
                raise
    except OSError as error:
        raise cannot_write(path, error) from error


def flush(path: Path) -> None:
    """Make what was appended to ``path`` survive a power failure."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def cannot_write(path: Path, error: OSError) -> StorageError:
    """One clear line about a write that failed."""
    reason = (error.strerror or str(error)).lower()
    return StorageError(f"cannot write {path}: {reason}; free some space or mend the permissions")


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _flush_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
