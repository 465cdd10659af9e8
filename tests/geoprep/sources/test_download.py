"""Scenes in a bucket are brought to the disk once, and again when they have changed there."""

import os

import obstore
import pytest
from helpers.buckets import client_of, s3_endpoint, use_endpoint

from geoprep.sources.download import fetch, remote_scenes
from geoprep.sources.scene import Found, Scene
from geoprep.storage import objects


@pytest.fixture
def bucket(monkeypatch):
    """Return a client, for an empty bucket called `imagery`."""
    with s3_endpoint("imagery") as address:
        use_endpoint(monkeypatch, address)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        yield client_of(address)


def put(client, **objects):
    for name, body in objects.items():
        key = name.replace("_", ".")
        client.put_object(Bucket="imagery", Key=key, Body=body, ACL="public-read")


FOUND = Found((Scene("a", "s3://imagery/a.tif", "s3://imagery/a.geojson"),), "s3://imagery")


def test_images_and_labels_come_to_the_disk_and_are_counted(bucket, tmp_path):
    put(bucket, a_tif=b"pixels", a_geojson=b"roads")
    seen = []
    (scene,) = fetch(FOUND, tmp_path / "in", lambda *step: seen.append(step)).scenes
    assert (scene.image, scene.label) == (f"{tmp_path}/in/a.tif", f"{tmp_path}/in/a.geojson")
    assert (tmp_path / "in" / "a.tif").read_bytes() == b"pixels"
    assert seen == [(1, 1)]


def test_a_remote_label_of_a_local_image_is_fetched_too(bucket, tmp_path):
    put(bucket, a_geojson=b"roads")
    found = Found((Scene("a", "/data/a.tif", "s3://imagery/a.geojson"),), "x")
    assert remote_scenes(found) == 1
    (scene,) = fetch(found, tmp_path, lambda *_: None).scenes
    assert (scene.image, scene.label) == ("/data/a.tif", f"{tmp_path}/a.geojson")


def test_a_left_over_copy_is_used_as_long_as_the_object_is_the_same(bucket, tmp_path):
    put(bucket, a_tif=b"pixels", a_geojson=b"roads")
    fetch(FOUND, tmp_path, lambda *_: None)
    before = (tmp_path / "a.tif").stat().st_ino
    fetch(FOUND, tmp_path, lambda *_: None)
    assert (tmp_path / "a.tif").stat().st_ino == before
    put(bucket, a_tif=b"PIXELS")  # of equal size
    fetch(FOUND, tmp_path, lambda *_: None)
    assert (tmp_path / "a.tif").read_bytes() == b"PIXELS"
    assert (tmp_path / "a.geojson").read_bytes() == b"roads"


def test_a_copy_of_unknown_origin_is_fetched_again(bucket, tmp_path):
    put(bucket, a_tif=b"pixels", a_geojson=b"roads")
    (tmp_path / "a.tif").write_bytes(b"left by an older version")
    fetch(FOUND, tmp_path, lambda *_: None)
    assert (tmp_path / "a.tif").read_bytes() == b"pixels"


def test_what_cannot_be_fetched_keeps_its_address(bucket, tmp_path):
    put(bucket, a_tif=b"pixels")
    assert fetch(FOUND, tmp_path, lambda *_: None).scenes == FOUND.scenes
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.tif.etag", "a.tif"]


def test_a_large_object_is_asked_for_in_pieces(bucket, tmp_path, monkeypatch):
    """The endpoint runs in this process, so that memory would tell nothing."""
    body = os.urandom(5 << 18)
    put(bucket, a_tif=body, a_geojson=b"roads")
    monkeypatch.setattr(objects, "PIECE", 1 << 18)
    spans, get = [], obstore.get

    def watched(store, key, *, options):
        spans.append(options["range"][1] - options["range"][0])
        return get(store, key, options=options)

    monkeypatch.setattr(obstore, "get", watched)
    fetch(FOUND, tmp_path, lambda *_: None)
    assert (tmp_path / "a.tif").read_bytes() == body
    assert sorted(spans) == [5] + [1 << 18] * 5
