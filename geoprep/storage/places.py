"""Reads files of a disk, a bucket or a web server: one class, one retry, one naming of errors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from geoprep.errors import GeoprepError, SourceError, StoreError
from geoprep.storage.addresses import bucket_and_key, is_web, s3_region, web_parts
from geoprep.storage.clients import CutShortError, open_client, retried
from geoprep.storage.failures import errors_named

if TYPE_CHECKING:
    from obstore import Bytes
    from obstore.store import ObjectStore

Answer = TypeVar("Answer")
Range = tuple[int, int]
"""First byte, and the byte after the last."""
MAX_OBJECTS = 100_000
"""Objects of a listing of images and labels; SpaceNet's largest city folder has some 8,000."""


class Files:
    """Reads the files below a place, with one client for all threads.

    The place is a local folder, or an address on S3, Google Cloud Storage or a web server. All
    errors are of one kind. The query of a signed web address is sent with every request.
    ``region`` is that of a bucket where it is known.
    """

    def __init__(
        self,
        location: str | Path,
        failure: type[GeoprepError] = StoreError,
        query: str = "",
        region: str = "",
    ) -> None:
        self.location = str(location).rstrip("/")
        self._failure = failure
        with errors_named(self.location, failure):
            try:
                self.client = open_client(str(location) + (query and f"?{query}"), region)
            except SourceError as error:  # the address is wrong
                raise failure(str(error)) from error

    def ask(
        self, name: str, request: Callable[[ObjectStore], Answer], *, unanswered: bool = False
    ) -> Answer:
        """Return the answer to a request about a file, repeated as by `clients.retried`."""
        with errors_named(f"{self.location}/{name}".rstrip("/"), self._failure):
            return retried(lambda: request(self.client), unanswered=unanswered)

    def listed(self, prefix: str = "", limit: int | None = None) -> list[dict[str, Any]]:
        """Return what the place says of its files: ``path``, ``size``, ``e_tag``..."""
        import obstore

        def request(client: ObjectStore) -> list[dict[str, Any]]:
            batches = obstore.list(client, prefix=prefix or None)
            return [dict(entry) for entry in islice(chain.from_iterable(batches), limit)]

        return self.ask(prefix, request)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file, by path relative to the place, sorted by path."""
        return dict(sorted((item["path"], item["size"]) for item in self.listed()))

    def bytes_under(self, folder: str) -> int:
        """Return the bytes of all files in a folder."""
        return sum(size for name, size in self.sizes.items() if name.startswith(f"{folder}/"))

    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""
        import obstore

        return self.ask(name, lambda client: obstore.get(client, name).bytes().to_bytes())

    def stream(self, name: str) -> Iterator[bytes]:
        """Yield a whole file in one request, for servers that have no ranges."""
        import obstore

        with errors_named(f"{self.location}/{name}", self._failure):
            for data in obstore.get(self.client, name).stream():
                yield bytes(data)

    def read_range(self, name: str, start: int, stop: int, etag: str = "") -> bytes:
        """Return a range of a file, which must still have the ETag if one is given."""
        import obstore

        options: dict[str, Any] = {"range": (start, stop)} | ({"if_match": etag} if etag else {})
        return bytes(
            self.ask(
                name,
                lambda client: _of_length(
                    obstore.get(client, name, options=options).bytes(),  # type: ignore[arg-type]  # of this form
                    stop - start,
                ),
            )
        )

    def end(self, name: str, nbytes: int) -> memoryview:
        """Return the last bytes of one file, in one request."""
        import obstore
        from obstore.exceptions import GenericError, NotSupportedError

        def request(client: ObjectStore) -> memoryview | None:
            try:
                answer = obstore.get(client, name, options={"range": {"suffix": nbytes}})
            # Azure has no ranges from the end, and no server has one of an empty object.
            except (NotSupportedError, GenericError):
                return None
            first, last = answer.range
            return _of_length(answer.bytes(), last - first)

        tail = self.ask(name, request)
        if tail is not None:
            return tail
        size = self.size(name)
        return self.ranges(name, [(max(0, size - nbytes), size)], 0)[0] if size else memoryview(b"")

    def ranges(self, name: str, ranges: Sequence[Range], gap: int) -> list[memoryview]:
        """Return parts of one file, as views without a copy.

        Two ranges at most ``gap`` bytes apart are read in one request. Raises ValueError if the
        file ends before the last range does.
        """
        import obstore

        # Merged here, since obstore's own merging panics at an answer that is cut short (0.12.1).
        spans = _merged(ranges, gap)
        starts, ends = [a for a, _ in spans], [b for _, b in spans]

        def request(client: ObjectStore) -> list[memoryview] | None:
            parts = obstore.get_ranges(client, name, starts=starts, ends=ends, coalesce=0)
            if len(parts[-1]) < ends[-1] - starts[-1] and self.size(name) < ends[-1]:
                return None
            return [_of_length(part, b - a) for part, (a, b) in zip(parts, spans, strict=True)]

        parts_read = self.ask(name, request)
        if parts_read is None:
            raise ValueError("it is cut short")
        places = ((bisect_right(starts, a) - 1, a, b) for a, b in ranges)
        return [parts_read[i][a - starts[i] : b - starts[i]] for i, a, b in places]

    def size(self, name: str) -> int:
        """Return the bytes of one file."""
        import obstore

        return self.ask(name, lambda client: int(obstore.head(client, name)["size"]))


def _merged(ranges: Sequence[Range], gap: int) -> list[Range]:
    """Return ascending ranges that cover all of these and are more than a gap apart."""
    spans: list[Range] = []
    for start, stop in sorted(ranges):
        if spans and start <= spans[-1][1] + gap:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    return spans


def _of_length(data: Bytes, nbytes: int) -> memoryview:
    if len(data) != nbytes:
        raise CutShortError(f"{len(data)} bytes came of {nbytes}")
    return memoryview(data)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server.

    ``etag`` is as the server gives it, without quotes; "" where it gives none. ``modified`` is a
    time such as ``20240131T235959Z``.
    """

    address: str
    size: int
    etag: str
    modified: str = ""

    @property
    def version(self) -> str:
        """A text that changes whenever the file does."""
        return f"{self.etag}-{self.size}-{self.modified}"


