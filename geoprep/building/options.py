"""All options of a build in one frozen record, with their defaults, limits and help texts.

The command line makes an option of every field; heavy libraries are imported later.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, Literal

from geoprep.errors import UsageError
from geoprep.imagery.band_names import parse_bands, parse_names
from geoprep.labels.label_options import ClassOptions, MaskOptions, RoadOptions, Schema
from geoprep.options import any_output, check_options, option, workers_option

if TYPE_CHECKING:
    from geoprep.labels.label_options import SpeedRule
    from geoprep.labels.raster_rules import ClassRaster, RasterRule

SplitBy = Literal["scene", "block", "folder"]
MissingLabel = Literal["unlabelled", "background"]
SplitOverlap = Literal["warn", "unused"]
Codec = Literal["lz4", "zstd"]

MOST_LEVELS: Final = 10
MOST_SHARD_TILES: Final = 10_000
"""Every shard ends in an index of 16 bytes per tile, whose length does not depend on the tiles."""

_NOT_OF_CLASSES: Final = (
    *("label_values", "label_speeds", "speed_from", "speed_field", "speed_unit", "schema"),
)


# Options by the heading of the help text that they stand under.
_source, _tiles, _pixels, _splits, _store = (
    partial(option, section=name) for name in ("Source", "Tiles", "Pixels", "Splits", "Store")
)


def parse_nodata(text: str) -> float | Literal["none"]:
    """Return a number or "none" from text."""
    if text.strip().lower() == "none":
        return "none"
    try:
        return float(text)
    except ValueError as error:
        raise UsageError("nodata", f"{text}: expected a number or none") from error


def parse_tile(text: str) -> int | None:
    """Return a number of pixels from text; None for ``auto``."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise UsageError("tile", f"{text}: expected auto or a number of pixels") from error


def parse_rescale(text: str) -> tuple[float, float] | None:
    """Return the limits of a rule ``LO,HI`` or ``none``; None where they depend on the images."""
    if text in ("scene", "city", "none"):
        return (0.0, 255.0) if text == "none" else None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not -math.inf < low < high < math.inf:
        raise UsageError(
            "rescale", f"{text}: expected scene, city, none, or LO,HI with LO below HI"
        )
    return low, high


