"""Reading a file of JSON lines while another process appends to it."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronofed.runs.json_files import parsed_line


@dataclass(slots=True)
class JsonlFollower:
    """Reads the new lines of a file; starts over if the file was replaced or cut.

    Attributes:
        path: The file; it need not exist yet.
    """

    path: Path
    _inode: int = 0
    _offset: int = 0
    # The last bytes read: the same file may have been rewritten.
    _probe: bytes = b""

    def read(self) -> tuple[bool, Iterator[dict[str, Any]]]:
        """Read the new lines; skip an unfinished last line and damaged ones.

        Returns:
            ``True`` if it started over, so that earlier lines no longer count, and the new lines.
        """
        try:
            with self.path.open("rb") as file:
                restarted = self._rewritten(file.fileno())
                if restarted:
                    self._offset, self._probe = 0, b""
                file.seek(self._offset)
                content = file.read()
                self._inode = os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            vanished = self._offset > 0
            self._inode, self._offset, self._probe = 0, 0, b""
            return vanished, iter(())
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._probe = (self._probe + whole)[-64:]
        return restarted, _parsed(self.path.name, whole.splitlines())

    def _rewritten(self, descriptor: int) -> bool:
        """Check if the bytes read before are no longer there."""
        status = os.fstat(descriptor)
        if not self._offset:
            return False
        if status.st_ino != self._inode or status.st_size < self._offset:
            return True
        probed = os.pread(descriptor, len(self._probe), self._offset - len(self._probe))
        return probed != self._probe


def _parsed(name: str, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the lines that are not damaged."""
    found = (parsed_line(name, line) for line in lines)
    return (line for line in found if line is not None)


def last_lines(path: Path, most: int = 8192) -> list[dict[str, Any]]:
    """Read the last lines of a file, from its last ``most`` bytes only."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            content = file.read()
    except FileNotFoundError:
        return []
    whole = content[: content.rfind(b"\n") + 1].splitlines()
    return list(_parsed(path.name, whole[size > most :]))
