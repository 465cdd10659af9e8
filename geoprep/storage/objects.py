"""Objects on S3 and files on web servers: list them, describe them, read them."""

from __future__ import annotations

import io
import re
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from geoprep.errors import SourceError
from geoprep.storage.clients import CutShortError, open_bucket, open_object, retried
from geoprep.storage.s3 import errors_named, split_address

MAX_OBJECTS = 100_000
"""Objects of a listing; SpaceNet's largest city folder has some 8,000."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server.

    Attributes
    ----------
    address
        ``s3://``, ``https://``, ``http://`` or ``gs://``.
    size
        Bytes.
    etag
        As the server gives it, without quotes; "" where it gives none.
    modified
        Time of the last change, such as ``20240131T235959Z``.
    md5
        Checksum that its publisher gives, None where there is none.
    """

    address: str
    size: int
    etag: str
    modified: str = ""
    md5: str | None = None

    @property
    def version(self) -> str:
        """A text that changes whenever the file does."""
        return f"{self.etag}-{self.size}-{self.modified}"


def remote_file(address: str, md5: str | None = None) -> RemoteFile:
    """Return what a server says of one file; raises as `read_object`."""
    import obstore

    with errors_named(address):
        client, key = open_object(address)
        return _described(address, obstore.head(client, key), md5)


def list_remote(folder: str) -> list[RemoteFile]:
    """Return everything under a folder of a bucket, sorted by key.

    Parameters
    ----------
    folder
        ``s3://bucket/prefix``, with or without a closing slash.

    Raises
    ------
    SourceError
        Nothing can be listed, or more than 100,000 objects.
    """
    import obstore

    bucket, prefix = split_address(folder)

    def listed() -> list[RemoteFile]:
        batches = obstore.list(open_bucket(f"s3://{bucket}"), prefix=prefix.rstrip("/") or None)
        items = islice(chain.from_iterable(batches), MAX_OBJECTS + 1)
        return [_described(f"s3://{bucket}/{item['path']}", item) for item in items]

    with errors_named(folder):
        found = retried(listed)
    if len(found) > MAX_OBJECTS:
        raise SourceError(
            f"{folder}: more than {MAX_OBJECTS:,} objects. Give the folder that holds the scenes "
            "of one area"
        )
    return sorted(found, key=lambda one: one.address)


def list_objects(folder: str) -> list[str]:
    """Return the addresses of everything under a folder, as `list_remote`."""
    return [one.address for one in list_remote(folder)]


def _described(address: str, meta: Any, md5: str | None = None) -> RemoteFile:  # noqa: ANN401 - obstore's ObjectMeta, a typed dict of its own
    etag = (meta.get("e_tag") or "").strip('"')
    return RemoteFile(address, meta["size"], etag, f"{meta['last_modified']:%Y%m%dT%H%M%SZ}", md5)


def match_objects(pattern: str) -> list[str]:
    """Return the addresses that match a pattern such as ``s3://bucket/scenes/*.tif``.

    As in a shell, ``*`` stays within a folder and ``**`` does not.
    """
    folder = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    wanted = re.compile(_translate(pattern))
    return [address for address in list_objects(folder) if wanted.fullmatch(address)]


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


def read_object(address: str) -> bytes:
    """Return the bytes of one object.

    Raises
    ------
    SourceError
        Missing, forbidden, or still failing after the retries; the message says which.
    """
    import obstore

    with errors_named(address):
        client, key = open_object(address)
        return retried(lambda: bytes(obstore.get(client, key).bytes()))


class RangeReader(io.RawIOBase):
    """A file on a server, read in blocks as they are needed; for headers of large images.

    Attributes
    ----------
    errors
        Errors of reading, after which a read returns no more bytes: an exception in a callback of
        GDAL ends the process, so the caller has to look here.

    Raises
    ------
    SourceError
        By the constructor, as `read_object`.
    """

    BLOCK = 256 << 10
    _KEPT = 16

    def __init__(self, address: str) -> None:
        super().__init__()
        self._file = remote_file(address)
        self._position = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self.errors: list[SourceError] = []

    def reopened(self) -> RangeReader:
        """Return a reader of the same file, at its start, which shares the blocks read so far."""
        other = RangeReader.__new__(RangeReader)
        other._file, other._blocks, other.errors = self._file, self._blocks, self.errors
        other._position = 0
        return other

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return bytes from the position on; fewer only at the end of the file."""
        left = max(0, self._file.size - self._position)
        size = left if size < 0 else min(size, left)
        pieces = []
        while size > 0:
            number, offset = divmod(self._position, self.BLOCK)
            piece = self._block(number)[offset : offset + size]
            if not piece:
                break
            pieces.append(piece)
            self._position += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * self.BLOCK
            try:
                data = self._range(start, min(start + self.BLOCK, self._file.size))
            except SourceError as error:
                self.errors.append(error)
                return b""
            self._blocks[number] = data
            if len(self._blocks) > self._KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def _range(self, start: int, stop: int) -> bytes:
        import obstore

        client, key = open_object(self._file.address)

        def request() -> bytes:
            data = bytes(obstore.get_range(client, key, start=start, end=stop))
            if len(data) != stop - start:
                raise CutShortError(f"{len(data)} bytes came of {stop - start}")
            return data

        with errors_named(self._file.address):
            return retried(request)
