"""Missing permissions for a bucket are reported before a build."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from helpers.buckets import client_of, s3_endpoint, use_endpoint

from geoprep.errors import OutputError
from geoprep.storage import clients
from geoprep.storage.sinks import check_reachable

ANSWERS = {
    "LIST": "<ListBucketResult><Name>own</Name><IsTruncated>false</IsTruncated></ListBucketResult>",
    "GET": "geoprep",
    "POST": "<DeleteResult></DeleteResult>",
}


class Server(BaseHTTPRequestHandler):
    """Answers 403 to what its server refuses: PUT, GET, LIST or DELETE."""

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = "LIST" if "list-type" in self.path else self.command
        body = ANSWERS.get(kind, "")
        refused = kind.replace("POST", "DELETE") in self.server.refused
        self.send_response(403 if refused else 200)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.send_header("Content-Length", "0" if refused else str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if refused else body.encode())

    do_PUT = do_GET = do_POST = do_DELETE = answer  # noqa: N815 - names of the base class

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.refused = set()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    use_endpoint(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    clients._client.cache_clear()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ("GET", "reading objects fails: access refused"),
        ("LIST", "listing objects fails: access refused"),
        ("DELETE", "deleting objects fails: access refused"),
        ("PUT", r"writing objects fails: access refused.*may put, get, list and delete"),
    ],
)
def test_a_missing_permission_is_named_before_the_build(server, refused, says):
    server.refused = {refused}
    with pytest.raises(OutputError, match=rf"^s3://own/a\.zarr: .*{says}") as error:
        check_reachable("s3://own/a.zarr")
    assert "\n" not in str(error.value)


def test_without_keys_the_message_says_to_set_some(server, monkeypatch):
    server.refused = {"PUT"}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(OutputError, match=r"without credentials\. Set AWS_ACCESS_KEY_ID"):
        check_reachable("s3://own/a.zarr")


def test_a_bucket_with_all_permissions_is_left_as_it_was(monkeypatch, tmp_path):
    with s3_endpoint("own") as endpoint:
        use_endpoint(monkeypatch, endpoint)
        check_reachable("s3://own/a.zarr")
        check_reachable(tmp_path / "a.zarr")
        assert client_of(endpoint).list_objects_v2(Bucket="own")["KeyCount"] == 0
