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


class UserCodeError(ChronofedError):
    """An error of the user's own code.

    Attributes:
        frames: The part of the traceback that is in the user's files; empty if none is.
    """

    exit_code: ClassVar[int] = 8

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message, frames)
        self.frames = frames

    def __str__(self) -> str:
        return str(self.args[0])


def cannot_write(path: Path, error: OSError) -> StorageError:
    """Describe a failed write in one line."""
    in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
    reason = "not a directory" if in_the_way else (error.strerror or str(error)).lower()
    advice = "choose another path" if in_the_way else "free some space or fix the permissions"
    return StorageError(f"cannot write {path}: {reason}; {advice}")
