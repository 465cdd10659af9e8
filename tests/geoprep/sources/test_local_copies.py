"""Remote scenes are copied to the disk once, again when they change, and never mixed up."""

import os
from pathlib import Path

import obstore
import pytest
from helpers.buckets import client_of, s3_endpoint, use_endpoint

from geoprep.sources.local_copies import (
    copies_folder,
    copy_path,
    download_scenes,
)
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.storage import transfer


@pytest.fixture
def bucket(monkeypatch):
    """Return a client, for an empty bucket called `imagery`."""
    with s3_endpoint("imagery") as address:
        use_endpoint(monkeypatch, address, keys={})
        yield client_of(address)


def put(client, **objects):
    for name, body in objects.items():
        key = name.replace("__", "/").replace("_", ".")
        client.put_object(Bucket="imagery", Key=key, Body=body, ACL="public-read")


FOUND = SourceScenes((Scene("a", "s3://imagery/a.tif", "s3://imagery/a.geojson"),), "s3://imagery")


def fetched(found, folder):
    return download_scenes(found, folder, lambda *_: None)


def test_images_and_labels_are_downloaded_and_counted(bucket, tmp_path):
    put(bucket, a_tif=b"pixels", a_geojson=b"roads")
    seen = []
    (scene,) = download_scenes(FOUND, tmp_path / "in", lambda *step: seen.append(step)).scenes
    here = tmp_path / "in/s3/imagery"
    assert (scene.image, scene.label) == (f"{here}/a.tif", f"{here}/a.geojson")
    assert (here / "a.tif").read_bytes() == b"pixels"
    assert seen == [(1, 1)]


def test_a_copy_is_used_while_the_object_is_the_same(bucket, tmp_path):
    put(bucket, a_tif=b"pixels", a_geojson=b"roads")
    fetched(FOUND, tmp_path)
    image = tmp_path / "s3/imagery/a.tif"
    before = image.stat().st_ino
    fetched(FOUND, tmp_path)
    assert image.stat().st_ino == before
    put(bucket, a_tif=b"PIXELS")  # of equal size
    fetched(FOUND, tmp_path)
    assert image.read_bytes() == b"PIXELS"
    assert image.with_suffix(".geojson").read_bytes() == b"roads"
    image.write_bytes(b"damage")
    fetched(FOUND, tmp_path)
    assert image.read_bytes() == b"PIXELS"


def test_a_scene_that_cannot_be_downloaded_keeps_its_address(bucket, tmp_path):
    put(bucket, a_tif=b"pixels")
    assert fetched(FOUND, tmp_path).scenes == FOUND.scenes
    assert [path.name for path in (tmp_path / "s3/imagery").iterdir()] == ["a.tif"]


def test_a_large_object_is_downloaded_in_pieces(bucket, tmp_path, monkeypatch):
    """The endpoint runs in this process, so its memory use would tell nothing."""
    body = os.urandom(5 << 18)
    put(bucket, a_tif=body, a_geojson=b"roads")
    monkeypatch.setattr(transfer, "PIECE", 1 << 18)
    spans, get = [], obstore.get

    def watched(store, key, *, options):
        spans.append(options["range"][1] - options["range"][0])
        return get(store, key, options=options)

    monkeypatch.setattr(obstore, "get", watched)
    fetched(FOUND, tmp_path)
    assert (tmp_path / "s3/imagery/a.tif").read_bytes() == body
    assert sorted(spans) == [5] + [1 << 18] * 5


def test_every_address_has_a_path_of_its_own_inside_the_folder(tmp_path):
    addresses = [
        *("s3://b/a.tif", "s3://c/a.tif", "https://b/a.tif", "http://b/a.tif", "gs://b/a.tif"),
        *("s3://b/x/a.tif", "s3://b//a.tif", "s3://b/../a.tif", "s3://b/../../../../a.tif"),
        *("/b/a.tif", "https://b/./a.tif", f"s3://b/{'n' * 300}.tif", f"s3://b/{'n' * 301}.tif"),
    ]
    paths = [copy_path(address, tmp_path).resolve() for address in addresses]
    assert len(set(paths)) == len(addresses)
    for path in paths:
        assert path.is_relative_to(tmp_path)
        assert path.suffix == ".tif"
        assert len(path.name) < 255


def test_copies_are_beside_the_store():
    assert copies_folder(Path("a.zarr")) == Path("a.zarr.source")
    assert str(copies_folder("s3://own/stores/a.zarr/")) == "a.zarr.source"
