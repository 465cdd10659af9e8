"""The files of a store as bytes, in a folder or on an object store; files written all at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from geoprep.errors import StoreError, UsageError
from geoprep.storage.disk import flush

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class StoreFiles:
    """Reads a store's files without knowing Zarr; one client for all threads.

    Parameters
    ----------
    location
        A local folder, or any address that :meth:`geoprep.store.schema.Store.open` takes.
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
            found = {m["path"]: m["size"] for batch in obstore.list(self._client) for m in batch}
        return dict(sorted(found.items()))

    def read(self, name: str) -> bytes:
        """Return the bytes of one file.

        Raises
        ------
        StoreError
            It is missing or cannot be read.
        """
        import obstore

        with self._errors_named(f"{self.location}/{name}"):
            return obstore.get(self._client, name).bytes().to_bytes()

    def bytes_under(self, folder: str) -> int:
        """Return the bytes of all files in a folder of the store."""
        return sum(size for name, size in self.sizes.items() if name.startswith(f"{folder}/"))

    @contextmanager
    def _errors_named(self, what: str) -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except FileNotFoundError as error:
            raise StoreError(f"{what} is missing") from error
        except (OSError, exceptions.BaseError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StoreError(f"{what} cannot be read: {reason}") from error


def open_files(location: str) -> ObjectStore:
    """Return obstore's view of a folder or of an address.

    Raises
    ------
    StoreError
        There is no such folder.
    """
    from obstore.store import HTTPStore, LocalStore, from_url

    if location.startswith("http://"):
        return HTTPStore.from_url(location, client_options={"allow_http": True})
    if "://" in location:
        return from_url(location)
    folder = Path(location)
    if not folder.is_dir():
        raise StoreError(f"{location}: no such store")
    return LocalStore(folder.absolute())


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it becomes ``path`` when all went well.

    Nobody ever sees half a file under its final name, and a failure leaves what was there before.

    Raises
    ------
    UsageError
        The folder does not exist.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist: create it first")
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        flush(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
