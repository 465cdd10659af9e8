"""One scene, or the part of it in one shard -> tiles of every level, image and speed mask."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from geoprep.imagery import pixels as imagery
from geoprep.storage.addresses import open_image
from geoprep.errors import GeoprepError, ImageError
from geoprep.grid import Grid
from geoprep.labels.reading import Roads, read_roads
from geoprep.labels.masks import SpeedPolygons, burn, speed_polygons
from geoprep.plan.options import BuildOptions, parse_rescale
from geoprep.build.records import Outcome, ScenePart, ShardRecord, ShardTask
from geoprep.speed import NO_DATA
from geoprep.store.schema import PIXEL_ARRAYS, StoreMeta


@dataclass(slots=True)
class SceneTiles:
    """Rendered tiles: level -> uint8 (tile, y, x, band) and level -> uint8 (tile, y, x)."""

    image: dict[int, NDArray[np.uint8]]
    speed: dict[int, NDArray[np.uint8]]

    @classmethod
    def unwritten(cls, count: int, meta: StoreMeta) -> SceneTiles:
        """Return tiles whose every pixel is still to be written."""
        bands = len(meta.bands)
        return cls(
            {n: np.empty((count, n, n, bands), np.uint8) for n in meta.levels},
            {n: np.empty((count, n, n), np.uint8) for n in meta.levels},
        )

    @classmethod
    def blank(cls, count: int, meta: StoreMeta) -> SceneTiles:
        """Return tiles that say "no data": image 0, speed 255."""
        bands, fill = len(meta.bands), PIXEL_ARRAYS
        return cls(
            {n: np.full((count, n, n, bands), fill["image"], np.uint8) for n in meta.levels},
            {n: np.full((count, n, n), fill["speed"], np.uint8) for n in meta.levels},
        )


@dataclass(frozen=True, slots=True)
class Region:
    """The rectangle under a part's tiles, in pixels of the finest level, within the scene."""

    top: int
    left: int
    bottom: int
    right: int

    @classmethod
    def of(cls, part: ScenePart, tile: int) -> Region:
        """Return the smallest rectangle around all tiles of a part."""
        rows, cols = zip(*part.windows, strict=True)
        return cls(
            min(rows),
            min(cols),
            min(max(rows) + tile, part.shape[0]),
            min(max(cols) + tile, part.shape[1]),
        )


def render_scene(
    part: ScenePart, task: ShardTask, record: ShardRecord
) -> tuple[SceneTiles, Outcome]:
    """Return a scene's tiles and its outcome; bad input becomes a status, not an exception."""
    count = len(part.windows)
    known = part.known
    if known is not None and known.status in ("failed", "skipped"):
        return SceneTiles.blank(count, task.meta), known
    # Filling what is written over anyway would cost a tenth of the time that is spent rendering.
    covered = min(part.shape) >= task.meta.tile and part.label is not None
    tiles = (SceneTiles.unwritten if covered else SceneTiles.blank)(count, task.meta)
    try:
        outcome = _fill(tiles, part, task, record)
    except GeoprepError as error:
        outcome = Outcome("failed", str(error))
    if outcome.status in ("failed", "skipped"):
        tiles = SceneTiles.blank(count, task.meta)
    return tiles, outcome


def too_empty(nodata: float, options: BuildOptions) -> str:
    """Return why a scene with this share of nodata is skipped, or nothing."""
    if nodata <= options.max_nodata:
        return ""
    return f"{nodata:.1%} nodata, more than --max-nodata {options.max_nodata:g}"


def _fill(tiles: SceneTiles, part: ScenePart, task: ShardTask, record: ShardRecord) -> Outcome:
    region = Region.of(part, task.meta.tile)
    with record.stage("decode"):
        pixels, origin = _read(part, region, task.meta.band_indexes)
    record.source_bytes += pixels.values.nbytes
    if part.whole and (reason := too_empty(1 - pixels.valid_pixels / pixels.area, task.options)):
        return Outcome("skipped", reason)
    with record.stage("limits"):
        limits = known_limits(part, pixels, task.meta)
        tables = imagery.lookup_tables(limits, pixels.values.dtype.name)
    kept = tuple((float(low), float(high)) for low, high in limits)
    if part.label is None:
        with record.stage("render"):
            _render_tiles(part, task.meta, pixels, origin, tables, tiles)
        return Outcome("unlabelled", "no label file", kept)
    with record.stage("labels"):
        roads = _read_roads(part, part.label, task)
        polygons = speed_polygons(roads, _grid(part).crs)
    with record.stage("burn"):
        _burn_tiles(part, region, task.meta, polygons, tiles)
    with record.stage("render"):
        _render_tiles(part, task.meta, pixels, origin, tables, tiles)
    return Outcome("ok", "", kept, dict(roads.notes))


