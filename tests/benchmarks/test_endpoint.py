"""Local S3 endpoints: each has only its own objects, although they share a process."""

import pytest
from helpers.buckets import client_of, s3_endpoint

from benchmarks.faults.endpoint import BUCKET, OWN, endpoint, objects_below


def test_objects_of_another_endpoint_are_removed(tmp_path):
    (tmp_path / "a.tif").write_bytes(b"a")
    with s3_endpoint(BUCKET, "others") as address:
        for bucket in (BUCKET, "others"):
            client_of(address).put_object(Bucket=bucket, Key="city/old.tif", Body=b"old")
    with endpoint(tmp_path, "city/", 0.0, "seed") as place:
        assert objects_below(place.client, BUCKET, "") == {"city/a.tif": b"a"}
        assert {one["Name"] for one in place.client.list_buckets()["Buckets"]} == {BUCKET, OWN}
    with s3_endpoint(BUCKET) as address:
        assert objects_below(client_of(address), BUCKET, "") == {}


def test_open_endpoint_is_not_emptied():
    with s3_endpoint("one") as address:
        client_of(address).put_object(Bucket="one", Key="a", Body=b"a")
        with pytest.raises(RuntimeError, match="is open"), s3_endpoint("two"):
            pass
        assert objects_below(client_of(address), "one", "") == {"a": b"a"}
