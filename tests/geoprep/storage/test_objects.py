"""Scenes in a bucket, against an S3 endpoint on this machine; no test leaves it."""

import multiprocessing
import os

import numpy as np
import pytest
from helpers.buckets import client_of, s3_endpoint, use_endpoint
from helpers.proxy import faulty_proxy
from helpers.rasters import write_raster

from geoprep.errors import ImageError, SourceError, StoreError
from geoprep.sources.cities import CITIES
from geoprep.sources.city_scenes import find_scenes
from geoprep.sources.own_images import images_and_labels
from geoprep.storage import clients, places
from geoprep.storage.addresses import s3_address
from geoprep.storage.inputs import open_header, open_image
from geoprep.storage.places import list_remote, located
from geoprep.storage.versions import read_bytes
from geoprep.store.reader import StoreReader
from geoprep.verify.store_check import verify

MOSCOW = CITIES["moscow"]
BUCKET = "spacenet-dataset"


@pytest.fixture
def no_credentials(monkeypatch):
    """Take every AWS setting of this machine away, and shorten the retries."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(clients, "RETRIES", 2)
    clients._client.cache_clear()


@pytest.fixture(scope="module")
def server():
    """An S3 endpoint with two empty buckets; yields its address."""
    with s3_endpoint(BUCKET, "own") as address:
        yield address


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(1, 2000, (3, 40, 50), np.uint16)


@pytest.fixture(scope="module")
def filled(server, pixels, tmp_path_factory):
    """Put three chips and two labels into the public bucket's layout, and one private object."""
    client = client_of(server)
    image = write_raster(tmp_path_factory.mktemp("image") / "a.tif", pixels).read_bytes()

    def put(key, body, bucket=BUCKET, acl="public-read"):
        client.put_object(Bucket=bucket, Key=key, Body=body, ACL=acl)

    for number in (10, 9, 1):
        put(f"{MOSCOW.folder}PS-RGB/{MOSCOW.file_name('PS-RGB', number)}", image)
        put(f"{MOSCOW.folder}PAN/{MOSCOW.file_name('PAN', number)}", image)
    for number in (9, 77):
        kind = "geojson_roads_speed"
        put(f"{MOSCOW.folder}{kind}/{MOSCOW.file_name(kind, number)}", f"label {number}".encode())
    put("mine/a b.tif", image, "own")
    put("mine/deep/c.tif", image, "own")
    put("mine/readme.txt", b"text", "own")
    put("odd/[br].tif", image, "own")
    put("odd/b.tif", image, "own")
    put("mine/labels/a b_roads.geojson", b"{}", "own")
    put("private.tif", image, "own", acl="private")
    put("private.zarr/zarr.json", b"{}", "own", acl="private")
    return server


@pytest.fixture
def s3(filled, no_credentials, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", filled)
    return filled


@pytest.mark.parametrize("prefix", [MOSCOW.folder, MOSCOW.folder.rstrip("/"), "spacenet", ""])
def test_a_city_is_found_in_a_bucket_without_credentials(s3, prefix):
    found = find_scenes(MOSCOW, f"s3://{BUCKET}/{prefix}")
    assert [scene.id for scene in found.scenes] == [MOSCOW.scene_id(n) for n in (1, 9, 10)]
    assert [scene.label is None for scene in found.scenes] == [True, False, True]
    assert found.scenes[0].image == (
        f"s3://{BUCKET}/{MOSCOW.folder}PS-RGB/{MOSCOW.file_name('PS-RGB', 1)}"
    )
    assert len(found.orphan_labels) == 1
    assert read_bytes(found.scenes[1].label) == b"label 9"


def test_the_web_address_of_the_bucket_means_the_same(s3):
    web = f"https://{BUCKET}.s3.amazonaws.com/{MOSCOW.folder}"
    assert find_scenes(MOSCOW, web) == find_scenes(MOSCOW, f"s3://{BUCKET}/{MOSCOW.folder}")


def test_own_images_and_labels_by_pattern(s3):
    found = images_and_labels(["s3://own/mine/*.tif"], "s3://own/mine/labels")
    assert [(scene.id, scene.label) for scene in found.scenes] == [
        ("a b", "s3://own/mine/labels/a b_roads.geojson")
    ]
    deep = images_and_labels(["s3://own/mine/**/*.tif", "s3://own/mine/[!a]*/?.tif"])
    assert [scene.id for scene in deep.scenes] == ["a b", "c"]
    assert [scene.id for scene in images_and_labels(["s3://own/odd/[br].tif"]).scenes] == ["[br]"]
    with pytest.raises(SourceError, match=r"s3://own/\*\.png: matches no file"):
        images_and_labels(["s3://own/*.png"])


def test_too_many_objects_ask_for_the_citys_folder(s3, monkeypatch):
    monkeypatch.setattr(places, "MAX_OBJECTS", 5)
    with pytest.raises(SourceError, match="more than 5 objects"):
        find_scenes(MOSCOW, f"s3://{BUCKET}/")


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_bytes("s3://own/none.geojson"),
        lambda: list_remote("s3://no-such-bucket/x"),
        lambda: open_image("s3://own/none.tif").__enter__(),
    ],
)
def test_a_missing_object_is_named(s3, read):
    with pytest.raises(SourceError, match=r"s3://(own|no-such-bucket)/.*no such object or bucket"):
        read()