def _grid(part: ScenePart) -> Grid:
    assert part.grid is not None  # a scene whose image has no grid has failed in the plan
    return part.grid


def _read(
    part: ScenePart, region: Region, bands: tuple[int, ...]
) -> tuple[imagery.Pixels, tuple[int, int]]:
    """Read the source under a part's tiles; return it and the (row, col) where it begins."""
    grid = _grid(part)
    with open_image(part.image) as dataset:
        if (dataset.height, dataset.width) != (grid.height, grid.width):
            raise ImageError(f"{part.image} changed its size while the store was being built")
        if part.whole:
            return imagery.read_pixels(dataset, bands), (0, 0)
        scale_y, scale_x = grid.height / part.shape[0], grid.width / part.shape[1]
        row, col = int(region.top * scale_y), int(region.left * scale_x)
        bottom = min(math.ceil(region.bottom * scale_y), grid.height)
        right = min(math.ceil(region.right * scale_x), grid.width)
        window = Window(col, row, right - col, bottom - row)
        return imagery.read_pixels(dataset, bands, window), (row, col)


def known_limits(part: ScenePart, pixels: imagery.Pixels, meta: StoreMeta) -> NDArray[np.float64]:
    """Return float64 (band, 2), the source values that become black and white."""
    if part.known is not None and part.known.limits:
        return np.array(part.known.limits)
    if meta.rescale == "none":
        return np.tile([0.0, 255.0], (len(meta.bands), 1))
    fixed = parse_rescale(meta.rescale)
    if fixed is not None:
        return np.tile(fixed, (len(meta.bands), 1))
    return imagery.percentile_limits(imagery.count_source(pixels))


def _read_roads(part: ScenePart, label: str, task: ShardTask) -> Roads:
    """Read a scene's own label file, or its share of the one file for all scenes."""
    options, grid = task.options, _grid(part)
    shared = label == task.road_file
    return read_roads(
        label,
        rule=options.speed_rule(part.schema),
        bounds=grid.bounds if shared else None,
        bounds_crs=grid.crs,
        scene=None if shared else grid.bounds,
    )


def _burn_tiles(
    part: ScenePart, region: Region, meta: StoreMeta, polygons: SpeedPolygons, tiles: SceneTiles
) -> None:
    """Burn every level on its own grid: all tiles at once where their pixels lie on one lattice."""
    finest = _grid(part).resized(*part.shape)
    for level in meta.levels:
        factor = meta.tile // level
        aligned = all(
            (row - region.top) % factor == 0 and (col - region.left) % factor == 0
            for row, col in part.windows
        )
        if aligned:
            mask = _burn(finest, region, factor, polygons)
        for i, (row, col) in enumerate(part.windows):
            own = Region(
                row, col, min(row + meta.tile, part.shape[0]), min(col + meta.tile, part.shape[1])
            )
            height = -(-(own.bottom - own.top) // factor)
            width = -(-(own.right - own.left) // factor)
            if aligned:
                y, x = (row - region.top) // factor, (col - region.left) // factor
                burned = mask[y : y + height, x : x + width]
            else:
                burned = _burn(finest, own, factor, polygons)
            tiles.speed[level][i, :height, :width] = burned


def _burn(finest: Grid, region: Region, factor: int, polygons: SpeedPolygons) -> NDArray[np.uint8]:
    """Burn a region on pixels ``factor`` times as large as the finest level's."""
    height = -(-(region.bottom - region.top) // factor)
    width = -(-(region.right - region.left) // factor)
    window = finest.window(region.top, region.left, height * factor, width * factor)
    return burn(polygons, window.resized(height, width).transform, (height, width))


def _render_tiles(
    part: ScenePart,
    meta: StoreMeta,
    pixels: imagery.Pixels,
    origin: tuple[int, int],
    tables: NDArray[np.uint8],
    tiles: SceneTiles,
) -> None:
    """Write the images of all tiles and levels, and "no data" into their masks where they are 0."""
    grid = _grid(part)
    scales = grid.height / part.shape[0], grid.width / part.shape[1]
    lengths = grid.height, grid.width
    for level in meta.levels:
        factor = meta.tile // level
        out_valid = np.empty((level, level), np.uint8)
        for i, window in enumerate(part.windows):
            edges = []
            for axis in (0, 1):
                count = -(-min(meta.tile, part.shape[axis] - window[axis]) // factor)
                along = imagery.pixel_edges(
                    window[axis], count, factor, scales[axis], lengths[axis]
                )
                edges.append(along - origin[axis])
            ys, xs = edges
            image, speed = tiles.image[level][i], tiles.speed[level][i]
            if not imagery.render(pixels, tables, ys, xs, image, out_valid):
                height, width = len(ys) - 1, len(xs) - 1
                speed[:height, :width][out_valid[:height, :width] == 0] = NO_DATA
