"""Reads the files of a store as bytes, from a local folder or an object store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from geoprep.errors import StoreError
from geoprep.storage.clients import CutShortError, open_files, retried
from geoprep.storage.s3 import explain

if TYPE_CHECKING:
    from obstore import Bytes


Range = tuple[int, int]
"""First byte, and the byte after the last."""


class StoreFiles:
    """Reads the files of a store, with one client for all threads.

    Parameters
    ----------
    location
        A local folder, or any address that :meth:`geoprep.store.StoreReader.open` takes.
    """

    def __init__(self, location: str | Path) -> None:
        self.location = str(location).rstrip("/")
        self._client = open_files(str(location))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file, by path relative to the store, sorted by path.

        Raises
        ------
        StoreError
            The folder or bucket cannot be listed.
        """
        import obstore

        with self._errors_named(self.location):
            items = retried(lambda: [*chain.from_iterable(obstore.list(self._client))])
        return dict(sorted((item["path"], item["size"]) for item in items))

    def read(self, name: str) -> bytes:
        """Return the bytes of one file.

        Raises
        ------
        StoreError
            It is missing or cannot be read.
        """
        import obstore

        with self._errors_named(f"{self.location}/{name}"):
            return retried(lambda: obstore.get(self._client, name).bytes().to_bytes())

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes from start to stop, fewer at the file's end; raises as :meth:`read`."""
        import obstore

        with self._errors_named(f"{self.location}/{name}"):
            return retried(
                lambda: obstore.get_range(self._client, name, start=start, end=stop).to_bytes()
            )

    def read_end(self, name: str, nbytes: int) -> bytes:
        """Return the last bytes of one file; raises as :meth:`read`."""
        with self._errors_named(f"{self.location}/{name}"):
            return bytes(self.end(name, nbytes))

    def end(self, name: str, nbytes: int) -> memoryview:
        """Return the last bytes of one file, in one request; raises as :meth:`ranges`."""
        import obstore
        from obstore.exceptions import GenericError, NotSupportedError

        def request() -> memoryview:
            found = obstore.get(self._client, name, options={"range": {"suffix": nbytes}})
            first, last = found.range
            return _of_length(found.bytes(), last - first)

        with store_errors(f"{self.location}/{name}"):
            try:
                return retried(request)
            # Azure has no ranges from the end, and no server has one of an empty object.
            except (NotSupportedError, GenericError):
                size = int(obstore.head(self._client, name)["size"])
                if not size:
                    return memoryview(b"")
                return self.ranges(name, [(max(0, size - nbytes), size)], 0)[0]

    def ranges(self, name: str, ranges: Sequence[Range], gap: int) -> list[memoryview]:
        """Return parts of one file, as views without a copy.

        Parameters
        ----------
        ranges
            First byte of each part, and the byte after its last.
        gap
            Two ranges at most this many bytes apart are read in one request.

        Raises
        ------
        StoreError
            They cannot be read.
        FileNotFoundError
            The file does not exist.
        ValueError
            The file ends before the last range does.
        """
        import obstore

        # Merged here, since obstore's own merging panics at an answer that is cut short (0.12.1).
        spans = _merged(ranges, gap)
        starts, ends = [a for a, _ in spans], [b for _, b in spans]

        def request() -> list[memoryview]:
            found = obstore.get_ranges(self._client, name, starts=starts, ends=ends, coalesce=0)
            if len(found[-1]) < ends[-1] - starts[-1]:
                self._require(name, ends[-1])
            return [_of_length(one, b - a) for one, (a, b) in zip(found, spans, strict=True)]

        with store_errors(f"{self.location}/{name}"):
            found = retried(request)
        places = ((bisect_right(starts, a) - 1, a, b) for a, b in ranges)
        return [found[i][a - starts[i] : b - starts[i]] for i, a, b in places]

    def _require(self, name: str, nbytes: int) -> None:
        import obstore

        if int(obstore.head(self._client, name)["size"]) < nbytes:
            raise ValueError("it is cut short")

    def bytes_under(self, folder: str) -> int:
        """Return the bytes of all files in a folder of the store."""
        return sum(size for name, size in self.sizes.items() if name.startswith(f"{folder}/"))

    @contextmanager
    def _errors_named(self, what: str) -> Iterator[None]:
        try:
            with store_errors(what):
                yield
        except FileNotFoundError as error:
            raise StoreError(f"{what} is missing") from error


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


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn errors of a disk or an object store, except a missing file, into a StoreError.

    Parameters
    ----------
    what
        Path or address of the file that is read inside the block.

    Raises
    ------
    StoreError
        One line that names the file; on S3 also the fix.
    FileNotFoundError
        The file does not exist.
    """
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, CutShortError, exceptions.BaseError) as error:
        if what.startswith("s3://"):
            raise StoreError(f"{what}: {explain(error)}") from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(
            f"{what} cannot be read ({reason}): check the path or the address"
        ) from error
