"""Following a file of lines that another process appends to."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec


@dataclass(slots=True)
class Tail:
    """Reads what is new in a file of JSON lines; begins again when the file was replaced or cut.

    Attributes:
        path: The file; it need not exist yet.
    """

    path: Path
    _file: int = 0  # its inode
    _offset: int = 0
    _probe: bytes = field(default=b"")  # the last bytes read: the same file may have been rewritten

    def read(self) -> tuple[bool, Iterator[dict[str, Any]]]:
        """Whether it began again, and the new lines; a part of a line and damaged lines are passed over."""
        try:
            with self.path.open("rb") as file:
                again = self._rewritten(file.fileno())
                if again:
                    self._offset, self._probe = 0, b""
                file.seek(self._offset)
                content = file.read()
                self._file = os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            gone = self._offset > 0
            self._file, self._offset, self._probe = 0, 0, b""
            return gone, iter(())
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._probe = (self._probe + whole)[-64:]
        return again, (line for line in map(_parsed, whole.splitlines()) if line is not None)

    def _rewritten(self, descriptor: int) -> bool:
        """Whether what was read before is no longer there."""
        about = os.fstat(descriptor)
        if not self._offset:
            return False
        if about.st_ino != self._file or about.st_size < self._offset:
            return True
        return (
            os.pread(descriptor, len(self._probe), self._offset - len(self._probe)) != self._probe
        )


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def last_lines(path: Path, most: int = 8192) -> list[dict[str, Any]]:
    """The last lines of a file, from its last ``most`` bytes only."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            content = file.read()
    except FileNotFoundError:
        return []
    whole = content[: content.rfind(b"\n") + 1].splitlines()
    return [line for line in map(_parsed, whole[size > most :]) if line is not None]
