"""The store format, schemas 1 and 2: its constants, its root attribute, its tables.

The format is described in ``docs/reference/store-format.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

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
BACKGROUND_NAME = "background"
"""Name that makes the first class the background."""
NO_SPEEDS = "none"
"""Speed unit of a store whose roads have no speed. Readers that know only mph refuse it."""
MOST_CLASSES = 254
"""A label byte is the number of a class, 0 to 253, or 255 for nodata."""
_ONLY_OF_CLASSES = ("kind", "class_names", "class_colors")
_COLOUR = re.compile(r"#[0-9A-F]{6}")

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
        """Name of the pixels that ``road_fraction`` counts: road, not background or labelled."""
        if not self.has_classes:
            return "road"
        return "not background" if self.has_background else "labelled"

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
        """Read the attribute; unknown keys are ignored, lists become tuples."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: v for k, v in attrs.items() if k in known}
        frozen: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        meta = cls(**frozen)
        for fault in chain(_wrong_kinds(meta), _impossible(meta)):
            raise ValueError(fault)
        return meta


def _wrong_kinds(meta: StoreMeta) -> Iterator[str]:
    """Yield every value that its field does not allow; ``type`` since ``True`` is an ``int``."""
    for name, hint in get_type_hints(StoreMeta).items():
        value, kinds = getattr(meta, name), get_args(hint)
        if get_origin(hint) is tuple:
            fine = type(value) is tuple and all(
                type(one) is kinds[0] or (kinds[0], type(one)) == (float, int) for one in value
            )
        elif get_origin(hint) is Literal:
            fine = value in kinds
        else:
            fine = type(value) is (get_origin(hint) or hint)
        if not fine:
            yield f"{name} is {value!r:.60}"


def _impossible(meta: StoreMeta) -> Iterator[str]:
    """Yield every value, or combination of values, that the format does not allow."""
    if not meta.levels or meta.levels != tuple(meta.tile >> i for i in range(len(meta.levels))):
        yield f"levels {meta.levels} do not halve the tile, {meta.tile}"
    elif meta.levels[-1] < 1:
        yield f"levels {meta.levels}"
    if not meta.bands or len(meta.bands) != len(meta.band_indexes):
        yield f"{len(meta.bands)} band names for {len(meta.band_indexes)} bands"
    if len(meta.gsd_m) != 2 or not all(0 < one < math.inf for one in meta.gsd_m):
        yield f"gsd_m is {meta.gsd_m}"
    if meta.shard_tiles < 1 or not 0 <= meta.overlap < meta.tile:
        yield f"shards of {meta.shard_tiles} tiles, overlap of {meta.overlap} pixels"
    if not meta.cities:
        yield "no city"
    yield from _impossible_classes(meta)
    notes = meta.build.get("notes", {})
    if type(notes) is not dict or not all(type(count) is int for count in notes.values()):
        yield f"notes of the build are {notes!r:.60}"


def _impossible_classes(meta: StoreMeta) -> Iterator[str]:
    """Yield everything that the format does not allow about the kind of the labels."""
    names, colours = meta.class_names, meta.class_colors
    if meta.schema != (CLASSES_SCHEMA if meta.has_classes else SCHEMA):
        yield f"kind {meta.kind!r:.60} in schema {meta.schema}"
    if not meta.has_classes:
        if names or colours:
            yield f"{len(names)} classes in a store of speeds"
        return
    if not 0 < len(names) <= MOST_CLASSES or len(set(names)) != len(names) or "" in names:
        yield f"{len(names)} class names: {names!r:.60}"
    if len(colours) != len(names) or not all(map(_COLOUR.fullmatch, colours)):
        yield f"colours {colours!r:.60} of {len(names)} classes"
    if meta.has_speeds:
        yield f"speed unit {meta.speed_unit!r:.60} in a store of classes"


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

CLASS_PIXELS: tuple[str, tuple[str, ...]] = ("uint32", ("tile", "class"))
"""Data type and axes of ``class_pixels``, the pixels per class of every tile, finest level."""

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
"""Exceptions that zarr raises for a zarr.json that is not JSON or not Zarr metadata."""
