"""Objects on S3 and on what speaks like it: one client, list a folder, read a file, name errors.

Endpoint, region and credentials come from the standard ``AWS_*`` environment variables. Requests
are unsigned for the public SpaceNet bucket, and wherever no credentials are set: an unsigned
request to a private bucket fails at once, looking for credentials nobody has takes seconds.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from geoprep.errors import GeoprepError, OutputError, SourceError
from geoprep.storage.files import replaced

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

# The bucket's largest city folder has some 8,000 objects; a listing brings 1,000 per request.
MAX_OBJECTS = 100_000
# Doubling waits from 0.2 s on: some five seconds until a network that is down is reported.
RETRIES = 6
# Seconds without a byte until a connection is given up.
STALL = 30
PUBLIC_BUCKETS = ("spacenet-dataset",)
"""Buckets that anybody may read, and whose requests are never signed."""
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
PIECE = 16 << 20
"""Bytes of an object in memory while it is copied."""
Answer = TypeVar("Answer")
_used_in: dict[str, int] = {}
_FALSE = ("0", "false", "no", "off")


def is_remote(address: str) -> bool:
    """Return whether an address is an object's, not a file's."""
    return address.startswith(("s3://", "http://", "https://"))


def s3_address(address: str) -> str:
    """Return ``s3://bucket/key`` for an S3 address in any of its usual web forms.

    Raises
    ------
    SourceError
        A web address that is not S3's.
    """
    if address.startswith("s3://"):
        return address
    url = urlsplit(address)
    host, path = url.netloc, url.path.lstrip("/")
    if match := re.fullmatch(r"(.+)\.s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com", host):
        return f"s3://{match[1]}/{path}"
    if re.fullmatch(r"s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com", host):
        return f"s3://{path}"
    raise SourceError(
        f"{address}: only S3 is read over the network. Download it first, or for another object "
        "store give s3://BUCKET/PREFIX and set AWS_ENDPOINT_URL."
    )


def list_objects(address: str) -> list[str]:
    """Return the addresses of everything under a folder, sorted by key.

    Parameters
    ----------
    address
        ``s3://bucket/prefix``; the prefix names a folder, with or without a closing slash.

    Raises
    ------
    SourceError
        Nothing can be listed, or more than 100,000 objects.
    """
    return [found for found, _, _ in list_metadata(address)]


def list_metadata(address: str) -> list[tuple[str, int, str]]:
    """Return address, bytes and ETag of everything under a folder, as :func:`list_objects`."""
    import obstore

    bucket, prefix = _split(address)

    def listed() -> list[tuple[str, int, str]]:
        batches = obstore.list(_store(bucket), prefix=prefix.rstrip("/") or None)
        items = islice(chain.from_iterable(batches), MAX_OBJECTS + 1)
        return [
            (f"s3://{bucket}/{item['path']}", item["size"], item["e_tag"] or "") for item in items
        ]

    with errors_named(address):
        found = whole(listed)
    if len(found) > MAX_OBJECTS:
        raise SourceError(
            f"{address}: more than {MAX_OBJECTS:,} objects: give the folder that holds the scenes "
            "of one area"
        )
    return sorted(found)


def read_metadata(address: str) -> tuple[int, str]:
    """Return the bytes and the ETag of one object; raises as :func:`read_object`."""
    import obstore

    bucket, key = _split(address)
    with errors_named(address):
        meta = obstore.head(_store(bucket), key)
    return meta["size"], meta["e_tag"] or ""


def open_object(address: str) -> tuple["S3Store", str]:
    """Return the client of an object's bucket, and its key."""
    bucket, key = _split(address)
    return _store(bucket), key


def match_objects(pattern: str) -> list[str]:
    """Return the addresses that match a pattern such as ``s3://bucket/scenes/*.tif``.

    As in a shell, ``*`` stays within a folder and ``**`` does not.
    """
    folder = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    wanted = re.compile(_translate(pattern))
    return [address for address in list_objects(folder) if wanted.fullmatch(address)]


