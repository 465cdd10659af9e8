"""Open the root group of a store with zarr, whose import takes longer than that of all the rest."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import zarr
from zarr.abc.store import ByteRequest
from zarr.abc.store import Store as ZarrStore
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.errors import ZarrUserWarning
from zarr.storage import LocalStore, ObjectStore

from geoprep.errors import StoreError
from geoprep.storage.failures import errors_named
from geoprep.storage.places import Files
from geoprep.store.schema import REPAIR


@contextmanager
def quiet_zarr() -> Iterator[None]:
    """Silence zarr's warning that consolidated metadata is not part of the specification."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ZarrUserWarning)
        yield


class _StrictStore(ZarrStore):
    """Raises StoreError for a missing chunk instead of filling it."""

    location = ""

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        prototype = prototype or default_buffer_prototype()
        chunk = await super().get(key, prototype, byte_range)  # type: ignore[safe-super]  # of the other base
        return self._present(key, chunk)

    async def get_ranges(self, key: str, *args: Any, **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - as zarr's
        """Read parts of a shard (zarr 3.4); zarr packs errors of its parts into a group."""
        try:
            async for parts in super().get_ranges(key, *args, **options):  # type: ignore[misc]
                yield parts
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def _present(self, key: str, chunk: Buffer | None) -> Buffer | None:
        if chunk is None and "/c/" in key:
            raise StoreError(f"{self.location}/{key} is missing. {REPAIR}")
        return chunk


class _LocalFolder(_StrictStore, LocalStore):
    """A store in a local folder."""

    def get_sync(self, key: str, **options: Any) -> Buffer | None:  # noqa: ANN401 - as zarr's
        """Read a file without an event loop, as zarr 3.4 does if it is told to."""
        return self._present(key, super().get_sync(key, **options))


class _RemoteFolder(_StrictStore, ObjectStore[Any]):
    """A store in a bucket or on a web server."""


def open_root(location: str) -> zarr.Group:
    """Open the root group for reading. Raise StoreError if that is impossible."""
    where: _StrictStore
    with errors_named(location, StoreError):
        if "://" in location:
            where = _RemoteFolder(Files(location).client, read_only=True)
        else:
            where = _LocalFolder(location, read_only=True)
        where.location = location
        with quiet_zarr():
            return zarr.open_group(where, mode="r", zarr_format=3)
