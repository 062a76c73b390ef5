"""User-facing errors, as opposed to bugs, and their exit codes.

Every message is one line: what happened, where, and how to fix it.
"""

from pathlib import Path
from typing import ClassVar


class ChronofedError(Exception):
    """Base of all errors that the user can fix, as opposed to bugs."""

    exit_code: ClassVar[int] = 1


class SpecError(ChronofedError):
    """An invalid spec or option."""

    exit_code: ClassVar[int] = 2


class IncompatibleError(SpecError):
    """A method that needs something the scenario does not provide."""


class DataError(ChronofedError):
    """Data that are missing, damaged or not in the expected format."""

    exit_code: ClassVar[int] = 3


class RunError(ChronofedError):
    """A run directory that is missing, in use or damaged."""

    exit_code: ClassVar[int] = 4


class StorageError(ChronofedError):
    """A failed write; the old content is untouched."""

    exit_code: ClassVar[int] = 5


class MissingExtraError(ChronofedError):
    """An optional dependency that is not installed."""

    exit_code: ClassVar[int] = 6

    def __init__(self, module: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {module}: pip install 'chronofed[{extra}]'")
        self._arguments = (module, extra, purpose)

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str, str]]:
        """Pickle the arguments instead of the message, to cross from a worker process."""
        return MissingExtraError, self._arguments


class DivergedError(ChronofedError):
    """Training that produced infinite numbers or NaN."""

    exit_code: ClassVar[int] = 7


def cannot_write(path: Path, error: OSError) -> StorageError:
    """Describe a failed write in one line."""
    reason = (error.strerror or str(error)).lower()
    return StorageError(f"cannot write {path}: {reason}; free some space or fix the permissions")
