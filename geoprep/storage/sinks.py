"""Writes the files of a store, to a local folder or to a folder of a bucket.

A file has its final name only when it is complete, and is durable once ``settle`` has returned.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from geoprep.errors import OutputError
from geoprep.storage.addresses import is_bucket
from geoprep.storage.local_files import flush_all
from geoprep.storage.places import Files

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ObjectStore

PARTIAL_SUFFIX = ".partial"
_PART = 16 << 20
"""Bytes per request of an upload; smaller files are one PUT."""
_IN_MEMORY = 64 << 20
"""Bytes of an upload kept in memory; larger files are kept in a temporary file."""
REQUESTS = 16
"""Concurrent requests of one process."""


def open_sink(location: str) -> Folder | Bucket:
    """Return the writer for a store at a path or an ``s3://`` address."""
    return Bucket(location) if is_bucket(location) else Folder(Path(location))


def check_reachable(location: str | Path) -> None:
    """Write, list, read and delete a small object, so that a build does not fail after hours."""
    if not is_bucket(location):
        return
    bucket = Bucket(f"{str(location).rstrip('/')}.build")
    name = f"access-{uuid.uuid4().hex}"
    steps: dict[str, Callable[[], object]] = {
        "writing": lambda: bucket.put(name, b"geoprep"),
        "listing": bucket.tags,
        "reading": lambda: bucket.find(name),
        "deleting": lambda: bucket.delete([name]),
    }
    for doing, step in steps.items():
        try:
            step()
        except OutputError as error:
            reason = str(error).partition(": ")[2]
            raise OutputError(f"{location}: {doing} objects fails: {reason}") from error


class DiskFile:
    """A file that has a temporary name until it is closed.

    It is not flushed to the disk here, so that computing threads do not wait for the disk.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # On a shared disk, processes of two machines may have one number and write the same file.
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
        """Discard the file."""
        with suppress(OSError):  # closing flushes, which a full disk refuses again
            self._file.close()
        self._partial.unlink(missing_ok=True)


class Folder:
    """A folder of a local or shared disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, name: str) -> DiskFile:
        """Begin a file."""
        return DiskFile(self.path / name)

    def settle(self, names: Iterable[str]) -> None:
        """Flush files and the folders between them and their array.

        Partial files of a killed process beside them are removed.
        """
        settled = set()
        for path in (self.path / name for name in names):
            for left_over in path.parent.glob(f".{path.name}.*{PARTIAL_SUFFIX}"):
                left_over.unlink(missing_ok=True)
            settled.add(path)
            for folder in path.parents:
                settled.add(folder)
                if folder.name == "c":
                    break
        flush_all(settled)


class BucketObject:
    """An object that is uploaded when it is closed: in one request, or in parts if it is large."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket = bucket
        self._name = name
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by close, abort

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def close(self) -> str:
        """Upload the object; return its ETag."""
        with self._file:
            return self._bucket.put(self._name, cast("IO[bytes]", self._file))

    def abort(self) -> None:
        """Discard the bytes."""
        self._file.close()


class Bucket(Files):
    """A folder of a bucket, for reading and writing: all errors are OutputErrors.

    Objects appear complete, and are durable as soon as the server has acknowledged them.
    """

    def __init__(self, location: str) -> None:
        super().__init__(location, OutputError)

    def create(self, name: str) -> BucketObject:
        """Begin an object."""
        return BucketObject(self, name)

    def put(self, name: str, data: bytes | IO[bytes]) -> str:
        """Write an object, in parts if it is large; return its ETag."""
        import obstore

        def sent(client: ObjectStore) -> str:
            if not isinstance(data, bytes):
                data.seek(0)
            return _tag(obstore.put(client, name, data, chunk_size=_PART, max_concurrency=4))

        return self.ask(name, sent, unanswered=True)

    def put_if(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Write an object unless another writer has changed it.

        ``tag`` is the ETag that the object must still have; None: it must not exist. Returns its
        new ETag, None if another writer came first.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: PutMode = "create" if tag is None else {"e_tag": tag}

        def put(client: ObjectStore) -> str | None:
            try:
                return _tag(obstore.put(client, name, data, mode=mode))
            except (AlreadyExistsError, PreconditionError):
                return None  # perhaps by this call: the answer was lost and the request repeated

        written = self.ask(name, put, unanswered=True)
        if written is not None:
            return written
        stored = self.find(name)
        return stored[1] if stored is not None and stored[0] == data else None

    def find(self, name: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and its ETag, None if there is none."""
        import obstore

        def get(client: ObjectStore) -> tuple[bytes, str] | None:
            try:
                answer = obstore.get(client, name)
                return bytes(answer.bytes()), _tag(answer.meta)
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

        return self.ask(name, get)

    def tags(self, prefix: str = "") -> dict[str, str]:
        """Return the ETag of every object, or of those in one folder, by name."""
        return {item["path"]: _tag(item) for item in self.listed(prefix)}

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, as many per request as the server allows."""
        import obstore

        if names := list(names):
            self.ask("", lambda client: obstore.delete(client, names), unanswered=True)

    def put_all(self, files: dict[str, Path], tags: dict[str, str]) -> bool:
        """Write local files, by the names of their objects; return whether all were written.

        They are not if another writer has changed one: objects must still have the ETags that
        `tags` returned, and names that are not among them must not exist.
        """

        def put(item: tuple[str, Path]) -> bool:
            name, path = item
            return self.put_if(name, path.read_bytes(), tags.get(name)) is not None

        with ThreadPoolExecutor(REQUESTS) as pool:
            return all(pool.map(put, files.items()))

    def settle(self, names: Iterable[str]) -> None:
        """Do nothing: objects that the server has acknowledged are durable."""


def _tag(meta: object) -> str:
    return str(cast("dict[str, str | None]", meta).get("e_tag") or "")


Upload = DiskFile | BucketObject
"""A file that is being written: ``write``, then ``close``, which returns its ETag, or ``abort``."""
