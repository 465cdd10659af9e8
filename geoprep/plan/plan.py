"""From scenes to a plan: every tile's place, split and shard, before a pixel is read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from geoprep import __version__
from geoprep.errors import LabelError, SourceError, UsageError
from geoprep.executors.threads import Executor
from geoprep.grid import Grid, level_sides, shard_tiles, tile_windows, to_lonlat
from geoprep.labels.roadfile import RoadFile, open_road_file
from geoprep.plan.layout import Layout
from geoprep.plan.options import BuildOptions, Schema
from geoprep.plan.probe import Probe, files_digest, label_files, of_equal_bands, probe_scene
from geoprep.plan.splits import assign_splits, blocks
from geoprep.sources.cities import CITIES
from geoprep.sources.scene import Found, Scene
from geoprep.store.schema import StoreMeta


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
        start, last = scene.first_tile, scene.first_tile + len(scene.windows) - 1
        size = self.meta.shard_tiles
        return self.meta.rescale == "city" or start // size != last // size


def make_plan(
    found: Sequence[Found], cities: Sequence[str], options: BuildOptions, executor: Executor
) -> Plan:
    """Read every image's header and lay out the store.

    Parameters
    ----------
    found
        What the sources hold.
    cities
        Their names: a city's, or ``custom``.
    options
        The choices of this build.
    executor
        Reads the headers.

    Raises
    ------
    SourceError
        No image can be opened at all.
    UsageError
        The options do not fit each other or these images.
    LabelError
        The one file of roads for all scenes cannot be used.
    """
    sources = [(scene, city) for city, one in enumerate(found) for scene in one.scenes]
    scenes = [scene for scene, _ in sources]
    items = [(scene, found[city].product, options) for scene, city in sources]
    probes = of_equal_bands(scenes, executor.map_ordered(probe_scene, items))
    usable = [probe for probe in probes if not probe.failure]
    if not usable:
        raise SourceError(
            f"none of {len(probes)} images can be used; the first: {probes[0].failure}"
        )
    roads = _road_file(found, options)
    outside, notes = _judge_road_file(roads, probes) if roads else ([""] * len(probes), ())
    has_label = [
        scene.label is not None or (roads is not None and not why)
        for scene, why in zip(scenes, outside, strict=True)
    ]
    splits = _splits(scenes, probes, has_label, found, options)
    layout = Layout.of([probe.grid for probe in probes], len(usable[0].bands), options)
    planned: list[PlannedScene] = []
    tiles = 0
    for i, ((scene, city), probe) in enumerate(zip(sources, probes, strict=True)):
        shape = layout.shape(probe.grid)
        windows = tuple(tile_windows(shape, layout.tile, options.overlap))
        one = PlannedScene(
            id=scene.id,
            image=scene.image,
            label=scene.label or (roads and roads.name),
            grid=probe.grid,
            shape=shape,
            windows=windows,
            first_tile=tiles,
            split=int(splits[i]),
            city=city,
            schema=_schema(cities[city], options),
            failure=probe.failure or outside[i],
        )
        planned.append(one)
        tiles += len(windows)
    digest = _inputs_digest(scenes, probes, roads)
    gsd = np.median([scene.target.gsd_m() for scene in planned if scene.target], axis=0)
    meta = StoreMeta(
        cities=tuple(cities),
        bands=usable[0].band_names,
        band_indexes=usable[0].bands,
        gsd_m=(round(float(gsd[0]), 4), round(float(gsd[1]), 4)),
        tile=layout.tile,
        overlap=options.overlap,
        rescale=_resolve_rescale(options.rescale, {probe.dtype for probe in usable}),
        levels=level_sides(layout.tile, options.levels),
        shard_tiles=shard_tiles([len(one.windows) for one in planned], options.shard_tiles),
        codec=options.codec,
        build={
            "options": options.to_attrs(),
            "product": found[0].product,
            "inputs": digest,
        },
        version=__version__,
    )
    return Plan(
        meta=meta,
        options=options,
        scenes=tuple(planned),
        tiles=tiles,
        road_file=roads and roads.name,
        orphan_labels=tuple(label for one in found for label in one.orphan_labels),
        notes=notes,
        stamp=f"{__version__} {digest}",
    )


def _schema(city: str, options: BuildOptions) -> Schema:
    """Return the schema asked for, or that of the mission which labelled the city."""
    if options.schema != "auto" or city not in CITIES:
        return options.schema
    return "sn3" if CITIES[city].mission == "SN3" else "sn5"


def _road_file(found: Sequence[Found], options: BuildOptions) -> RoadFile | None:
    """Read the one file of roads: without it every scene would fail, each for the same reason."""
    names = {one.road_file for one in found if one.road_file}
    if len(names) > 1:
        raise UsageError("more than one file of roads for all scenes: build their stores apart")
    return open_road_file(Path(names.pop()), options.speed_rule(options.schema)) if names else None


def _judge_road_file(roads: RoadFile, probes: Sequence[Probe]) -> tuple[list[str], tuple[str, ...]]:
    """Return why the one file of roads is no label of each scene ("": it is), and what to say."""
    inside = [
        probe.grid is not None and roads.covers(probe.grid.bounds, probe.grid.crs)
        for probe in probes
    ]
    usable = sum(probe.grid is not None for probe in probes)
    if not any(inside):
        raise LabelError(
            f"{roads.name} covers none of the {usable} scenes: its roads are at {roads.place()}. "
            "Check its CRS; for one file per scene give --labels a folder or a quoted pattern."
        )
    why = f"{roads.name}: the scene lies outside the extent of its roads, {roads.place()}"
    reasons = [
        "" if probe.grid is None or there else why
        for probe, there in zip(probes, inside, strict=True)
    ]
    notes = []
    if any(reasons):
        notes.append(
            f"{roads.name} was read as the roads of all {usable} scenes; "
            f"{sum(map(bool, reasons))} lie outside its extent and are not labelled. For one file "
            "per scene give --labels a folder or a quoted pattern."
        )
    if left_out := roads.table.lineless():
        listed = ", ".join(f"{count} x {what}" for what, count in left_out.items())
        notes.append(f"{roads.name}: features left out: {listed}")
    return reasons, tuple(notes)


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


def _inputs_digest(scenes: Sequence[Scene], probes: Sequence[Probe], roads: RoadFile | None) -> str:
    """Return a digest of what goes in: scene ids and the contents of files, no paths, no times."""
    lines = [f"{scene.id} {probe.digest}" for scene, probe in zip(scenes, probes, strict=True)]
    if roads is not None:
        lines.append(files_digest(label_files(roads.name)))
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())
