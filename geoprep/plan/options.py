"""Every choice of a build, in one frozen record: defaults, limits and help texts, written once.

The command line makes an option of every field. Nothing heavy is imported here, so that its help
is quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.labels import MaskRule, SpeedRule

SplitBy = Literal["scene", "block"]
Schema = Literal["auto", "sn3", "sn5", "osm"]
SpeedFrom = Literal["attributes", "field", "auto"]
SpeedUnit = Literal["mph", "kmh", "mps"]
LabelSpeeds = Literal["mph", "kmh", "bins"]
Areas = Literal["auto", "road", "ignore"]
Codec = Literal["lz4", "zstd"]

MOST_LEVELS: Final = 10
MOST_BUFFER_M: Final = 100.0
MOST_SHARD_TILES: Final = 10_000
"""A shard ends in an index of 16 bytes per tile, written whole however few tiles there are."""

_LINES: Final = "Labels that are lines or areas"
_MASKS: Final = "Labels that are masks"
"""Headings of the help text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person reads of one option, and how its text becomes a value.

    Attributes
    ----------
    section
        Heading of the help text.
    kind
        Type of the value; that of the default where omitted.
    parse
        Makes the value of the text; raises UsageError.
    later
        Whether the option is younger than the first stores: at its default it is left out of a
        store's attributes, so that these and fingerprints stay as they were.
    """

    section: str
    help: str
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    kind: type | None = None
    parse: Callable[[str], Any] | None = None
    later: bool = False


def _choice(section: str, text: str, **more: Any) -> dict[str, Choice]:  # noqa: ANN401 - Choice's
    return {"choice": Choice(section, text, **more)}


def parse_bands(text: str) -> tuple[int, ...]:
    """Read ``5,3,2``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--bands {text}: write band numbers like 5,3,2") from error


def parse_nodata(text: str) -> float | Literal["none"]:
    """Read a number or ``none``."""
    if text.strip().lower() == "none":
        return "none"
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"`nodata` {text}: write a number, or none") from error


