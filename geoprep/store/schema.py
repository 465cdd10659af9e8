"""The store format, schema 1: what a build writes and everything else reads.

The format is described in ``docs/store-format.md``. This module holds its constants and tables, and
opens a finished store; :mod:`geoprep.store.writer` makes one, :mod:`geoprep.store.shards` writes
its pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store as ZarrStore
from zarr.errors import ZarrUserWarning

from geoprep.errors import StoreError
from geoprep.storage.files import open_files

SCHEMA = 1
SHARD_TILES = 32
SPLITS = ("train", "val", "test")
STATUSES = ("ok", "skipped", "failed", "unlabelled")
CODECS = ("lz4", "zstd")
PIXEL_ARRAYS: dict[str, int] = {"image": 0, "speed": 255}  # name -> fill value
HASH_BYTES = 16

Codec = Literal["lz4", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMeta:
    """The ``geoprep`` attribute of a store's root group.

    Attributes
    ----------
    cities
        Names of the cities, or ``("custom",)`` for a user's own imagery.
    bands, band_indexes
        Names of the bands, and the 1-based bands of the source images they were read from.
    gsd_m
        Ground sample distance of the finest level in metres, along x and along y (the median
        over scenes).
    tile, overlap
        Tile side and overlap in pixels of the finest level.
    rescale
        How source values became bytes: ``scene``, ``city``, ``none`` or ``LO,HI``.
    levels
        Tile sides in pixels, finest first; each is the name of a group.
    shard_tiles
        Tiles in a shard of any pixel array.
    codec
        ``lz4`` (bitshuffled) or ``zstd`` (level 1); every chunk also ends in its CRC-32C.
    build
        Every other parameter of the build, and a digest of its inputs.
    complete
        False until the last byte of a build is on disk.
    """

    cities: tuple[str, ...]
    bands: tuple[str, ...]
    band_indexes: tuple[int, ...]
    gsd_m: tuple[float, float]
    tile: int
    overlap: int
    rescale: str
    levels: tuple[int, ...]
    shard_tiles: int = SHARD_TILES
    codec: Codec = "lz4"
    speed_unit: str = "mph"
    build: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    schema: int = SCHEMA
    version: str = ""

    def to_attrs(self) -> dict[str, Any]:
        """Return the attribute as plain JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def pixel_arrays(self) -> tuple[str, ...]:
        """Return the names of all pixel arrays, such as ``650/image``."""
        return tuple(f"{level}/{name}" for level in self.levels for name in PIXEL_ARRAYS)

    @classmethod
    def from_attrs(cls, attrs: dict[str, Any]) -> StoreMeta:
        """Read the attribute; unknown keys are ignored, lists become tuples."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: v for k, v in attrs.items() if k in known}
        frozen: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**frozen)


@dataclass(frozen=True, slots=True)
class TileTable:
    """One row a tile, in the order of the pixel arrays.

    Attributes
    ----------
    scene
        uint32 (tile), row of the tile's scene in the scene table.
    row, col
        uint32 (tile), offset of the tile in its scene, in pixels of the finest level.
    split
        uint8 (tile), 0 train, 1 val, 2 test.
    transform
        float64 (tile, 6), affine of the finest level, pixel -> CRS of the scene, in the order
        ``a b c d e f`` of rasterio.
    road_fraction
        float32 (tile), share of the labelled pixels that are road.
    valid_fraction
        float32 (tile), share of the tile's pixels that hold imagery.
    """

    scene: NDArray[np.uint32]
    row: NDArray[np.uint32]
    col: NDArray[np.uint32]
    split: NDArray[np.uint8]
    transform: NDArray[np.float64]
    road_fraction: NDArray[np.float32]
    valid_fraction: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scene)


@dataclass(frozen=True, slots=True)
class SceneTable:
    """One row a planned scene, whatever became of it.

    Attributes
    ----------
    id, crs, status, reason
        Strings; ``status`` is one of ``ok``, ``skipped``, ``failed``, ``unlabelled``.
    bounds
        float64 (scene, 4), left, bottom, right, top in the scene's CRS.
    limits
        float64 (scene, band, 2), source values that became 0 (clipped to 1) and 255.
    """

    id: NDArray[np.object_]
    crs: NDArray[np.object_]
    bounds: NDArray[np.float64]
    limits: NDArray[np.float64]
    status: NDArray[np.object_]
    reason: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.id)


TILE_COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "scene": ("uint32", ("tile",)),
    "row": ("uint32", ("tile",)),
    "col": ("uint32", ("tile",)),
    "split": ("uint8", ("tile",)),
    "transform": ("float64", ("tile", "coefficient")),
    "road_fraction": ("float32", ("tile",)),
    "valid_fraction": ("float32", ("tile",)),
}
SCENE_COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "id": ("str", ("scene",)),
    "crs": ("str", ("scene",)),
    "bounds": ("float64", ("scene", "edge")),
    "limits": ("float64", ("scene", "band", "limit")),
    "status": ("str", ("scene",)),
    "reason": ("str", ("scene",)),
}


# What zarr raises at a zarr.json that is no JSON, or JSON of something else.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


@contextmanager
def quiet_zarr() -> Iterator[None]:
    """Silence zarr's remark that consolidated metadata is not in the core specification."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ZarrUserWarning)
        yield


