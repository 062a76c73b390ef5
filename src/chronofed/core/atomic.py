"""Atomic writes: after a crash a file has its old content or the new, never a part of it."""

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from chronofed.core.errors import cannot_write


def make_folder(path: Path) -> None:
    """Make a folder and its parents, if they do not exist.

    Raises:
        StorageError: If it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to a temporary file, flush it to disk, and rename it to ``path``.

    Raises:
        StorageError: If it cannot be written; the old content is untouched.
    """
    write_parts(path, [content])


def write_parts(
    path: Path, parts: Iterable[bytes | memoryview], name: Callable[[], str] | None = None
) -> Path:
    """Write a file in parts, in the same way as :func:`write_atomic`.

    Args:
        path: The file.
        parts: Its content.
        name: Called after all parts are written, for the final name; by default the name of ``path``.

    Returns:
        The path of the written file.

    Raises:
        StorageError: If it cannot be written; the old content is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        path = path if name is None else path.with_name(name())
        temporary.replace(path)
        flush_directory(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        # After a successful write the temporary file is gone.
        with suppress(OSError):
            temporary.unlink()
    return path


def append_line(path: Path, line: bytes) -> None:
    """Append one line in a single write.

    If a full disk cuts a line short, the file is truncated, so it contains whole lines only.

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
    """Flush appended lines to disk, so that they survive a power failure.

    Raises:
        StorageError: If that fails.
    """
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from error


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists.

    Raises:
        StorageError: If it cannot be removed.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def flush_directory(folder: Path) -> None:
    """Flush a directory to disk, so that a new or renamed file survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
