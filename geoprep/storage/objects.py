"""Objects on S3 and on what speaks like it: one client, list a folder, read a file, ask again."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from geoprep.errors import SourceError
from geoprep.storage.files import replaced
from geoprep.storage.s3 import endpoint as server
from geoprep.storage.s3 import errors_named, is_unsigned, split_address

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

# The bucket's largest city folder has some 8,000 objects; a listing brings 1,000 per request.
MAX_OBJECTS = 100_000
# Doubling waits: some five seconds until a network that is down is reported.
RETRIES = 6
# Seconds of the first wait.
BACKOFF = 0.2
# Seconds without a byte until a connection is given up.
STALL = 30
PIECE = 16 << 20
"""Bytes of an object in memory while it is copied."""
Answer = TypeVar("Answer")
_used_in: dict[str, int] = {}


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

    bucket, prefix = split_address(address)

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

    bucket, key = split_address(address)
    with errors_named(address):
        meta = obstore.head(_store(bucket), key)
    return meta["size"], meta["e_tag"] or ""


def open_object(address: str) -> tuple["S3Store", str]:
    """Return the client of an object's bucket, and its key."""
    bucket, key = split_address(address)
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

    bucket, key = split_address(address)
    with errors_named(address):
        return whole(lambda: bytes(obstore.get(_store(bucket), key).bytes()))


def fetch_object(address: str, path: Path, version: str | None = None) -> str | None:
    """Copy an object into a file, piece by piece.

    Parameters
    ----------
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

    bucket, key = split_address(address)
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

    bucket, key = split_address(address)
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
    bucket, prefix = split_address(address)
    if _used_in.setdefault("pid", os.getpid()) != os.getpid():
        raise SourceError(
            f"s3://{bucket}: cannot be read in a process forked after its parent read from S3. Use "
            "threads, or processes started by spawn or forkserver."
        )
    with errors_named(address):  # of credentials, one half may be set
        return _client(bucket, prefix.strip("/"), server(), is_unsigned(bucket))


def _store(bucket: str) -> "S3Store":
    return open_bucket(f"s3://{bucket}")


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
            "backoff": {"init_backoff": timedelta(seconds=BACKOFF)},
        },
    )


class CutShortError(Exception):
    """An answer has fewer bytes than it says."""


def whole(ask: Callable[[], Answer], *, lost: bool = False) -> Answer:
    """Return an answer, asked for again where it breaks off or is cut short.

    The client goes on by itself where an answer breaks off, some times; not where the object has no
    ETag, in a listing, or where a server sends less than was asked for and says so. Nor where no
    answer comes to a request that may mean something else the second time: a conditional PUT, a
    POST.

    Parameters
    ----------
    ask
        May be called several times; takes in all of the answer, or raises `CutShortError`.
    lost
        Whether to ask again where no answer came, and the client did not.
    """
    for attempt in range(RETRIES):
        try:
            return ask()
        except Exception as error:
            if not (_broke_off(error) or (lost and _is_lost(error))):
                raise
            time.sleep(_wait(attempt))
    return ask()


async def whole_later(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return an answer as :func:`whole`, to who awaits it."""
    for attempt in range(RETRIES):
        try:
            return await ask()
        except Exception as error:
            if not _broke_off(error):
                raise
            await asyncio.sleep(_wait(attempt))
    return await ask()


def _wait(attempt: int) -> float:
    return BACKOFF * 2.0**attempt


def _broke_off(error: Exception) -> bool:
    from obstore.exceptions import GenericError

    if isinstance(error, GenericError):
        return "response body" in str(error)
    return isinstance(error, CutShortError)


def _is_lost(error: Exception) -> bool:
    """Return whether no answer came, and the client has not asked as often as it may."""
    told = str(error)
    return "error sending request" in told and f"after {RETRIES} retries" not in told