class Store:
    """A finished store, opened for reading.

    Parameters
    ----------
    location
        Where the store is, as the user named it.
    root
        Its root group.
    meta
        Its checked root attribute.
    """

    def __init__(self, location: str, root: zarr.Group, meta: StoreMeta) -> None:
        self.location = location
        self.root = root
        self.meta = meta

    @classmethod
    def open(cls, location: str | Path) -> Store:
        """Open a local folder or an ``s3://``, ``gs://``, ``az://`` or ``http(s)://`` address.

        Raises
        ------
        StoreError
            Nothing is there, it is no geoprep store, it is incomplete, or of another schema.
        """
        location = str(location)
        root = _open_root(location)
        attrs = dict(root.attrs).get("geoprep")
        if not isinstance(attrs, dict) or "schema" not in attrs:
            raise StoreError(f"{location} is a Zarr group, but not a geoprep store")
        if attrs["schema"] != SCHEMA:
            raise StoreError(
                f"{location} has store schema {attrs['schema']}; this geoprep reads schema "
                f"{SCHEMA}. Build it again with `geoprep build-zarr --overwrite`, or install the "
                f"geoprep that wrote it ({attrs.get('version', 'unknown')})"
            )
        try:
            meta = StoreMeta.from_attrs(attrs)
        except TypeError as error:
            raise StoreError(f"{location}/zarr.json: broken geoprep attribute: {error}") from error
        if not meta.complete:
            raise StoreError(
                f"{location} is incomplete: its build is running or was interrupted. "
                "Run the same `geoprep build-zarr` command again to finish it"
            )
        return cls(location, root, meta)

    @cached_property
    def tiles(self) -> TileTable:
        """The tile table."""
        return TileTable(**{name: self._read(name) for name in TILE_COLUMNS})

    @cached_property
    def scenes(self) -> SceneTable:
        """The scene table."""
        columns = {name: self._read(f"scenes/{name}") for name in SCENE_COLUMNS}
        for name, (dtype, _) in SCENE_COLUMNS.items():
            if dtype == "str":
                columns[name] = columns[name].astype(object)
        return SceneTable(**columns)

    @cached_property
    def histogram_band(self) -> NDArray[np.uint64]:
        """uint64 (band, 256), valid pixels per value over the train split, finest level."""
        values: NDArray[np.uint64] = self._read("histogram/band")
        return values

    @cached_property
    def histogram_speed(self) -> NDArray[np.uint64]:
        """uint64 (256), pixels per speed byte over the train split, finest level."""
        values: NDArray[np.uint64] = self._read("histogram/speed")
        return values

    def image(self, level: int | None = None) -> zarr.Array[Any]:
        """Return the images of a level, uint8 (tile, y, x, band), every chunk checked.

        Read by zarr-python: zarrs 0.2.3 is faster, but hands out damaged pixels of a part of a
        shard without a word.
        """
        return self._array(f"{self.check_level(level)}/image")

    def speed(self, level: int | None = None) -> zarr.Array[Any]:
        """Return the speed masks of a level, uint8 (tile, y, x), every chunk checked."""
        return self._array(f"{self.check_level(level)}/speed")

    def ledger(self, level: int, name: str) -> NDArray[np.uint8]:
        """Return uint8 (shard, 16), XXH3-128 of every shard of a pixel array."""
        digests: NDArray[np.uint8] = self._read(f"ledger/{level}/{name}")
        return digests

    def check_level(self, level: int | None) -> int:
        """Return the level, the finest for None, or raise StoreError naming those there are."""
        level = self.meta.levels[0] if level is None else level
        if level not in self.meta.levels:
            have = ", ".join(map(str, self.meta.levels))
            raise StoreError(f"{self.location} has no level {level}; its levels are {have}")
        return level

    def _array(self, name: str) -> zarr.Array[Any]:
        try:
            array = self.root[name]
        except KeyError as error:
            raise StoreError(f"{self.location} lacks the array {name}; it is damaged") from error
        if not isinstance(array, zarr.Array):
            raise StoreError(f"{self.location}/{name} is not an array; the store is damaged")
        return array

    def _read(self, name: str) -> Any:  # noqa: ANN401 - the caller knows the array's dtype
        try:
            return np.asarray(self._array(name)[...])
        except (ValueError, RuntimeError, OSError) as error:
            raise StoreError(f"{self.location}/{name} is corrupted: {error}") from error


def _open_root(location: str) -> zarr.Group:
    """Open the root group read-only, or raise a StoreError that says what is wrong."""
    if "://" in location:
        return _open_remote_root(location)
    if not Path(location).is_dir():
        raise StoreError(
            f"{location}: no such store (a store is a folder; build one with `geoprep build-zarr`)"
        )
    return _open_group(location, Path(location))


def _open_remote_root(address: str) -> zarr.Group:
    from obstore.exceptions import BaseError
    from zarr.storage import ObjectStore

    try:
        return _open_group(address, ObjectStore(open_files(address), read_only=True))
    except BaseError as error:
        cause = str(error).splitlines()[0]
        raise StoreError(f"{address} cannot be opened ({cause}): check the address") from error


def _open_group(location: str, where: Path | ZarrStore) -> zarr.Group:
    try:
        with quiet_zarr():
            return zarr.open_group(where, mode="r")
    except FileNotFoundError as error:
        raise StoreError(f"{location} is not a Zarr store: it has no zarr.json") from error
    except UNREADABLE as error:
        raise StoreError(f"{location}/zarr.json cannot be read: {error}") from error