def check_rescale(text: str) -> None:
    """Raise UsageError unless text is ``auto`` or a rule that `parse_rescale` knows."""
    if text != "auto":
        parse_rescale(text)


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Source: the images and labels of a build."""

    city: tuple[str, ...] = option(
        (), "SpaceNet city, or several; give either this or `images`.", "TEXT"
    )
    source: str | None = option(
        None,
        "Folder, .tar, .tar.gz or s3:// address of the cities. Default: $GEOPREP_DATA, ./data or "
        "the current folder.",
        "TEXT",
    )
    product: str | None = option(None, "Imagery product of the cities. Default: PS-RGB.", "TEXT")
    images: tuple[str, ...] = option(
        (),
        "Images instead of a city: a quoted pattern, a folder, or an archive (.tar, .tar.gz, "
        ".zip), whose members 'A.zip!/train/*_sat.jpg' selects; bands in files of their own as "
        "'S2*_{B02,B03,B04,B08}.jp2'; or STAC items (.json, .parquet, a "
        "search); local, s3://, gs:// or https://.",
        "TEXT",
    )
    asset: tuple[str, ...] = option(
        (),
        "Asset of the STAC items of `images`, such as visual; several (red,green,blue) are stacked "
        "as bands. Default: their only raster.",
        "NAME",
    )
    labels: str | None = option(
        None,
        "Labels of `images`: one vector file for all of them, or a folder or quoted pattern of one "
        "vector file or raster per image, or instances in the format of COCO (.json). Default: no "
        "labels.",
        "TEXT",
    )
    label_name: str | None = option(
        None,
        "Name of the label of an image, without suffix, such as 'mask_{name}'; {name} is that of "
        "the image. Default: the same name, or with words such as _roads.",
        "NAME",
    )

    def __post_init__(self) -> None:
        if bool(self.city) == bool(self.images):
            raise UsageError("give either `city` or `images` (with or without `labels`)")
        for name, value in (("source", self.source), ("product", self.product)):
            if self.images and value is not None:
                raise UsageError(name, "needs `city`; `images` are found by their own paths")
        if self.asset and not self.images:
            raise UsageError("asset", "needs `images`, STAC items that have it")
        if self.labels and not self.images:
            raise UsageError("labels", "needs `images`; labels of `city` are found by their names")
        if self.label_name and (not self.labels or "{name}" not in self.label_name):
            raise UsageError(
                "label_name", "needs `labels`, and {name} in it, such as 'mask_{name}'"
            )


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Store: where it is written."""

    out: Path | str | None = option(
        None,
        "Folder of the store, or s3://BUCKET/NAME.zarr. Default: CITY.zarr; a dry run of `images` "
        "needs none.",
        "PATH",
        parse=any_output,
    )
    overwrite: bool = option(
        False,
        "Replace a store that is complete or was built differently. It stays until the new one is "
        "complete, so the disk needs space for both; in a bucket it cannot be read meanwhile.",
    )


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """Run: what builds the store."""

    workers: int | None = workers_option()
    scheduler: Any = option(
        None,
        "Dask scheduler whose workers build the store, such as tcp://HOST:8786; or a "
        "distributed.Client. Default: threads of this machine.",
        "ADDRESS",
    )
    dry_run: bool = option(
        False,
        "Build, download and unpack nothing; give the number of tiles, their size, and scenes that "
        "would fail, by the headers of images and masks. This reads a .tar.gz to its end, at about "
        "15 MB/s.",
    )


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Options of images and tiles: the pixels that are read, and their conversion to bytes."""

    bands: tuple[int | str, ...] | None = _source(
        None,
        "Bands to store, by number from 1 or by name, such as 5,3,2 or red,green,blue.  "
        "[default: all except alpha]",
        "BAND,...",
        parse=parse_bands,
    )
    band_names: tuple[str, ...] | None = _source(
        None,
        "Names of the bands that are stored, in their order, such as red,green,blue,nir.  "
        "[default: those of the images, if most share them; else colours, or band 1, ...]",
        "NAME,...",
        parse=parse_names,
        sparse=True,
    )
    pixel_size: float | None = _source(
        None,
        "Pixel size in metres of images that are not georeferenced (PNG, JPEG). Their labels "
        "must be rasters.",
        "METRES",
        above=0,
    )
    missing_label: MissingLabel = _source(
        "unlabelled",
        "Meaning of an image without a label file among those that have one: unlabelled, or "
        "background: it has none of the roads or classes.",
        sparse=True,
    )
    tile: int | None = _tiles(
        None,
        "Side of a tile in pixels; auto: the side nearest 512 that fits most scenes.  "
        "[default: auto]",
        "auto|N",
        least=1,
        parse=parse_tile,
    )
    overlap: int = _tiles(0, "Overlap of neighbouring tiles in pixels.", "N", least=0)
    levels: int = _tiles(
        2, "Number of resolutions; each halves the one before.", "N", least=1, most=MOST_LEVELS
    )
    gsd: float | None = _tiles(
        None,
        "Pixel size of the finest level in metres.  [default: as the images]",
        "METRES",
        above=0,
    )
    resize: int | None = _tiles(
        None, "Resample every scene to a single tile of N x N pixels.", "N", least=1
    )
    rescale: str = _pixels(
        "auto",
        "Conversion of pixel values to 8 bits: linear between percentiles 2 and 98 of each "
        "scene or city, linear between two values (such as -25,0), or none, which keeps the "
        "values of uint8 images; auto: none if all images are uint8, else city for classes (if "
        "images have one data type and scale) and scene for roads. NaN and infinite values become "
        "nodata.",
        "auto|scene|city|none|LO,HI",
        check=check_rescale,
    )
    max_nodata: float = _pixels(
        0.9, "Skip scenes with a larger share of nodata, 0 to 1.", "SHARE", least=0, most=1
    )
    nodata: float | Literal["none"] | None = _pixels(
        None,
        "Pixel value that is nodata where all bands have it; none: only alpha band, mask or "
        "nodata tag count.  [default: these, or else black that is connected with the image's "
        "edge]",
        "VALUE|none",
        parse=parse_nodata,
    )

    def __post_init__(self) -> None:
        check_options(self, ImageOptions)
        if self.gsd is not None and self.resize is not None:
            raise UsageError("`gsd` and `resize` both set the resolution: use one of them")
        if self.resize is not None and (self.tile is not None or self.overlap):
            raise UsageError(
                "resize", "makes one tile of every scene: use it without `tile` and `overlap`"
            )
        if self.bands is not None:
            text = self.bands if isinstance(self.bands, str) else ",".join(map(str, self.bands))
            object.__setattr__(self, "bands", parse_bands(text))
        if self.band_names is not None:
            given = self.band_names
            names = parse_names(given if isinstance(given, str) else ",".join(given))
            object.__setattr__(self, "band_names", names)


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options of splits and of files."""

    val: float = _splits(
        0.2,
        "Share of the scenes for validation, 0 to 1; 1: all scenes, none for training.",
        "SHARE",
        least=0,
        most=1,
    )
    test: float = _splits(0.0, "Share of the scenes for testing, 0 to 1.", "SHARE", least=0, most=1)
    split_seed: int = _splits(0, "Seed of the hash that assigns scenes to splits.", "N")
    split_by: SplitBy = _splits(
        "scene",
        "Unit that is assigned to a split: scene; block, a square of ground of `block_km`, "
        "which also divides larger scenes by tile; or folder, where train, val or test in an "
        "image's path names its split (without a folder val, `val` of the others than test).",
    )
    split_file: str | None = _splits(
        None,
        "File that assigns splits: polygons with an attribute split (train, val, test), or a "
        "CSV file with columns scene and split, whose scenes may be patterns such as city_*. "
        "The rest is for training, or unused if the file has train.",
        "FILE",
    )
    split_overlap: SplitOverlap = _splits(
        "warn",
        "Tiles that show ground of another split in an overlapping image: warn keeps them and "
        "counts them; unused leaves out training tiles, and validation before test tiles.",
        sparse=True,
    )
    block_km: float = _splits(2.0, "Side of a block in kilometres.", "KM", above=0)
    shard_tiles: int = _store(
        32, "Approximate number of tiles per file.", "N", least=1, most=MOST_SHARD_TILES
    )
    codec: Codec = _store("lz4", "Compression; zstd makes smaller files and is slower.")

    def __post_init__(self) -> None:
        check_options(self, StoreOptions)
        if not (0 <= self.val <= 1 and 0 <= self.test <= 1 and self.val + self.test <= 1):
            raise UsageError("`val` and `test` are shares from 0 to 1, together at most 1")


