"""Where a store is written: a folder of this machine, or a folder of a bucket.

Whoever makes a file need not know which, nor be the one that commits the store: a file appears
under its name whole or not at all, and is durable once :meth:`Sink.settle` has returned.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

from geoprep.errors import OutputError
from geoprep.storage.disk import flush_shards
from geoprep.storage.objects import open_bucket, whole
from geoprep.storage.s3 import errors_named, split_address

if TYPE_CHECKING:
    from obstore import GetResult, PutMode, PutResult

PARTIAL_SUFFIX = ".partial"
_PART = 16 << 20
"""Bytes per request of an upload; what is smaller is one PUT."""
_IN_MEMORY = 64 << 20
"""Bytes of a file held in memory until it is uploaded; more go to a temporary file."""
REQUESTS = 16
"""Requests at a time of one process."""


class Upload(Protocol):
    """A file that is being written."""

    def write(self, data: bytes) -> object:
        """Append bytes."""
        ...

    def close(self) -> str:
        """Give the file its name; return its tag, "" where files have none."""
        ...

    def abort(self) -> None:
        """Leave nothing behind."""
        ...


class Sink(Protocol):
    """Takes the files of a store, by names relative to it."""

    def create(self, name: str) -> Upload:
        """Begin a file."""
        ...

    def put(self, name: str, data: bytes) -> str:
        """Write a file; return its tag, "" where files have none."""
        ...

    def settle(self, names: Iterable[str]) -> None:
        """Wait until files, and the folders that lead to them, survive a crash."""
        ...


def open_sink(location: str) -> Sink:
    """Return what takes the files of a store at a path or an ``s3://`` address."""
    return Bucket(location) if is_bucket(location) else Folder(Path(location))


def is_bucket(location: str | Path) -> bool:
    """Return whether a store is to be written to a bucket."""
    return str(location).startswith("s3://")


def check_reachable(location: str | Path) -> None:
    """Ask a bucket one question, so that one that is not there is named before hours of work.

    Raises
    ------
    OutputError
        There is no such bucket, or it refuses us.
    """
    if is_bucket(location):
        Bucket(str(location)).read("zarr.json")


class DiskFile:
    """A file with a temporary name until it is closed.

    It is not flushed to the disk here: threads that compute never wait for a disk.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # On a disk that machines share, two processes of one number may write the same file.
        self._partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}")
        self._file = self._partial.open("wb")

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def close(self) -> str:
        """Rename the file into place."""
        self._file.close()
        self._partial.replace(self._path)
        return ""

    def abort(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses again
            self._file.close()
        self._partial.unlink(missing_ok=True)


class Folder:
    """A folder of this machine, or of a disk that it shares with others."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, name: str) -> DiskFile:
        """Begin a file."""
        return DiskFile(self.path / name)

    def put(self, name: str, data: bytes) -> str:
        """Write a file."""
        upload = self.create(name)
        try:
            upload.write(data)
            return upload.close()
        except BaseException:
            upload.abort()
            raise

    def settle(self, names: Iterable[str]) -> None:
        """Flush files and the folders between them and their array."""
        flush_shards(self.path / name for name in names)


class _Object:
    """An object that is sent when it is whole: one request up to a size, parts of it above."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket = bucket
        self._name = name
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by close, abort

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def close(self) -> str:
        with self._file:
            if self._file.tell() <= _PART:
                self._file.seek(0)
                return self._bucket.put(self._name, self._file.read())
            return self._bucket.send(self._name, cast("IO[bytes]", self._file))

    def abort(self) -> None:
        self._file.close()


class Bucket:
    """A folder of a bucket: every object appears at once, and is durable when the server says so.

    Parameters
    ----------
    location
        ``s3://bucket/folder``.

    Raises
    ------
    OutputError
        By every method, where the server refuses or does not answer; one line with the fix.
    """

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._client = open_bucket(self.location)

    def create(self, name: str) -> _Object:
        """Begin an object."""
        return _Object(self, name)

    def put(self, name: str, data: bytes) -> str:
        """Write an object in one request; return its ETag."""
        import obstore

        with self._named(name):
            return _tag(obstore.put(self._client, name, data, use_multipart=False))

    def send(self, name: str, file: IO[bytes]) -> str:
        """Write an object in parts; return its ETag."""
        import obstore

        def sent() -> PutResult:
            file.seek(0)
            return obstore.put(self._client, name, file, chunk_size=_PART, max_concurrency=4)

        with self._named(name):
            return _tag(whole(sent, lost=True))

    def put_if(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Write an object if it still is the one with this ETag, or None: if there is none.

        Returns
        -------
        str or None
            Its ETag; None where somebody else was there first.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: PutMode = "create" if tag is None else {"e_tag": tag}
        with self._named(name):
            try:
                put = whole(lambda: obstore.put(self._client, name, data, mode=mode), lost=True)
                return _tag(put)
            except (AlreadyExistsError, PreconditionError):
                pass  # or it was ourselves: an answer was lost, and we asked again
        found = self.read(name)
        return found[1] if found is not None and found[0] == data else None

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and its ETag, None where there is none."""
        import obstore

        with self._named(name):
            try:
                return whole(lambda: _content(obstore.get(self._client, name)))
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return some bytes of an object."""
        import obstore

        with self._named(name):
            return whole(
                lambda: obstore.get_range(self._client, name, start=start, end=stop).to_bytes()
            )

    def tags(self) -> dict[str, str]:
        """Return the ETag of every object, by name."""
        import obstore

        with self._named(""):
            items = whole(lambda: [*chain.from_iterable(obstore.list(self._client))])
        return {item["path"]: _tag(item) for item in items}

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, as many per request as the server takes."""
        import obstore

        if names := list(names):
            with self._named(""):
                whole(lambda: obstore.delete(self._client, names), lost=True)

    def copy_to(self, other: Bucket, names: Iterable[str]) -> dict[str, str]:
        """Copy objects to another folder of the same bucket, on the server.

        Safe to repeat: an object that is there already is replaced.

        Parameters
        ----------
        other
            Folder that receives them under the same names.
        names
            Names relative to this folder; objects of more than 5 GiB are refused by S3.

        Returns
        -------
        dict
            ETag of each copy, by name. It may differ from that of the original, which S3 computes
            from the parts of the upload.

        Raises
        ------
        ValueError
            The two folders lie in different buckets.
        """
        import obstore

        (bucket, ours), (same, theirs) = map(split_address, (self.location, other.location))
        if bucket != same:
            raise ValueError(f"{self.location} and {other.location} lie in different buckets")
        client = open_bucket(f"s3://{bucket}")

        def copy(name: str) -> tuple[str, str]:
            target = f"{theirs}/{name}"
            with other._named(name):
                whole(lambda: obstore.copy(client, f"{ours}/{name}", target), lost=True)
                return name, _tag(whole(lambda: obstore.head(client, target)))

        with ThreadPoolExecutor(REQUESTS) as pool:
            return dict(pool.map(copy, names))

    def put_all(self, files: dict[str, Path]) -> None:
        """Write files of this machine to objects, some at a time."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            for _ in pool.map(lambda item: self.put(item[0], item[1].read_bytes()), files.items()):
                pass

    def settle(self, names: Iterable[str]) -> None:
        """Return: an object that the server has acknowledged is durable."""

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        with errors_named(f"{self.location}/{name}".rstrip("/"), OutputError):
            yield


def _content(found: GetResult) -> tuple[bytes, str]:
    return bytes(found.bytes()), _tag(found.meta)


def _tag(meta: object) -> str:
    return str(cast("dict[str, str | None]", meta).get("e_tag") or "")
