"""From scenes to a plan: every tile's place, split and shard, before a pixel is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from geoprep import __version__, imagery
from geoprep.errors import GeoprepError, SourceError, UsageError
from geoprep.executors.threads import Executor
from geoprep.grid import (
    Grid,
    at_gsd,
    auto_tile,
    level_sides,
    shard_tiles,
    tile_windows,
    to_lonlat,
)
from geoprep.labels.reading import read_roads
from geoprep.plan.options import BuildOptions, Schema
from geoprep.plan.splits import assign_splits, blocks
from geoprep.sources.cities import CITIES
from geoprep.sources.scene import Found, Scene
from geoprep.storage.addresses import open_image
from geoprep.store.schema import StoreMeta

WORLDVIEW_BANDS = ("coastal", "blue", "green", "yellow", "red", "red edge", "nir1", "nir2")
BAND_NAMES = {
    "PS-RGB": ("red", "green", "blue"),
    "PS-MS": WORLDVIEW_BANDS,
    "MS": WORLDVIEW_BANDS,
    "PAN": ("pan",),
}


@dataclass(frozen=True, slots=True)
class Probe:
    """What the header of one image says, or why it cannot be used."""

    grid: Grid | None
    dtype: str = ""
    bands: tuple[int, ...] = ()
    band_names: tuple[str, ...] = ()
    failure: str = ""


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
    dtype: str
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
    stamp
        Digest of the inputs with their times: what a build was interrupted with, and is only
        carried on with if it is the same. Kept out of the store.
    """

    meta: StoreMeta
    options: BuildOptions
    scenes: tuple[PlannedScene, ...]
    tiles: int
    road_file: str | None
    orphan_labels: tuple[str, ...]
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
    found: Sequence[Found], cities: Sequence[str], options: BuildOptions, executor: Executor
) -> Plan:
    """Read every image's header and lay out the store.

    Parameters
    ----------
    found
        What the sources hold.
    cities
        Their names, one each: a city's, or ``custom``.
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
    items = [(scene, found[city].product, options) for scene, city in sources]
    probes = _of_equal_bands(sources, executor.map_ordered(_probe, items))
    usable = [probe for probe in probes if not probe.failure]
    if not usable:
        raise SourceError(
            f"none of {len(probes)} images can be used; the first: {probes[0].failure}"
        )
    rescale = _resolve_rescale(options.rescale, {probe.dtype for probe in usable})
    shapes = [_finest_shape(probe.grid, options) for probe in usable if probe.grid]
    usual = Counter(shapes).most_common(1)[0][0]
    tile = _resolve_tile(shapes, options)
    levels = level_sides(tile, options.levels)
    road_files = {one.road_file for one in found if one.road_file}
    if len(road_files) > 1:
        raise UsageError("more than one file of roads for all scenes: build their stores apart")
    road_file = next(iter(road_files), None)
    if road_file is not None:
        _check_road_file(road_file, usable[0], options)
    labelled = [scene.label is not None or road_file is not None for scene, _ in sources]
    splits = _splits([scene for scene, _ in sources], probes, labelled, found, options)

    scenes: list[PlannedScene] = []
    tiles = 0
    for i, ((scene, city), probe) in enumerate(zip(sources, probes, strict=True)):
        shape = _finest_shape(probe.grid, options) if probe.grid else usual
        windows = tuple(tile_windows(shape, tile, options.overlap))
        planned = PlannedScene(
            scene.id,
            scene.image,
            scene.label or (road_file if labelled[i] else None),
            probe.grid,
            probe.dtype,
            shape,
            windows,
            tiles,
            int(splits[i]),
            city,
            _schema(cities[city], options),
            probe.failure,
        )
        scenes.append(planned)
        tiles += len(windows)
    bands, names = usable[0].bands, usable[0].band_names
    gsd = np.median([scene.target.gsd_m() for scene in scenes if scene.target], axis=0)
    meta = StoreMeta(
        cities=tuple(cities),
        bands=names,
        band_indexes=bands,
        gsd_m=(round(float(gsd[0]), 4), round(float(gsd[1]), 4)),
        tile=tile,
        overlap=options.overlap,
        rescale=rescale,
        levels=levels,
        shard_tiles=shard_tiles([len(scene.windows) for scene in scenes], options.shard_tiles),
        codec=options.codec,
        build={
            "options": options.to_attrs(),
            "product": found[0].product,
            "inputs": _inputs_digest(scenes),
        },
        version=__version__,
    )
    orphans = tuple(label for one in found for label in one.orphan_labels)
    return Plan(meta, options, tuple(scenes), tiles, road_file, orphans, _stamp(scenes))


def _probe(item: tuple[Scene, str | None, BuildOptions]) -> Probe:
    """Open one image and check that it can be used."""
    scene, product, options = item
    try:
        with open_image(scene.image) as dataset:
            bands = options.bands or imagery.default_bands(dataset)
            if options.bands is None and product == "PS-RGB":
                bands = bands[:3]
            dtype = imagery.check_image(dataset, bands)
            names = BAND_NAMES.get(product or "", ())
            if max(bands) > len(names):
                names = imagery.band_names(dataset)
            chosen = tuple(names[band - 1] for band in bands)
            return Probe(imagery.grid_of(dataset), dtype, bands, chosen)
    except GeoprepError as error:
        return Probe(None, failure=str(error))


def _of_equal_bands(sources: Sequence[tuple[Scene, int]], probes: Sequence[Probe]) -> list[Probe]:
    """Refuse the images whose bands are not those of most: one store has one list of bands."""
    counts = Counter(probe.bands for probe in probes if not probe.failure)
    usual = counts.most_common(1)[0][0] if counts else ()
    return [
        probe
        if probe.failure or probe.bands == usual
        else Probe(
            None,
            failure=f"{scene.image} has bands {_listed(probe.bands)}, most images have "
            f"{_listed(usual)}: choose what all have with --bands, or build their stores apart",
        )
        for (scene, _), probe in zip(sources, probes, strict=True)
    ]


def _listed(bands: Sequence[int]) -> str:
    return ",".join(map(str, bands))


def _schema(city: str, options: BuildOptions) -> Schema:
    """Return the schema asked for, or that of the mission which labelled the city."""
    if options.schema != "auto" or city not in CITIES:
        return options.schema
    return "sn3" if CITIES[city].mission == "SN3" else "sn5"


def _check_road_file(road_file: str, probe: Probe, options: BuildOptions) -> None:
    """Read the one file of roads: without it every scene would fail, each for the same reason."""
    assert probe.grid is not None
    read_roads(
        road_file,
        schema=options.schema,
        speed_from=options.speed_from,
        speed_field=options.speed_field,
        speed_unit=options.speed_unit,
        bounds=probe.grid.bounds,
        bounds_crs=probe.grid.crs,
    )


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


def _finest_shape(grid: Grid | None, options: BuildOptions) -> tuple[int, int]:
    assert grid is not None  # callers leave out images that could not be opened
    if options.resize is not None:
        return options.resize, options.resize
    if options.gsd is not None:
        grid = at_gsd(grid, options.gsd)
    return grid.height, grid.width


def _resolve_tile(shapes: Sequence[tuple[int, int]], options: BuildOptions) -> int:
    if options.resize is not None:
        return options.resize
    if options.tile is not None:
        return options.tile
    return auto_tile(shapes, options.overlap, 2 ** (options.levels - 1))


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


def _inputs_digest(scenes: Sequence[PlannedScene]) -> str:
    """Return a digest of which files go in: scene ids and file sizes, no paths, no times."""
    lines = [f"{s.id} {_size(s.image)} {_size(s.label)}" for s in scenes]
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())


def _stamp(scenes: Sequence[PlannedScene]) -> str:
    """Return a digest of which files go in, when they were written, and who reads them."""
    files = [Path(address) for s in scenes for address in (s.image, s.label) if address]
    lines = [f"{file} {file.stat().st_mtime_ns if file.is_file() else 0}" for file in files]
    return xxhash.xxh3_128_hexdigest("\n".join([__version__, *lines]).encode())


def _size(address: str | None) -> int | None:
    """Return a local file's size; -1 for what lies in an archive or on a server."""
    if address is None:
        return None
    path = Path(address)
    return path.stat().st_size if path.is_file() else -1
