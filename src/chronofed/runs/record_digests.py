"""Digests of the records of a run, kept up to date while lines are appended."""

import hashlib
from collections.abc import Mapping

from chronofed.runs.directory import LASTING_FILES, RunDirectory
from chronofed.runs.json_files import read_bytes


class RecordDigests:
    """Size and digest of every lasting record; it reads them once, and then follows what is appended.

    Args:
        directory: The run.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._sizes = dict.fromkeys(LASTING_FILES, 0)
        self._digests = {name: hashlib.blake2b(digest_size=16) for name in LASTING_FILES}
        self.add({name: read_bytes(directory.path / name) or b"" for name in LASTING_FILES})

    def add(self, appended: Mapping[str, bytes]) -> None:
        """Add the bytes that were appended to some files."""
        for name, content in appended.items():
            if name in self._digests:
                self._sizes[name] += len(content)
                self._digests[name].update(content)

    def now(self) -> dict[str, tuple[int, str]]:
        """Return size and digest of every record as of now."""
        return {name: (self._sizes[name], d.hexdigest()) for name, d in self._digests.items()}
