"""An S3 endpoint on loopback with objects in it, behind a proxy that fails."""

from __future__ import annotations

import logging
import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.proxy import Proxy, faulty_proxy

KINDS = ("503", "reset", "truncate", "pause", "stall")
"""What may happen to a request and leave its answer one that can be told from a right one."""
STALL = 1.5
"""Seconds that an answer stands still."""
BUCKET, OWN = "spacenet-dataset", "stores"
"""The public one that is read unsigned, and one that is written to."""
KEYS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
}


_one = threading.Lock()


@contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """Serve S3 with some empty buckets and no others; yield the address.

    Raises
    ------
    ModuleNotFoundError
        moto, which is for development, is not installed.
    RuntimeError
        Another one is open in this process. All of them hold one set of buckets, so what lies in
        them is forgotten here, and this would take it from the other.
    """
    from moto.server import ThreadedMotoServer

    if not _one.acquire(blocking=False):
        raise RuntimeError("an S3 endpoint is open in this process: close it first")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request, otherwise
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        urllib.request.urlopen(f"{address}/moto-api/reset", b"").close()
        for bucket in buckets:
            client_of(address).create_bucket(Bucket=bucket)
        yield address
    finally:
        server.stop()
        _one.release()


def client_of(address: str) -> Any:  # noqa: ANN401 - boto3 makes its classes as it runs
    """Return boto3's client, which knows nothing of ours."""
    import boto3

    names = {"aws_access_key_id": "someone", "aws_secret_access_key": "secret"}
    return boto3.client("s3", endpoint_url=address, region_name="us-east-1", **names)


def objects_below(client: Any, bucket: str, prefix: str) -> dict[str, bytes]:  # noqa: ANN401
    """Return name -> bytes of every object below a key."""
    found = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            body = client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            found[item["Key"].removeprefix(prefix)] = body
    return found


@dataclass(frozen=True)
class Endpoint:
    """The buckets, through the proxy and past it."""

    proxy: Proxy
    client: Any

    def taken(self, prefix: str) -> dict[str, bytes]:
        """Delete every object of ours below a key; return name -> bytes of what was there."""
        found = objects_below(self.client, OWN, prefix)
        for name in found:
            self.client.delete_object(Bucket=OWN, Key=prefix + name)
        return found


@contextmanager
def endpoint(source: Path, key: str, share: float, seed: str) -> Iterator[Endpoint]:
    """Serve the files below a folder as objects below a key of the public bucket.

    Parameters
    ----------
    share
        Of the requests that meet a fault.

    Raises
    ------
    ModuleNotFoundError
        moto, which is for development, is not installed.
    """
    with s3_server(BUCKET, OWN) as address:
        client = client_of(address)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                name, body = f"{key}{path.relative_to(source)}", path.read_bytes()
                client.put_object(Bucket=BUCKET, Key=name, Body=body, ACL="public-read")
        with faulty_proxy(address, seed=seed, rate=share, kinds=KINDS, stall=STALL) as proxy:
            yield Endpoint(proxy, client)


def use(address: str) -> None:
    """Make this process take an endpoint of this machine for S3."""
    for name in [one for one in os.environ if one.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ.update(KEYS, AWS_ENDPOINT_URL=address)
