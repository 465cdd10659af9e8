"""A bucket on this machine that notes what is asked of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler

NAME = "tiles"


class Bucket:
    """A bucket ``tiles``.

    Attributes
    ----------
    asked
        Path of every object that was read, in order.
    """

    def __init__(self, endpoint: str) -> None:
        self.asked: list[str] = []
        self._client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        self._client.create_bucket(Bucket=NAME)

    def put(self, key: str, body: bytes) -> None:
        self._client.put_object(Bucket=NAME, Key=key, Body=body)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=NAME, Key=key)

    def upload(self, folder: Path, name: str) -> str:
        """Upload a store; return its address."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{NAME}/{name}"


@contextmanager
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Serve an empty bucket from threads of this process, and let the environment say where."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    settings = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret"}
    settings |= {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true"}
    settings |= {"AWS_REGION": "us-east-1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    bucket = Bucket(address)

    def note(handler: WSGIRequestHandler, *_: object) -> None:
        if handler.command in ("GET", "HEAD"):
            bucket.asked.append(handler.path.removeprefix(f"/{NAME}/"))

    monkeypatch.setattr(WSGIRequestHandler, "log_request", note)
    try:
        yield bucket
    finally:
        server.stop()
