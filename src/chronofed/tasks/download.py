"""Downloads of named data sets: resumed after an interruption, checked, put in place in one step.

A file under its final name is whole. What has come so far is in ``<file>.part``, and the next call
goes on from there. Only the standard library is used; nothing is contacted before :func:`get`.
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

from chronofed.errors import DataError, SpecError, StorageError
from chronofed.tasks import library

Progress = Callable[[str, int, int], None]  # name of the file, bytes so far, bytes in all

TIMEOUT = 30.0  # seconds without an answer, not for the whole file
ATTEMPTS = 5  # connections for one file before giving up
_CHUNK = 1 << 16
_RANGE_NOT_SATISFIABLE = 416


def get(
    name: str,
    folder: Path | None = None,
    progress: Progress | None = None,
    base: str | None = None,
) -> Path:
    """Make sure that a data set is there and whole, and download what is missing.

    Args:
        name: of the catalogue.
        folder: the data folder to fill; without it, a data set found anywhere
            :func:`chronofed.tasks.library.folders` looks is left where it is.
        progress: told about every piece that arrives.
        base: address of a mirror, instead of the publisher's.

    Raises:
        DataError: no network, or what came is not what was published.
        StorageError: the folder cannot be written.
    """
    entry = library.find(name)
    if entry.embedded:
        return library.EMBEDDED / entry.folder
    target = library.folders(folder)[0]
    try:
        found = library.held_in(entry, target) if folder else library.locate(name)
        if found and _whole(entry, found):
            return found
        return _fill(entry, target, progress or _silent, base or entry.source)
    except OSError as error:
        place = error.filename or target
        raise StorageError(f"cannot use {place}: {error.strerror or error}") from None


def intact(path: Path, file: library.File) -> bool:
    """Whether a file is what was published, or the same content compressed by somebody else."""
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


def _whole(entry: library.Entry, found: Path) -> bool:
    """Whether a data set that was found needs no download."""
    if found.is_file():
        return intact(found, entry.files[0])
    published = {file.name: file for file in entry.files}
    for part, size in entry.parts:
        path = library.stored(found / part)
        if part in published:
            if not intact(path, published[part]):
                return False
        elif path.stat().st_size != size:
            what = f"{path.stat().st_size:,} bytes, expected {size:,}"
            raise DataError(f"{path}: damaged ({what}): remove {found} and run this again")
    return True


def _fill(entry: library.Entry, root: Path, progress: Progress, base: str) -> Path:
    for file in entry.files:
        address = f"{base.rstrip('/')}/{file.name}"
        if urlsplit(address).scheme not in ("http", "https"):
            raise SpecError(f"{address}: only http and https addresses are downloaded")
        target = root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent):
            if not (target.exists() and intact(target, file)):
                _Download(address, target, file, progress, entry.offline).run()
    return library.held_in(entry, root) or root


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second process from writing the same ``.part``."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems have no locks for folders; a checksum guards the result anyway.
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
    """One file on its way from an address to its place."""

    address: str
    target: Path
    file: library.File
    progress: Progress
    offline: str

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def done(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def run(self) -> None:
        """Download, check, and rename; a bad beginning from an earlier call is given up once."""
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
        """Go on until all is there; a connection that breaks is taken up again."""
        for _ in range(ATTEMPTS):
            if self.done >= self.file.size:
                return
            with self.connect() as response:
                self.save(response)
        if self.done < self.file.size:
            so_far = f"{self.done:,} of {self.file.size:,} bytes"
            raise DataError(f"{self.address}: broke off at {so_far}; run this again to go on")

    def connect(self) -> HTTPResponse:
        headers = {"User-Agent": "chronofed", "Accept-Encoding": "identity"}
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
        call = request.Request(self.address, headers=headers)
        try:
            return cast(HTTPResponse, _opener().open(call, timeout=TIMEOUT))
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
        """Append what comes; status 200 is the whole file, whatever part was asked for."""
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
    """The next bytes, or none at the end and when the connection breaks."""
    try:
        return response.read1(_CHUNK)
    except (OSError, HTTPException):
        return b""


def _opener() -> request.OpenerDirector:
    """An opener that, unlike urllib's own, follows no redirection to ftp or to a local file."""
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
    # Said to be no matter of security, because some systems refuse MD5 otherwise.
    digest = hashlib.new(kind, usedforsecurity=False)
    while chunk := stream.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _silent(name: str, done: int, total: int) -> None:
    """Tell nobody."""
