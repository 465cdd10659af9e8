"""A store on S3 is loaded like one on disk, in few requests."""

import os
import re
from collections import Counter
from functools import partial, partialmethod

import numpy as np
import pytest
from helpers.buckets import use_endpoint
from helpers.proxy import Proxy, faulty_proxy

from geoprep.errors import StoreError
from geoprep.storage import clients
from loaders import BatchLoader, RamTiles, StreamTiles

pytestmark = pytest.mark.filterwarnings("ignore:Successfully reconstructed a store:RuntimeWarning")


def test_a_shard_lost_on_s3_is_named(store_path, bucket):
    address = bucket.upload(store_path, "lost.zarr")
    bucket.delete("lost.zarr/32/image/c/2/0/0/0")
    with pytest.raises(StoreError, match=r"lost\.zarr/32/image/c/2/0/0/0 is missing"):
        RamTiles.load(address, "all")


def shards_requested(bucket):
    """Return the requests per shard since the last call."""
    found = Counter(path for path in bucket.asked if "/32/" in path and "/c/" in path)
    bucket.asked.clear()
    return found


@pytest.fixture
def remote(make_store, bucket):
    """Return a store of six shards, 16 tiles each, from which val takes one scene in four."""
    options = {"scenes": 12, "shard_tiles": 16, "levels": (32,), "splits": (0, 1, 0, 0)}
    return bucket.upload(make_store(**options), "a.zarr")


@pytest.mark.parametrize("keep", ["pixels", "compressed"])
def test_a_shard_is_loaded_in_two_requests(remote, bucket, keep):
    bucket.asked.clear()
    assert len(RamTiles.load(remote, "train", keep=keep, threads=8)) == 36
    tables = [path for path in bucket.asked if "/32/" not in path]
    assert len(tables) <= 14  # however many tiles there are
    asked = shards_requested(bucket)
    assert len(asked) == 6
    assert set(asked.values()) == {2}  # its index, and all of its tiles


def test_a_stream_requests_an_index_once_and_runs_of_tiles(remote, bucket):
    tiles = StreamTiles.open(remote, "train", ram_limit="5MB", lanes=1)
    bucket.asked.clear()
    loader = BatchLoader(tiles, 4, crop=16, crops_per_tile=3)
    first, second = ([*loader] and shards_requested(bucket) for _ in range(2))
    reads = -(-12 // tiles.shape.run)  # twelve tiles of a shard are for training
    assert len(first) == len(second) == 6
    # One more where memory is filled from its start again, in the middle of a run.
    assert reads <= min(second.values()) <= max(second.values()) <= reads + 1
    assert sum(first.values()) <= 6 * (1 + reads) + 2


LOADS = {
    "pixels": RamTiles.load,
    "compressed": partial(RamTiles.load, keep="compressed"),
    "stream": partial(StreamTiles.open, ram_limit="5MB", lanes=1),
}


@pytest.mark.parametrize("load", LOADS)
def test_an_unreliable_endpoint_gives_the_right_pixels(remote, monkeypatch, load):
    here = RamTiles.load(remote, "train")
    kinds = ("drop", "reset", "truncate", "short", "503", "stall")
    monkeypatch.setattr(clients, "BACKOFF", 0.01)
    fault = partialmethod(answerable, Proxy.choose_fault, Counter())
    monkeypatch.setattr(Proxy, "choose_fault", fault)
    server = os.environ["AWS_ENDPOINT_URL"]
    with faulty_proxy(server, seed=load, rate=0.5, kinds=kinds, stall=0.1) as proxy:
        use_endpoint(monkeypatch, proxy.address)
        there = LOADS[load](remote, "train")
        for tile in range(0, len(here), 9):
            for one, other in zip(here.pixels(tile), there.pixels(tile), strict=True):
                assert np.array_equal(one, other)
    assert proxy.faults.total() > 10


def answerable(proxy, fate, failed, method, what):
    """Send short answers only to requests of a range, and fewer faults than the client repeats."""
    request = re.sub(r"=\d+-", "=-", what)  # the rest of a cut answer has a later first byte
    if failed[request] >= clients.RETRIES - 1:
        return ""
    kind = fate(proxy, method, what)
    failed[request] += bool(kind)
    return "503" if kind == "short" and what.endswith(" None") else kind
