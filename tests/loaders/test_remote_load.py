"""A store on S3 is loaded like one on disk, in few requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.buckets import Bucket

from geoprep.errors import StoreError
from loaders import BatchLoader, RamTiles, StreamTiles

MakeStore = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore:Successfully reconstructed a store:RuntimeWarning")


def test_a_split_on_s3_is_the_split_on_disk(store_path: Path, bucket: Bucket):
    address = bucket.upload(store_path, "whole.zarr")
    there = RamTiles.load(address, "train", bands=("green", "red"))
    here = RamTiles.load(store_path, "train", bands=("green", "red"))
    assert (there.image == here.image).all()
    assert (there.speed == here.speed).all()
    assert there.store.location == address


def test_a_shard_lost_on_s3_is_named(store_path: Path, bucket: Bucket):
    address = bucket.upload(store_path, "lost.zarr")
    bucket.delete("lost.zarr/32/image/c/2/0/0/0")
    with pytest.raises(StoreError, match=r"lost\.zarr: array 32/image, shard c/2/0/0/0"):
        RamTiles.load(address, "all")


def shards_asked(bucket: Bucket) -> Counter[str]:
    """Return how often each shard was asked for, and forget it."""
    found = Counter(path for path in bucket.asked if "/32/" in path and "/c/" in path)
    bucket.asked.clear()
    return found


@pytest.fixture
def remote(make_store: MakeStore, bucket: Bucket) -> str:
    """Return a store of six shards, 16 tiles each, from which val takes one scene in four."""
    options = {"scenes": 12, "shard_tiles": 16, "levels": (32,), "splits": (0, 1, 0, 0)}
    return bucket.upload(make_store(**options), "a.zarr")


@pytest.mark.parametrize("keep", ["pixels", "compressed"])
def test_a_shard_is_loaded_in_two_requests(remote: str, bucket: Bucket, keep: str):
    bucket.asked.clear()
    assert len(RamTiles.load(remote, "train", keep=keep, threads=8)) == 36
    tables = [path for path in bucket.asked if "/32/" not in path]
    assert len(tables) <= 14  # however many tiles there are
    asked = shards_asked(bucket)
    assert len(asked) == 6
    assert set(asked.values()) == {2}  # its index, and all of its tiles


def test_a_stream_asks_for_an_index_once_and_for_runs_of_tiles(remote: str, bucket: Bucket):
    tiles = StreamTiles.open(remote, "train", ram_limit="5MB", lanes=1)
    bucket.asked.clear()
    loader = BatchLoader(tiles, 4, crop=16, crops_per_tile=3)
    first, second = ([*loader] and shards_asked(bucket) for _ in range(2))
    reads = -(-12 // tiles.shape.run)  # twelve tiles of a shard are for training
    assert len(first) == len(second) == 6
    # One more where memory is filled from its start again, in the middle of a run.
    assert reads <= min(second.values()) <= max(second.values()) <= reads + 1
    assert sum(first.values()) <= 6 * (1 + reads) + 2
