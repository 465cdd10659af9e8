"""The plan of a build: position, split and shard of every tile, made before pixels are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from geoprep import __version__
from geoprep.building.options import BuildOptions
from geoprep.building.request import check_kinds
from geoprep.building.scene import (
    ALL_BACKGROUND,
    Layout,
    PlannedScene,
    compare_equal,
    inputs_digest,
    probe_scenes,
)
from geoprep.building.splits import divide
from geoprep.errors import GeoprepError, LabelError, SourceError, UsageError
from geoprep.executors.threads import Executor
from geoprep.grid import MIXED_SIZES, Grid, shard_tiles
from geoprep.imagery.headers import describe
from geoprep.imagery.rescale import value_kind
from geoprep.labels.label_options import Schema
from geoprep.labels.label_shapes import LabelFile, open_label_file, refuse_points
from geoprep.labels.vector_files import UNSELECTED
from geoprep.labels.vector_names import is_vector
from geoprep.sources.cities import CITIES
from geoprep.sources.scene import SourceScenes
from geoprep.sources.stac_items import SWAPPED
from geoprep.storage.addresses import is_remote
from geoprep.store.classes import BACKGROUND_NAME
from geoprep.store.schema import CLASSES_SCHEMA, StoreMeta
from geoprep.texts import counted

_COLOURS: Final = 3
"""Bands of a mask of colours."""
_MUCH_PADDING: Final = 0.05
_LABELS_TRIED: Final = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a build does."""

    meta: StoreMeta  # root attribute of the store, incomplete
    options: BuildOptions
    scenes: tuple[PlannedScene, ...]  # in the order of their tiles
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

    def needs_survey(self, scene: PlannedScene) -> bool:
        """Return whether a scene must be surveyed before its shards are built.

        A scene in several shards needs the same limits and status in all of them. Limits of a
        whole city need the histogram of every scene.
        """
        if scene.failure:
            return False
        return self.meta.rescale == "city" or self.in_several_shards(scene)

    def in_several_shards(self, scene: PlannedScene) -> bool:
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

    A record of each scene is completed step by step:

    1. its image's header, and the identity of its files;
    2. its label, or the road file that all scenes share;
    3. its tiles;
    4. the split of every tile.

    ``cities`` has one name per source: of a city, or ``custom``. Without ``read_inputs`` there is
    no digest, for a plan that is not built; images with the same bytes may then be in different
    splits.
    """
    check_kinds(sources, options)
    scenes, band_notes = probe_scenes(sources, options, executor, read_inputs=read_inputs)
    usable = [scene for scene in scenes if not scene.failure]
    swapped = _looks_swapped(scenes[0], options)
    if not usable:
        reason = " ".join([scenes[0].failure, *swapped])
        raise SourceError(f"none of the images can be used. First: {reason}")
    first = usable[0]
    layout = Layout.of([scene.grid for scene in scenes], len(first.band_names), options)
    rescale = _rescale_rule(options.rescale, {scene.pixels.dtype for scene in usable})
    units = {scene.pixels.units for scene in usable}
    if rescale == "city" and len(units) > 1:
        raise UsageError(
            "rescale",
            "city needs images of one scale and offset; these have several: use LO,HI in "
            "the unit of the bands",
        )
    kinds = {_limits_of(rescale, scene) for scene in usable}
    labels = (scene.label for scene in usable if scene.label and is_vector(scene.label))
    # GDAL writes a file beside a compressed tar that it reads labels in.
    own = [label for label in labels if not is_remote(label) and not label.startswith("/vsitar/")]
    refuse_points(own[:_LABELS_TRIED], options.speed_rule(options.schema))
    roads = open_shared_label(sources, options)
    shared_label = roads.name if roads else None
    outside, notes = [""] * len(scenes), tuple[str, ...]()
    if roads:
        outside, notes = check_shared_roads(roads, [scene.grid for scene in scenes])
        if options.class_rule and BACKGROUND_NAME not in options.class_rule.names:
            rest = "pixels outside its features have no label; if they are background, begin"
            notes += (f"{roads.name}: {rest} `classes` with {BACKGROUND_NAME}",)
    facts = [f"{scene.id} {scene.facts}" for scene in scenes]
    digest = inputs_digest(facts, scenes, [shared_label, options.split_file]) if read_inputs else ""
    scenes = compare_equal(scenes, executor)
    empty = [scene.label is None for scene in scenes]
    if options.missing_label == "background":
        _require_background(empty, shared_label, options)
        what = "without a label file: background"
        notes += (f"{counted(sum(empty), 'image')} {what}",) * any(empty)
    tiles = 0
    for i, scene in enumerate(scenes):  # in place: the plan of a million scenes is held once
        label = scene.label or shared_label
        if label is None and options.missing_label == "background":
            label = ALL_BACKGROUND
        own_failure = vector_label_failure(scene.label, scene.grid)
        scene = replace(
            layout.tiled(scene, first_tile=tiles),
            label=label,
            labelled=label is not None and not outside[i],
            failure=scene.failure or outside[i] or own_failure,
            schema=_schema(cities[scene.city], options),
            facts="",
            band_names=(),
        )
        scenes[i], tiles = scene, tiles + len(scene.windows)
    splits, groups, split_notes = divide(scenes, [source.origin for source in sources], layout)
    for i, of_scene in enumerate(splits):
        scenes[i] = replace(scenes[i], splits=of_scene)
    together = defaultdict[int, list[int]](list)
    for i, group in enumerate(groups):
        together[group].append(i)
    gsd_m, size_notes = _pixel_sizes(scenes)
    if options.tile is None:
        size_notes += _padding(scenes, layout.tile)
    meta = StoreMeta(
        cities=tuple(cities),
        bands=tuple(names[0] for names in first.band_names),
        band_indexes=first.pixels.bands,
        gsd_m=gsd_m,
        tile=layout.tile,
        overlap=options.overlap,
        rescale=rescale,
        levels=layout.levels,
        shard_tiles=shard_tiles([len(scene.windows) for scene in scenes], options.shard_tiles),
        codec=options.codec,
        speed_unit="mph" if options.label_values is None and options.classes is None else "none",
        build={
            "options": options.to_attrs(),
            "product": sources[0].product,
            "inputs": digest,
            "groups": [scenes_of for scenes_of in together.values() if len(scenes_of) > 1],
            **({"limits_of": kinds.pop()} if len(kinds) == 1 and any(kinds) else {}),
            **({"datetimes": dict(sources[0].datetimes)} if sources[0].datetimes else {}),
        },
        version=__version__,
        **_class_attributes(options),
    )
    return Plan(
        meta=meta,
        options=options,
        scenes=tuple(scenes),
        tiles=tiles,
        shared_label=shared_label,
        orphan_labels=tuple(label for source in sources for label in source.orphan_labels),
        notes=(*swapped, *band_notes, *size_notes, *notes, *split_notes),
        fingerprint=f"{__version__} {digest}",
    )


def _class_attributes(options: BuildOptions) -> dict[str, Any]:
    """Return the attributes that only a store of classes has."""
    rule = options.class_rule
    if rule is None:
        return {}
    return {
        "schema": CLASSES_SCHEMA,
        "kind": "classes",
        "class_names": rule.names,
        "class_colors": rule.colors,
    }


def _pixel_sizes(scenes: Sequence[PlannedScene]) -> tuple[tuple[float, float], list[str]]:
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


def _padding(scenes: Sequence[PlannedScene], tile: int) -> list[str]:
    """Return a note on the share of padding in tiles, if there is much."""
    counts = np.array([len(scene.windows) for scene in scenes])
    sides = np.minimum([scene.shape for scene in scenes], tile)
    share = 1 - (counts * sides.prod(axis=1)).sum() / (counts.sum() * tile**2)
    if share < _MUCH_PADDING:
        return []
    return [
        f"{share:.0%} of the pixels of tiles are padding, as scenes are smaller than the tile of "
        f"{tile} pixels; `tile` sets another side"
    ]


def _schema(city: str, options: BuildOptions) -> Schema:
    """Return the schema of the options or, for auto, that of the city's labels."""
    if options.schema != "auto" or city not in CITIES:
        return options.schema
    return "sn3" if CITIES[city].mission == "SN3" else "sn5"


