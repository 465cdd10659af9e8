"""Copies of remote files on a worker's disk leave room there, whatever the size of the disk."""

from types import SimpleNamespace

import pytest
from helpers.buckets import client_of, s3_endpoint, use_endpoint

from geoprep.storage import transfer

GIB = 2**30


@pytest.mark.parametrize(("free", "copied"), [(24 * GIB, True), (GIB // 2, False)])
def test_a_copy_is_made_where_the_disk_has_room(tmp_path, monkeypatch, free, copied):
    disk = SimpleNamespace(total=250 * GIB, free=free, used=250 * GIB - free)
    monkeypatch.setattr(transfer, "_worker_folder", lambda: tmp_path / "worker")
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda _: disk)
    with s3_endpoint("own") as endpoint:
        use_endpoint(monkeypatch, endpoint)
        client_of(endpoint).put_object(Bucket="own", Key="a.tif", Body=b"image")
        copy = transfer.worker_copy("s3://own/a.tif")
    assert (copy is not None and copy.read_bytes() == b"image") is copied
