"""The store format, schemas 1 and 2: its constants, its root attribute, its tables.

The format is described in ``docs/reference/store-format.md``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.store.classes import BACKGROUND_NAME, are_colours
from geoprep.typed import require, typed

SCHEMA = 1
CLASSES_SCHEMA = 2
"""Schema of stores whose labels are classes. Readers of speeds refuse it."""
SHARD_TILES = 32
SPLITS = ("train", "val", "test")
SPLIT_NAMES = (*SPLITS, "unused")
"""Names of the values of the split column. A tile is unused if it overlaps tiles of two splits."""
STATUSES = ("ok", "skipped", "failed", "unlabelled")
CODECS = ("lz4", "zstd")
FILL_VALUES: dict[str, int] = {"image": 0, "speed": 255, "label": 255}
"""Pixel array of a level -> nodata value. A store has ``speed`` or ``label``, not both."""
HASH_BYTES = 16
SHARE_COLUMNS = {"speed": "road_fraction", "classes": "label_fraction"}
"""Kind of labels -> name of ``road_fraction`` in tables."""
NO_SPEEDS = "none"
"""Speed unit of a store whose roads have no speed. Readers that know only mph refuse it."""
MOST_TILE_BYTES = 1 << 30
MOST_SHARD_TILES = 1 << 20
MOST_CLASSES = 254
"""A label byte is the number of a class, 0 to 253, or 255 for nodata."""
REPAIR = (
    "Copy the store again from an intact copy, or rebuild it with `geoprep build-zarr`; "
    "`geoprep verify` lists every damaged file"
)
_ONLY_OF_CLASSES = ("kind", "class_names", "class_colors")

Codec = Literal["lz4", "zstd"]
LabelKind = Literal["speed", "classes"]


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
        Tiles per shard of every pixel array.
    codec
        ``lz4`` (bitshuffled) or ``zstd`` (level 1); every chunk also ends in its CRC-32C.
    speed_unit
        ``mph``, or ``none``: every road is of unknown speed, byte 254.
    build
        All other parameters of the build, and a digest of its inputs.
    kind
        ``speed`` (schema 1) or ``classes`` (schema 2): what a label byte means.
    class_names, class_colors
        Name and display colour (``#RRGGBB``) of every class, in the order of its label byte; empty
        for speeds. Stores of speeds do not write these keys.
    complete
        False until every file of the build is on disk.
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
    speed_unit: Literal["mph", "none"] = "mph"
    build: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    schema: int = SCHEMA
    version: str = ""
    kind: LabelKind = "speed"
    class_names: tuple[str, ...] = ()
    class_colors: tuple[str, ...] = ()

    @property
    def has_classes(self) -> bool:
        """Whether the labels hold classes instead of speeds."""
        return self.kind == "classes"

    @property
    def label_array(self) -> str:
        """Name of the label array of a level: ``label`` for classes, else ``speed``."""
        return "label" if self.has_classes else "speed"

    @property
    def array_names(self) -> tuple[str, str]:
        """Names of the two pixel arrays of a level: ``image`` and that of the label."""
        return "image", self.label_array

    @property
    def share_name(self) -> str:
        """Name of the pixels that ``road_fraction`` counts: road, a class or what it is not."""
        if not self.has_classes:
            return "road"
        if not self.has_background:
            return "labelled"
        return "not background" if len(self.class_names) > 2 else self.class_names[1]

    @property
    def share_column(self) -> str:
        """Name of ``road_fraction`` in tables: of classes it is ``label_fraction``."""
        return SHARE_COLUMNS[self.kind]

    @property
    def has_background(self) -> bool:
        """Whether label byte 0 is background: in stores of speeds, or by the first class's name."""
        return not self.has_classes or self.class_names[0] == BACKGROUND_NAME

    @property
    def has_speeds(self) -> bool:
        """Whether the labels hold speeds. Stores of road masks without speeds do not."""
        return self.speed_unit != NO_SPEEDS

    def to_attrs(self) -> dict[str, Any]:
        """Return the attribute as plain JSON values."""
        attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        if not self.has_classes:
            for key in _ONLY_OF_CLASSES:
                del attrs[key]
        return attrs

    def pixel_arrays(self) -> tuple[str, ...]:
        """Return the names of all pixel arrays, such as ``650/image``."""
        return tuple(f"{level}/{name}" for level in self.levels for name in self.array_names)

    @classmethod
    def from_attrs(cls, attrs: dict[str, Any]) -> StoreMeta:
        """Read the attribute; unknown keys are ignored. ValueError names a value out of range."""
        known = {f.name for f in fields(cls)}
        meta = typed(cls, {k: v for k, v in attrs.items() if k in known})
        bands, levels = len(meta.bands), meta.levels
        rules = {
            "bands": 0 < bands == len(meta.band_indexes),
            "tile": 0 < meta.tile**2 * bands <= MOST_TILE_BYTES,
            "overlap": 0 <= meta.overlap < meta.tile,
            "levels": 0 < len(set(levels)) == len(levels)
            and all(0 < level <= meta.tile for level in levels),
            "shard_tiles": 0 < meta.shard_tiles <= MOST_SHARD_TILES,
            "class_names": len(meta.class_names) <= MOST_CLASSES,
            "class_colors": len(meta.class_colors) == len(meta.class_names)
            and are_colours(meta.class_colors),
        }
        require(meta, rules)
        return meta