def _limits_of(rule: str, scene: PlannedScene) -> str:
    """Return what the limits of a rule belong to, "" for values of 8 bits or a scene's limits."""
    if rule in ("scene", "none"):
        return ""
    pixels = scene.pixels
    kind = value_kind(pixels.dtype, scaled=bool(pixels.units) and rule != "city")
    return kind if kind != "8 bits" else ""


def _rescale_rule(rule: str, dtypes: set[str]) -> str:
    """Return the rule for images of these data types; UsageError if it cannot convert them."""
    if rule == "auto":
        return "none" if dtypes == {"uint8"} else "scene"
    names = " and ".join(sorted(dtypes, key=lambda one: (len(one), one)))
    if rule == "none" and dtypes != {"uint8"}:
        raise UsageError(
            "rescale", f"none needs uint8 images; these are {names}. Use scene, or LO,HI"
        )
    if rule == "city" and len(dtypes) > 1:
        raise UsageError("rescale", f"city needs images of one data type; these are {names}")
    return rule


# Checks of labels


def _looks_swapped(scene: PlannedScene, options: BuildOptions) -> list[str]:
    """Return a question if an image has one band, as masks have, and its mask those of colours.

    Raises SourceError if it has others, which no mask has.
    """
    if not scene.label or not options.raster_rule(scene.label) or options.label_speeds == "bins":
        return []
    try:
        image, mask = map(describe, (scene.image, scene.label))
    except GeoprepError:  # the scene fails, with this reason
        return []
    bands, of_mask = (len(raster.bands) - bool(raster.alpha) for raster in (image, mask))
    text = f"{image.name} has one band, and its label {mask.name} has {of_mask}. {SWAPPED}"
    if bands == 1 and of_mask not in (1, _COLOURS):
        raise SourceError(text)
    return [text] if bands == 1 < of_mask else []


