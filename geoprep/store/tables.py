"""The metadata and the tables of a store as its build wrote them, read without importing zarr.

Metadata is the copy that the root's zarr.json has of that of all arrays. A table is one chunk.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.storage.places import Files
from geoprep.store.layout import table_header, without_checksum
from geoprep.store.schema import REPAIR

MOST_VALUES = 1 << 30
"""Values of a table: a column of a billion tiles."""


def read_root(location: str) -> dict[str, Any]:
    """Return the metadata of a store's root group. Raise StoreError if there is none."""
    if "://" not in location and not Path(location).is_dir():
        if Path(f"{location.rstrip('/')}.build", "new").is_dir():
            raise incomplete(location)
        raise StoreError(
            f"{location}: no such store. Check the path, or build one with `geoprep build-zarr`"
        )
    lacks = f"{location} is not a Zarr store: it has no zarr.json. Check the path or address"
    try:
        root: dict[str, Any] = dict(json.loads(_read(location, "zarr.json", lacks)))
        if (root.get("zarr_format"), root.get("node_type")) != (3, "group"):
            raise ValueError("it is not that of a group of Zarr 3")
        return {"attributes": {}} | root
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{location}/zarr.json cannot be read: {error!s:.200}. {REPAIR}"
        ) from error


def incomplete(location: str) -> StoreError:
    """Return the error about a store whose build has not finished."""
    return StoreError(
        f"{location} is incomplete: its build is running or was interrupted. "
        "Run the same `geoprep build-zarr` command again to finish it"
    )


def header_of(root: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the root's copy of the metadata of an array or a group; {} if it has none."""
    try:
        return dict(root["consolidated_metadata"]["metadata"][name])
    except (KeyError, TypeError, ValueError):
        return {}


def read_chunk(
    location: str, name: str, header: dict[str, Any], dtype: str, dims: tuple[str, ...]
) -> NDArray[Any] | None:
    """Return the values of a table whose header is as builds write it; None if it is not."""
    shape = header.get("shape") or ()
    as_written = len(shape) == len(dims) and header == table_header(shape, dtype, dims)
    if not as_written or not 0 < math.prod(shape) <= MOST_VALUES:
        return None
    key = f"{name}/c" + "/0" * len(dims)
    chunk = _read(location, key, f"{location}/{key} is missing. {REPAIR}")
    body = numcodecs.Zstd().decode(without_checksum(np.frombuffer(chunk, np.uint8)))
    if dtype == "str":
        return np.asarray(numcodecs.VLenUTF8().decode(body), object).reshape(shape)
    return np.frombuffer(body, np.dtype(dtype).newbyteorder("<")).reshape(shape).astype(dtype)


def _read(location: str, name: str, lacks: str) -> bytes:
    """Return the bytes of a file of a store; if there is none, StoreError says ``lacks``."""
    try:
        return Files(location).read(name)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise StoreError(lacks) from error
        raise
