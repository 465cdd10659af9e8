"""An S3 endpoint on this machine, and what lies in it."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from werkzeug.serving import WSGIRequestHandler

from geoprep.storage import clients as remote

KEYS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
}
_one = threading.Lock()


def client_of(address: str) -> Any:
    """Return a boto3 client, independent of the code under test."""
    import boto3

    names = {"aws_access_key_id": "someone", "aws_secret_access_key": "secret"}
    return boto3.client("s3", endpoint_url=address, region_name="us-east-1", **names)


@cache
def _server() -> str:
    """Return the address of a server that runs until this process ends: to stop one takes time."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    return f"http://127.0.0.1:{server.get_host_and_port()[1]}"


@contextmanager
def s3_endpoint(*buckets: str) -> Iterator[str]:
    """Serve S3 with some empty buckets and no others, one at a time; yield the address."""
    assert _one.acquire(blocking=False), "all endpoints of a process share one set of buckets"
    try:
        address = _server()
        urllib.request.urlopen(f"{address}/moto-api/reset", b"").close()
        for bucket in buckets:
            client_of(address).create_bucket(Bucket=bucket)
        yield address
    finally:
        _one.release()
        remote._client.cache_clear()


def use_endpoint(patch: pytest.MonkeyPatch, endpoint: str, keys: Mapping[str, str] = KEYS) -> None:
    """Set this machine's AWS settings to these alone."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in {**keys, "AWS_ENDPOINT_URL": endpoint}.items():
        patch.setenv(name, value)


def objects(endpoint: str, bucket: str, prefix: str) -> dict[str, bytes]:
    """Return name -> bytes of every object below a folder."""
    client, found = client_of(endpoint), {}
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=f"{prefix}/"
    ):
        for item in page.get("Contents", []):
            body = client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            found[item["Key"].removeprefix(f"{prefix}/")] = body
    return found


def object_digests(endpoint: str, bucket: str, prefix: str) -> dict[str, str]:
    """Return what ``helpers.factory.tree_digest`` returns of a folder, but for its folders."""
    found = objects(endpoint, bucket, prefix)
    return {name: hashlib.sha256(body).hexdigest() for name, body in sorted(found.items())}


class Bucket:
    """A bucket that records its requests.

    Attributes
    ----------
    asked
        Key of every object that was read, whole or in part, in order.
    """

    def __init__(self, endpoint: str, name: str) -> None:
        self.asked: list[str] = []
        self._client, self._name = client_of(endpoint), name

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Record every request from now on."""

        def note(handler: WSGIRequestHandler, *_: object) -> None:
            if handler.command in ("GET", "HEAD"):
                self.asked.append(handler.path.removeprefix(f"/{self._name}/"))

        patch.setattr(WSGIRequestHandler, "log_request", note)

    def put(self, key: str, body: bytes) -> None:
        self._client.put_object(Bucket=self._name, Key=key, Body=body)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._name, Key=key)

    def upload(self, folder: Path, name: str) -> str:
        """Upload a store; return its address."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{self._name}/{name}"
