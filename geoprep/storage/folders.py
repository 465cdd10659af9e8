"""The files of a store as bytes, in a folder of this machine or on an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from geoprep.errors import SourceError, StoreError
from geoprep.storage.objects import explain, open_bucket, s3_address, whole

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class StoreFiles:
    """Reads a store's files without knowing Zarr; one client for all threads.

    Parameters
    ----------
    location
        A local folder, or any address that :meth:`geoprep.store.Store.open` takes.
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
            items = whole(lambda: [*chain.from_iterable(obstore.list(self._client))])
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
            return whole(lambda: obstore.get(self._client, name).bytes().to_bytes())

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return some bytes of one file; fewer where it ends before; raises as :meth:`read`."""
        import obstore

        with self._errors_named(f"{self.location}/{name}"):
            return whole(
                lambda: obstore.get_range(self._client, name, start=start, end=stop).to_bytes()
            )

    def read_end(self, name: str, nbytes: int) -> bytes:
        """Return the last bytes of one file; raises as :meth:`read`."""
        import obstore

        with self._errors_named(f"{self.location}/{name}"):
            size = int(obstore.head(self._client, name)["size"])
        return self.read_range(name, max(0, size - nbytes), size) if size else b""

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


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn what a disk or an object store refuses into a StoreError, but for what is not there.

    Parameters
    ----------
    what
        Path or address of the file that is being read inside.

    Raises
    ------
    StoreError
        One line that names the file; on S3 also what to do about it.
    FileNotFoundError
        As it was.
    """
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, exceptions.BaseError) as error:
        if what.startswith("s3://"):
            raise StoreError(f"{what}: {explain(error)}") from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(
            f"{what} cannot be read ({reason}): check the path or the address"
        ) from error


def open_files(location: str) -> ObjectStore:
    """Return obstore's view of a folder or of an address.

    On S3 the client, its endpoint and its credentials are those of
    :mod:`geoprep.storage.objects`.

    Raises
    ------
    StoreError
        There is no such folder, or the address names no bucket.
    """
    from obstore.store import HTTPStore, LocalStore, from_url

    with suppress(SourceError):
        location = s3_address(location) if location.startswith("http") else location
    if location.startswith("s3://"):
        try:
            return open_bucket(location)
        except SourceError as error:
            raise StoreError(str(error)) from error
    if location.startswith("http://"):
        return HTTPStore.from_url(location, client_options={"allow_http": True})
    if "://" in location:
        return from_url(location)
    folder = Path(location)
    if not folder.is_dir():
        raise StoreError(f"{location}: no such store")
    return LocalStore(folder.absolute())
