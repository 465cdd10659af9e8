"""A store in a bucket that is replaced: nothing is deleted before the new store is complete."""

from contextlib import suppress

import pytest
from helpers.buckets import object_digests, s3_endpoint, use_endpoint
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


def test_the_old_store_stays_until_the_new_one_is_complete(endpoint, bucket, scenes, expected):
    seen = []
    build(
        plan_of(scenes, **NEW),
        bucket,
        Threads(2),
        overwrite=True,
        report=lambda _: seen.append(there(endpoint, bucket) == expected[0]),
    )
    assert seen
    assert all(seen)
    assert there(endpoint, bucket) == expected[1]
    assert not there(endpoint, bucket + ".build")


def test_a_replacement_interrupted_while_it_is_built_keeps_the_old_store_and_is_resumed(
    endpoint, bucket, scenes, expected, monkeypatch
):
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
    assert there(endpoint, bucket) == expected[0]
    monkeypatch.setattr(run, "build_shard", lambda task: shards.append(task) or real(task))
    shards.clear()
    build(plan_of(scenes, **NEW), bucket, Threads(1), overwrite=True)
    assert len(shards) == 2, "the first of three shards is kept"
    assert there(endpoint, bucket) == expected[1]
    assert not there(endpoint, bucket + ".build")


@pytest.mark.parametrize("number", range(1, 6))
def test_a_copy_that_was_interrupted_is_finished(
    endpoint, bucket, scenes, expected, monkeypatch, number
):
    """Interrupted before the mark, the copy, the deletion, the root and the clean-up."""
    steps = []

    def stop_at(name, real):
        def step(self, *arguments):
            if self.location == bucket or name == "copy_to" or (steps and name == "delete"):
                steps.append(name)
                if len(steps) == number:
                    raise KeyboardInterrupt
            return real(self, *arguments)

        return step

    with monkeypatch.context() as patch:
        for name in ("put_if", "copy_to", "delete"):
            patch.setattr(Bucket, name, stop_at(name, getattr(Bucket, name)))
        with pytest.raises(KeyboardInterrupt):
            build(plan_of(scenes, **NEW), bucket, Threads(2), overwrite=True)
    opened = None
    with suppress(StoreError):
        opened = StoreReader.open(bucket)
    if opened is not None:
        assert there(endpoint, bucket) in expected, "a store that opens is complete"
    shards = []
    real = run.build_shard
    monkeypatch.setattr(run, "build_shard", lambda task: shards.append(task) or real(task))
    build(plan_of(scenes, **NEW), bucket, Threads(2), overwrite=True)
    assert there(endpoint, bucket) == expected[1]
    assert not there(endpoint, bucket + ".build")
    assert not shards, "the same command finishes the copy and builds nothing again"


def test_the_old_store_is_kept_where_no_scene_can_be_built(
    endpoint, bucket, scenes, expected, monkeypatch
):
    plan = plan_of(scenes, max_nodata=0.0, nodata=255.0, **NEW)
    monkeypatch.setattr("geoprep.building.rendering.too_empty", lambda *_: "too empty")
    with pytest.raises(StoreError, match=r"too empty.*was not replaced"):
        build(plan, bucket, Threads(2), overwrite=True)
    assert there(endpoint, bucket) == expected[0]
    assert not there(endpoint, bucket + ".build")
