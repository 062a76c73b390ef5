"""Download named data sets: resumable, verified, and moved into place atomically.

A file with its final name is complete. A partial download is in ``<file>.part``, and the next call resumes it.
Only the standard library is used, and there is no network access before :func:`get`.
"""

import fcntl
import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO, Literal, cast
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from chronofed.core.errors import DataError, SpecError, StorageError
from chronofed.data import registry

# Called with the file's name, bytes so far and bytes in total.
Progress = Callable[[str, int, int], None]

# Seconds without a byte, not for the whole file.
TIMEOUT_S = 30.0
# Connections for one file before giving up.
ATTEMPTS = 5
_CHUNK = 1 << 16
_RANGE_NOT_SATISFIABLE = 416


def get(
    name: str,
    folder: Path | None = None,
    progress: Progress | None = None,
    base: str | None = None,
) -> Path:
    """Verify a data set and download the missing files.

    Args:
        name: Name in the catalogue.
        folder: Data folder to download to; without it, a data set that is found in any of
            :func:`chronofed.data.registry.folders` is left where it is.
        progress: Called after every chunk.
        base: URL of a mirror, instead of the publisher's.

    Raises:
        DataError: If the network is down or a file differs from the published one.
        StorageError: If the folder cannot be written.
    """
    entry = registry.find(name)
    if entry.embedded:
        return registry.EMBEDDED / entry.folder
    target = registry.folders(folder)[0]
    try:
        found = registry.locate_in(entry, target) if folder else registry.locate(name)
        if found and _complete(entry, found):
            return found
        return _fill(entry, target, progress or _ignore, base or entry.source)
    except OSError as error:
        place = error.filename or target
        raise StorageError(f"cannot use {place}: {error.strerror or error}") from None


def intact(path: Path, file: registry.File) -> bool:
    """Return True if a file is the published one, or the same content with other compression."""
    with path.open("rb") as stream:
        if path.stat().st_size == file.size and _digest(stream, "md5") == file.md5:
            return True
        stream.seek(0)
        compressed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        with suppress(gzip.BadGzipFile, EOFError, zlib.error):
            content = gzip.GzipFile(fileobj=stream) if compressed else stream
            return bool(file.content) and _digest(content, "sha256") == file.content
    return False


def _complete(entry: registry.Entry, found: Path) -> bool:
    """Return True if a data set that was found is complete."""
    if found.is_file():
        return intact(found, entry.files[0])
    published = {file.name: file for file in entry.files}
    for part, size in entry.parts:
        path = registry.stored(found / part)
        if part in published:
            if not intact(path, published[part]):
                return False
        elif path.stat().st_size != size:
            what = f"{path.stat().st_size:,} bytes, expected {size:,}"
            raise DataError(f"{path}: damaged ({what}): remove {found} and try again")
    return True


def _fill(entry: registry.Entry, root: Path, progress: Progress, base: str) -> Path:
    for file in entry.files:
        address = f"{base.rstrip('/')}/{file.name}"
        if urlsplit(address).scheme not in ("http", "https"):
            raise SpecError(f"{address}: only http and https addresses are downloaded")
        target = root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent):
            if not (target.exists() and intact(target, file)):
                _Download(address, target, file, progress, entry.offline).run()
    return registry.locate_in(entry, root) or root


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep a second process from writing the same ``.part`` file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot lock folders; the checksum protects the result anyway.
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(f"{folder}: another process is downloading; wait for it") from None
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class _Download:
    """Download of one file."""

    address: str
    target: Path
    file: registry.File
    progress: Progress
    offline: str

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def done(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def run(self) -> None:
        """Download, verify and rename; restart once if the part of an earlier call is bad."""
        resumed = self.done > 0
        self.complete()
        if intact(self.part, self.file):
            os.replace(self.part, self.target)
            return
        self.part.unlink()
        if not resumed:
            raise DataError(f"{self.address}: not the published file: its checksum differs")
        self.run()

    def complete(self) -> None:
        """Download until the file is complete; reconnect if the connection breaks."""
        for _ in range(ATTEMPTS):
            if self.done >= self.file.size:
                return
            with self.connect() as response:
                self.save(response)
        if self.done < self.file.size:
            so_far = f"{self.done:,} of {self.file.size:,} bytes"
            raise DataError(f"{self.address}: stopped at {so_far}; run this again to resume")

    def connect(self) -> HTTPResponse:
        headers = {"User-Agent": "chronofed", "Accept-Encoding": "identity"}
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
        call = request.Request(self.address, headers=headers)
        try:
            return cast(HTTPResponse, _opener().open(call, timeout=TIMEOUT_S))
        except HTTPError as error:
            error.close()
            if error.code == _RANGE_NOT_SATISFIABLE and self.done:
                self.part.unlink()
                return self.connect()
            raise DataError(f"{self.address}: {error}; offline: {self.offline}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            what = f"cannot reach {self.address} ({reason})"
            raise DataError(f"{what}; offline: {self.offline}") from None

    def save(self, response: HTTPResponse) -> None:
        """Append the response; status 200 is the whole file, whatever range was requested."""
        done = self.done if response.status == 206 else 0
        if response.length is not None and done + response.length != self.file.size:
            offered = f"{done + response.length:,} bytes, expected {self.file.size:,}"
            raise DataError(f"{self.address}: not the published file: {offered}")
        with self.part.open("ab" if done else "wb") as out:
            while done <= self.file.size and (chunk := _receive(response)):
                out.write(chunk)
                done += len(chunk)
                self.progress(self.file.name, done, self.file.size)


def _receive(response: HTTPResponse) -> bytes:
    """Return the next bytes; none at the end, or when the connection breaks."""
    try:
        return response.read1(_CHUNK)
    except (OSError, HTTPException):
        return b""


def _opener() -> request.OpenerDirector:
    """Return an opener that, unlike urllib's own, follows no redirect to ftp or to a local file."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _digest(stream: BinaryIO | gzip.GzipFile, kind: Literal["md5", "sha256"]) -> str:
    # Declared as not used for security, because some systems refuse MD5 otherwise.
    digest = hashlib.new(kind, usedforsecurity=False)
    while chunk := stream.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _ignore(name: str, done: int, total: int) -> None:
    """Ignore progress."""
