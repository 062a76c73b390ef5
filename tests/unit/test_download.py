"""Downloads from a loopback server that can cut connections, ignore ranges and serve rubbish."""

import fcntl
import gzip
import hashlib
import os
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chronofed.core.errors import DataError, SpecError, StorageError
from chronofed.data import download, registry

RANDOM = random.Random(0)  # the same in every worker of the tests
CONTENT = {
    "train-images-idx3-ubyte.gz": gzip.compress(RANDOM.randbytes(300_000), mtime=0),
    "train-labels-idx1-ubyte.gz": gzip.compress(b"labels", mtime=0),
    "t10k-images-idx3-ubyte.gz": gzip.compress(RANDOM.randbytes(9_000), mtime=0),
    "t10k-labels-idx1-ubyte.gz": gzip.compress(b"test labels", mtime=0),
}
BIG = "train-images-idx3-ubyte.gz"
SIZE = len(CONTENT[BIG])


@dataclass
class Publisher:
    """What the server offers and how it misbehaves; requests are noted down."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(CONTENT))
    cuts: list[int] = field(default_factory=list)  # for each coming request: bytes before the end
    ranges: bool = True
    lengths: bool = True
    stall: bool = False  # stop sending instead of closing
    redirect: str = ""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    base: str = ""


class Handler(BaseHTTPRequestHandler):
    publisher: Publisher

    def do_GET(self):
        name, wanted = self.path.lstrip("/"), self.headers["Range"]
        self.publisher.requests.append((name, wanted))
        if self.publisher.redirect:
            self.send_response(302)
            self.send_header("Location", self.publisher.redirect)
            self.end_headers()
        elif name not in self.publisher.files:
            self.send_error(404)
        else:
            self.answer(self.publisher.files[name], wanted if self.publisher.ranges else None)

    def answer(self, body, wanted):
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if wanted and start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        if self.publisher.lengths:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.send(body[start:])

    def send(self, body):
        cut = self.publisher.cuts.pop(0) if self.publisher.cuts else len(body)
        self.wfile.write(body[:cut])
        if cut < len(body) and self.publisher.stall:
            self.publisher.released.wait()

    def log_message(self, *args):
        pass


@pytest.fixture
def publisher(monkeypatch) -> Iterator[Publisher]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    publisher = Publisher()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Bound", (Handler,), {"publisher": publisher})
    )
    server.daemon_threads = False  # so that closing waits for every answer
    publisher.base = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield publisher
    publisher.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Small files in the place of the published ones, and none of this machine's data in sight."""
    files = tuple(
        replace(
            file,
            size=len(CONTENT[file.name]),
            md5=hashlib.md5(CONTENT[file.name]).hexdigest(),
            content=hashlib.sha256(gzip.decompress(CONTENT[file.name])).hexdigest(),
        )
        for file in registry.find("fashion-mnist").files
    )
    entry = replace(registry.find("fashion-mnist"), files=files)
    monkeypatch.setitem(registry.CATALOGUE, "fashion-mnist", entry)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CHRONOFED_DATA", raising=False)
    found = registry.folders
    monkeypatch.setattr(registry, "folders", lambda extra=None: found(extra)[:-1])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder


def asked(publisher: Publisher, name: str = BIG) -> list[str | None]:
    """The ranges that were asked for."""
    return [wanted for requested, wanted in publisher.requests if requested == name]


def test_everything_new(publisher, tmp_path):
    told = []
    found = download.get(
        "fashion-mnist", tmp_path, progress=lambda *news: told.append(news), base=publisher.base
    )
    assert found == tmp_path / "fashion-mnist" == registry.locate("fashion-mnist", tmp_path)
    assert contents(found) == CONTENT
    assert publisher.requests == [(name, None) for name in CONTENT]
    counts = [done for name, done, total in told if name == BIG and total == SIZE]
    assert counts == sorted(set(counts))
    assert counts[-1] == SIZE
    assert {name for name, _, _ in told} == set(CONTENT)


@pytest.mark.parametrize("variable", [True, False])
def test_where_downloads_go(publisher, tmp_path, monkeypatch, variable):
    if variable:
        monkeypatch.setenv("CHRONOFED_DATA", str(tmp_path / "mine"))
    root = tmp_path / "mine" if variable else tmp_path / "cache/chronofed"
    assert download.get("fashion-mnist", base=publisher.base) == root / "fashion-mnist"
    assert contents(root / "fashion-mnist") == CONTENT


def test_what_is_there_is_not_fetched_again(publisher, tmp_path):
    folder = put(tmp_path / "fashion-mnist", CONTENT)
    assert download.get("fashion-mnist", tmp_path, base=publisher.base) == folder
    (folder / BIG).unlink()
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert publisher.requests == [(BIG, None)]


