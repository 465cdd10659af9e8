"""An S3 endpoint on loopback that drops, stalls, truncates and refuses, as often as it is told."""

from __future__ import annotations

import http.client
import logging
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STALL = 1.5
"""Seconds that a stalled answer stands still before it goes on."""
FAULTS = ("refused", "reset", "truncated", "stalled", "not begun")
BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
HOP = ("connection", "transfer-encoding", "content-length", "date", "server")
BUCKET = "spacenet-dataset"


class Faulty(ThreadingHTTPServer):
    """Passes requests on to another server, and answers some of them wrongly.

    Parameters
    ----------
    behind
        Port of the server that knows the right answers.
    share
        Of the requests that meet a fault.
    """

    daemon_threads = True

    def __init__(self, behind: int, share: float, seed: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.share = share
        self.met: Counter[str] = Counter()
        self.requests = 0
        self._rng = random.Random(seed)
        self._lock = threading.Lock()

    def draw(self) -> tuple[str, float]:
        """Return the fault of the next request, or none, and a share of its answer."""
        with self._lock:
            self.requests += 1
            fault = self._rng.choice(FAULTS) if self._rng.random() < self.share else ""
            self.met[fault] += 1
            return fault, self._rng.random()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients leave broken answers."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faulty

    def _answer(self) -> None:
        fault, part = self.server.draw()
        if fault == "reset":
            self._reset()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault == "refused":
            self._send(503, [("Content-Type", "application/xml")], BUSY, len(BUSY))
            return
        status, headers, data, length = self._ask(body)
        if fault == "not begun":
            time.sleep(STALL)
        at = int(part * len(data))
        if fault == "truncated" and data:
            self._send(status, headers, data[:at], length)
            self._reset()
        elif fault == "stalled" and data:
            self._send(status, headers, data[:at], length)
            time.sleep(STALL)
            self.wfile.write(data[at:])
        else:
            self._send(status, headers, data, length)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - http.server's names

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes, int]:
        right = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        right.request(self.command, self.path, body or None, dict(self.headers))
        answer = right.getresponse()
        data = answer.read()
        right.close()
        headers = [one for one in answer.getheaders() if one[0].lower() not in HOP]
        length = int(answer.getheader("Content-Length") or len(data))
        return answer.status, headers, data, length if self.command == "HEAD" else len(data)

    def _send(self, status: int, headers: list[tuple[str, str]], data: bytes, length: int) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data if self.command != "HEAD" else b"")
        self.wfile.flush()

    def _reset(self) -> None:
        """Close at once, so that the client sees a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def endpoint(source: Path, key: str, share: float, seed: str) -> Iterator[Faulty]:
    """Serve the files below a folder as objects below a key of the public bucket.

    Raises
    ------
    ModuleNotFoundError
        moto, which is for development, is not installed.
    """
    import boto3  # type: ignore[import-untyped]  # no stubs among what is installed
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request, otherwise
    right = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    right.start()
    _, port = right.get_host_and_port()
    faulty = Faulty(port, share, seed)
    try:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id="someone",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                name = f"{key}{path.relative_to(source)}"
                client.put_object(
                    Bucket=BUCKET, Key=name, Body=path.read_bytes(), ACL="public-read"
                )
        threading.Thread(target=faulty.serve_forever, daemon=True).start()
        yield faulty
    finally:
        faulty.shutdown()
        faulty.server_close()
        right.stop()


def use(port: int) -> None:
    """Make this process take an endpoint of this machine for S3."""
    for name in [one for one in os.environ if one.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
