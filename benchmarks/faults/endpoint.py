"""An S3 endpoint on loopback with objects in it, behind a proxy that fails."""

from __future__ import annotations

import logging
import os
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


@dataclass(frozen=True)
class Endpoint:
    """The buckets, through the proxy and past it."""

    proxy: Proxy
    client: Any

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Return name -> bytes of every object of ours below a key."""
        found = {}
        pages = self.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=OWN, Prefix=prefix):
            for item in page.get("Contents", []):
                body = self.client.get_object(Bucket=OWN, Key=item["Key"])["Body"].read()
                found[item["Key"].removeprefix(prefix)] = body
        return found

    def remove(self, prefix: str) -> None:
        """Delete every object of ours below a key."""
        for name in self.objects(prefix):
            self.client.delete_object(Bucket=OWN, Key=prefix + name)


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
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request, otherwise
    right = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    right.start()
    address = f"http://127.0.0.1:{right.get_host_and_port()[1]}"
    names = {"aws_access_key_id": "someone", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **names)
    try:
        for bucket in (BUCKET, OWN):
            client.create_bucket(Bucket=bucket)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                name, body = f"{key}{path.relative_to(source)}", path.read_bytes()
                client.put_object(Bucket=BUCKET, Key=name, Body=body, ACL="public-read")
        with faulty_proxy(address, seed=seed, rate=share, kinds=KINDS, stall=STALL) as proxy:
            yield Endpoint(proxy, client)
    finally:
        right.stop()


def use(address: str) -> None:
    """Make this process take an endpoint of this machine for S3."""
    for name in [one for one in os.environ if one.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ.update(KEYS, AWS_ENDPOINT_URL=address)