@dataclass(frozen=True, slots=True)
class TileTable:
    """One row per tile, in the order of the pixel arrays."""

    scene: NDArray[np.uint32]  # row of the tile's scene in the scene table
    row: NDArray[np.uint32]  # offset of the tile in its scene, in pixels of the finest level
    col: NDArray[np.uint32]
    split: NDArray[np.uint8]  # 0 train, 1 val, 2 test, 3 unused (overlaps tiles of two splits)
    transform: NDArray[np.float64]  # (tile, 6): affine a b c d e f of the finest level
    # Share of the labelled pixels that are road. Of classes: that are not background, or without
    # a background the share of all pixels that are labelled.
    road_fraction: NDArray[np.float32]
    valid_fraction: NDArray[np.float32]  # share of the pixels that hold imagery

    def __len__(self) -> int:
        return len(self.scene)


@dataclass(frozen=True, slots=True)
class SceneTable:
    """One row per planned scene, failed and skipped scenes included."""

    id: NDArray[np.object_]
    crs: NDArray[np.object_]
    bounds: NDArray[np.float64]  # (scene, 4): left, bottom, right, top in the scene's CRS
    limits: NDArray[np.float64]  # (scene, band, 2): values that became 0 (clipped to 1) and 255
    status: NDArray[np.object_]  # one of STATUSES
    reason: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.id)


Column = tuple[str, tuple[str, ...]]
"""Data type and names of the axes."""

TILE_COLUMNS: dict[str, Column] = {
    "scene": ("uint32", ("tile",)),
    "row": ("uint32", ("tile",)),
    "col": ("uint32", ("tile",)),
    "split": ("uint8", ("tile",)),
    "transform": ("float64", ("tile", "coefficient")),
    "road_fraction": ("float32", ("tile",)),
    "valid_fraction": ("float32", ("tile",)),
}
SCENE_COLUMNS: dict[str, Column] = {
    "id": ("str", ("scene",)),
    "crs": ("str", ("scene",)),
    "bounds": ("float64", ("scene", "edge")),
    "limits": ("float64", ("scene", "band", "limit")),
    "status": ("str", ("scene",)),
    "reason": ("str", ("scene",)),
}

CLASS_PIXELS: Column = ("uint32", ("tile", "class"))
"""Data type and axes of ``class_pixels``, the pixels per class of every tile, finest level."""


def table_arrays(meta: StoreMeta) -> dict[str, Column]:
    """Return the dtype and dimension names of every array that holds no pixels."""
    ledger = ("uint8", ("shard", "byte"))
    return {
        **TILE_COLUMNS,
        **{f"scenes/{name}": column for name, column in SCENE_COLUMNS.items()},
        "histogram/band": ("uint64", ("band", "value")),
        f"histogram/{meta.label_array}": ("uint64", ("value",)),
        **({"class_pixels": CLASS_PIXELS} if meta.has_classes else {}),
        **{f"ledger/{name}": ledger for name in meta.pixel_arrays()},
    }