def _require_background(
    empty: Sequence[bool], shared_label: str | None, options: BuildOptions
) -> None:
    """Refuse `missing_label` background where no label file can be missing, or without that."""
    if shared_label or all(empty):
        raise UsageError("missing_label", "needs `labels` of a file per image: leave it out")
    if options.class_rule and BACKGROUND_NAME not in options.class_rule.names:
        raise UsageError(
            "missing_label",
            f"background needs a class of that name: begin `classes` with {BACKGROUND_NAME}",
        )


def open_shared_label(sources: Sequence[SourceScenes], options: BuildOptions) -> LabelFile | None:
    """Return the road file that all scenes share; None if scenes have labels of their own.

    It is read once, so that an unusable file is one error and not one per scene.
    """
    names = {source.shared_label for source in sources if source.shared_label}
    if len(names) > 1:
        raise UsageError("several label files for all scenes: build a separate store for each")
    return open_label_file(Path(names.pop()), options.speed_rule(options.schema)) if names else None


def vector_label_failure(label: str | None, grid: Grid | None) -> str:
    """Return why a label cannot be drawn on a scene's grid; empty if it can."""
    if label is None or grid is None or grid.georeferenced or not is_vector(label):
        return ""
    return (
        f"{label}: vector labels need a georeferenced image. Georeference the image, or give it "
        "a raster label of the same size"
    )


def check_shared_roads(
    roads: LabelFile, grids: Sequence[Grid | None]
) -> tuple[list[str], tuple[str, ...]]:
    """Return per scene why a shared road file does not cover it ("" where it does), and notes."""
    if UNSELECTED in roads.table.file_notes:
        raise LabelError(f"{roads.name}: {UNSELECTED}. Check the condition and its letters")
    inside = [
        grid is not None and grid.georeferenced and roads.covers(grid.bounds, grid.crs)
        for grid in grids
    ]
    usable = [grid for grid in grids if grid is not None]
    if not any(inside):
        if usable and not any(grid.georeferenced for grid in usable):
            raise LabelError(vector_label_failure(roads.name, usable[0]))
        placed = next(grid for grid in usable if grid.georeferenced)
        if len(roads.table.lines):
            hint = roads.swapped(placed.bounds, placed.crs) or ". Check its CRS"
            why = f"its features are at {roads.place()}{hint}"
        else:
            why = roads.table.unusable(placed.crs)
        raise LabelError(
            f"{roads.name} covers none of the scenes: {why}. For one file per scene "
            "give `labels` a folder or a quoted pattern"
        )
    outside = f"{roads.name}: the scene is outside the extent of its features, {roads.place()}"
    failures = [
        "" if grid is None or ok else vector_label_failure(roads.name, grid) or outside
        for grid, ok in zip(grids, inside, strict=True)
    ]
    notes = []
    if any(failures):
        notes.append(
            f"{roads.name} is the label of all {len(usable)} scenes; those that fail outside its "
            f"extent: {sum(map(bool, failures))}. For one file per scene "
            "give `labels` a folder or a quoted pattern"
        )
    notes += [f"{roads.name}: {note}" for note in roads.table.file_notes]
    if left_out := roads.table.lineless():
        listed = ", ".join(f"{what}: {count:,}" for what, count in left_out.items())
        notes.append(f"{roads.name}: features left out ({listed})")
    return failures, tuple(notes)
