"""A store built into a bucket: the same bytes as on a disk, one builder, no half store."""

import json
import threading

import numpy as np
import pytest
from helpers.buckets import client_of, object_digests, s3_endpoint, use_endpoint
from helpers.factory import build_of, plan_of, row_of_scenes, texture, tree_digest, write_scene

from geoprep.building import run
from geoprep.building.bucket import BucketTarget
from geoprep.building.run import build
from geoprep.errors import OutputError, StoreError
from geoprep.executors.threads import Threads
from geoprep.storage import clients as remote
from geoprep.storage import sinks
from geoprep.store import StoreReader

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


class Stopping(Threads):
    """Leaves a build after some results, as Ctrl-C does."""

    def __init__(self, after):
        super().__init__(1)
        self.after = after

    def map_unordered(self, function, items, lost=None):
        for count, result in enumerate(super().map_unordered(function, items)):
            if function is run.build_shard and count == self.after:
                raise KeyboardInterrupt
            yield result


def test_the_bytes_are_those_of_a_store_on_a_disk(world, endpoint, bucket):
    scenes, expected = world
    assert plan_of(scenes, **OPTIONS).shards > 3
    assert build(plan_of(scenes, **OPTIONS), bucket, Threads(2)).state == "built"
    assert there(endpoint, bucket) == expected
    assert not there(endpoint, bucket + ".build")
    assert build(plan_of(scenes, **OPTIONS), bucket, Threads(2)).state == "unchanged"


def test_an_interrupted_build_is_no_store_and_is_finished(world, endpoint, bucket):
    scenes, expected = world
    plan = plan_of(scenes, **OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        build(plan, bucket, Stopping(2))
    with pytest.raises(StoreError, match="incomplete"):
        StoreReader.open(bucket)
    built = []

    class Counting(Threads):
        def map_unordered(self, function, items, lost=None):
            for result in super().map_unordered(function, items):
                built.append(function.__name__)
                yield result

    assert build(plan, bucket, Counting(2)).state == "resumed"
    assert built.count("build_shard") == plan.shards - 2
    assert "survey_rows" not in built, "nor is a scene looked at again"
    assert there(endpoint, bucket) == expected


def test_a_shard_that_is_not_the_one_we_wrote_is_built_again(world, endpoint, bucket):
    scenes, expected = world
    with pytest.raises(KeyboardInterrupt):
        build(plan_of(scenes, **OPTIONS), bucket, Stopping(3))
    key = f"{bucket.removeprefix('s3://own/')}/32/image/c/0/0/0/0"
    client_of(endpoint).put_object(Bucket="own", Key=key, Body=b"torn")
    assert build(plan_of(scenes, **OPTIONS), bucket, Threads(2)).state == "resumed"
    assert there(endpoint, bucket) == expected


# Who builds


@pytest.mark.parametrize("options", [OPTIONS, {**OPTIONS, "tile": 16}])
def test_a_second_build_takes_over_and_the_first_ends_at_its_next_shard(
    world, endpoint, bucket, options
):
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


def test_of_two_builders_one_wins(world, endpoint, bucket):
    scenes, expected = world
    plan, ends = plan_of(scenes, **OPTIONS), []

    def one():
        try:
            ends.append(build(plan, bucket, Threads(1)).state)
        except StoreError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [end for end in ends if end in ("built", "resumed", "unchanged")]
    assert won, ends
    assert len(won) == 2 or any("was taken over" in end for end in ends)
    assert there(endpoint, bucket) == expected


def test_who_was_overtaken_cannot_commit(world, endpoint, bucket, monkeypatch):
    """A process that was asleep while another took over must not mark its own store complete."""
    scenes, _ = world
    monkeypatch.setattr(BucketTarget, "_require_owned", lambda _: None)
    real = run.survey

    def asleep(*arguments):
        key = bucket.removeprefix("s3://own/") + "/zarr.json"
        body = json.dumps({"attributes": {"geoprep": {"complete": False}}})
        client_of(endpoint).put_object(Bucket="own", Key=key, Body=body)
        return real(*arguments)

    monkeypatch.setattr(run, "survey", asleep)
    with pytest.raises(StoreError, match="changed by another process during this build"):
        build(plan_of(scenes, **OPTIONS), bucket, Threads(2))
    with pytest.raises(StoreError):
        StoreReader.open(bucket)


def test_another_build_is_refused_and_overwriting_leaves_nothing_of_it(world, endpoint, bucket):
    scenes, expected = world
    build(plan_of(scenes[:2], tile=16), bucket, Threads(2))
    with pytest.raises(StoreError, match=r"built differently.*`overwrite`") as error:
        build(plan_of(scenes, **OPTIONS), bucket, Threads(2))
    assert str(error.value).count("shard_tiles") == 1
    build(plan_of(scenes, **OPTIONS), bucket, Threads(2), overwrite=True)
    assert there(endpoint, bucket) == expected


def test_what_is_no_store_is_left_alone(world, endpoint, bucket):
    key = bucket.removeprefix("s3://own/") + "/thesis.txt"
    client_of(endpoint).put_object(Bucket="own", Key=key, Body=b"precious")
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
        sinks.Bucket("s3://own/a.zarr").put("x", b"")
    assert "\n" not in str(e.value)
    assert "retries" not in str(e.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(OutputError, match="half of the credentials"):
        sinks.Bucket("s3://own/a.zarr")
