"""Clients of buckets and web servers with their settings, and repetition of broken-off requests.

Endpoint, region and credentials come from the standard ``AWS_*`` environment variables. Requests
are unsigned for the public SpaceNet bucket, and wherever no credentials are set: an unsigned
request to a private bucket fails at once, while a search for credentials takes seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from geoprep.errors import SourceError, StoreError
from geoprep.storage.addresses import bucket_and_key, is_s3

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PUBLIC_BUCKETS = ("spacenet-dataset",)
"""Buckets with public read access, whose requests are never signed."""
RETRIES = 6
"""Times that a request is repeated; with doubling waits a dead network is reported in 5 s."""
BACKOFF = 0.2
"""Seconds before the first retry; twice as many before each further one."""
STALL = 30
"""Seconds without a byte until a connection is given up."""
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_GOOGLE_CREDENTIALS = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
Answer = TypeVar("Answer")
_used_in: dict[str, int] = {}


def endpoint() -> str | None:
    """Return the address of the S3 server, None for Amazon's."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def is_unsigned(bucket: str) -> bool:
    """Return whether requests to a bucket go without credentials."""
    if bucket in PUBLIC_BUCKETS:
        return True
    skip = os.environ.get("AWS_SKIP_SIGNATURE")
    if skip is not None:
        return skip.lower() not in ("0", "false", "no", "off")
    return not any(os.environ.get(name) for name in _CREDENTIALS)


def open_client(location: str, region: str = "") -> ObjectStore:
    """Return the client for a local folder or any address, shared by all threads.

    Names are relative to the location. A process forked from a process that reads from servers gets
    a SourceError: the client's threads do not survive a fork, and the first request would never
    return. ``region`` is that of a bucket where it is known.
    """
    if "://" not in location:
        from obstore.store import LocalStore

        folder = Path(location)
        if not folder.is_dir():
            raise StoreError(f"{location}: no such store")
        return LocalStore(folder.absolute())
    if _used_in.setdefault("pid", os.getpid()) != os.getpid():
        raise SourceError(
            f"{location}: cannot be read in a process forked after its parent read from a server. "
            "Use threads, or processes started by spawn or forkserver."
        )
    if is_s3(location):
        bucket, prefix = bucket_and_key(location)
        return _client(f"s3://{bucket}", prefix.strip("/"), endpoint(), is_unsigned(bucket), region)
    signed = any(name in os.environ for name in _GOOGLE_CREDENTIALS)
    return _client(location, "", None, not signed)


@lru_cache(maxsize=32)
def _client(
    place: str, prefix: str, server: str | None, unsigned: bool, region: str = ""
) -> ObjectStore:
    from obstore.store import S3Store, from_url

    plain = (server or place).startswith("http://")
    common: dict[str, Any] = {
        "client_options": {
            "connect_timeout": "10s",
            "timeout": "120s",
            "read_timeout": f"{STALL}s",
            "allow_http": plain,
        },
        "retry_config": {
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=60),
            "backoff": {"init_backoff": timedelta(seconds=BACKOFF)},
        },
    }
    if place.startswith("s3://"):
        settings: dict[str, Any] = {"prefix": prefix} if prefix else {}
        if server is not None:
            settings["endpoint"] = server
        elif region:
            settings["region"] = region
        bucket = place.removeprefix("s3://")
        return S3Store(bucket, **settings, skip_signature=unsigned, **common)
    if place.startswith("gs://"):
        common["skip_signature"] = unsigned
    return from_url(place, **common)


class CutShortError(Exception):
    """An answer has fewer bytes than it should."""


def retried(request: Callable[[], Answer], *, unanswered: bool = False) -> Answer:
    """Return the answer to a request, repeated where the answer breaks off or is cut short.

    The client itself resumes most answers that break off. It does not where the object has no
    ETag, in a listing, or where a server announces fewer bytes than were requested. Nor does it
    repeat requests without an answer that may have another effect the second time: a conditional
    PUT, a POST. ``unanswered`` repeats these too.
    """
    for attempt in range(RETRIES):
        try:
            return request()
        except Exception as error:
            if not (_broke_off(error) or (unanswered and _is_unanswered(error))):
                raise
            time.sleep(BACKOFF * 2.0**attempt)
    return request()


def _broke_off(error: Exception) -> bool:
    from obstore.exceptions import GenericError

    if isinstance(error, GenericError):
        return "response body" in str(error)
    return isinstance(error, CutShortError)


def _is_unanswered(error: Exception) -> bool:
    """Return whether no answer came, and the client has retries left."""
    text = str(error)
    return "error sending request" in text and f"after {RETRIES} retries" not in text