def test_data_found_elsewhere_is_enough_unless_a_folder_is_named(publisher, tmp_path, monkeypatch):
    remote = put(tmp_path / "cache/chronofed/fashion-mnist", CONTENT)
    monkeypatch.setenv("CHRONOFED_DATA", str(tmp_path / "mine"))
    assert download.get("fashion-mnist", base=publisher.base) == remote
    assert publisher.requests == []
    named = download.get("fashion-mnist", tmp_path / "mine", base=publisher.base)
    assert named == tmp_path / "mine/fashion-mnist"
    assert len(publisher.requests) == 4


@pytest.mark.parametrize("plain", [True, False])
def test_the_same_content_in_other_bytes_is_good(publisher, tmp_path, plain):
    other = {
        name.removesuffix(".gz") if plain else name: gzip.decompress(raw)
        if plain
        else gzip.compress(gzip.decompress(raw), 1, mtime=5)
        for name, raw in CONTENT.items()
    }
    folder = put(tmp_path / "fashion-mnist", other)
    assert download.get("fashion-mnist", tmp_path, base=publisher.base) == folder
    assert publisher.requests == []


@pytest.mark.parametrize(
    "bad",
    [b"", b"rubbish", CONTENT[BIG][:-1], CONTENT[BIG][:-9] + bytes(9), gzip.compress(b"x")],
    ids=["empty", "rubbish", "cut", "changed", "other"],
)
def test_a_bad_file_is_replaced(publisher, tmp_path, bad):
    folder = put(tmp_path / "fashion-mnist", {**CONTENT, BIG: bad})
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(folder) == CONTENT
    assert publisher.requests == [(BIG, None)]


def test_cut_connections_are_taken_up_again(publisher, tmp_path):
    publisher.cuts = [100_000, 50_000, 0, 1_000]
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == CONTENT
    starts = [100_000, 150_000, 150_000, 151_000]
    assert asked(publisher) == [None, *(f"bytes={start}-" for start in starts)]
    assert len(asked(publisher)) == download.ATTEMPTS


