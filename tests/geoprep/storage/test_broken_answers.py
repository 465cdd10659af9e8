"""Answers of an object store that break off half-way are asked for again."""

import pytest
from helpers.buckets import client_of, s3_endpoint, use_endpoint

from benchmarks.faults.proxy import faulty_proxy
from geoprep.storage import StoreFiles
from geoprep.storage import objects as remote
from geoprep.storage.sinks import Bucket

DATA = bytes(range(256)) * 40


def fetched(address, tmp_path):
    remote.fetch_object(address, tmp_path / "a.bin")
    return (tmp_path / "a.bin").read_bytes()


READS = {
    "read_object": lambda _: remote.read_object("s3://cities/in/a.bin"),
    "fetch_object": lambda folder: fetched("s3://cities/in/a.bin", folder),
    "list_objects": lambda _: remote.list_objects("s3://cities/in"),
    "sizes": lambda _: StoreFiles("s3://cities/in").sizes,
    "read": lambda _: StoreFiles("s3://cities/in").read("a.bin"),
    "read_range": lambda _: StoreFiles("s3://cities/in").read_range("a.bin", 3, 99),
    "bucket read": lambda _: Bucket("s3://cities/in").read("a.bin"),
    "bucket read_range": lambda _: Bucket("s3://cities/in").read_range("a.bin", 3, 99),
    "bucket tags": lambda _: Bucket("s3://cities/in").tags(),
}


@pytest.fixture(scope="module")
def server():
    with s3_endpoint("cities") as address:
        client_of(address).put_object(Bucket="cities", Key="in/a.bin", Body=DATA)
        yield address


@pytest.mark.parametrize("name", READS)
def test_an_answer_that_breaks_off_is_asked_for_again(server, tmp_path, monkeypatch, name):
    monkeypatch.setattr(remote, "RETRIES", 1)  # obstore's too, which wait twice as long each time
    use_endpoint(monkeypatch, server)
    right = READS[name](tmp_path)
    with faulty_proxy(server, rate=1.0, kinds=("truncate",), once=True) as proxy:
        use_endpoint(monkeypatch, proxy.address)
        assert READS[name](tmp_path) == right
        assert proxy.faults["truncate"] >= 1
