"""From scenes to a plan: every tile's place, split and shard, before a pixel is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from geoprep import __version__
from geoprep.errors import SourceError, UsageError
from geoprep.executors import Executor
from geoprep.grid import Grid, shard_tiles
from geoprep.plan.division import Member, divide
from geoprep.plan.layout import Layout
from geoprep.plan.masks import check_kinds
from geoprep.plan.options import BuildOptions, Schema
from geoprep.plan.probe import Probe, inputs_digest, label_files, of_equal_bands, probe_scenes
from geoprep.plan.shared import judge_shared_roads, open_shared_roads, unfit_label
from geoprep.sources import CITIES, Found
from geoprep.store import NO_SPEEDS, StoreMeta


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
    splits
        Of every tile: 0 train, 1 val, 2 test, 3 unused.
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
    splits: tuple[int, ...]
    city: int
    schema: Schema
    failure: str

    @property
    def split(self) -> int:
        """The split of most of its tiles."""
        return Counter(self.splits).most_common(1)[0][0]

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
    *,
    read_inputs: bool = True,
) -> Plan:
    """Read every image's header and lay out the store; read all inputs once for their digest.

    Parameters
    ----------
    cities
        One name per source of ``found``: a city's, or ``custom``.
    report
        Called with how many scenes' files have been read, and how many scenes there are.
    read_inputs
        False for a plan that nothing is built by: it lacks the digest of what goes in.

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
    probes = of_equal_bands(scenes, probe_scenes(items, executor))
    usable = [probe for probe in probes if not probe.failure]
    if not usable:
        raise SourceError(
            f"none of {len(probes)} images can be used; the first: {probes[0].failure}"
        )
    layout = Layout.of([probe.grid for probe in probes], len(usable[0].bands), options)
    rescale = _resolve_rescale(options.rescale, {probe.dtype for probe in usable})
    roads = open_shared_roads(found, options)
    shared = roads.name if roads else None
    outside, notes = (
        judge_shared_roads(roads, [probe.grid for probe in probes])
        if roads
        else ([""] * len(probes), ())
    )
    planned, more = _lay_out(found, cities, probes, layout, shared, outside)
    raster = options.mask_rule is not None
    files = [
        [*probe.files, *label_files(scene.label, raster=raster)]
        for scene, probe in zip(scenes, probes, strict=True)
    ]
    more_files = [label_files(name) for name in (shared, options.split_file) if name]
    digest = inputs_digest(
        [f"{scene.id} {probe.facts}" for scene, probe in zip(scenes, probes, strict=True)],
        [*files, *more_files] if read_inputs else [],
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
        road_file=shared,
        orphan_labels=tuple(label for one in found for label in one.orphan_labels),
        notes=(*notes, *more),
        stamp=f"{__version__} {digest}",
    )


def _lay_out(
    found: Sequence[Found],
    cities: Sequence[str],
    probes: Sequence[Probe],
    layout: Layout,
    road_file: str | None,
    outside: Sequence[str],
) -> tuple[list[PlannedScene], tuple[str, ...]]:
    """Give every scene its tiles and their splits; return also what a person should know of them.

    ``outside`` says why the road file has no roads.
    """
    sources = [(scene, city) for city, one in enumerate(found) for scene in one.scenes]
    scenes = [scene for scene, _ in sources]
    labelled = [
        scene.label is not None or (road_file is not None and not why)
        for scene, why in zip(scenes, outside, strict=True)
    ]
    members = [
        Member(scene.id, found[city].origin, probe.grid, has_label)
        for (scene, city), probe, has_label in zip(sources, probes, labelled, strict=True)
    ]
    splits, notes = divide(members, layout)
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
            splits=split,
            city=city,
            schema=_schema(cities[city], layout.options),
            failure=probe.failure or why or unfit_label(scene.label, probe.grid),
        )
        planned.append(one)
        tiles += len(one.windows)
    return planned, notes


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
    there = " and ".join(sorted(dtypes, key=lambda one: (len(one), one)))
    if rule == "auto":
        if len(dtypes) > 1:
            raise UsageError(
                f"some images are {there.replace(' and ', ' and some ')}: say how they become "
                "bytes, for example --rescale scene"
            )
        return "none" if dtypes == {"uint8"} else "scene"
    if rule == "none" and dtypes != {"uint8"}:
        raise UsageError(
            f"--rescale none needs uint8 images; here are {there}: use scene, or LO,HI"
        )
    if rule == "city" and len(dtypes) > 1:
        raise UsageError(f"--rescale city needs images of one dtype; here are {there}")
    return rule
