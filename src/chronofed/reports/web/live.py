"""The live page: a small server for this machine only, which reads runs and nothing else."""

import hashlib
import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from chronofed.core.errors import StorageError
from chronofed.reports.run_index import RunIndex
from chronofed.reports.web.page import asset, script, style

ADDRESS = "127.0.0.1"
PORT = 8765
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

    Raises:
        StorageError: If the port is taken.
    """

    daemon_threads = True

    def __init__(self, root: Path, port: int = PORT) -> None:
        self.index = RunIndex(root)
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            msg = (
                f"cannot listen on {ADDRESS}:{port} ({error}); choose another --port, or 0 for any"
            )
            raise StorageError(msg) from error
        port = self.server_address[1]
        # Read all runs once, so that the first browser does not wait.
        self.index.rows()
        self.hosts = {f"{ADDRESS}:{port}", f"localhost:{port}"}

    @property
    def url(self) -> str:
        """The address for browsers."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for a fixed list of addresses; everything else is refused."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    # Seconds until an idle connection is closed.
    timeout = 60

    def do_GET(self) -> None:
        """Answer a browser."""
        # DNS rebinding: a page elsewhere that points its own name at this machine sends that name.
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, "json", b'{"error": "unknown host"}')
            return
        address = urlsplit(self.path)
        answers: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("html", lambda: asset("watch.html")),
            "/page.css": ("css", lambda: style() + asset("watch.css")),
            "/page.js": ("js", lambda: script("watch.js")),
            "/api/runs": ("json", self._runs),
            "/api/payload": ("json", lambda: self._payload(address.query)),
        }
        if address.path not in answers:
            self._answer(HTTPStatus.NOT_FOUND, "json", b'{"error": "no such page"}')
            return
        kind, make = answers[address.path]
        self._answer(HTTPStatus.OK, kind, make().encode())

    do_HEAD = do_GET

    def _runs(self) -> str:
        return json.dumps({"runs": self.server.index.rows()})

    def _payload(self, query: str) -> str:
        names = parse_qs(query, max_num_fields=1000).get("run", [])
        return json.dumps(self.server.index.payload(names))

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
