"""A local S3 endpoint with objects, behind a proxy that injects faults."""

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
"""Faults whose responses a client can distinguish from correct ones."""
STALL = 1.5
"""Duration of a stall in seconds."""
BUCKET, OWN = "spacenet-dataset", "stores"
"""The public bucket, read unsigned, and a bucket to write to."""
KEYS = {
    "AWS_ACCESS_KEY_ID": "someone",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
}


_one = threading.Lock()


@contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """Serve S3 with these empty buckets and no others; yield the address.

    Raises
    ------
    ModuleNotFoundError
        moto, a development dependency, is not installed.
    RuntimeError
        Another server is open in this process. All servers share one set of buckets, which this
        function empties.
    """
    from moto.server import ThreadedMotoServer

    if not _one.acquire(blocking=False):
        raise RuntimeError("an S3 endpoint is open in this process: close it first")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
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


def client_of(address: str) -> Any:  # noqa: ANN401 - boto3 creates its classes at run time
    """Return a boto3 client, independent of the code under test."""
    import boto3

    names = {"aws_access_key_id": "someone", "aws_secret_access_key": "secret"}
    return boto3.client("s3", endpoint_url=address, region_name="us-east-1", **names)


def objects_below(client: Any, bucket: str, prefix: str) -> dict[str, bytes]:  # noqa: ANN401
    """Return name -> bytes of every object below a key prefix."""
    found = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            body = client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            found[item["Key"].removeprefix(prefix)] = body
    return found


@dataclass(frozen=True)
class Endpoint:
    """The buckets, accessed through the proxy and directly."""

    proxy: Proxy
    client: Any

    def remove(self, prefix: str) -> dict[str, bytes]:
        """Delete every written object below a key prefix; return name -> bytes of them."""
        found = objects_below(self.client, OWN, prefix)
        for name in found:
            self.client.delete_object(Bucket=OWN, Key=prefix + name)
        return found


@contextmanager
def endpoint(source: Path, key: str, share: float, seed: str) -> Iterator[Endpoint]:
    """Serve the files below a folder as objects below a key prefix of the public bucket.

    Parameters
    ----------
    share
        Share of the requests with a fault, 0 to 1.

    Raises
    ------
    ModuleNotFoundError
        moto, a development dependency, is not installed.
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
    """Make this process use a local endpoint for S3."""
    for name in [one for one in os.environ if one.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ.update(KEYS, AWS_ENDPOINT_URL=address)
