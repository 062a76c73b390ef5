"""What can go wrong, and the exit code a script sees.

Every message is one line: what happened, where, and what to do about it.
"""

from pathlib import Path
from typing import ClassVar


class ChronofedError(Exception):
    """Base of all errors that are the user's to mend, not a defect of the program."""

    exit_code: ClassVar[int] = 1


class SpecError(ChronofedError):
    """A specification or an option that cannot be used."""

    exit_code: ClassVar[int] = 2


class IncompatibleError(SpecError):
    """A method needs something that the scenario does not give."""


class DataError(ChronofedError):
    """Data that is missing, damaged or not of the expected form."""

    exit_code: ClassVar[int] = 3


class RunError(ChronofedError):
    """A run directory that is missing, in use, or beyond repair."""

    exit_code: ClassVar[int] = 4


class StorageError(ChronofedError):
    """Something could not be written; what was there before is untouched."""

    exit_code: ClassVar[int] = 5


class MissingExtraError(ChronofedError):
    """An optional dependency is not installed."""

    exit_code: ClassVar[int] = 6

    def __init__(self, module: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {module}: pip install 'chronofed[{extra}]'")


class DivergedError(ChronofedError):
    """Training produced numbers that are not finite."""

    exit_code: ClassVar[int] = 7


def cannot_write(path: Path, error: OSError) -> StorageError:
    """One clear line about a write that failed."""
    reason = (error.strerror or str(error)).lower()
    return StorageError(f"cannot write {path}: {reason}; free some space or mend the permissions")
