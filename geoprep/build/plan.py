"""The plan of a build: position, split and shard of every tile, made before pixels are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geoprep import __version__
from geoprep.build.label_checks import (
    check_kinds,
    check_shared_roads,
    open_shared_roads,
    vector_label_failure,
)
from geoprep.build.layout import Layout
from geoprep.build.options import BuildOptions
from geoprep.build.probe import Probe, inputs_digest, label_files, probe_scenes
from geoprep.build.scene import PlannedScene
from geoprep.build.splits import divide
from geoprep.errors import SourceError, UsageError
from geoprep.executors import Executor
from geoprep.grid import shard_tiles
from geoprep.labels import Schema
from geoprep.sources import CITIES, SourceScenes
from geoprep.store import CLASSES_SCHEMA, StoreMeta


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a build does."""

    meta: StoreMeta  # root attribute of the store, incomplete
    options: BuildOptions
    scenes: tuple[PlannedScene, ...]  # in the order of their tiles
    tiles: int  # rows of the pixel arrays
    road_file: str | None  # that all scenes share; None if they have labels of their own
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
    found: Sequence[SourceScenes],
    cities: Sequence[str],
    options: BuildOptions,
    executor: Executor,
    report: Callable[[int, int], None] | None = None,
    *,
    read_inputs: bool = True,
) -> Plan:
    """Return the plan of a build; reads every image's header, and all inputs once for a digest.

    ``cities`` has one name per source: of a city, or ``custom``. ``report`` gets the numbers of
    scenes whose files have been read, and of all. Without ``read_inputs`` there is no digest, for
    a plan that is not built; images with the same bytes may then be in different splits.
    """
    check_kinds(found, options)
    probes = probe_scenes(found, options, executor)
    usable = [probe for probe in probes if not probe.failure]
    if not usable:
        raise SourceError(f"none of {len(probes)} images can be used. First: {probes[0].failure}")
    first, grids = usable[0], [probe.grid for probe in probes]
    layout = Layout.of(grids, len(first.bands), options)
    _check_rescale(options.rescale, {probe.dtype for probe in usable})
    roads = open_shared_roads(found, options)
    shared = roads.name if roads else None
    outside, notes = check_shared_roads(roads, grids) if roads else ([""] * len(probes), ())
    shared_files = [shared, options.split_file]
    digest, image_digests = inputs_digest(
        [f"{probe.scene.id} {probe.facts}" for probe in probes],
        _input_files(probes, shared_files, options) if read_inputs else [],
        executor,
        report,
    )
    seen: dict[int, int] = {}  # index of the first image by digest; 0: not known
    known = image_digests[: len(probes)] if read_inputs else [0] * len(probes)
    firsts = [seen.setdefault(own, i) if own else i for i, own in enumerate(known)]
    scenes = _lay_out(probes, cities, layout, shared, outside)
    del probes, usable, grids, image_digests  # large for a million scenes
    labelled = [
        scene.label is not None and not why for scene, why in zip(scenes, outside, strict=True)
    ]
    origins = [found[scene.city].origin for scene in scenes]
    splits, more = divide(scenes, origins, labelled, firsts, layout)
    for i, of_scene in enumerate(splits):  # in place: the plan of a million scenes is held once
        scenes[i] = replace(scenes[i], splits=of_scene)
    meta = StoreMeta(
        cities=tuple(cities),
        bands=first.band_names,
        band_indexes=first.bands,
        gsd_m=_median_gsd(scenes),
        tile=layout.tile,
        overlap=options.overlap,
        rescale=options.rescale,
        levels=layout.levels,
        shard_tiles=shard_tiles([len(scene.windows) for scene in scenes], options.shard_tiles),
        codec=options.codec,
        speed_unit="mph" if options.label_values is None and options.classes is None else "none",
        build={
            "options": options.to_attrs(),
            "product": found[0].product,
            "inputs": digest,
            **({"datetimes": dict(found[0].datetimes)} if found[0].datetimes else {}),
        },
        version=__version__,
        **_class_attributes(options),
    )
    # Older versions spread images with the same bytes over splits: their shards do not fit.
    together = "" if firsts == list(range(len(firsts))) else " equal images together"
    return Plan(
        meta=meta,
        options=options,
        scenes=tuple(scenes),
        tiles=sum(len(scene.windows) for scene in scenes),
        road_file=shared,
        orphan_labels=tuple(label for one in found for label in one.orphan_labels),
        notes=(*notes, *more),
        fingerprint=f"{__version__} {digest}{together}",
    )


def _input_files(
    probes: Sequence[Probe], shared: Sequence[str | None], options: BuildOptions
) -> list[list[str]]:
    """Return the files of every scene, the image first, and of what all scenes share."""
    files = []
    for probe in probes:
        label = probe.scene.label
        raster = label is not None and options.raster_rule(label) is not None
        files.append([*probe.files, *label_files(label, raster=raster)])
    return files + [label_files(name) for name in shared if name]


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


def _lay_out(
    probes: Sequence[Probe],
    cities: Sequence[str],
    layout: Layout,
    road_file: str | None,
    outside: Sequence[str],
) -> list[PlannedScene]:
    """Return all scenes with their tiles, still without splits.

    ``outside`` says per scene why the road file does not cover it.
    """
    planned: list[PlannedScene] = []
    tiles = 0
    for probe, why in zip(probes, outside, strict=True):
        scene, windows = probe.scene, layout.windows(probe.grid)
        planned.append(
            PlannedScene(
                id=scene.id,
                image=scene.image,
                label=scene.label or road_file,
                grid=probe.grid,
                shape=layout.shape(probe.grid),
                windows=windows,
                first_tile=tiles,
                city=probe.source,
                schema=_schema(cities[probe.source], layout.options),
                failure=probe.failure or why or vector_label_failure(scene.label, probe.grid),
            )
        )
        tiles += len(windows)
    return planned


def _median_gsd(scenes: Sequence[PlannedScene]) -> tuple[float, float]:
    """Return the pixel size of the finest level in metres along x and y."""
    x, y = np.median([scene.target.gsd_m() for scene in scenes if scene.target], axis=0)
    gsd = round(float(x), 4), round(float(y), 4)
    if not all(gsd):
        raise UsageError(
            f"the pixels of the images are {x:.2g} x {y:.2g} m; a store needs at least 0.0001 m. "
            "Check `pixel_size`, or the CRS of the images"
        )
    return gsd


def _schema(city: str, options: BuildOptions) -> Schema:
    """Return the schema of the options or, for auto, that of the city's labels."""
    if options.schema != "auto" or city not in CITIES:
        return options.schema
    return "sn3" if CITIES[city].mission == "SN3" else "sn5"


def _check_rescale(rule: str, dtypes: set[str]) -> None:
    """Raise UsageError if images of these data types cannot be converted by a rule."""
    names = " and ".join(sorted(dtypes, key=lambda one: (len(one), one)))
    if rule == "none" and dtypes != {"uint8"}:
        raise UsageError(
            f"`rescale` none needs uint8 images; these are {names}. Use scene, or LO,HI"
        )
    if rule == "city" and len(dtypes) > 1:
        raise UsageError(f"`rescale` city needs images of one data type; these are {names}")
