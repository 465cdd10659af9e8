"""A store built into a bucket or replaced there: bytes of a disk, one builder, no half store."""

import json
from contextlib import suppress

import numpy as np
import pytest
from helpers.buckets import client_of, object_digests, s3_endpoint, use_endpoint
from helpers.factory import (
    build_of,
    interrupt,
    plan_of,
    row_of_scenes,
    texture,
    tree_digest,
    write_scene,
)

from geoprep.building import run, survey
from geoprep.building.run import build
from geoprep.building.target import BucketTarget
from geoprep.errors import OutputError, StoreError
from geoprep.executors.threads import Threads
from geoprep.storage import clients as remote
from geoprep.storage import sinks
from geoprep.storage.sinks import Bucket
from geoprep.store.reader import StoreReader

OPTIONS = {"tile": 32, "shard_tiles": 8, "rescale": "city"}


def files(folder):
    return {name: what for name, what in tree_digest(folder).items() if what != "folder"}


@pytest.fixture(scope="module")
def endpoint():
    with s3_endpoint("own") as address:
        yield address


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return scenes, and the files of their store on a disk."""
    folder = tmp_path_factory.mktemp("world")
    scenes = row_of_scenes(folder / "scenes", 4, 96, "uint16")
    black = texture(96, 224)  # in several shards, with black that may be nodata
    y, x = np.mgrid[:96, :224]
    black[y + x < 60] = 0
    black[40:60, 100:120] = 0
    scenes.append(write_scene(folder / "scenes", "wharf", black.astype("uint16")))
    build_of(folder / "a.zarr", scenes, **OPTIONS)
    return scenes, files(folder / "a.zarr")


@pytest.fixture
def bucket(endpoint, monkeypatch, request):
    """Return the address of a store that is not there yet."""
    use_endpoint(monkeypatch, endpoint)
    return f"s3://own/{request.node.name.replace('[', '-').strip(']')}.zarr"


def there(endpoint, address):
    return object_digests(endpoint, "own", address.removeprefix("s3://own/"))


def put(endpoint, address, name, body):
    key = f"{address.removeprefix('s3://own/')}/{name}"
    client_of(endpoint).put_object(Bucket="own", Key=key, Body=body)


def test_the_bytes_are_those_of_a_store_on_a_disk(world, endpoint, bucket):
    scenes, expected = world
    assert plan_of(scenes, **OPTIONS).shards > 3
    assert build(plan_of(scenes, **OPTIONS), bucket, Threads(2)).state == "built"
    assert there(endpoint, bucket) == expected
    assert not there(endpoint, bucket + ".build")
    assert build(plan_of(scenes, **OPTIONS), bucket, Threads(2)).state == "unchanged"


@pytest.mark.parametrize("torn", [False, True])
def test_an_interrupted_build_is_finished(world, endpoint, bucket, monkeypatch, torn):
    (scenes, expected), built, real = world, [], run.build_shard
    plan = plan_of(scenes, **OPTIONS)
    interrupt(plan, bucket, 2)
    with pytest.raises(StoreError, match="incomplete"):
        StoreReader.open(bucket)
    if torn:
        put(endpoint, bucket, "32/image/c/0/0/0/0", b"torn")
    monkeypatch.setattr(run, "build_shard", lambda task: built.append(task) or real(task))
    monkeypatch.setattr(survey, "survey_rows", None)  # nor is a scene looked at again
    assert build(plan, bucket, Threads(2)).state == "resumed"
    assert len(built) == plan.shards - 2 + torn
    assert there(endpoint, bucket) == expected


# Who builds


@pytest.mark.parametrize("options", [OPTIONS, {**OPTIONS, "tile": 16}])
def test_a_second_build_takes_over(world, endpoint, bucket, options):
    scenes, expected = world
    taken = []

    def take_over(progress):
        if progress.stage == "build" and progress.pixels_done and not taken:
            taken.append(build(plan_of(scenes, **OPTIONS), bucket, Threads(2), overwrite=True))
            taken.append(there(endpoint, bucket))

    with pytest.raises(StoreError, match="was taken over or changed by another process"):
        build(plan_of(scenes, **options), bucket, Threads(1), report=take_over)
    assert taken[0].state == ("resumed" if options == OPTIONS else "built")
    assert taken[1] == expected
    assert StoreReader.open(bucket).meta.tile == OPTIONS["tile"]
    if options == OPTIONS:
        assert there(endpoint, bucket) == expected


def test_a_build_that_was_taken_over_cannot_commit(world, endpoint, bucket, monkeypatch):
    """A process that was asleep while another took over must not mark its own store complete."""
    scenes, _ = world
    monkeypatch.setattr(BucketTarget, "_require_owned", lambda _: None)
    real = run.survey

    def asleep(*arguments):
        body = json.dumps({"attributes": {"geoprep": {"complete": False}}})
        put(endpoint, bucket, "zarr.json", body)
        return real(*arguments)

    monkeypatch.setattr(run, "survey", asleep)
    with pytest.raises(StoreError, match="changed by another process during this build"):
        build(plan_of(scenes, **OPTIONS), bucket, Threads(2))
    with pytest.raises(StoreError):
        StoreReader.open(bucket)


def test_other_objects_are_left_alone(world, endpoint, bucket):
    put(endpoint, bucket, "thesis.txt", b"precious")
    with pytest.raises(StoreError, match="not a geoprep store"):
        build(plan_of(world[0], **OPTIONS), bucket, Threads(1))
    assert list(there(endpoint, bucket)) == ["thesis.txt"]
    assert not there(endpoint, bucket + ".build")


# What goes wrong, and what is done with such a store


def test_errors_are_one_line_with_the_fix(endpoint, monkeypatch):
    use_endpoint(monkeypatch, endpoint)
    with pytest.raises(
        OutputError, match=r"s3://nowhere/a\.zarr: .*no such bucket.*mb s3://nowhere"
    ) as e:
        sinks.check_reachable("s3://nowhere/a.zarr")
    assert "\n" not in str(e.value)
    use_endpoint(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(remote, "RETRIES", 1)
    remote._client.cache_clear()
    told = r"a\.zarr/x: not writable \(no answer from http://127\.0\.0\.1:9\)\. .*AWS_ENDPOINT_URL"
    with pytest.raises(OutputError, match=told) as e:
        Bucket("s3://own/a.zarr").put("x", b"")
    assert "\n" not in str(e.value)
    assert "retries" not in str(e.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(OutputError, match="half of the credentials"):
        Bucket("s3://own/a.zarr")


# A store that is replaced: it never looks complete while its objects are mixed

OLD = {"tile": 16}
NEW = {"tile": 32, "shard_tiles": 4}


@pytest.fixture(scope="module")
def replaced(tmp_path_factory):
    """Return scenes, and the files of their old and of their new store."""
    folder = tmp_path_factory.mktemp("replaced")
    scenes = row_of_scenes(folder / "scenes", 3, 64)
    build_of(folder / "old", scenes, **OLD)
    build_of(folder / "new", scenes, **NEW)
    return scenes, files(folder / "old"), files(folder / "new")


@pytest.fixture
def complete(replaced, bucket):
    """Return the address of a complete store."""
    build(plan_of(replaced[0], **OLD), bucket, Threads(2))
    return bucket


@pytest.mark.parametrize("number", [1, 4, 11])
def test_interrupted_replacements_are_finished(endpoint, complete, replaced, monkeypatch, number):
    scenes, old, new = replaced
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
            build(plan_of(scenes, **NEW), complete, Threads(1), overwrite=True)
    assert len(changes) == number, "the build has more changes"
    with suppress(StoreError):
        StoreReader.open(complete)
        assert there(endpoint, complete) in (old, new), "a store that opens is complete"
    build(plan_of(scenes, **NEW), complete, Threads(1), overwrite=True)
    assert there(endpoint, complete) == new
    assert not there(endpoint, complete + ".build")


def test_an_object_that_no_build_wrote_is_not_deleted(endpoint, complete, replaced):
    scenes, old, _ = replaced
    put(endpoint, complete, "thesis.txt", b"precious")
    with pytest.raises(StoreError, match=r"contains thesis\.txt, which no build wrote"):
        build(plan_of(scenes, **NEW), complete, Threads(1), overwrite=True)
    found = there(endpoint, complete)
    del found["thesis.txt"]
    assert found == old
