"""Fixtures of the loaders' tests: painted stores and tiles."""

import pytest
from helpers.buckets import Bucket, s3_endpoint, use_endpoint
from helpers.painted import paint, write_store
from helpers.streams import LARGE

from geoprep.store.reader import StoreReader
from loaders import RamTiles


@pytest.fixture(scope="session")
def make_store(tmp_path_factory):
    """Return a function that writes a painted store into a folder of its own."""

    def make(**options):
        return write_store(tmp_path_factory.mktemp("store") / "test.zarr", **options)

    return make


@pytest.fixture(scope="session")
def store_path(make_store):
    """Return a store of ten good scenes; its shards do not end where scenes do. Do not change."""
    return make_store(shard_tiles=7)


@pytest.fixture(scope="session")
def store(store_path):
    return StoreReader.open(store_path)


@pytest.fixture(scope="session")
def large(make_store):
    """Return a store of 160 tiles for training. Do not change."""
    return make_store(**LARGE)


@pytest.fixture(scope="session")
def painted():
    """Return 24 painted tiles of 40 x 40 x 3 in shared memory, from no store."""
    return RamTiles.from_arrays(*paint(24, 40, 3))


@pytest.fixture
def bucket(monkeypatch):
    """Return the empty bucket ``tiles`` of an endpoint that this process is told of."""
    with s3_endpoint("tiles") as endpoint:
        use_endpoint(monkeypatch, endpoint)
        bucket = Bucket(endpoint, "tiles")
        bucket.watch(monkeypatch)
        yield bucket
