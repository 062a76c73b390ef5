"""Writing files so that a reader, or a crash, meets the old content or the new, never a part."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from chronofed.errors import cannot_write


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there.

    Raises:
        StorageError: If it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``: first beside it, then flushed to disk, then renamed.

    Raises:
        StorageError: If it cannot be written; what was there before is untouched.
    """
    write_parts(path, [content])


def write_parts(
    path: Path, parts: Iterable[bytes | memoryview], name: Callable[[], str] | None = None
) -> Path:
    """Write a file part by part, as :func:`write_atomic` does.

    Args:
        path: Where to.
        parts: The content.
        name: The file's last name, asked for when all parts are written; by default that of ``path``.

    Returns:
        The file.

    Raises:
        StorageError: If it cannot be written; what was there before is untouched.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        path = path if name is None else path.with_name(name())
        beside.replace(path)
        flush_directory(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            beside.unlink()  # gone already if all went well
    return path


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


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def flush_directory(folder: Path) -> None:
    """Make a new or renamed file survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