def located(address: str) -> tuple[Files, str]:
    """Return the place of a file on a server, whose errors are SourceErrors, and its name there."""
    if is_web(address):
        server, name, query = web_parts(address)
        return Files(server, SourceError, query), name
    bucket, key = bucket_and_key(address)
    return Files(f"s3://{bucket}", SourceError, region=s3_region(address)), key


def read_object(address: str) -> bytes:
    """Return the bytes of one file on a server, or raise SourceError."""
    files, name = located(address)
    return files.read(name)


def remote_file(address: str) -> RemoteFile:
    """Return what a server says of one file, or raise SourceError."""
    import obstore

    files, name = located(address)

    def request(client: ObjectStore) -> dict[str, Any]:
        # The signature in a query may be for reading alone.
        signed = is_web(address) and "?" in address
        return dict(obstore.get(client, name).meta if signed else obstore.head(client, name))

    return _described(address, files.ask(name, request))


def list_remote(folder: str) -> list[RemoteFile]:
    """Return everything under ``s3://bucket/prefix``, sorted by key, or raise SourceError."""
    bucket, prefix = bucket_and_key(folder)
    place = Files(f"s3://{bucket}", SourceError)
    objects = place.listed(prefix.rstrip("/"), MAX_OBJECTS + 1)
    if len(objects) > MAX_OBJECTS:
        raise SourceError(
            f"{folder}: more than {MAX_OBJECTS:,} objects. Give the folder that holds the scenes "
            "of one area"
        )
    described = (_described(f"s3://{bucket}/{item['path']}", item) for item in objects)
    return sorted(described, key=lambda file: file.address)


def _described(address: str, meta: dict[str, Any]) -> RemoteFile:
    etag = (meta.get("e_tag") or "").strip('"')
    return RemoteFile(address, meta["size"], etag, f"{meta['last_modified']:%Y%m%dT%H%M%SZ}")
