"""The explorer's server: on loopback, for pages that it served itself.

What it takes: GET of the page and its scripts by name, POST of a JSON question. It
opens no file that is asked for, answers pages of other sites nothing (the Host and
Origin headers, a JSON body that no form sends, no CORS), reads no more than
`MOST_BYTES`, waits no longer than `PATIENCE_S`, and computes one answer at a time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any, Final

from planner.explorer.answers import Answers
from planner.explorer.page import explorer_page, scripts
from planner.explorer.state import Catalogue
from profiles.errors import Contradiction, InvalidQuestion, MeshwrightError

HOST: Final = "127.0.0.1"
PORT: Final = 8765
MOST_BYTES: Final = 16_384  # of a question
MOST_CONNECTIONS: Final = 16
PATIENCE_S: Final = 10.0  # for what a browser sends, and for a turn
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src "
    "'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_SAFE: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_JSON: Final = "application/json"


class Server(ThreadingHTTPServer):
    """Answers pages on loopback; *start* is the question that a page begins with."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, start: Mapping[str, Any], catalogue: Catalogue, port: int = PORT
    ) -> None:
        self.answers = Answers(catalogue=catalogue)
        page = explorer_page(start, catalogue)
        self.files = {"/": ("text/html; charset=utf-8", page.encode())}
        for name, text in scripts().items():
            self.files[f"/{name}"] = ("text/javascript; charset=utf-8", text.encode())
        self.turn = threading.Lock()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise Contradiction(
                f"port {port} of {HOST} cannot be used: {error.strerror}; give another "
                "--port, or 0 for any that is free"
            ) from None
        here = self.server_address[1]
        self.hosts = {f"{HOST}:{here}", f"localhost:{here}"}

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, unless there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        request.settimeout(PATIENCE_S)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], _: Any) -> None:
        """A connection that breaks off is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "meshwright"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_ours():
            return
        path = self.path.partition("?")[0]
        if path not in self.server.files:
            self._refuse(404, "there is no such page; go to /")
            return
        self._send(200, *self.server.files[path])

    def do_POST(self) -> None:
        if not self._is_ours():
            return
        answers = self.server.answers
        ask = {"/simulate": answers.simulated, "/plan": answers.planned}.get(self.path)
        if ask is None:
            self._refuse(404, "questions go to /simulate or /plan")
            return
        told = self._question()
        if told is None:
            return
        if not self.server.turn.acquire(timeout=PATIENCE_S):
            self._refuse(503, "another answer is being computed; ask again")
            return
        try:
            self._send_json(200, ask(told[0]))
        except InvalidQuestion as error:
            self._refuse(400, str(error))
        except MeshwrightError as error:
            self._refuse(422, str(error))
        except Exception as error:  # whatever it is, the page is told and goes on
            self._refuse(500, f"internal error: {type(error).__name__}")
        finally:
            self.server.turn.release()

    def _is_ours(self) -> bool:
        """Whether a page of this server asks; else it is refused."""
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(403, "the explorer answers on its own address alone")
            return False
        if origin is not None and origin.removeprefix("http://") not in (
            self.server.hosts
        ):
            self._refuse(403, "the explorer answers its own pages alone")
            return False
        return True

    def _question(self) -> tuple[object] | None:
        """The values that were sent; None, and refused, if they are not JSON."""
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind != _JSON:
            self._refuse(415, f"a question is {_JSON}")
            return None
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(411, "a question says its Content-Length")
            return None
        if len(length) > 9 or int(length) > MOST_BYTES:
            self._refuse(413, f"a question is at most {MOST_BYTES:,} bytes")
            return None
        try:
            return (json.loads(self.rfile.read(int(length))),)
        except (ValueError, RecursionError):
            self._refuse(400, "the question is not JSON")
            return None

    def _refuse(self, status: int, message: str) -> None:
        self._send_json(status, {"error": message})

    def _send_json(self, status: int, document: Mapping[str, Any]) -> None:
        body = json.dumps(document, allow_nan=False, separators=(",", ":"))
        self._send(status, _JSON, body.encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in _SAFE.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


def serve(server: Server) -> None:
    """Answer until somebody presses Ctrl-C."""
    try:
        server.serve_forever(poll_interval=0.2)
    finally:
        server.server_close()