def test_a_silent_server_times_out(publisher, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_S", 1.0)
    publisher.cuts, publisher.stall = [1_000], True
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == CONTENT
    assert asked(publisher) == [None, "bytes=1000-"]


def test_an_interrupted_call_is_resumed_by_the_next(publisher, tmp_path):
    publisher.cuts = [10_000] * download.ATTEMPTS
    message = rf"{BIG}: stopped at 50,000 of {SIZE:,} bytes; run this again to resume$"
    with pytest.raises(DataError, match=message):
        download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == {f"{BIG}.part": CONTENT[BIG][:50_000]}
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == CONTENT
    assert asked(publisher)[-1] == "bytes=50000-"


def test_an_exception_in_the_progress_leaves_a_part(publisher, tmp_path):
    def stop(name: str, done: int, total: int) -> None:
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download.get("fashion-mnist", tmp_path, progress=stop, base=publisher.base)
    assert [*contents(tmp_path / "fashion-mnist")] == [f"{BIG}.part"]
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == CONTENT
    assert asked(publisher)[1] is not None


def test_a_server_without_ranges_starts_again(publisher, tmp_path):
    put(tmp_path / "fashion-mnist", {f"{BIG}.part": b"x" * 1_000})
    publisher.ranges = False
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == CONTENT
    assert asked(publisher) == ["bytes=1000-"]


@pytest.mark.parametrize("kept", [1_000, SIZE, SIZE + 7])
def test_a_bad_beginning_is_given_up(publisher, tmp_path, kept):
    put(tmp_path / "fashion-mnist", {f"{BIG}.part": b"x" * kept})
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == CONTENT
    assert asked(publisher)[-1] is None


def test_a_complete_part_needs_no_request(publisher, tmp_path):
    put(tmp_path / "fashion-mnist", {f"{BIG}.part": CONTENT[BIG]})
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == CONTENT
    assert asked(publisher) == []


def test_a_range_that_the_server_refuses(publisher, tmp_path):
    put(tmp_path / "fashion-mnist", {f"{BIG}.part": CONTENT[BIG][:2_000]})
    publisher.files[BIG] = b"short"
    with pytest.raises(DataError, match=f"not the published file: 5 bytes, expected {SIZE:,}"):
        download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert asked(publisher) == ["bytes=2000-", None]
    assert contents(tmp_path / "fashion-mnist") == {}


@pytest.mark.parametrize(
    ("body", "lengths", "message"),
    [
        (b"x" * SIZE, True, "its checksum differs$"),
        (b"x" * SIZE, False, "its checksum differs$"),
        (b"<html>log in</html>", True, f"19 bytes, expected {SIZE:,}$"),
        (b"x" * (SIZE + 1), True, "bytes, expected"),
    ],
    ids=["changed", "changed, no length", "a page", "longer"],
)
def test_the_wrong_file_never_gets_the_name(publisher, tmp_path, body, lengths, message):
    old = put(tmp_path / "fashion-mnist", {"train-labels-idx1-ubyte.gz": b"mine"})
    publisher.files[BIG], publisher.lengths = body, lengths
    with pytest.raises(DataError, match=f"{BIG}: not the published file: .*{message}"):
        download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(old) == {"train-labels-idx1-ubyte.gz": b"mine"}


def test_an_endless_answer_is_not_read_to_the_end(publisher, tmp_path):
    told = []
    publisher.files[BIG], publisher.lengths = b"x" * (SIZE + 1_000_000), False
    with pytest.raises(DataError, match="its checksum differs"):
        download.get(
            "fashion-mnist", tmp_path, progress=lambda *news: told.append(news), base=publisher.base
        )
    assert max(done for _, done, _ in told) < SIZE + 100_000


def test_a_bad_file_outlives_a_failed_download(publisher, tmp_path):
    # What is there may be of use to somebody; it goes only when there is something better.
    folder = put(tmp_path / "fashion-mnist", {**CONTENT, BIG: b"old"})
    publisher.files[BIG] = b"x" * SIZE
    with pytest.raises(DataError):
        download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(folder) == {**CONTENT, BIG: b"old"}


def test_no_network(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: every connection is refused
        base = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(DataError) as caught:
            download.get("fashion-mnist", tmp_path, base=base)
    message = str(caught.value)
    assert message.startswith(f"cannot reach {base}{BIG} (")
    assert "refused" in message
    assert "offline: put train-images" in message
    assert "apt install dataset-fashion-mnist" in message
    assert "\n" not in message
    assert caught.value.exit_code == 3
    assert contents(tmp_path / "fashion-mnist") == {}


def test_file_gone_from_the_server(publisher, tmp_path):
    del publisher.files[BIG]
    with pytest.raises(DataError, match=f"{BIG}: HTTP Error 404: Not Found; offline: put"):
        download.get("fashion-mnist", tmp_path, base=publisher.base)


@pytest.mark.parametrize("base", ["file:///usr/share/", "ftp://127.0.0.1/", "/usr/share"])
def test_only_http(tmp_path, base):
    with pytest.raises(SpecError, match="only http and https"):
        download.get("fashion-mnist", tmp_path, base=base)


@pytest.mark.parametrize(
    ("address", "message"),
    [("file:///etc/hostname", "not allowed"), ("ftp://127.0.0.1/x", "unknown url type: ftp")],
)
def test_no_redirection_away_from_http(publisher, tmp_path, address, message):
    publisher.redirect = address
    with pytest.raises(DataError, match=rf"{message}.*; offline: put"):
        download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == {}


def test_folder_that_cannot_be_written(publisher, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"^cannot use .*file.*: Not a directory$"):
        download.get("fashion-mnist", tmp_path / "file", base=publisher.base)


def test_two_downloads_at_once(publisher, tmp_path):
    folder = put(tmp_path / "fashion-mnist", {})
    other = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is downloading; wait for it"):
            download.get("fashion-mnist", tmp_path, base=publisher.base)
    finally:
        os.close(other)
    assert publisher.requests == []
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(folder) == CONTENT


def test_a_file_system_without_locks(publisher, tmp_path, monkeypatch):
    def flock(handle: int, operation: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", flock)
    download.get("fashion-mnist", tmp_path, base=publisher.base)
    assert contents(tmp_path / "fashion-mnist") == CONTENT


def test_the_embedded_set_needs_no_download(tmp_path):
    found = download.get("fashion-mnist-mini", tmp_path / "nowhere", base="file:///never/used")
    assert found == registry.locate("fashion-mnist-mini")
    assert not (tmp_path / "nowhere").exists()


def test_an_archive(publisher, tmp_path, monkeypatch):
    raw = RANDOM.randbytes(5_000)
    name = "cifar-10-binary.tar.gz"
    file = registry.File(name, len(raw), hashlib.md5(raw).hexdigest())
    entry = replace(registry.find("cifar10"), files=(file,))
    monkeypatch.setitem(registry.CATALOGUE, "cifar10", entry)
    publisher.files[name] = raw
    for _ in range(2):
        assert download.get("cifar10", tmp_path, base=publisher.base) == tmp_path / name
    assert publisher.requests == [(name, None)]
    (tmp_path / name).write_bytes(raw[::-1])
    download.get("cifar10", tmp_path, base=publisher.base.rstrip("/"))
    assert (tmp_path / name).read_bytes() == raw


def test_an_unpacked_archive(tmp_path, monkeypatch):
    parts = (("data_batch_1.bin", 7), ("test_batch.bin", 3))
    monkeypatch.setitem(
        registry.CATALOGUE, "cifar10", replace(registry.find("cifar10"), parts=parts)
    )
    folder = put(tmp_path / "cifar-10-batches-bin", {name: bytes(size) for name, size in parts})
    assert download.get("cifar10", tmp_path) == folder
    (folder / "test_batch.bin").write_bytes(bytes(2))
    # Reading would find this folder before any archive, so an archive beside it would not help.
    with pytest.raises(DataError, match=rf"damaged \(2 bytes, expected 3\): remove {folder} and"):
        download.get("cifar10", tmp_path)


def test_unknown_name():
    with pytest.raises(SpecError, match="did you mean 'cifar100'"):
        download.get("cifar1000")
