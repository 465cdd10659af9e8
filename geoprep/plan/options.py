"""All options of a build in one frozen record, with their defaults, limits and help texts.

The command line makes an option of every field. No heavy library is imported here, so that
``--help`` is fast.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal

from geoprep.choice import choice
from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.labels import ClassRule, MaskRule, SpeedRule

SplitBy = Literal["scene", "block", "folder"]
SplitOverlap = Literal["warn", "unused"]
Schema = Literal["auto", "sn3", "sn5", "osm"]
SpeedFrom = Literal["attributes", "field", "auto"]
SpeedUnit = Literal["mph", "kmh", "mps"]
LabelSpeeds = Literal["mph", "kmh", "bins"]
Areas = Literal["auto", "road", "ignore"]
Codec = Literal["lz4", "zstd"]

MOST_LEVELS: Final = 10
MOST_BUFFER_M: Final = 100.0
MOST_SHARD_TILES: Final = 10_000
"""Every shard ends in an index of 16 bytes per tile, whose length does not depend on the tiles."""

_LINES: Final = "Vector labels"
_MASKS: Final = "Raster labels"
_CLASSES: Final = "Classes"
"""Headings of the help text."""
_OF_ROADS: Final = (
    *("label_values", "label_speeds", "speed_from", "speed_field", "speed_unit", "schema", "areas"),
)


def parse_bands(text: str) -> tuple[int, ...]:
    """Return band numbers from text such as ``5,3,2``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"`bands` {text}: expected band numbers such as 5,3,2") from error


def parse_nodata(text: str) -> float | Literal["none"]:
    """Return a number or "none" from text."""
    if text.strip().lower() == "none":
        return "none"
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"`nodata` {text}: expected a number or none") from error


