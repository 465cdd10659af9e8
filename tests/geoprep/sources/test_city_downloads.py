"""Downloads from the public bucket are complete and correct, over any network."""

import hashlib

import numpy as np
import pytest
from helpers.buckets import client_of, s3_endpoint, use_endpoint
from helpers.proxy import faulty_proxy

from geoprep.errors import OutputError, SourceError
from geoprep.sources import city_downloads
from geoprep.sources.cities import BUCKET, CITIES
from geoprep.sources.city_downloads import (
    bytes_to_download,
    download_files,
    list_files,
)
from geoprep.storage import clients, transfer
from geoprep.storage.places import Files, remote_file
from geoprep.storage.transfer import download

MOSCOW = CITIES["moscow"]
NUMBERS = (2, 10, 9, 1)
ARCHIVE = np.random.default_rng(0).bytes(3 << 20)


def content(key):
    return hashlib.sha256(key.encode()).digest() * 700


@pytest.fixture(scope="module")
def endpoint():
    """Serve a part of Moscow in the public bucket's layout, and an archive of SpaceNet 3."""
    with s3_endpoint(BUCKET) as address:
        client = client_of(address)

        def put(key, body):
            client.put_object(Bucket=BUCKET, Key=key, Body=body, ACL="public-read")

        there = {"PS-RGB": NUMBERS, "PAN": NUMBERS, "geojson_roads_speed": (9, 10, 77)}
        for kind, numbers in there.items():
            for number in numbers:
                key = f"{MOSCOW.folder}{kind}/{MOSCOW.file_name(kind, number)}"
                put(key, content(key))
        put("spacenet/SN5_roads/tarballs/SN5_roads_train_AOI_7_Moscow.tar.gz", ARCHIVE)
        put("large.bin", ARCHIVE)
        yield address


@pytest.fixture
def s3(endpoint, monkeypatch):
    """Nobody's credentials, retries that do not wait, pieces of 256 KiB."""
    use_endpoint(monkeypatch, endpoint, keys={})
    monkeypatch.setattr(clients, "RETRIES", 1)
    monkeypatch.setattr(clients, "BACKOFF", 0.01)
    monkeypatch.setattr(transfer, "PIECE", 256 << 10)
    clients._client.cache_clear()
    yield endpoint
    clients._client.cache_clear()


def quiet(done, total):
    assert 0 <= done <= total


def test_bytes_to_download_count_files_of_the_wrong_size(s3, tmp_path):
    files = list_files(MOSCOW, "PS-RGB", tmp_path)
    assert len(files) == 4 + 2, "the label of an image that is not there stays"
    first, second, third, fourth, *_ = files
    whole = sum(remote.size for remote in files.values())
    assert bytes_to_download(files) == whole
    right = files[first].size
    for path, size in ((first, right), (second, 7), (third, files[third].size + 1)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))  # short and long ones are fetched again, whole
    part = fourth.with_name(f".{fourth.name}.{files[fourth].etag[:16]}.part")
    part.write_bytes(bytes(5))
    assert bytes_to_download(files) == whole - right - 5
    part.write_bytes(bytes(files[fourth].size + 1))
    assert bytes_to_download(files) == whole - right


def test_a_subset_takes_labelled_scenes_first(s3, tmp_path):
    files = list_files(MOSCOW, "ps-rgb", tmp_path, scenes=3)
    images = [path.name for path in files if path.suffix == ".tif"]
    assert images == [MOSCOW.file_name("PS-RGB", n) for n in (1, 9, 10)]
    assert len(files) == 5


def test_a_partial_download_is_resumed_and_a_wrong_one_discarded(s3, tmp_path, monkeypatch):
    remote, path = remote_file(f"s3://{BUCKET}/large.bin"), tmp_path / "large.bin"
    part = tmp_path / f".large.bin.{remote.etag[:16]}.part"
    asked = []
    real = Files.read_range
    monkeypatch.setattr(Files, "read_range", lambda *a: asked.append(a[2:4]) or real(*a))
    part.write_bytes(ARCHIVE[: 2 << 20])
    download(remote, path)
    assert min(asked)[0] == 2 << 20
    assert path.read_bytes() == ARCHIVE
    path.unlink()
    part.write_bytes(b"x" * (2 << 20))
    seen = []
    download(remote, path, seen.append)
    assert path.read_bytes() == ARCHIVE
    assert sum(seen) == remote.size
    assert [p.name for p in tmp_path.iterdir()] == ["large.bin"]


def _fetch_all(dest):
    """Fetch a city and something larger; return why not."""
    try:
        files = list_files(MOSCOW, "PS-RGB", dest)
        files[dest / "l.bin"] = remote_file(f"s3://{BUCKET}/large.bin")
        download_files(files, dest, lambda *_: None)
    except SourceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "kinds", [("drop", "truncate", "short", "503", "flip"), ("stall",)], ids=["wrong", "silent"]
)
def test_the_right_bytes_arrive_through_a_bad_network(s3, tmp_path, monkeypatch, kinds):
    if kinds == ("stall",):
        monkeypatch.setattr(clients, "STALL", 1)  # a pause of a busy machine is one more fault
    clients._client.cache_clear()
    with faulty_proxy(s3, rate=0.4, kinds=kinds, once=kinds == ("stall",)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        ends = []
        while ends[-1:] != [""] and len(ends) < 30:  # one that gives up is carried on with
            ends.append(_fetch_all(tmp_path))
        assert ends[-1] == ""
        assert not any("\n" in why for why in ends)
        assert sum(proxy.faults.values()) > 3
    assert (tmp_path / "l.bin").read_bytes() == ARCHIVE
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setattr(clients, "STALL", 30)
    clients._client.cache_clear()
    for path, remote in list_files(MOSCOW, "PS-RGB", tmp_path).items():
        assert path.read_bytes() == content(remote.address.removeprefix(f"s3://{BUCKET}/"))
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]


def test_a_disk_that_is_too_small_is_reported_before_the_download(s3, tmp_path, monkeypatch):
    files = list_files(MOSCOW, "PS-RGB", tmp_path / "in")
    monkeypatch.setattr(city_downloads, "free_bytes", lambda _: 1000)
    with pytest.raises(OutputError, match=r"GB are to be downloaded, and 0\.0 GB are free"):
        download_files(files, tmp_path / "in", quiet)
    assert not list(tmp_path.rglob("*.*"))
