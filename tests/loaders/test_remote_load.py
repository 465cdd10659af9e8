"""A store on S3 is loaded like one on disk."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import BotoCoreError

from geoprep.errors import StoreError
from loaders import RamTiles


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Serve S3 from a process of its own: zarrs keeps the lock of this one while it waits."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> object:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    for _ in range(100):
        try:
            client.create_bucket(Bucket="tiles-of-a-city")
            break
        except BotoCoreError:  # the server is still starting
            time.sleep(0.2)
    return client


def upload(client: object, store: Path, name: str) -> str:
    for path in store.rglob("*"):
        if path.is_file():
            key = f"{name}/{path.relative_to(store)}"
            client.put_object(Bucket="tiles-of-a-city", Key=key, Body=path.read_bytes())  # type: ignore[attr-defined]  # boto3 has no types
    return f"s3://tiles-of-a-city/{name}"


@pytest.mark.slow
def test_a_split_on_s3_is_the_split_on_disk(store_path: Path, bucket: object):
    address = upload(bucket, store_path, "whole.zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        there = RamTiles.load(address, "train", bands=("green", "red"))
    here = RamTiles.load(store_path, "train", bands=("green", "red"))
    assert (there.image == here.image).all()
    assert (there.speed == here.speed).all()
    assert there.store.location == address


@pytest.mark.slow
def test_a_shard_lost_on_s3_is_named(store_path: Path, bucket: object):
    address = upload(bucket, store_path, "lost.zarr")
    bucket.delete_object(Bucket="tiles-of-a-city", Key="lost.zarr/32/image/c/2/0/0/0")  # type: ignore[attr-defined]  # boto3 has no types
    with pytest.raises(StoreError, match=r"lost\.zarr: array 32/image, shard c/2/0/0/0"):
        RamTiles.load(address, "all")