def parse_tile(text: str) -> int | None:
    """Return a number of pixels from text; None for ``auto``."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"`tile` {text}: expected auto or a number of pixels") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of a build. Equal options and inputs give equal bytes.

    The help text of every field describes it. ``bands`` None selects all bands except alpha, or
    the first three of an RGB product; ``tile`` None selects a side automatically.

    Raises
    ------
    UsageError
        A value is out of range, or two options contradict each other.
    """

    bands: tuple[int, ...] | None = choice(
        None,
        "Source",
        "Bands to store, numbered from 1, such as 5,3,2.  [default: all except alpha]",
        parse=parse_bands,
        metavar="N,N,...",
    )
    pixel_size: float | None = choice(
        None,
        "Source",
        "Pixel size in metres of images that are not georeferenced (PNG, JPEG). Their labels "
        "must be rasters.",
        metavar="METRES",
    )
    tile: int | None = choice(
        None,
        "Tiles",
        "Side of a tile in pixels; auto: the side nearest 512 that needs no padding.  "
        "[default: auto]",
        parse=parse_tile,
        metavar="auto|N",
    )
    overlap: int = choice(0, "Tiles", "Overlap of neighbouring tiles in pixels.", metavar="N")
    levels: int = choice(
        2, "Tiles", "Number of resolutions; each halves the one before.", metavar="N"
    )
    gsd: float | None = choice(
        None,
        "Tiles",
        "Pixel size of the finest level in metres.  [default: that of the images]",
        metavar="METRES",
    )
    resize: int | None = choice(
        None,
        "Tiles",
        "Resample every scene to a single tile of N x N pixels.",
        metavar="N",
    )
    rescale: str = choice(
        "auto",
        "Pixels",
        "Conversion of pixel values to 8 bits: linear between percentiles 2 and 98 of each "
        "scene or city, linear between two values (such as -25,0), or none for uint8 images. "
        "auto: none for uint8 images, else scene. NaN and infinite values become nodata.",
        metavar="auto|scene|city|none|LO,HI",
    )
    max_nodata: float = choice(
        0.9, "Pixels", "Skip scenes with a larger share of nodata, 0 to 1.", metavar="SHARE"
    )
    nodata: float | Literal["none"] | None = choice(
        None,
        "Pixels",
        "Pixel value that is nodata where all bands have it; none: only alpha band, mask or "
        "nodata tag count.  [default: these, or else black areas that touch the image's edge "
        "or are large]",
        parse=parse_nodata,
        metavar="VALUE|none",
    )
    speed_from: SpeedFrom = choice(
        "attributes",
        _LINES,
        "Source of speeds: attributes computes them from road type, lanes and surface; field "
        "reads `speed_field`; auto reads a speed field where the file has one.",
    )
    speed_field: str | None = choice(
        None,
        _LINES,
        "Attribute that holds the speed, in `speed_unit`.",
        metavar="NAME",
    )
    speed_unit: SpeedUnit = choice("mph", _LINES, "Unit of `speed_field`.")
    schema: Schema = choice(
        "auto",
        _LINES,
        "Names of the road attributes: SpaceNet 3, SpaceNet 5 or OpenStreetMap.",
    )
    buffer: float = choice(
        2.0,
        _LINES,
        "Half the width of the roads in metres: lines are widened by it on either side.",
        metavar="METRES",
    )
    width_field: str | None = choice(
        None,
        _LINES,
        "Attribute that holds the full road width in metres. Lines without a value get `buffer`.",
        metavar="NAME",
    )
    layer: str | None = choice(
        None,
        _LINES,
        "Layer of the label file.  [default: the one with road attributes]",
        metavar="NAME",
        later=True,
    )
    where: str | None = choice(
        None,
        _LINES,
        "SQL condition that selects the features that are roads, such as \"class = 'road'\".",
        metavar="SQL",
        later=True,
    )
    areas: Areas = choice(
        "auto",
        _LINES,
        "Polygons in labels; auto: roads if the file has road attributes or `where` selects "
        "them, refused otherwise; road: all are roads; ignore: all are left out.",
        later=True,
    )
    classes: str | None = choice(
        None,
        _CLASSES,
        "Labels are classes, not roads: a YAML file with name, value (or colour) and display "
        "colour of each class in order, or text such as "
        "'road=#6EC1E4,building=60,16,152,water=3'. The first may be background.",
        metavar="FILE|TEXT",
        later=True,
    )
    class_field: str | None = choice(
        None,
        _CLASSES,
        "Attribute of vector labels that holds the values of `classes`.  [default: the name of "
        "the layer]",
        metavar="NAME",
        later=True,
    )
    other: str = choice(
        "refuse",
        _CLASSES,
        "Values that no class has: refuse fails their scenes, nodata leaves them unlabelled, "
        "and the name of a class adds them to it.",
        metavar="refuse|nodata|NAME",
        later=True,
    )
    tolerance: int = choice(
        0,
        _CLASSES,
        "Largest difference per band at which a value or colour is still that of a class, such "
        "as 8 for JPEG.",
        metavar="N",
        later=True,
    )
    label_values: str | None = choice(
        None,
        _MASKS,
        "Values that are road, such as 255, '>127' or 1,2,5, or a colour (#ff0000 or 255,0,0). "
        "Other values are background.",
        metavar="VALUES",
    )
    label_speeds: LabelSpeeds | None = choice(
        None,
        _MASKS,
        "Meaning of the values: speeds in mph or km/h, or CRESI's ten-mph bins (1 to 7, 36 to "
        "252, or one band per bin). 0 is background.",
    )
    label_nodata: str | None = choice(
        None,
        _MASKS,
        "Values that are unlabelled (nodata), written like `label_values`.  [default: the "
        "nodata tag, unless it is 0]",
        metavar="VALUES",
    )
    val: float = choice(
        0.2,
        "Splits",
        "Share of the scenes for validation, 0 to 1; 1: all scenes, none for training.",
        metavar="SHARE",
    )
    test: float = choice(0.0, "Splits", "Share of the scenes for testing, 0 to 1.", metavar="SHARE")
    split_seed: int = choice(
        0, "Splits", "Seed of the hash that assigns scenes to splits.", metavar="N"
    )
    split_by: SplitBy = choice(
        "scene",
        "Splits",
        "Unit that is assigned to a split: scene; block, a square of ground of `block_km`, "
        "which also divides larger scenes by tile; or folder, where train, val or test in an "
        "image's path names its split.",
    )
    split_file: str | None = choice(
        None,
        "Splits",
        "File that assigns splits: polygons with an attribute split (train, val, test), or a "
        "CSV file with columns scene and split, whose scenes may be patterns such as city_*. "
        "The rest is for training, or unused if the file has train.",
        metavar="FILE",
    )
    split_overlap: SplitOverlap = choice(
        "warn",
        "Splits",
        "Tiles that show ground of another split in an overlapping image: warn keeps them and "
        "counts them; unused leaves out those of training, and of validation before testing.",
        later=True,
    )
    block_km: float = choice(2.0, "Splits", "Side of a block in kilometres.", metavar="KM")
    shard_tiles: int = choice(32, "Store", "Approximate number of tiles per file.", metavar="N")
    codec: Codec = choice("lz4", "Store", "Compression; zstd makes smaller files and is slower.")

    def __post_init__(self) -> None:
        parse_rescale(self.rescale)
        self._check_resolution()
        self._check_classes()
        self._check_roads()
        self._check_ranges()

    def _check_resolution(self) -> None:
        if self.gsd is not None and self.resize is not None:
            raise UsageError("`gsd` and `resize` both set the resolution: use one of them")
        if self.resize is not None and (self.tile is not None or self.overlap):
            raise UsageError(
                "`resize` makes one tile of every scene: use it without `tile` and `overlap`"
            )
        if self.gsd is not None and not 0 < self.gsd < math.inf:
            raise UsageError(f"`gsd` {self.gsd}: expected a pixel size above 0 metres")
        if self.pixel_size is not None and not 0 < self.pixel_size < math.inf:
            raise UsageError(f"`pixel_size` {self.pixel_size}: expected metres above 0")

    @property
    def mask_rule(self) -> MaskRule | None:
        """How raster labels are read; None for vector labels."""
        if self.label_values is None and self.label_speeds is None:
            return None
        from geoprep.labels import MaskRule

        return MaskRule(self.label_values, self.label_speeds, self.label_nodata)

    @property
    def class_rule(self) -> ClassRule | None:
        """How labels are read as classes; None for roads."""
        if self.classes is None:
            return None
        from geoprep.labels import make_class_rule

        return make_class_rule(
            self.classes,
            other=self.other,
            tolerance=self.tolerance,
            nodata=self.label_nodata,
            field=self.class_field,
        )

    def raster_rule(self, label: str) -> MaskRule | ClassRule | None:
        """Return how a raster label is read; None for vector labels."""
        if self.classes is None:
            return self.mask_rule
        from geoprep.labels import is_vector

        if is_vector(label) or self.class_field is not None or self.layer is not None:
            return None
        return self.class_rule

    def _check_classes(self) -> None:
        if self.classes is None:
            for name in ("class_field", "other", "tolerance"):
                if getattr(self, name) != _default(name):
                    raise UsageError(f"`{name}` needs `classes`")
            return
        from geoprep.labels import classes_text, parse_classes

        # One spelling of every way to write the same classes, which workers elsewhere can read.
        object.__setattr__(self, "classes", classes_text(parse_classes(self.classes)))
        rule = self.class_rule
        assert rule is not None  # by the above
        for name in _OF_ROADS:
            if getattr(self, name) != _default(name):
                raise UsageError(f"`{name}` is for roads, `classes` for classes: leave out one")

    def _check_roads(self) -> None:
        if not 0 < self.buffer <= MOST_BUFFER_M:
            raise UsageError(
                f"`buffer` {self.buffer:g}: expected metres above 0 and at most {MOST_BUFFER_M:g}"
            )
        if self.label_values is not None and self.label_speeds is not None:
            raise UsageError(
                "`label_values` is for rasters without speeds, `label_speeds` for those with "
                "speeds: use one of them"
            )
        if self.mask_rule is not None:
            self.mask_rule.check()
        elif self.label_nodata is not None and self.classes is None:
            raise UsageError("`label_nodata` needs `label_values`, `label_speeds` or `classes`")

    def _check_ranges(self) -> None:
        if self.bands is not None and (not self.bands or min(self.bands) < 1):
            raise UsageError("`bands` are numbered from 1, as gdalinfo numbers them")
        if not 0 <= self.max_nodata <= 1:
            raise UsageError(f"`max_nodata` {self.max_nodata}: expected a share from 0 to 1")
        if not (0 <= self.val <= 1 and 0 <= self.test <= 1 and self.val + self.test <= 1):
            raise UsageError("`val` and `test` are shares from 0 to 1, together at most 1")
        if not 0 < self.block_km < math.inf:
            raise UsageError(f"`block_km` {self.block_km}: expected kilometres above 0")
        counts = (self.tile, self.resize, self.levels, self.shard_tiles)
        if any(count is not None and count < 1 for count in counts):
            raise UsageError("`tile`, `resize`, `levels` and `shard_tiles` must be at least 1")
        if self.levels > MOST_LEVELS:
            raise UsageError(
                f"`levels` {self.levels}: each level halves the tile, so use at most {MOST_LEVELS}"
            )
        if self.shard_tiles > MOST_SHARD_TILES:
            raise UsageError(f"`shard_tiles` {self.shard_tiles}: use at most {MOST_SHARD_TILES}")

    def speed_rule(self, schema: Schema) -> SpeedRule:
        """Return how roads with attributes of this schema get their speed."""
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
            self.class_rule,
        )

    def to_attrs(self) -> dict[str, Any]:
        """Return the options as plain JSON values, for the store's attributes.

        Of ``split_file`` the name remains, since a store does not depend on folders. Options that
        are ``later`` are left out at their default.
        """
        attrs: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default or not one.metadata["choice"].later:
                attrs[one.name] = list(value) if isinstance(value, tuple) else value
        if self.classes is not None:
            attrs["classes"] = json.loads(self.classes)
        attrs["split_file"] = self.split_file and PurePath(self.split_file).name
        return attrs


def _default(name: str) -> Any:  # noqa: ANN401 - of any field
    return next(one.default for one in fields(BuildOptions) if one.name == name)


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
        raise UsageError(f"`rescale` {text}: expected scene, city, none, or LO,HI with LO below HI")
    return low, high
