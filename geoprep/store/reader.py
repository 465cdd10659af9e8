"""Open a finished store and check its attribute and tables."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError, UsageError
from geoprep.speed import UNKNOWN_SPEED
from geoprep.storage.addresses import is_file_name
from geoprep.storage.failures import errors_named
from geoprep.storage.places import Files
from geoprep.store.classes import ClassTable
from geoprep.store.layout import PixelLayout, pixel_layouts
from geoprep.store.schema import (
    CLASS_PIXELS,
    CLASSES_SCHEMA,
    REPAIR,
    SCENE_COLUMNS,
    SCHEMA,
    TILE_COLUMNS,
    Column,
    SceneTable,
    StoreMeta,
    TileTable,
)
from geoprep.store.shards import digest
from geoprep.store.tables import MOST_VALUES, header_of, incomplete, read_chunk, read_root

if TYPE_CHECKING:
    import zarr


def seal(attrs: dict[str, Any]) -> str:
    """Return the digest of the root attribute, which the ledger contains."""
    return digest(json.dumps(attrs, sort_keys=True).encode())


def read_table(array: zarr.Array[Any], dtype: str, dims: tuple[str, ...]) -> NDArray[Any]:
    """Return the values of a table array; raise ValueError for another type or number of axes."""
    kind = "str" if array.dtype.kind in "OTU" else array.dtype.name
    if kind != dtype or array.ndim != len(dims):
        raise ValueError(f"expected {dtype} with {len(dims)} axes, found {kind} with {array.ndim}")
    if array.size > MOST_VALUES:
        raise ValueError(f"it claims {array.size:,} values")
    return np.asarray(array[...])


class StoreReader:
    """A finished store, opened for reading."""

    def __init__(self, location: str, document: dict[str, Any], meta: StoreMeta) -> None:
        self.location = location
        self.document = document  # the metadata of the root group
        self.meta = meta

    @classmethod
    def open(cls, location: str | Path) -> StoreReader:
        """Open a local folder or an ``s3://``, ``gs://``, ``az://`` or ``http(s)://`` address."""
        location = str(location)
        document = read_root(location)
        return cls(location, document, _read_meta(location, document))

    @cached_property
    def root(self) -> zarr.Group:
        """The root group, opened with zarr, whose import takes longer than to read a store."""
        from geoprep.store.opening import open_root

        return open_root(self.location)

    @cached_property
    def tiles(self) -> TileTable:
        """The tile table."""
        return TileTable(**self._columns("", TILE_COLUMNS))

    @cached_property
    def scenes(self) -> SceneTable:
        """The scene table. Raises the same errors as `tiles`."""
        table = SceneTable(**self._columns("scenes/", SCENE_COLUMNS))
        if not all(map(is_file_name, table.id)):  # an export names files by them
            raise StoreError(f"{self.location}/scenes/id has an id that is no name. {REPAIR}")
        return table

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """int64 (scene), first scene of the group that every division keeps together.

        Stores of versions before 0.3 do not record groups: there each scene is one.
        """
        groups = np.arange(len(self.scenes))
        for scenes in self.meta.build.get("groups", ()):
            groups[scenes] = scenes[0]
        return groups

    @cached_property
    def label_digest(self) -> str:
        """Digest of the hashes of all shards of labels, finest level."""
        name = f"ledger/{self.meta.levels[0]}/{self.meta.label_array}"
        return digest(self.read(name, "uint8", ("shard", "byte")).tobytes())

    @cached_property
    def histogram_band(self) -> NDArray[np.uint64]:
        """uint64 (band, 256), valid pixels per value over the train split, finest level."""
        shape = len(self.meta.bands), 256
        return self.read("histogram/band", "uint64", ("band", "value"), shape)

    @cached_property
    def histogram_label(self) -> NDArray[np.uint64]:
        """uint64 (256), pixels per label byte over the train split, finest level."""
        name = f"histogram/{self.meta.label_array}"
        return self.read(name, "uint64", ("value",), (256,))

    @cached_property
    def histogram_speed(self) -> NDArray[np.uint64]:
        """`histogram_label` of a store of speeds."""
        self._require_speeds()
        return self.histogram_label

    @cached_property
    def classes(self) -> ClassTable:
        """The classes of the labels."""
        if not self.meta.has_classes:
            raise UsageError(f"{self.location}: its labels are speeds, not classes")
        return ClassTable(self.meta.class_names, self.meta.class_colors)

    @cached_property
    def class_pixels(self) -> NDArray[np.uint32]:
        """uint32 (tile, class), pixels per class of every tile at the finest level."""
        shape = len(self.tiles), len(self.classes)
        return self.read("class_pixels", *CLASS_PIXELS, shape)

    def _require_speeds(self) -> None:
        if self.meta.has_classes:
            raise UsageError(
                f"{self.location}: its labels are classes ({self.classes}), not road speeds"
            )

    @property
    def title(self) -> str:
        """The store's cities as a title, or its name if the images are a user's own."""
        own, cities = PurePath(self.location.rstrip("/")).stem, self.meta.cities
        names = (own if city == "custom" else city.replace("_", " ").title() for city in cities)
        return ", ".join(names)

    @property
    def has_speeds(self) -> bool:
        """Whether roads have speeds: False if all roads of the train split are of unknown speed."""
        if not self.meta.has_speeds:
            return False
        known, unknown = self.histogram_speed[1:UNKNOWN_SPEED], self.histogram_speed[UNKNOWN_SPEED]
        return bool(known.any() or not unknown)

    def image(self, level: int | None = None) -> zarr.Array[Any]:
        """Return the images of a level, uint8 (tile, y, x, band), for interactive use.

        A chunk that is not in the index of its shard reads as 0; `read_image` and loaders raise.
        """
        return self._array(f"{self.check_level(level)}/image")

    def speed(self, level: int | None = None) -> zarr.Array[Any]:
        """Return the speed labels of a level, uint8 (tile, y, x); see `image`."""
        self._require_speeds()
        return self.label(level)

    def label(self, level: int | None = None) -> zarr.Array[Any]:
        """Return the labels of a level, of either kind, uint8 (tile, y, x); see `image`."""
        return self._array(f"{self.check_level(level)}/{self.meta.label_array}")

    def layout(self, level: int | None, name: str) -> PixelLayout:
        """Return the byte layout of ``image`` or the label array (`StoreMeta.label_array`)."""
        layout = pixel_layouts(self.meta)[f"{self.check_level(level)}/{name}"]
        if header_of(self.document, layout.array) != layout.header(len(self.tiles)):
            raise StoreError(
                f"{self.location}/{layout.array} differs from schema {self.meta.schema}: expected "
                f"{len(self.tiles)} tiles in shards of {layout.shard_tiles}. {REPAIR}"
            )
        return layout

    def files(self) -> Files:
        """Return a reader of the store's files, which retries interrupted transfers."""
        return Files(self.location)

    def check_level(self, level: int | None) -> int:
        """Return the level (None: the finest). Raise UsageError if the store does not have it."""
        level = self.meta.levels[0] if level is None else level
        if level not in self.meta.levels:
            have = ", ".join(map(str, self.meta.levels))
            raise UsageError(f"{self.location} has no level {level}; its levels are {have}")
        return level

    def check_labels(self) -> None:
        """Raise UsageError if no scene of the store has a label."""
        if not (self.scenes.status == "ok").any():
            raise UsageError(f"no scene of {self.location} has a label: build it with labels")

    def _array(self, name: str) -> zarr.Array[Any]:
        import zarr

        try:
            array = self.root[name]
        except Exception as error:  # zarr raises exceptions of any type for invalid metadata
            raise StoreError(f"{self.location}/{name} is missing or damaged. {REPAIR}") from error
        if not isinstance(array, zarr.Array):
            raise StoreError(f"{self.location}/{name} is not an array. {REPAIR}")
        return array

    def read(
        self, name: str, dtype: str, dims: tuple[str, ...], shape: tuple[int, ...] | None = None
    ) -> NDArray[Any]:
        """Return the values of an array without pixels, or raise StoreError."""
        try:
            with errors_named(f"{self.location}/{name}", StoreError):
                header = header_of(self.document, name)
                values = read_chunk(self.location, name, header, dtype, dims)
                if values is None:  # written by another program
                    values = read_table(self._array(name), dtype, dims)
                if shape is not None and values.shape != shape:
                    raise ValueError(f"expected shape {shape}, found {values.shape}")
        except StoreError:
            raise
        except Exception as error:  # codecs raise exceptions of any type for damaged bytes
            raise StoreError(
                f"{self.location}/{name} is corrupted: {error or type(error).__name__}. {REPAIR}"
            ) from error
        return values.astype(object) if dtype == "str" else values

    def _columns(self, folder: str, columns: dict[str, Column]) -> dict[str, NDArray[Any]]:
        values = {name: self.read(f"{folder}{name}", *column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in values.items()}
        if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise StoreError(f"{self.location}: columns differ in length ({listed}). {REPAIR}")
        return values


def _read_meta(location: str, document: dict[str, Any]) -> StoreMeta:
    attrs = dict(document["attributes"]).get("geoprep")
    if not isinstance(attrs, dict) or "schema" not in attrs:
        raise StoreError(
            f"{location} is a Zarr group without a geoprep attribute. Check the path, or build a "
            "store with `geoprep build-zarr`"
        )
    if attrs["schema"] not in (SCHEMA, CLASSES_SCHEMA):
        raise StoreError(
            f"{location} has store schema {attrs['schema']}; this version of geoprep reads schemas "
            f"{SCHEMA} and {CLASSES_SCHEMA}. Rebuild it with `geoprep build-zarr --overwrite`, or "
            f"install the version that wrote it ({attrs.get('version', 'unknown')})"
        )
    if not attrs.get("complete"):
        raise incomplete(location)
    ledger = header_of(document, "ledger").get("attributes")
    if not isinstance(ledger, dict) or ledger.get("meta") != seal(attrs):
        raise StoreError(
            f"{location}/zarr.json: the geoprep attribute differs from the one that the build "
            f"wrote. {REPAIR}"
        )
    try:
        return StoreMeta.from_attrs(attrs)
    except ValueError as error:
        raise StoreError(f"{location}/zarr.json: no build writes that {error}. {REPAIR}") from error