def read_object(address: str) -> bytes:
    """Return the bytes of one object.

    Raises
    ------
    SourceError
        Missing, forbidden, or still failing after the retries; the message says which.
    """
    import obstore

    bucket, key = _split(address)
    with errors_named(address):
        return whole(lambda: bytes(obstore.get(_store(bucket), key).bytes()))


def fetch_object(address: str, path: Path, version: str | None = None) -> str | None:
    """Copy an object into a file, piece by piece.

    Parameters
    ----------
    address
        Of the object.
    path
        Of the file, written whole or not at all.
    version
        Of the copy that is there already, as this function or `object_version` returned it.

    Returns
    -------
    str or None
        The version of the object that was copied; None where it still is ``version``, and nothing
        was done.

    Raises
    ------
    SourceError
        As for `read_object`.
    """
    import obstore

    bucket, key = _split(address)
    with errors_named(address):
        client = _store(bucket)
        meta = obstore.head(client, key)
        if _version(meta) == version:
            return None
        with replaced(path) as partial, partial.open("wb") as file:
            # In requests of their own, each with its own time limit and its own retries; one of
            # another version of the object fails.
            for start in range(0, meta["size"], PIECE):
                part = (start, min(start + PIECE, meta["size"]))
                options: GetOptions = {"range": part, "if_match": meta["e_tag"]}
                file.write(_piece(client, key, options))
    return _version(meta)


def _piece(client: "S3Store", key: str, options: "GetOptions") -> bytes:
    import obstore

    return whole(lambda: bytes(obstore.get(client, key, options=options).bytes()))


def object_version(address: str) -> str:
    """Return what changes when an object does: its ETag, size and time, in one word.

    Raises
    ------
    SourceError
        As for `read_object`.
    """
    import obstore

    bucket, key = _split(address)
    with errors_named(address):
        return _version(obstore.head(_store(bucket), key))


def _version(meta: Any) -> str:  # noqa: ANN401 - obstore's ObjectMeta, a typed dict of its own
    etag = (meta.get("e_tag") or "").strip('"')
    return f"{etag}-{meta['size']}-{meta['last_modified']:%Y%m%dT%H%M%SZ}"


def _translate(pattern: str) -> str:
    parts = re.split(r"(\*\*/?|\*|\?|\[[^\]]+\])", pattern)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        meaning.get(part) or (_one_of(part) if part[:1] == "[" else re.escape(part))
        for part in parts
    )


def _one_of(part: str) -> str:
    inside = part[1:-1].replace("\\", "\\\\")
    return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"


def _split(address: str) -> tuple[str, str]:
    bucket, _, key = s3_address(address).removeprefix("s3://").partition("/")
    if not bucket:
        raise SourceError(f"{address}: no bucket in it; give s3://BUCKET/PREFIX.")
    return bucket, key


def open_bucket(address: str) -> "S3Store":
    """Return this process's client for a bucket or a folder of it, shared by all threads.

    A child forked after its parent's first request would wait for ever (measured: the client's own
    threads do not survive the fork), so it is told.

    Parameters
    ----------
    address
        ``s3://bucket`` or ``s3://bucket/folder``; keys then begin below the folder.

    Raises
    ------
    SourceError
        No bucket is named, or this process was forked from one that reads from S3.
    """
    bucket, prefix = _split(address)
    if _used_in.setdefault("pid", os.getpid()) != os.getpid():
        raise SourceError(
            f"s3://{bucket}: cannot be read in a process forked after its parent read from S3. Use "
            "threads, or processes started by spawn or forkserver."
        )
    with errors_named(address):  # of credentials, one half may be set
        return _client(bucket, prefix.strip("/"), _endpoint(), _unsigned(bucket))


def _store(bucket: str) -> "S3Store":
    return open_bucket(f"s3://{bucket}")


