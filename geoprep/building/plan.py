"""The plan of a build: position, split and shard of every tile, made before pixels are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from geoprep import __version__
from geoprep.building.inputs import inputs_digest, with_equal_images
from geoprep.building.label_checks import (
    check_kinds,
    check_labels,
    vector_label_failure,
)
from geoprep.building.options import BuildOptions, parse_rescale
from geoprep.building.scene import Described, Planned, describe_scenes
from geoprep.building.splits import divide
from geoprep.errors import SourceError, UsageError
from geoprep.executors.threads import Executor
from geoprep.grid import MIXED_SIZES, Grid, Windows, auto_tile, level_sides, shard_tiles
from geoprep.imagery.rescale import value_kind
from geoprep.labels.label_options import Schema
from geoprep.sources.cities import CITIES
from geoprep.sources.scene import SourceScenes
from geoprep.store.schema import CLASSES_SCHEMA, StoreMeta

MOST_TILE_BYTES: Final = 256 << 20
"""A tile is one chunk, which is read whole; every thread of a build holds those of a scene."""
MOST_FINER: Final = 10
"""Largest ratio of an image's pixel size to that of the finest level."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a build does."""

    meta: StoreMeta  # root attribute of the store, incomplete
    options: BuildOptions
    scenes: tuple[Planned, ...]  # in the order of their tiles
    tiles: int  # rows of the pixel arrays
    shared_label: str | None  # that all scenes share; None if they have labels of their own
    orphan_labels: tuple[str, ...]  # without an image
    notes: tuple[str, ...]  # for the user
    # Digest of the inputs and the version. Only builds with the same one resume each other.
    fingerprint: str

    @property
    def shards(self) -> int:
        """Number of shards in every pixel array."""
        return -(-self.tiles // self.meta.shard_tiles)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """Return the first tile of a shard and the one after its last."""
        start = shard * self.meta.shard_tiles
        return start, min(start + self.meta.shard_tiles, self.tiles)

    def needs_survey(self, scene: Planned) -> bool:
        """Return whether a scene must be surveyed before its shards are built.

        A scene in several shards needs the same limits and status in all of them, unless limits are
        given, every pixel is valid, and its label is no raster, whose values are checked. Limits of
        a whole city need the histogram of every scene.
        """
        if scene.failure:
            return False
        if self.meta.rescale == "city":
            return True
        is_known = parse_rescale(self.meta.rescale) is not None and scene.pixels.all_valid
        return self.in_several_shards(scene) and (scene.rule is not None or not is_known)

    def in_several_shards(self, scene: Planned) -> bool:
        """Return whether a scene's tiles are in more than one shard."""
        start, last = scene.first_tile, scene.first_tile + len(scene.windows) - 1
        return start // self.meta.shard_tiles != last // self.meta.shard_tiles


def make_plan(
    sources: Sequence[SourceScenes],
    cities: Sequence[str],
    options: BuildOptions,
    executor: Executor,
    *,
    read_inputs: bool = True,
) -> Plan:
    """Return the plan of a build, made before pixels are read.

    1. Scenes are described: by their images' headers, with the identity of their files.
    2. The labels are checked, or the road file that all scenes share.
    3. Scenes are planned: with their tiles, and the split of every tile.

    ``cities`` has one name per source: of a city, or ``custom``. Without ``read_inputs`` there is
    no digest, for a plan that is not built; images with the same bytes may then be in different
    splits.
    """
    check_kinds(sources, options)
    described, notes = describe_scenes(sources, options, executor, read_inputs=read_inputs)
    usable = [scene for scene in described if not scene.failure]
    if not usable:
        raise SourceError(f"none of the images can be used. First: {described[0].failure}")
    first = usable[0]
    shapes = [_finest_shape(one.grid, options) if one.grid else None for one in described]
    known = [shape for shape in shapes if shape is not None]
    tile = _tile_side(known, len(first.band_names), options)
    levels = level_sides(tile, options.levels)
    rescale = _rescale_rule(options, usable)
    kinds = {_limits_of(rescale, scene) for scene in usable}
    labels = check_labels(sources, described, options)
    inputs, digest = [scene.inputs for scene in described], ""
    if read_inputs:
        facts = [f"{scene.id} {scene.facts}" for scene in described]
        digest = inputs_digest(facts, inputs, [labels.shared, options.split_file])
    inputs = with_equal_images(inputs, executor)
    usual = Counter(known).most_common(1)[0][0]  # of images that cannot be opened
    tiles, scenes = 0, list[Planned]()
    of_scenes = zip(described, labels.labels, labels.outside, inputs, shapes, strict=True)
    for scene, label, why, files, shape in of_scenes:
        failure = scene.failure or why or vector_label_failure(scene.label, scene.grid)
        planned = Planned(
            *(scene.id, scene.image, label, scene.city, files, scene.opened, failure),
            schema=_schema(cities[scene.city], options),
            rule=options.raster_rule(label) if label else None,
            labelled=label is not None and not why,
            windows=Windows(shape or usual, tile, options.overlap),
            first_tile=tiles,
        )
        scenes.append(planned)
        tiles += len(planned.windows)
    splits, groups, split_notes = divide(scenes, cities, options)
    scenes = [replace(scene, splits=own) for scene, own in zip(scenes, splits, strict=True)]
    gsd_m, size_notes = _pixel_sizes(scenes)
    class_attributes: dict[str, Any] = {}
    if rule := options.class_rule:
        class_attributes = {"schema": CLASSES_SCHEMA, "kind": "classes"}
        class_attributes |= {"class_names": rule.names, "class_colors": rule.colors}
    meta = StoreMeta(
        cities=tuple(cities),
        bands=tuple(names[0] for names in first.band_names),
        band_indexes=first.pixels.bands,
        gsd_m=gsd_m,
        tile=tile,
        overlap=options.overlap,
        rescale=rescale,
        levels=levels,
        shard_tiles=shard_tiles([len(scene.windows) for scene in scenes], options.shard_tiles),
        codec=options.codec,
        speed_unit="mph" if options.label_values is None and options.classes is None else "none",
        build={
            "options": options.to_attrs(),
            "product": sources[0].product,
            "inputs": digest,
            "groups": groups,
            **({"limits_of": kinds.pop()} if len(kinds) == 1 and any(kinds) else {}),
            **({"datetimes": dict(sources[0].datetimes)} if sources[0].datetimes else {}),
        },
        version=__version__,
        **class_attributes,
    )
    return Plan(
        meta=meta,
        options=options,
        scenes=tuple(scenes),
        tiles=tiles,
        shared_label=labels.shared,
        orphan_labels=tuple(label for source in sources for label in source.orphan_labels),
        notes=(*notes, *size_notes, *labels.notes, *split_notes),
        fingerprint=f"{__version__} {digest}",
    )


def _finest_shape(grid: Grid, options: BuildOptions) -> tuple[int, int]:
    """Return height and width of a scene in pixels of the finest level."""
    if options.resize is not None:
        return options.resize, options.resize
    if options.gsd is None:
        return grid.shape
    finest = min(grid.gsd_m())
    if options.gsd * MOST_FINER < finest:
        raise UsageError(
            "gsd",
            f"{options.gsd:g} m is {finest / options.gsd:,.0f} times as fine as the images, "
            f"whose pixels are {finest:.3g} m: use at least a {MOST_FINER}th of that",
        )
    return grid.at_gsd(options.gsd).shape


def _tile_side(shapes: Sequence[tuple[int, int]], bands: int, options: BuildOptions) -> int:
    """Return the side of the tiles of scenes of these shapes."""
    divisor = 2 ** (options.levels - 1)
    tile = options.resize or options.tile or auto_tile(shapes, options.overlap, divisor)
    if tile**2 * bands > MOST_TILE_BYTES:
        raise UsageError(
            f"a tile of {tile} x {tile} pixels in {bands} bands has "
            f"{tile**2 * bands / 2**20:,.0f} MiB, more than {MOST_TILE_BYTES >> 20} MiB: use a "
            "smaller `tile` or `resize`"
        )
    return tile


def _pixel_sizes(scenes: Sequence[Planned]) -> tuple[tuple[float, float], list[str]]:
    """Return the median of the pixel sizes at the finest level in metres, x and y; and a note."""
    sizes = [(*scene.target.gsd_m(), scene.id) for scene in scenes if scene.target]
    x, y = np.median([size[:2] for size in sizes], axis=0)
    gsd = round(float(x), 4), round(float(y), 4)
    if not all(gsd):
        raise UsageError(
            f"the pixels of the images are {x:.2g} x {y:.2g} m; a store needs at least 0.0001 m. "
            "Check `pixel_size`, or the CRS of the images"
        )
    (fine, _, finest), (coarse, _, coarsest) = min(sizes), max(sizes)
    if coarse <= MIXED_SIZES * fine:
        return gsd, []
    return gsd, [
        f"pixels are of {fine:.3g} m ({finest}) to {coarse:.3g} m ({coarsest}); a model has one "
        "size: build separate stores, or resample all images with `gsd`"
    ]


def _schema(city: str, options: BuildOptions) -> Schema:
    """Return the schema of the options or, for auto, that of the city's labels."""
    if options.schema != "auto" or city not in CITIES:
        return options.schema
    return "sn3" if CITIES[city].mission == "SN3" else "sn5"


def _limits_of(rule: str, scene: Described) -> str:
    """Return what the limits of a rule belong to, "" for values of 8 bits or a scene's limits."""
    if rule in ("scene", "none"):
        return ""
    pixels = scene.pixels
    kind = value_kind(pixels.dtype, scaled=bool(pixels.units) and rule != "city")
    return kind if kind != "8 bits" else ""


def _rescale_rule(options: BuildOptions, scenes: Sequence[Described]) -> str:
    """Return the rule for images; UsageError if it cannot convert them.

    ``auto`` is ``city`` for classes, which brightness tells apart, where that is possible.
    """
    rule, dtypes = options.rescale, {scene.pixels.dtype for scene in scenes}
    units = {scene.pixels.units for scene in scenes}
    if rule == "auto":
        one_pair = options.class_rule is not None and len(dtypes) == len(units) == 1
        return "none" if dtypes == {"uint8"} else "city" if one_pair else "scene"
    names = " and ".join(sorted(dtypes, key=lambda one: (len(one), one)))
    if rule == "none" and dtypes != {"uint8"}:
        raise UsageError(
            "rescale", f"none needs uint8 images; these are {names}. Use scene, or LO,HI"
        )
    if rule == "city" and len(dtypes) > 1:
        raise UsageError("rescale", f"city needs images of one data type; these are {names}")
    if rule == "city" and len(units) > 1:
        raise UsageError(
            "rescale",
            "city needs images of one scale and offset; these have several: use LO,HI in "
            "the unit of the bands",
        )
    return rule
