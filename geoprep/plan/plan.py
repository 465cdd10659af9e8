"""From scenes to a plan: every tile's place, split and shard, before a pixel is read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from geoprep import __version__
from geoprep.errors import SourceError, UsageError
from geoprep.executors.threads import Executor
from geoprep.grid import Grid, shard_tiles, to_lonlat
from geoprep.plan.layout import Layout
from geoprep.plan.masks import check_kinds
from geoprep.plan.options import BuildOptions, Schema
from geoprep.plan.probe import Probe, inputs_digest, label_files, of_equal_bands, probe_scene
from geoprep.plan.shared import judge_shared_roads, open_shared_roads
from geoprep.plan.splits import assign_splits, blocks
from geoprep.sources.cities import CITIES
from geoprep.sources.scene import Found, Scene
from geoprep.store.schema import NO_SPEEDS, StoreMeta


@dataclass(frozen=True, slots=True)
class PlannedScene:
    """One scene and its place in the store.

    Attributes
    ----------
    id, image, label
        As in :class:`geoprep.sources.scene.Scene`; ``label`` is None for an unlabelled scene.
    grid
        Of the source; None when the image cannot be opened.
    shape
        Height and width in pixels of the finest level.
    windows
        (row, col) of every tile, in pixels of the finest level.
    first_tile
        Row of the first of them in the store.
    split
        0 train, 1 val, 2 test.
    city
        Which of the plan's sources it comes from.
    schema
        How the attributes of its roads are spelled.
    failure
        Why the scene cannot be built, or empty.
    """

    id: str
    image: str
    label: str | None
    grid: Grid | None
    shape: tuple[int, int]
    windows: tuple[tuple[int, int], ...]
    first_tile: int
    split: int
    city: int
    schema: Schema
    failure: str

    @property
    def target(self) -> Grid | None:
        """The grid of the finest level."""
        return None if self.grid is None else self.grid.resized(*self.shape)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a build will do.

    Attributes
    ----------
    meta
        Root attribute of the store, incomplete.
    scenes
        In the order of their tiles.
    tiles
        Rows of the pixel arrays.
    road_file
        One file of roads for all scenes, or None.
    notes
        Lines that a person should see.
    stamp
        Digest of the inputs and of who reads them: what a build was interrupted with, and is only
        carried on with if it is the same. Kept out of the store.
    """

    meta: StoreMeta
    options: BuildOptions
    scenes: tuple[PlannedScene, ...]
    tiles: int
    road_file: str | None
    orphan_labels: tuple[str, ...]
    notes: tuple[str, ...]
    stamp: str

    @property
    def shards(self) -> int:
        """Number of shards in every pixel array."""
        return -(-self.tiles // self.meta.shard_tiles)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """Return the first tile of a shard and the one after its last."""
        start = shard * self.meta.shard_tiles
        return start, min(start + self.meta.shard_tiles, self.tiles)

    def needs_survey(self, scene: PlannedScene) -> bool:
        """Return whether a scene must be looked at before its shards are built.

        A scene that lies in several shards gets its limits, and its fate, once and for all of them;
        limits of a whole city need every scene's histogram.
        """
        if scene.failure:
            return False
        return self.meta.rescale == "city" or self.in_several_shards(scene)

    def in_several_shards(self, scene: PlannedScene) -> bool:
        """Return whether not all tiles of a scene lie in one shard."""
        start, last = scene.first_tile, scene.first_tile + len(scene.windows) - 1
        return start // self.meta.shard_tiles != last // self.meta.shard_tiles


def make_plan(
    found: Sequence[Found],
    cities: Sequence[str],
    options: BuildOptions,
    executor: Executor,
    report: Callable[[int, int], None] | None = None,
) -> Plan:
    """Read every image's header and lay out the store; read all inputs once for their digest.

    Parameters
    ----------
    cities
        One name per source of ``found``: a city's, or ``custom``.
    report
        Called with how many scenes' files have been read, and how many scenes there are.

    Raises
    ------
    SourceError
        No image can be opened at all.
    UsageError
        The options do not fit each other or these images.
    LabelError
        The one file of roads for all scenes cannot be used.
    """
    scenes = [scene for one in found for scene in one.scenes]
    check_kinds(found, options)
    items = [(scene, one.product, options) for one in found for scene in one.scenes]
    probes = of_equal_bands(scenes, executor.map_ordered(probe_scene, items))
    usable = [probe for probe in probes if not probe.failure]
    if not usable:
        raise SourceError(
            f"none of {len(probes)} images can be used; the first: {probes[0].failure}"
        )
    layout = Layout.of([probe.grid for probe in probes], len(usable[0].bands), options)
    rescale = _resolve_rescale(options.rescale, {probe.dtype for probe in usable})
    roads = open_shared_roads(found, options)
    outside, notes = (
        judge_shared_roads(roads, [probe.grid for probe in probes])
        if roads
        else ([""] * len(probes), ())
    )
    planned = _lay_out(found, cities, probes, layout, roads.name if roads else None, outside)
    raster = options.mask_rule is not None
    files = [
        [*probe.files, *label_files(scene.label, raster=raster)]
        for scene, probe in zip(scenes, probes, strict=True)
    ]
    digest = inputs_digest(
        [f"{scene.id} {probe.facts}" for scene, probe in zip(scenes, probes, strict=True)],
        [*files, label_files(roads.name)] if roads else files,
        executor,
        report,
    )
    meta = StoreMeta(
        cities=tuple(cities),
        bands=usable[0].band_names,
        band_indexes=usable[0].bands,
        gsd_m=_median_gsd(planned),
        tile=layout.tile,
        overlap=options.overlap,
        rescale=rescale,
        levels=layout.levels,
        shard_tiles=shard_tiles([len(scene.windows) for scene in planned], options.shard_tiles),
        codec=options.codec,
        speed_unit="mph" if options.label_values is None else NO_SPEEDS,
        build={"options": options.to_attrs(), "product": found[0].product, "inputs": digest},
        version=__version__,
    )
    return Plan(
        meta=meta,
        options=options,
        scenes=tuple(planned),
        tiles=sum(len(scene.windows) for scene in planned),
        road_file=roads.name if roads else None,
        orphan_labels=tuple(label for one in found for label in one.orphan_labels),
        notes=notes,
        stamp=f"{__version__} {digest}",
    )


def _lay_out(
    found: Sequence[Found],
    cities: Sequence[str],
    probes: Sequence[Probe],
    layout: Layout,
    road_file: str | None,
    outside: Sequence[str],
) -> list[PlannedScene]:
    """Give every scene its tiles and its split; ``outside`` says why the road file has no roads."""
    sources = [(scene, city) for city, one in enumerate(found) for scene in one.scenes]
    scenes = [scene for scene, _ in sources]
    labelled = [
        scene.label is not None or (road_file is not None and not why)
        for scene, why in zip(scenes, outside, strict=True)
    ]
    splits = _splits(scenes, probes, labelled, found, layout.options)
    planned: list[PlannedScene] = []
    tiles = 0
    for (scene, city), probe, split, why in zip(sources, probes, splits, outside, strict=True):
        one = PlannedScene(
            id=scene.id,
            image=scene.image,
            label=scene.label or road_file,
            grid=probe.grid,
            shape=layout.shape(probe.grid),
            windows=layout.windows(probe.grid),
            first_tile=tiles,
            split=int(split),
            city=city,
            schema=_schema(cities[city], layout.options),
            failure=probe.failure or why,
        )
        planned.append(one)
        tiles += len(one.windows)
    return planned


def _median_gsd(scenes: Sequence[PlannedScene]) -> tuple[float, float]:
    """Return the ground sample distance of the finest level in metres along x and y."""
    x, y = np.median([scene.target.gsd_m() for scene in scenes if scene.target], axis=0)
    return round(float(x), 4), round(float(y), 4)


def _schema(city: str, options: BuildOptions) -> Schema:
    """Return the schema asked for, or that of the mission which labelled the city."""
    if options.schema != "auto" or city not in CITIES:
        return options.schema
    return "sn3" if CITIES[city].mission == "SN3" else "sn5"


def _resolve_rescale(rule: str, dtypes: set[str]) -> str:
    if rule == "auto":
        if len(dtypes) > 1:
            raise UsageError(
                "some images are uint8 and some uint16: say how they become bytes, "
                "for example --rescale scene"
            )
        return "none" if dtypes == {"uint8"} else "scene"
    if rule == "none" and "uint16" in dtypes:
        raise UsageError("--rescale none needs uint8 images; these are uint16: use scene, or LO,HI")
    if rule == "city" and len(dtypes) > 1:
        raise UsageError("--rescale city needs images of one dtype; here are uint8 and uint16")
    return rule


def _splits(
    scenes: Sequence[Scene],
    probes: Sequence[Probe],
    labelled: Sequence[bool],
    found: Sequence[Found],
    options: BuildOptions,
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    groups: Sequence[Hashable] = [scene.id for scene in scenes]
    if options.split_by == "block":
        areas = [one.origin for one in found for _ in one.scenes]
        groups = blocks([_centre(probe.grid) for probe in probes], areas, options.block_km)
    return assign_splits(
        [str(group) for group in groups],
        labelled,
        val=options.val,
        test=options.test,
        seed=options.split_seed,
    )


def _centre(grid: Grid | None) -> tuple[float, float]:
    """Return the longitude and latitude of a scene's centre, NaN when it has none."""
    if grid is None:
        return float("nan"), float("nan")
    lon, lat = to_lonlat(grid.crs).transform(*(grid.transform * (grid.width / 2, grid.height / 2)))
    return float(lon), float(lat)
