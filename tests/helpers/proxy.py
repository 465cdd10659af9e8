"""A proxy for an S3 endpoint that injects network and server faults, seeded.

with faulty_proxy("http://127.0.0.1:5000", seed=1, rate=0.3) as proxy:
    os.environ["AWS_ENDPOINT_URL"] = proxy.address
    ...
    proxy.faults  # kind of fault to its count
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# Kinds of faults. drop: close before responding; stall: wait, then close; truncate: close in
# mid-body; short: send half of the body with a matching Content-Length (GET only); 503: respond
# 503; flip: change a byte of the body (GET only); reset: reset the connection.
_HOP = ("connection", "transfer-encoding", "content-length", "server", "date")


@dataclass
class Proxy:
    """A share ``rate`` of the requests fail; ``once``: one of the same path and range only once."""

    upstream: str
    seed: int | str = 0
    rate: float = 0.2
    kinds: Sequence[str] = ()
    stall: float = 2.0
    once: bool = False
    address: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    _seen: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def choose_fault(self, method: str, what: str) -> str:
        """Return the fault of a request, or "" for none."""
        with self._lock:
            if self._random.random() >= self.rate or (self.once and what in self._seen):
                return ""
            self._seen.add(what)
            kinds = [k for k in self.kinds if method == "GET" or k not in ("short", "flip")]
            kind = self._random.choice(kinds) if kinds else ""
            self.faults[kind] += bool(kind)
            return kind


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def log_message(self, *_: object) -> None:
        pass

    def forward(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        path = re.sub("uploadId=[^&]*", "", self.path)
        what = f"{self.command} {path} {self.headers.get('Range')}"
        kind = self.proxy.choose_fault(self.command, what)
        if kind == "503":
            self._answer(503, [], b"", "")
            return
        if kind == "stall":
            time.sleep(self.proxy.stall)
        if kind in ("drop", "stall", "reset"):
            self._hang_up(reset=kind == "reset")
            return
        url = urlsplit(self.proxy.upstream)
        there = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
        there.request(self.command, self.path, body, headers)
        answer = there.getresponse()
        data = answer.read()
        self._answer(answer.status, answer.getheaders(), data, kind)
        there.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, kind: str) -> None:
        length = {k.lower(): v for k, v in headers}.get("content-length", str(len(data)))
        if self.command != "HEAD":
            if kind == "short":
                data = data[: len(data) // 2]
            if kind == "flip" and data:
                at = len(data) // 2
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            length = str(len(data))
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(OSError):  # the client may have disconnected
            if kind == "truncate":
                data, self.close_connection = data[: len(data) // 2], True
            self.wfile.write(data)

    def _hang_up(self, *, reset: bool) -> None:
        """Close the connection before responding; with ``reset``, by a TCP reset."""
        self.close_connection = True
        if reset:
            at_once = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of clients that disconnected: some are killed on purpose."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # any socket


@contextmanager
def faulty_proxy(upstream: str, **how: object) -> Iterator[Proxy]:
    """Serve a proxy on a free port; the keyword arguments are fields of `Proxy`."""
    proxy = Proxy(upstream, **how)  # type: ignore[arg-type]  # by name
    answers = {f"do_{one}": _Handler.forward for one in ("GET", "PUT", "POST", "HEAD", "DELETE")}
    handler = type("Handler", (_Handler,), {"proxy": proxy, **answers})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    proxy.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
