"""Clients of object stores and web servers, one per bucket, and retries of broken-off requests."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from geoprep.errors import SourceError, StoreError
from geoprep.storage.s3 import endpoint as server
from geoprep.storage.s3 import errors_named, is_unsigned, is_web, s3_address, split_address

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Store

RETRIES = 6
"""Times that a request is repeated; with doubling waits a dead network is reported in 5 s."""
BACKOFF = 0.2
"""Seconds before the first retry; twice as many before each further one."""
STALL = 30
"""Seconds without a byte until a connection is given up."""
_GOOGLE_CREDENTIALS = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
Answer = TypeVar("Answer")
_used_in: dict[str, int] = {}


def open_bucket(address: str) -> S3Store:
    """Return this process's client for a bucket or a folder of it, shared by all threads.

    Parameters
    ----------
    address
        ``s3://bucket`` or ``s3://bucket/folder``; keys are then relative to the folder.

    Raises
    ------
    SourceError
        No bucket is named, or this process was forked from one that reads from S3: the client's
        threads do not survive a fork, and the first request would never return.
    """
    bucket, prefix = split_address(address)
    if _used_in.setdefault("pid", os.getpid()) != os.getpid():
        raise SourceError(
            f"s3://{bucket}: cannot be read in a process forked after its parent read from S3. Use "
            "threads, or processes started by spawn or forkserver."
        )
    with errors_named(address):  # of credentials, one half may be set
        return _client(bucket, prefix.strip("/"), server(), is_unsigned(bucket))


def open_object(address: str) -> tuple[ObjectStore, str]:
    """Return the client of an object or a web file, and its key there."""
    if is_web(address):
        folder, _, name = address.rpartition("/")
        return _server_client(folder), name
    bucket, key = split_address(address)
    return open_bucket(f"s3://{bucket}"), key


def open_files(location: str) -> ObjectStore:
    """Return a client for the files below a local folder or any address.

    Raises
    ------
    StoreError
        There is no such folder, or the address names no bucket.
    """
    from obstore.store import LocalStore

    with suppress(SourceError):
        location = s3_address(location) if location.startswith("http") else location
    if location.startswith("s3://"):
        try:
            return open_bucket(location)
        except SourceError as error:
            raise StoreError(str(error)) from error
    if "://" in location:
        return _server_client(location)
    folder = Path(location)
    if not folder.is_dir():
        raise StoreError(f"{location}: no such store")
    return LocalStore(folder.absolute())


def _server_client(folder: str) -> ObjectStore:
    from obstore.store import from_url

    if folder.startswith("gs://"):
        known = any(name in os.environ for name in _GOOGLE_CREDENTIALS)
        return from_url(folder, skip_signature=not known)
    if folder.startswith(("http://", "https://")):
        http = folder.startswith("http://")
        return from_url(folder, client_options={"allow_http": http, "connect_timeout": "10s"})
    return from_url(folder)


@lru_cache(maxsize=32)
def _client(bucket: str, prefix: str, endpoint: str | None, unsigned: bool) -> S3Store:
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
            "backoff": {"init_backoff": timedelta(seconds=BACKOFF)},
        },
    )


class CutShortError(Exception):
    """An answer has fewer bytes than it should."""


def retried(request: Callable[[], Answer], *, unanswered: bool = False) -> Answer:
    """Return the answer to a request, repeated where the answer breaks off or is cut short.

    The client itself resumes most answers that break off. It does not where the object has no
    ETag, in a listing, or where a server announces fewer bytes than were requested. Nor does it
    repeat unanswered requests that may have another effect the second time: a conditional PUT, a
    POST.

    Parameters
    ----------
    request
        May be called several times; reads the whole answer, or raises `CutShortError`.
    unanswered
        Whether to repeat requests without an answer that the client has not repeated.
    """
    for attempt in range(RETRIES):
        try:
            return request()
        except Exception as error:
            if not (_broke_off(error) or (unanswered and _is_unanswered(error))):
                raise
            time.sleep(_wait(attempt))
    return request()


async def retried_async(request: Callable[[], Awaitable[Answer]]) -> Answer:
    """Await the answer to a request, repeated as by `retried`."""
    for attempt in range(RETRIES):
        try:
            return await request()
        except Exception as error:
            if not _broke_off(error):
                raise
            await asyncio.sleep(_wait(attempt))
    return await request()


def _wait(attempt: int) -> float:
    return BACKOFF * 2.0**attempt


def _broke_off(error: Exception) -> bool:
    from obstore.exceptions import GenericError

    if isinstance(error, GenericError):
        return "response body" in str(error)
    return isinstance(error, CutShortError)


def _is_unanswered(error: Exception) -> bool:
    """Return whether no answer came, and the client has retries left."""
    text = str(error)
    return "error sending request" in text and f"after {RETRIES} retries" not in text
