"""A web server on this machine that shows a folder, with ranges as servers of COGs have them."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path


def _refuse_nothing(_method: str, _path: str) -> bool:
    return False


@contextmanager
def served(
    folder: Path, refused: Callable[[str, str], bool] = _refuse_nothing
) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; yield the address, and the paths of all GET requests so far.

    ``refused`` tells by method and path which requests are answered with 403.
    """
    gets: list[str] = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            if refused("HEAD", self.path):
                self.send_error(403)
                return
            super().do_HEAD()

        def do_GET(self) -> None:
            gets.append(self.path)
            if refused("GET", self.path):
                self.send_error(403)
                return
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            path = Path(self.translate_path(self.path))
            if span is None or not path.is_file():
                super().do_GET()
                return
            body, first = path.read_bytes(), int(span[1])
            part = body[first : int(span[2]) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}", gets
        web.shutdown()
        thread.join()