def test_a_private_object_is_refused_with_the_variables_to_set(s3):
    with pytest.raises(SourceError, match=r"s3://own/private\.tif: access refused.*AWS_ACCESS_KEY"):
        read_bytes("s3://own/private.tif")
    with pytest.raises(StoreError, match=r"s3://own/.*access refused.*AWS_ACCESS_KEY_ID"):
        StoreReader.open("s3://own/private.zarr")


def test_credentials_are_used_if_set(s3, monkeypatch):
    use_endpoint(monkeypatch, s3)
    assert read_bytes("s3://own/private.tif")[:2] == b"II"
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with pytest.raises(SourceError, match="access refused"):
        read_bytes("s3://own/private.tif")


@pytest.mark.parametrize("address", ["s3://own/stores/none.zarr", "s3://no-such-bucket/a.zarr"])
def test_a_missing_store_is_one_line(s3, address, monkeypatch):
    use_endpoint(monkeypatch, s3)
    for look in (StoreReader.open, verify):
        with pytest.raises(StoreError, match=rf"{address}.*zarr\.json\. Check") as raised:
            look(address)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("web", "expected"),
    [
        ("s3://b/k", "s3://b/k"),
        ("https://b.s3.amazonaws.com/k/x y.tif", "s3://b/k/x y.tif"),
        ("https://b.s3.amazonaws.com/k/x%20y%2520.tif", "s3://b/k/x y%20.tif"),
        ("https://b.c.s3.eu-west-1.amazonaws.com/k", "s3://b.c/k"),
        ("https://s3.amazonaws.com/b/k", "s3://b/k"),
        ("https://s3-us-west-2.amazonaws.com/b/k", "s3://b/k"),
    ],
)
def test_web_addresses_of_s3(web, expected):
    assert s3_address(web) == expected


@pytest.mark.parametrize(
    ("address", "region"),
    [
        ("https://sentinel-cogs.s3.us-west-2.amazonaws.com/x/TCI.tif", "us-west-2"),
        ("https://s3.eu-central-1.amazonaws.com/own/x.tif", "eu-central-1"),
        ("https://own.s3-ap-southeast-2.amazonaws.com/x.tif", "ap-southeast-2"),
        ("https://own.s3-accelerate.amazonaws.com/x.tif", None),
        ("https://own.s3.amazonaws.com/x.tif", None),
        ("s3://own/x.tif", None),
    ],
)
def test_the_region_is_that_of_the_address(address, region, no_credentials):
    files, _ = located(address)
    assert files.client.config.get("region") == region


@pytest.mark.parametrize("web", ["https://example.com/x.tif", "http://s3.evil.com/b", "s3://"])
def test_other_addresses_are_refused(web):
    with pytest.raises(SourceError, match=r"only S3 can be listed|no bucket"):
        list_remote(web)


def test_a_server_that_stays_down_is_reported_after_the_retries(s3, monkeypatch):
    with faulty_proxy(s3, rate=1.0, kinds=("503",)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        with pytest.raises(SourceError, match=r"s3://own/x: not readable .*503"):
            read_bytes("s3://own/x")
        assert proxy.faults["503"] == 3


def test_no_network_is_said_in_one_line(no_credentials, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    message = "Check the network and the endpoint http://127"
    with pytest.raises(SourceError, match=message) as error:
        find_scenes(MOSCOW, f"s3://{BUCKET}/{MOSCOW.folder}")
    assert "\n" not in str(error.value)
    assert "Debug source" not in str(error.value)


def _read_in_child(address, queue):
    try:
        queue.put(read_bytes(address))
    except SourceError as error:
        queue.put(str(error))


@pytest.mark.parametrize(("kind", "says"), [("fork", "spawn or forkserver"), ("spawn", b"text")])
def test_a_child_reads_or_gets_an_error_instead_of_waiting_for_ever(s3, kind, says):
    address = "s3://own/mine/readme.txt"
    read_bytes(address)
    context = multiprocessing.get_context(kind)
    queue = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(address, queue))
    child.start()
    assert says in queue.get()
    child.join()


@pytest.mark.parametrize("opened", [open_header, open_image])
def test_what_is_no_image_or_cannot_be_read_is_named(s3, opened):
    with pytest.raises(ImageError, match=r"s3://own/mine/readme\.txt: cannot be read as an"):
        opened("s3://own/mine/readme.txt").__enter__()
    with pytest.raises(SourceError, match=r"s3://own/private\.tif: access refused"):
        opened("s3://own/private.tif").__enter__()
