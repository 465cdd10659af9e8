"""An S3 endpoint on this machine, and what lies in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from werkzeug.serving import WSGIRequestHandler

from benchmarks.faults.endpoint import KEYS, client_of, objects_below, s3_server
from geoprep.storage import clients as remote


@contextmanager
def s3_endpoint(*buckets: str) -> Iterator[str]:
    """Serve S3 with some empty buckets and no others, one at a time; yield the address."""
    with s3_server(*buckets) as address:
        yield address
    remote._client.cache_clear()  # their connections are closed, and the port may be used again


def use_endpoint(patch: pytest.MonkeyPatch, endpoint: str, **more: str) -> None:
    """Set this machine's AWS settings to these alone."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint, **more}.items():
        patch.setenv(name, value)


def objects(endpoint: str, bucket: str, prefix: str) -> dict[str, bytes]:
    """Return name -> bytes of every object below a folder."""
    return objects_below(client_of(endpoint), bucket, f"{prefix}/")


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
