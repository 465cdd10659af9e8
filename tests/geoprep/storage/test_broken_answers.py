"""Requests to an object store are repeated if the answer breaks off or is lost."""

import io

import pytest
from helpers.buckets import client_of, s3_endpoint, use_endpoint
from helpers.proxy import faulty_proxy

from geoprep.storage import clients
from geoprep.storage.places import Files, list_remote, remote_file
from geoprep.storage.sinks import Bucket
from geoprep.storage.transfer import download
from geoprep.storage.versions import read_bytes

DATA = bytes(range(256)) * 40
PARTS = [(3, 99), (9000, 9100), (120, 130), (3, 99)]


def downloaded(address, tmp_path):
    download(remote_file(address), tmp_path / "a.bin")
    content = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "a.bin").unlink()
    return content


READS = {
    "read_bytes": lambda _: read_bytes("s3://cities/in/a.bin"),
    "download": lambda folder: downloaded("s3://cities/in/a.bin", folder),
    "list_remote": lambda _: list_remote("s3://cities/in"),
    "read": lambda _: Files("s3://cities/in").read("a.bin"),
    "end": lambda _: bytes(Files("s3://cities/in").end("a.bin", 99)),
    "ranges": lambda _: [*map(bytes, Files("s3://cities/in").ranges("a.bin", PARTS, 50))],
    "bucket read": lambda _: Bucket("s3://cities/in").find("a.bin"),
    "bucket read_range": lambda _: Bucket("s3://cities/in").read_range("a.bin", 3, 99),
    "bucket tags": lambda _: Bucket("s3://cities/in").tags(),
}


LARGE = bytes((16 << 20) + 1)  # more than goes into one request
WRITES = {
    "put": (lambda bucket: bucket.put("new", DATA), DATA),
    "put_if none": (lambda bucket: bucket.put_if("new", DATA, None), DATA),
    "put_if the same": (lambda bucket: bucket.put_if("old", DATA, bucket.find("old")[1]), DATA),
    "put_if another": (lambda bucket: bucket.put_if("old", DATA, '"other"'), b"old"),
    "put large": (lambda bucket: bucket.put("new", io.BytesIO(LARGE)), LARGE),
    "delete": (lambda bucket: bucket.delete(["old"]), None),
}


@pytest.fixture(scope="module")
def endpoint():
    with s3_endpoint("cities") as address:
        client_of(address).put_object(Bucket="cities", Key="in/a.bin", Body=DATA)
        yield address


@pytest.fixture
def server(endpoint, monkeypatch):
    monkeypatch.setattr(clients, "BACKOFF", 0.01)
    use_endpoint(monkeypatch, endpoint)
    return endpoint


RANGES = ("ranges", "bucket read_range", "end", "download")


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "truncate") for name in READS), *((name, "short") for name in RANGES)],
)
def test_a_request_whose_answer_breaks_off_is_repeated(server, tmp_path, monkeypatch, name, kind):
    """A short answer is whole by itself: the server announces what it sends."""
    right = READS[name](tmp_path)
    with faulty_proxy(server, rate=1.0, kinds=(kind,), once=True) as proxy:
        use_endpoint(monkeypatch, proxy.address)
        assert READS[name](tmp_path) == right
        assert proxy.faults[kind] >= 1


@pytest.mark.parametrize("kind", ["reset", "drop", "stall", "truncate"])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_answer_is_lost_is_repeated_safely(server, monkeypatch, name, kind):
    folder, (write, left) = f"s3://cities/{name} {kind}", WRITES[name]
    Bucket(folder).put("old", b"old")
    with faulty_proxy(server, rate=1.0, kinds=(kind,), once=True, stall=0.01) as proxy:
        use_endpoint(monkeypatch, proxy.address)
        tag = write(Bucket(folder))
        assert proxy.faults[kind] >= 1
    use_endpoint(monkeypatch, server)
    found = {key: Bucket(folder).find(key) for key in ("old", "new")}
    assert left in [one and one[0] for one in found.values()]
    assert tag in [one and one[1] for one in found.values()]


def test_the_end_of_an_empty_object_is_nothing(server):
    client_of(server).put_object(Bucket="cities", Key="out/empty", Body=b"")
    assert Files("s3://cities/out").end("empty", 9) == b""


def test_tables_are_written_only_if_no_other_writer_has_changed_them(server, tmp_path):
    """A build that lost its lock must not replace tables of the build that took over."""
    late, owner = Bucket("s3://cities/c.zarr"), Bucket("s3://cities/c.zarr")
    files = {name: tmp_path / name for name in ("scene", "row")}
    for name, path in files.items():
        path.write_bytes(f"late {name}".encode())
    late.put("row", b"an earlier run")
    tags = late.tags()
    owner.put("row", b"owner row")
    owner.put("scene", b"owner scene")
    assert not late.put_all(files, tags)
    assert {name: owner.find(name)[0] for name in files} == {
        "row": b"owner row",
        "scene": b"owner scene",
    }
    assert late.put_all(files, owner.tags())
    assert owner.find("row")[0] == b"late row"
