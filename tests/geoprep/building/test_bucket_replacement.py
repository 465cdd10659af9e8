"""A store in a bucket that is replaced: it never looks complete while its objects are mixed."""

from contextlib import suppress

import pytest
from helpers.buckets import client_of, object_digests, s3_endpoint, use_endpoint
from helpers.factory import build_of, plan_of, row_of_scenes, tree_digest

from geoprep.building import run
from geoprep.building.run import build
from geoprep.errors import StoreError
from geoprep.executors.threads import Threads
from geoprep.storage import Bucket
from geoprep.store import StoreReader

OLD = {"tile": 16}
NEW = {"tile": 32, "shard_tiles": 4}


@pytest.fixture(scope="module")
def endpoint():
    with s3_endpoint("own") as address:
        yield address


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return row_of_scenes(tmp_path_factory.mktemp("scenes"), 3, 64)


@pytest.fixture(scope="module")
def expected(scenes, tmp_path_factory):
    """Return the files of the old and of the new store."""
    folder = tmp_path_factory.mktemp("stores")
    stores = []
    for name, options in (("old", OLD), ("new", NEW)):
        build_of(folder / name, scenes, **options)
        digests = tree_digest(folder / name).items()
        stores.append({name: digest for name, digest in digests if digest != "folder"})
    return stores


@pytest.fixture
def bucket(endpoint, scenes, monkeypatch, request):
    """Return the address of a complete store."""
    use_endpoint(monkeypatch, endpoint)
    address = f"s3://own/{request.node.name.replace('[', '-').strip(']')}.zarr"
    build(plan_of(scenes, **OLD), address, Threads(2))
    return address


def there(endpoint, address):
    return object_digests(endpoint, "own", address.removeprefix("s3://own/"))


@pytest.mark.parametrize("number", [1, 2, 4, 7, 11])
def test_a_replacement_may_be_interrupted_before_any_change(
    endpoint, bucket, scenes, expected, monkeypatch, number
):
    changes = []

    def stop_at(real):
        def step(self, *arguments):
            changes.append(real.__name__)
            if len(changes) == number:
                raise KeyboardInterrupt
            return real(self, *arguments)

        return step

    with monkeypatch.context() as patch:
        for name in ("put", "put_if", "delete", "put_all"):
            patch.setattr(Bucket, name, stop_at(getattr(Bucket, name)))
        with suppress(KeyboardInterrupt):
            build(plan_of(scenes, **NEW), bucket, Threads(1), overwrite=True)
    assert len(changes) == number, "the build has more changes"
    opened = None
    with suppress(StoreError):
        opened = StoreReader.open(bucket)
    if opened is not None:
        assert there(endpoint, bucket) in expected, "a store that opens is complete"
    build(plan_of(scenes, **NEW), bucket, Threads(1), overwrite=True)
    assert there(endpoint, bucket) == expected[1]
    assert not there(endpoint, bucket + ".build")


def test_finished_shards_of_a_replacement_are_kept(endpoint, bucket, scenes, expected, monkeypatch):
    shards = []
    real = run.build_shard

    def interrupted(task):
        shards.append(task)
        if len(shards) == 2:
            raise KeyboardInterrupt
        return real(task)

    with monkeypatch.context() as patch:
        patch.setattr(run, "build_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(plan_of(scenes, **NEW), bucket, Threads(1), overwrite=True)
    with pytest.raises(StoreError, match="is incomplete"):
        StoreReader.open(bucket)
    monkeypatch.setattr(run, "build_shard", lambda task: shards.append(task) or real(task))
    shards.clear()
    build(plan_of(scenes, **NEW), bucket, Threads(1), overwrite=True)
    assert len(shards) == 2, "the first of three shards is kept"
    assert there(endpoint, bucket) == expected[1]


def test_an_object_that_no_build_wrote_is_not_deleted(endpoint, bucket, scenes, expected):
    key = f"{bucket.removeprefix('s3://own/')}/thesis.txt"
    client_of(endpoint).put_object(Bucket="own", Key=key, Body=b"precious")
    with pytest.raises(StoreError, match=r"contains thesis\.txt, which no build wrote"):
        build(plan_of(scenes, **NEW), bucket, Threads(1), overwrite=True)
    found = there(endpoint, bucket)
    del found["thesis.txt"]
    assert found == expected[0]