# The last base has the first fields: their order is that of the help and of a store's attributes.
@dataclass(frozen=True, kw_only=True)
class BuildOptions(StoreOptions, MaskOptions, ClassOptions, RoadOptions, ImageOptions):
    """Options of a build. Equal options and inputs give equal bytes.

    ``bands`` None selects all bands except alpha, or the first three of an RGB product; ``tile``
    None selects a side automatically.
    """

    def __post_init__(self) -> None:
        ImageOptions.__post_init__(self)
        RoadOptions.__post_init__(self)
        ClassOptions.__post_init__(self)
        MaskOptions.__post_init__(self)
        StoreOptions.__post_init__(self)
        rule = self.class_rule or self.mask_rule  # which refuse values that are not readable
        if self.label_nodata is not None and rule is None:
            raise UsageError("label_nodata", "needs `label_values`, `label_speeds` or `classes`")
        for name in _NOT_OF_CLASSES:
            if self.classes is not None and getattr(self, name) != getattr(BuildOptions, name):
                raise UsageError(name, "is for roads, `classes` for classes: leave out one")

    @classmethod
    def given(cls, **options: Any) -> BuildOptions:  # noqa: ANN401 - fields by name
        """Return options; refuse one that is given but without effect because of another."""
        for other in (name for name in ("label_values", "label_speeds") if options.get(name)):
            for name in options.keys() & {field.name for field in fields(RoadOptions)}:
                raise UsageError(
                    name,
                    f"is for vector labels, `{other}` for raster labels: leave out one of them",
                )
        if options.get("split_file") is not None:
            options["split_file"] = os.fspath(options["split_file"])
        if options.get("speed_field") and options.get("speed_from") == "attributes":
            raise UsageError("speed_field", "reads given speeds: leave out `speed_from` attributes")
        if "speed_unit" in options and not options.get("speed_field"):
            raise UsageError("speed_unit", "is the unit of `speed_field`: give the field too")
        assigned = "`split_file`" if options.get("split_file") else ""
        if options.get("split_by") == "folder":
            assigned = assigned or "`split_by` folder"
        drawn = () if options.get("split_file") is None else ("val", "split_seed")
        for name in ("split_by", "test", *drawn):
            if assigned and name in options and name not in assigned:
                raise UsageError(f"{assigned} assigns all splits: leave out `{name}`")
        if "block_km" in options and options.get("split_by") != "block":
            raise UsageError("block_km", "needs `split_by` block")
        return cls(**options)

    @property
    def mask_rule(self) -> RasterRule | None:
        """How rasters of roads are read; None for other labels."""
        if self.label_values is None and self.label_speeds is None:
            return None
        from geoprep.labels.raster_rules import make_mask_rule

        return make_mask_rule(self.label_values, self.label_speeds, self.label_nodata)

    @property
    def class_rule(self) -> ClassRaster | None:
        """How labels are read as classes; None for roads."""
        return None if self.classes is None else self.make_rule(self.label_nodata)

    def raster_rule(self, label: str) -> RasterRule | None:
        """Return how a raster label is read; None for vector labels."""
        if self.classes is None:
            return self.mask_rule
        from geoprep.labels.vector_names import is_vector

        if is_vector(label) or self.class_field is not None or self.layer is not None:
            return None
        return self.class_rule

    def speed_rule(self, schema: Schema) -> SpeedRule:
        """Return how roads with attributes of this schema get their speed."""
        from geoprep.labels.label_options import SpeedRule

        given = {field.name: getattr(self, field.name) for field in fields(RoadOptions)}
        return SpeedRule(**given | {"schema": schema}, classes=self.class_rule)

    def to_attrs(self) -> dict[str, Any]:
        """Return the options as plain JSON values, for the store's attributes.

        Of files the name remains, since a store does not depend on folders.
        """
        attrs: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default or not field.metadata["option"].sparse:
                attrs[field.name] = list(value) if isinstance(value, tuple) else value
            if field.name == "buffer":
                attrs["width_field"] = None  # an option of earlier builds, whose bytes stay equal
        if self.classes is not None:
            attrs["classes"] = json.loads(self.classes)
        else:
            attrs["buffer"] = self.half_width
        attrs["split_file"] = self.split_file and PurePath(self.split_file).name
        return attrs
