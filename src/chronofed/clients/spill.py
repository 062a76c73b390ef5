"""Client states on disk: one file each, deleted when nothing refers to it any more."""

import json
import os
import shutil
import tempfile
import weakref
import zlib
from contextlib import suppress
from pathlib import Path

from chronofed.clients.state import ClientState, assemble, item_metadata, named_tensors
from chronofed.core import safetensors_io
from chronofed.core.errors import RunError, cannot_write

SPILL_PREFIX = "client-states-"
"""Start of the name of a folder of spilled client states. A run that resumes deletes leftover folders."""


class SpillFolder:
    """A temporary folder, deleted when nothing refers to it, at the latest when the program ends."""

    __slots__ = ("__weakref__", "_count", "path", "process")

    def __init__(self, parent: Path | None) -> None:
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix=SPILL_PREFIX, dir=parent))
        except OSError as error:
            raise cannot_write(parent or Path(tempfile.gettempdir()), error) from error
        self._count = 0
        self.process = os.getpid()
        weakref.finalize(self, _remove, self.path, self.process)

    def next_number(self) -> int:
        """Return a number that no file in the folder has yet."""
        self._count += 1
        return self._count


class SpilledState:
    """A client state in a file of its own; the file is deleted with this object."""

    __slots__ = ("_checksum", "_folder", "_number", "nbytes")

    def __init__(self, folder: SpillFolder, client_state: ClientState, nbytes: int) -> None:
        # The reference keeps the folder alive as long as the file.
        self._folder = folder
        self._number = folder.next_number()
        self._checksum = 0
        self.nbytes = nbytes
        metadata = {"items": json.dumps(item_metadata(client_state.items))}
        try:
            with self._path.open("wb") as file:
                for part in safetensors_io.save(dict(named_tensors(client_state)), metadata):
                    self._checksum = zlib.crc32(part, self._checksum)
                    file.write(part)
        except OSError as error:
            _remove(self._path, folder.process)
            raise cannot_write(self._path, error) from error

    def read(self) -> ClientState:
        """Read the client state back.

        Raises:
            RunError: If the file is gone or damaged.
        """
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise self._unreadable((error.strerror or str(error)).lower()) from error
        if zlib.crc32(content) != self._checksum:
            raise self._unreadable("checksum mismatch")
        source = safetensors_io.Bytes(content)
        metadata, places = safetensors_io.read_header(source)
        tensors = {name: safetensors_io.read(source, place) for name, place in places.items()}
        return assemble(json.loads(metadata["items"]), tensors)

    @property
    def _path(self) -> Path:
        return self._folder.path / f"{self._number}.safetensors"

    def _unreadable(self, reason: str) -> RunError:
        return RunError(
            f"cannot read back a client state, {self._path}: {reason}; "
            "resume from the latest checkpoint, and let nothing else touch this folder"
        )

    def __del__(self) -> None:
        _remove(self._path, self._folder.process)


def _remove(path: Path, process: int) -> None:
    """Remove a file or folder, unless this process is a fork of the one that it belongs to."""
    if os.getpid() != process:
        return
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