def parse_tile(text: str) -> int | None:
    """Read ``auto`` or a number of pixels."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"--tile {text}: write auto, or a number of pixels") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How a store is built. Two builds with equal options and inputs give equal bytes.

    ``bands`` None: all but alpha, or the first three of an RGB product. ``tile`` None: ``auto``.
    """

    bands: tuple[int, ...] | None = field(
        default=None,
        metadata=_choice(
            "Source", "For example 5,3,2; from 1.", parse=parse_bands, metavar="N,N,..."
        ),
    )
    pixel_size: float | None = field(
        default=None,
        metadata=_choice(
            "Source",
            "Metres that a pixel is wide, of images without a place on the ground (PNG, JPEG): "
            "they are taken on a plain grid, with masks for labels.",
            kind=float,
            metavar="METRES",
        ),
    )
    tile: int | None = field(
        default=None,
        metadata=_choice(
            "Tiles",
            "Side in pixels; auto: the side nearest 512 that wastes nothing.  [default: auto]",
            parse=parse_tile,
            metavar="auto|N",
        ),
    )
    overlap: int = field(
        default=0, metadata=_choice("Tiles", "Pixels shared by neighbouring tiles.")
    )
    levels: int = field(default=2, metadata=_choice("Tiles", "Resolutions, each half the last."))
    gsd: float | None = field(
        default=None,
        metadata=_choice(
            "Tiles", "Resample to this ground sample distance.", kind=float, metavar="METRES"
        ),
    )
    resize: int | None = field(
        default=None,
        metadata=_choice("Tiles", "One N x N tile per scene.", kind=int, metavar="N"),
    )
    rescale: str = field(
        default="auto",
        metadata=_choice(
            "Pixels",
            "How values become bytes, all but uint8's: between percentiles 2 and 98 of each scene "
            "or city, or between two values (-25,0). NaN, infinite and nodata values stay missing.",
            metavar="scene|city|none|LO,HI",
        ),
    )
    max_nodata: float = field(
        default=0.9, metadata=_choice("Pixels", "Skip a scene with a larger share of nodata.")
    )
    nodata: float | Literal["none"] | None = field(
        default=None,
        metadata=_choice(
            "Pixels",
            "Value that marks nodata if all bands have it; none: alpha, mask or nodata tag alone. "
            "Default: these, or else black that touches the image's edge or forms a large block.",
            parse=parse_nodata,
            metavar="VALUE|none",
        ),
    )
    speed_from: SpeedFrom = field(
        default="attributes",
        metadata=_choice(
            _LINES,
            "Source of speeds: road type, lanes and surface; a speed field; or the field in files "
            "that have one.",
            choices=get_args(SpeedFrom),
        ),
    )
    speed_field: str | None = field(
        default=None,
        metadata=_choice(
            _LINES,
            "Name of the field that holds the speed.",
            kind=str,
            metavar="NAME",
        ),
    )
    speed_unit: SpeedUnit = field(
        default="mph",
        metadata=_choice(_LINES, "Unit of that field.", choices=get_args(SpeedUnit)),
    )
    schema: Schema = field(
        default="auto",
        metadata=_choice(
            _LINES,
            "How road attributes are spelled.",
            choices=get_args(Schema),
        ),
    )
    buffer: float = field(
        default=2.0,
        metadata=_choice(
            _LINES,
            "Half the width of a road that a line stands for.",
            metavar="METRES",
        ),
    )
    width_field: str | None = field(
        default=None,
        metadata=_choice(
            _LINES,
            "Field of the full width of a road in metres; --buffer where it says nothing.",
            kind=str,
            metavar="NAME",
        ),
    )
    layer: str | None = field(
        default=None,
        metadata=_choice(
            _LINES,
            "Layer of the label file; default: the one with road attributes.",
            kind=str,
            metavar="NAME",
            later=True,
        ),
    )
    where: str | None = field(
        default=None,
        metadata=_choice(
            _LINES,
            "SQL condition that selects the features that are roads, such as \"class = 'road'\".",
            kind=str,
            metavar="SQL",
            later=True,
        ),
    )
    areas: Areas = field(
        default="auto",
        metadata=_choice(
            _LINES,
            "Polygons in labels; auto: roads if the file has road attributes or --where selects "
            "them, refused otherwise; road: all are roads; ignore: all are left out.",
            choices=get_args(Areas),
            later=True,
        ),
    )
    label_values: str | None = field(
        default=None,
        metadata=_choice(
            _MASKS,
            "What is road in them, such as 255, '>127', 1,2,5 or a colour, "
            "#ff0000 or 255,0,0; the rest is no road.",
            kind=str,
            metavar="VALUES",
        ),
    )
    label_speeds: LabelSpeeds | None = field(
        default=None,
        metadata=_choice(
            _MASKS,
            "Their values are speeds, or CRESI's ten-mph bins (1 to 7, 36 to 252, or one "
            "band per bin); 0 is no road.",
            choices=get_args(LabelSpeeds),
        ),
    )
    label_nodata: str | None = field(
        default=None,
        metadata=_choice(
            _MASKS,
            "What is unknown in them, written as --label-values; default: their nodata tag, "
            "unless it is 0.",
            kind=str,
            metavar="VALUES",
        ),
    )
    val: float = field(
        default=0.2,
        metadata=_choice("Splits", "Share of the scenes that validate; 1: all, nothing trains."),
    )
    test: float = field(default=0.0, metadata=_choice("Splits", "Share of the scenes that test."))
    split_seed: int = field(
        default=0, metadata=_choice("Splits", "Seed of the hash that divides them.")
    )
    split_by: SplitBy = field(
        default="scene",
        metadata=_choice(
            "Splits",
            "block keeps neighbouring scenes in one split, and divides those larger than a block "
            "tile by tile; a training tile that overlaps another split's is left unused. Ground "
            "that several images show is not looked for.",
            choices=get_args(SplitBy),
        ),
    )
    split_file: str | None = field(
        default=None,
        metadata=_choice(
            "Splits",
            "Polygons with a column split (train, val, test): a tile is of the area that its "
            "centre lies in, unused where it reaches into another. Ground in none trains, unless "
            "some area is train; ground that several images show is not looked for.",
            kind=str,
            metavar="AREAS.geojson",
        ),
    )
    block_km: float = field(
        default=2.0, metadata=_choice("Splits", "Side of a block.", metavar="KM")
    )
    shard_tiles: int = field(default=32, metadata=_choice("Store", "Tiles per file, about."))
    codec: Codec = field(
        default="lz4",
        metadata=_choice("Store", "zstd: smaller and slower.", choices=get_args(Codec)),
    )

    def __post_init__(self) -> None:
        parse_rescale(self.rescale)
        self._check_resolution()
        self._check_roads()
        self._check_ranges()

    def _check_resolution(self) -> None:
        if self.gsd is not None and self.resize is not None:
            raise UsageError("--gsd and --resize both set the resolution: use one of them")
        if self.resize is not None and (self.tile is not None or self.overlap):
            raise UsageError(
                "--resize makes one tile of every scene: it goes without --tile and --overlap"
            )
        if self.gsd is not None and not 0 < self.gsd < math.inf:
            raise UsageError(f"--gsd {self.gsd}: the ground sample distance must be above 0 metres")
        if self.pixel_size is not None and not 0 < self.pixel_size < math.inf:
            raise UsageError(f"--pixel-size {self.pixel_size}: must be above 0 metres")

    @property
    def mask_rule(self) -> MaskRule | None:
        """How masks are read; None where labels are vectors."""
        if self.label_values is None and self.label_speeds is None:
            return None
        from geoprep.labels import MaskRule

        return MaskRule(self.label_values, self.label_speeds, self.label_nodata)

    def _check_roads(self) -> None:
        if not 0 < self.buffer <= MOST_BUFFER_M:
            raise UsageError(
                f"--buffer {self.buffer:g}: metres on either side of a line, above 0, at most "
                f"{MOST_BUFFER_M:g}"
            )
        if self.label_values is not None and self.label_speeds is not None:
            raise UsageError(
                "--label-values is for masks without speeds, --label-speeds for masks of speeds: "
                "use one of them"
            )
        if self.mask_rule is not None:
            self.mask_rule.check()
        elif self.label_nodata is not None:
            raise UsageError("--label-nodata goes with --label-values or --label-speeds")

    def _check_ranges(self) -> None:
        if self.bands is not None and (not self.bands or min(self.bands) < 1):
            raise UsageError("--bands counts from 1, as gdalinfo does")
        if not 0 <= self.max_nodata <= 1:
            raise UsageError(f"--max-nodata {self.max_nodata} is a share: use 0 to 1")
        if not (0 <= self.val <= 1 and 0 <= self.test <= 1 and self.val + self.test <= 1):
            raise UsageError("--val and --test are shares of 0 to 1, together at most 1")
        if not 0 < self.block_km < math.inf:
            raise UsageError(f"--block-km {self.block_km}: must be above 0")
        counts = (self.tile, self.resize, self.levels, self.shard_tiles)
        if any(count is not None and count < 1 for count in counts):
            raise UsageError("--tile, --resize, --levels and --shard-tiles are at least 1")
        if self.levels > MOST_LEVELS:
            raise UsageError(
                f"--levels {self.levels}: each halves the tile, so at most {MOST_LEVELS} make sense"
            )
        if self.shard_tiles > MOST_SHARD_TILES:
            raise UsageError(f"--shard-tiles {self.shard_tiles}: use {MOST_SHARD_TILES} at most")

    def speed_rule(self, schema: Schema) -> SpeedRule:
        """Return how roads get their speed, of a city whose attributes are spelled so."""
        from geoprep.labels import SpeedRule

        return SpeedRule(
            schema,
            self.speed_from,
            self.speed_field,
            self.speed_unit,
            self.width_field,
            self.layer,
            self.where,
            self.areas,
        )

    def to_attrs(self) -> dict[str, Any]:
        """Return the options as plain JSON values; a store is the same wherever files lie."""
        attrs: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default or not one.metadata["choice"].later:
                attrs[one.name] = list(value) if isinstance(value, tuple) else value
        attrs["split_file"] = self.split_file and PurePath(self.split_file).name
        return attrs


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