def _endpoint() -> str | None:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _unsigned(bucket: str) -> bool:
    if bucket in PUBLIC_BUCKETS:
        return True
    wish = os.environ.get("AWS_SKIP_SIGNATURE")
    if wish is not None:
        return wish.lower() not in _FALSE
    return not any(os.environ.get(name) for name in _CREDENTIALS)


@lru_cache(maxsize=32)
def _client(bucket: str, prefix: str, endpoint: str | None, unsigned: bool) -> "S3Store":
    from obstore.store import S3Store

    settings: dict[str, Any] = {"skip_signature": unsigned}
    if prefix:
        settings["prefix"] = prefix
    if endpoint is not None:
        settings["endpoint"] = endpoint
    return S3Store(
        bucket,
        **settings,
        client_options={
            "connect_timeout": "10s",
            "timeout": "120s",
            "read_timeout": f"{STALL}s",
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=60),
            "backoff": {"init_backoff": timedelta(milliseconds=200)},
        },
    )


def whole(ask: Callable[[], Answer]) -> Answer:
    """Return an answer, asked for again where it breaks off: the client retries its beginning only.

    Parameters
    ----------
    ask
        May be called several times; takes in all of the answer.
    """
    from obstore.exceptions import GenericError

    for attempt in range(RETRIES):
        try:
            return ask()
        except GenericError as error:
            if "response body" not in str(error):
                raise
            time.sleep(0.2 * 2**attempt)
    return ask()


@contextmanager
def errors_named(address: str, kind: type[GeoprepError] = SourceError) -> Iterator[None]:
    """Turn what a server refuses into one line that names the address and the fix.

    Parameters
    ----------
    address
        Of what is read or written inside.
    kind
        SourceError where it is read, OutputError where it is written.
    """
    from obstore import exceptions

    try:
        yield
    except (FileNotFoundError, PermissionError, exceptions.BaseError) as error:
        words = explain_writing if kind is OutputError else explain
        raise kind(f"{address}: {words(error)}") from error


def explain_writing(error: Exception) -> str:
    """Return what a server has against an object that is written, and what to do about it."""
    status, reason = _status(error)
    if status == "404" or isinstance(error, FileNotFoundError):
        return "no such bucket. Check its name, or make it: aws s3 mb s3://BUCKET"
    if status in ("401", "403") or isinstance(error, PermissionError):
        return (
            "writing is refused. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of somebody who "
            "may put, get, list and delete objects there (AWS_SKIP_SIGNATURE=false uses the "
            "machine's own role)"
        )
    if "region" in reason:
        return f"the bucket is in another region ({reason}): set AWS_REGION"
    endpoint = _endpoint()
    where = f"the endpoint {endpoint}" if endpoint else "the network"
    return f"not writable ({reason}). Check {where}, and run the same command again to carry on"


def _status(error: Exception) -> tuple[str, str]:
    """Return the HTTP status, "" where there is none, and the first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0][:300] if lines else type(error).__name__
    match = re.search(r"status code: (\d{3})", reason)
    return match[1] if match else "", reason


def explain(error: Exception) -> str:
    """Return what went wrong and what to do about it; a listing tells its status in words only."""
    status, reason = _status(error)
    if status == "404" or isinstance(error, FileNotFoundError):
        return (
            "no such object or bucket. Check the address; "
            "`aws s3 ls --no-sign-request` lists a public folder."
        )
    if status in ("401", "403") or isinstance(error, PermissionError):
        return (
            "access refused. For a private bucket set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(AWS_SKIP_SIGNATURE=false uses the machine's own role); an object that does not exist "
            "in a bucket that may not be listed is refused too."
        )
    if "Missing" in reason:
        return f"half of the credentials are not set ({reason}): set or unset all AWS_* of them."
    if "region" in reason:
        return f"the bucket is in another region ({reason}): set AWS_REGION."
    endpoint = _endpoint()
    where = f"the network and the endpoint {endpoint}" if endpoint else "the network"
    return f"not readable ({reason}). Check {where}, or download the files and give their folder."
