"""Every choice of a build, in one frozen record: what the command line fills in."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from geoprep.errors import UsageError
from geoprep.store.schema import SHARD_TILES, Codec

SplitBy = Literal["scene", "block"]
Schema = Literal["auto", "sn3", "sn5", "osm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How a store is built. Two builds with equal options and inputs give equal bytes.

    Attributes
    ----------
    bands
        1-based bands of the images, in the order wanted; None: all but alpha, or the first three
        of an RGB product.
    tile
        Side in pixels, or None for ``auto``.
    overlap
        Pixels that neighbouring tiles share.
    levels
        How many resolutions; each is half the one before.
    gsd
        Resample to this ground sample distance in metres, or None.
    resize
        Resample every scene to one tile of this side, or None.
    rescale
        ``auto`` (uint8 left as it is, uint16 per scene), ``scene``, ``city``, ``none`` or
        ``LO,HI``.
    max_nodata
        A scene with a larger share of nodata is skipped.
    speed_from, speed_field, speed_unit, schema
        How roads get their speed; see :mod:`geoprep.labels.reading`.
    val, test
        Share of the scenes in these splits; the rest trains.
    split_seed, split_by, block_km
        Splits go by a hash of the scene's id and the seed, or of the block of ground it lies in.
    shard_tiles
        Tiles in a shard, about.
    codec
        Compressor of the pixels.
    """

    bands: tuple[int, ...] | None = None
    tile: int | None = None
    overlap: int = 0
    levels: int = 2
    gsd: float | None = None
    resize: int | None = None
    rescale: str = "auto"
    max_nodata: float = 0.9
    speed_from: Literal["attributes", "field"] = "attributes"
    speed_field: str | None = None
    speed_unit: Literal["mph", "kmh", "mps"] = "mph"
    schema: Schema = "auto"
    val: float = 0.2
    test: float = 0.0
    split_seed: int = 0
    split_by: SplitBy = "scene"
    block_km: float = 2.0
    shard_tiles: int = SHARD_TILES
    codec: Codec = "lz4"

    def __post_init__(self) -> None:
        parse_rescale(self.rescale)
        if self.gsd is not None and self.resize is not None:
            raise UsageError("--gsd and --resize both set the resolution: use one of them")
        if self.resize is not None and (self.tile is not None or self.overlap):
            raise UsageError(
                "--resize makes one tile of every scene: it goes without --tile and --overlap"
            )
        if self.gsd is not None and not 0 < self.gsd < math.inf:
            raise UsageError(f"--gsd {self.gsd}: the ground sample distance must be above 0 metres")
        if self.bands is not None and (not self.bands or min(self.bands) < 1):
            raise UsageError("--bands counts from 1, as gdalinfo does")
        if not 0 <= self.max_nodata <= 1:
            raise UsageError(f"--max-nodata {self.max_nodata} is a share: use 0 to 1")
        if not (0 <= self.val < 1 and 0 <= self.test < 1 and self.val + self.test < 1):
            raise UsageError("--val and --test are shares that leave something to train on")
        if self.block_km <= 0:
            raise UsageError(f"--block-km {self.block_km}: must be above 0")
        counts = (self.tile, self.resize, self.levels, self.shard_tiles)
        if any(count is not None and count < 1 for count in counts):
            raise UsageError("--tile, --resize, --levels and --shard-tiles are at least 1")

    def to_attrs(self) -> dict[str, Any]:
        """Return the options as plain JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def parse_rescale(text: str) -> tuple[float, float] | None:
    """Return the limits of a ``LO,HI`` rule, None for a named one.

    Raises
    ------
    UsageError
        It is neither ``auto``, ``scene``, ``city``, ``none`` nor two ascending numbers.
    """
    if text in ("auto", "scene", "city", "none"):
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not -math.inf < low < high < math.inf:
        raise UsageError(f"--rescale {text}: use scene, city, none, or LO,HI with LO below HI")
    return low, high
