"""The live page: a small server for this machine only, which reads runs and nothing else."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

from chronofed.core.errors import StorageError
from chronofed.reports.run_index import RunIndex
from chronofed.reports.web.page import asset, script, style

ADDRESS = "127.0.0.1"
PORT = 8765
LOCAL_HOSTS = frozenset({ADDRESS, "localhost", "::1"})
"""Names of this machine that no name server can give away; a forwarded port changes only the port."""
MAX_QUERY_FIELDS = 1000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "json": "application/json",
}


class LiveServer(ThreadingHTTPServer):
    """Serves the page and the runs below one folder to browsers on this machine.

    Args:
        root: The folder.
        port: The port to listen on; 0 for any free one.
        hosts: Further names by which browsers may reach it, such as that of a proxy.

    Raises:
        StorageError: If the port is taken.
    """

    daemon_threads = True
    # Connections that wait to be accepted; with Python's 5, one more tries again after one or three seconds.
    request_queue_size = 128

    def __init__(self, root: Path, port: int = PORT, hosts: Iterable[str] = ()) -> None:
        self.index = RunIndex(root)
        self.hosts = LOCAL_HOSTS | {host.lower() for host in hosts}
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            msg = (
                f"cannot listen on {ADDRESS}:{port} ({error}); choose another --port, or 0 for any"
            )
            raise StorageError(msg) from error
        # Read all runs once, so that the first browser does not wait.
        self.index.rows()

    @property
    def url(self) -> str:
        """The address for browsers."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"


class BadRequestError(Exception):
    """A request that makes no sense; the text is for the browser."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for a fixed list of addresses; everything else is refused."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    # Seconds until an idle connection is closed.
    timeout = 60

    def do_GET(self) -> None:
        """Answer a browser."""
        try:
            self._get()
        except BadRequestError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _get(self) -> None:
        # DNS rebinding: a page elsewhere that points its own name at this machine sends that name.
        host = _host(self.headers.get("Host", ""))
        if host not in self.server.hosts:
            advice = "if it is yours, start chronofed watch with --allow-host and this name"
            self._refuse(HTTPStatus.FORBIDDEN, f"unknown host {host!r:.80}; {advice}")
            return
        address = _split(self.path)
        answers: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("html", lambda: asset("watch.html")),
            "/page.css": ("css", lambda: style() + asset("watch.css")),
            "/page.js": ("js", lambda: script("runlist.js", "watch.js")),
            "/api/runs": ("json", lambda: self._runs(address.query)),
            "/api/payload": ("json", lambda: self._payload(address.query)),
        }
        if address.path not in answers:
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")
            return
        kind, make = answers[address.path]
        self._answer(HTTPStatus.OK, kind, make().encode())

    do_HEAD = do_GET

    def _runs(self, query: str) -> str:
        since = _fields(query, "since")
        return json.dumps(self.server.index.changes(since[0] if since else ""))

    def _payload(self, query: str) -> str:
        return json.dumps(self.server.index.payload(_fields(query, "run")))

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._answer(status, "json", json.dumps({"error": reason}).encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        """Send a body, or 304 if the browser has it already."""
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        known = status == HTTPStatus.OK and self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if known else status)
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
        headers |= {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        headers |= {"Cross-Origin-Resource-Policy": "same-origin"}
        if not known:
            headers |= {"Content-Type": f"{TYPES[kind]}; charset=utf-8"}
            headers |= {"Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not known and self.command != "HEAD":
            self.wfile.write(body)

    def handle(self) -> None:
        """Serve a connection; ignore a browser that goes away."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _fields(query: str, name: str) -> list[str]:
    """Return the values of a field."""
    try:
        return parse_qs(query, max_num_fields=MAX_QUERY_FIELDS).get(name, [])
    except ValueError as error:
        raise BadRequestError(f"more than {MAX_QUERY_FIELDS} fields in the query") from error


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise BadRequestError(f"not an address: {error}") from error


def _host(header: str) -> str:
    """Return the name in a ``Host`` header, without the port; empty if there is none."""
    # Only a name and a port: "localhost@evil.example" is not this machine.
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?", header.lower(), re.ASCII)
    return found[1].strip("[]") if found else ""
