"""Rendering of a scene, or its part in one shard, to tiles of every level: image and label."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from geoprep import imagery
from geoprep.building.nodata_bits import read_bits
from geoprep.building.records import Outcome, ScenePart, ShardRecord, ShardTask
from geoprep.building.road_ground import road_ground
from geoprep.errors import GeoprepError, ImageError
from geoprep.grid import Grid
from geoprep.labels import (
    SceneWindow,
    SpeedPolygons,
    burn,
    majority,
    read_mask,
)
from geoprep.plan import BuildOptions, parse_rescale
from geoprep.speed import BACKGROUND, NODATA
from geoprep.storage import open_image
from geoprep.store import FILL_VALUES, StoreMeta


@dataclass(slots=True)
class SceneTiles:
    """Rendered tiles: level -> uint8 (tile, y, x, band) and level -> uint8 (tile, y, x)."""

    image: dict[int, NDArray[np.uint8]]
    label: dict[int, NDArray[np.uint8]]

    @classmethod
    def unwritten(cls, count: int, meta: StoreMeta) -> SceneTiles:
        """Return uninitialised tiles, for scenes that fill them completely."""
        bands = len(meta.bands)
        return cls(
            {n: np.empty((count, n, n, bands), np.uint8) for n in meta.levels},
            {n: np.empty((count, n, n), np.uint8) for n in meta.levels},
        )

    def of(self, run: slice) -> SceneTiles:
        """Return a view of some of the tiles."""
        return SceneTiles(
            {n: tiles[run] for n, tiles in self.image.items()},
            {n: tiles[run] for n, tiles in self.label.items()},
        )

    @classmethod
    def blank(cls, count: int, meta: StoreMeta) -> SceneTiles:
        """Return nodata tiles: image 0, label 255."""
        bands, fill = len(meta.bands), FILL_VALUES
        return cls(
            {n: np.full((count, n, n, bands), fill["image"], np.uint8) for n in meta.levels},
            {n: np.full((count, n, n), fill[meta.label_array], np.uint8) for n in meta.levels},
        )


@dataclass(frozen=True, slots=True)
class SourcePixels:
    """Pixels of an image from which tiles are rendered.

    Attributes
    ----------
    pixels
        Values, and where they are valid.
    origin
        Row and column in the image of the first pixel.
    tables
        Lookup tables to 8 bits, from :func:`geoprep.imagery.lookup_tables`.
    """

    pixels: imagery.ImageWindow
    origin: tuple[int, int]
    tables: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Region:
    """A rectangle around tiles, in pixels of the finest level, cut at the scene's edge."""

    top: int
    left: int
    bottom: int
    right: int

    @classmethod
    def of(cls, part: ScenePart, windows: Sequence[tuple[int, int]], tile: int) -> Region:
        """Return the smallest rectangle around some tiles of a scene."""
        rows, cols = zip(*windows, strict=True)
        return cls(
            min(rows),
            min(cols),
            min(max(rows) + tile, part.scene.shape[0]),
            min(max(cols) + tile, part.scene.shape[1]),
        )

    @property
    def area(self) -> int:
        """Number of pixels."""
        return (self.bottom - self.top) * (self.right - self.left)


def render_scene(
    part: ScenePart, task: ShardTask, record: ShardRecord
) -> tuple[SceneTiles, Outcome]:
    """Return a scene's tiles and its outcome. Unusable input gives a status, not an exception."""
    count = len(part.scene.windows)
    if part.surveyed is not None and not part.surveyed.has_pixels:
        return SceneTiles.blank(count, task.meta), part.surveyed
    # Filling tiles that are overwritten completely would take a tenth of the rendering time.
    covered = min(part.scene.shape) >= task.meta.tile and part.scene.label is not None
    tiles = (SceneTiles.unwritten if covered else SceneTiles.blank)(count, task.meta)
    try:
        outcome = _fill(tiles, part, task, record)
    except GeoprepError as error:
        outcome = Outcome("failed", str(error))
    if not outcome.has_pixels:
        tiles = SceneTiles.blank(count, task.meta)
    return tiles, outcome


def too_empty(nodata: float, options: BuildOptions) -> str:
    """Return why a scene with this share of nodata is skipped; empty if it is not."""
    if nodata <= options.max_nodata:
        return ""
    return f"{nodata:.1%} nodata, more than --max-nodata {options.max_nodata:g}"


def _fill(tiles: SceneTiles, part: ScenePart, task: ShardTask, record: ShardRecord) -> Outcome:
    """Read and render a part in the pieces that `pieces` returns."""
    notes = Counter[str]()
    for run in pieces(part, task.meta.tile):
        piece = part if part.whole else replace(part, scene=part.scene.tiles(run.start, run.stop))
        outcome = _fill_piece(tiles.of(run), piece, task, record)
        if outcome.status == "skipped":
            return outcome
        add_notes(notes, outcome.notes, task.options)
    if part.surveyed is not None and part.surveyed.notes:  # pieces overlap, its strips do not
        notes = Counter(part.surveyed.notes)
    return replace(outcome, notes=dict(notes))


def add_notes(notes: Counter[str], more: Mapping[str, int], options: BuildOptions) -> None:
    """Add remarks on a part of a label: counts of pixels for classes, else of the whole label."""
    if options.classes is None:
        notes |= Counter(more)
    else:
        notes += Counter(more)


def pieces(part: ScenePart, tile: int) -> list[slice]:
    """Return runs of a part's windows that are read at once.

    A whole scene is one run. Otherwise every row of tiles is one, since the rectangle around the
    end of a row and the start of the next contains both rows completely. Rows are joined where
    they overlap so much that separate reading would read more pixels.
    """
    if part.whole:
        return [slice(0, len(part.scene.windows))]
    rows = np.array(part.scene.windows)[:, 0]
    starts = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)]
    runs = [slice(*ends) for ends in pairwise(starts)]
    found = runs[:1]
    for run in runs[1:]:
        joined = slice(found[-1].start, run.stop)
        areas = [
            Region.of(part, part.scene.windows[s], tile).area for s in (found[-1], run, joined)
        ]
        if areas[2] < areas[0] + areas[1]:
            found[-1] = joined
        else:
            found.append(run)
    return found


def _fill_piece(
    tiles: SceneTiles, part: ScenePart, task: ShardTask, record: ShardRecord
) -> Outcome:
    region = Region.of(part, part.scene.windows, task.meta.tile)
    with record.stage("decode"):
        pixels, origin = _read(part, region, task)
    record.source_bytes += pixels.values.nbytes
    if part.whole and (reason := too_empty(1 - pixels.valid_pixels / pixels.area, task.options)):
        return Outcome("skipped", reason, black=pixels.black)
    with record.stage("limits"):
        limits = known_limits(part, pixels, task.meta)
        tables = imagery.lookup_tables(limits, pixels.values.dtype.name)
    source = SourcePixels(pixels, origin, tables)
    kept = tuple((float(low), float(high)) for low, high in limits)
    black = pixels.black if part.whole else 0
    if part.scene.label is None:
        with record.stage("render"):
            _render_tiles(part, task.meta, source, tiles)
        return Outcome("unlabelled", "no label file", kept, black=black)
    notes = _label_tiles(part, region, task, source, tiles, record)
    with record.stage("render"):
        _render_tiles(part, task.meta, source, tiles)
    return Outcome("ok", "", kept, notes, black)


def _grid(part: ScenePart) -> Grid:
    assert part.scene.grid is not None  # a scene whose image has no grid has failed in the plan
    return part.scene.grid


def _read(
    part: ScenePart, region: Region, task: ShardTask
) -> tuple[imagery.ImageWindow, tuple[int, int]]:
    """Return the pixels below a part's tiles, and their first (row, col)."""
    grid, bands, nodata = _grid(part), task.meta.band_indexes, task.options.nodata
    with open_image(part.scene.image) as dataset:
        if (dataset.height, dataset.width) != (grid.height, grid.width):
            raise ImageError(f"{part.scene.image} changed its size while the store was built")
        if part.whole:
            return imagery.read_pixels(dataset, bands, nodata=nodata), (0, 0)
        scale_y, scale_x = grid.height / part.scene.shape[0], grid.width / part.scene.shape[1]
        row, col = int(region.top * scale_y), int(region.left * scale_x)
        bottom = min(math.ceil(region.bottom * scale_y), grid.height)
        right = min(math.ceil(region.right * scale_x), grid.width)
        window = Window(col, row, right - col, bottom - row)
        missing = None
        if part.surveyed is not None and (bits := part.surveyed.nodata_file):
            missing = read_bits(bits, grid.width, slice(row, bottom), slice(col, right))
        pixels = imagery.read_pixels(dataset, bands, window, nodata=nodata, missing=missing)
        return pixels, (row, col)


def known_limits(
    part: ScenePart, pixels: imagery.ImageWindow, meta: StoreMeta
) -> NDArray[np.float64]:
    """Return float64 (band, 2), the source values that become black and white."""
    if part.surveyed is not None and part.surveyed.limits:
        return np.array(part.surveyed.limits)
    if meta.rescale == "none":
        return np.tile([0.0, 255.0], (len(meta.bands), 1))
    fixed = parse_rescale(meta.rescale)
    if fixed is not None:
        return np.tile(fixed, (len(meta.bands), 1))
    return imagery.percentile_limits(imagery.count_source(pixels))


def _label_tiles(
    part: ScenePart,
    region: Region,
    task: ShardTask,
    source: SourcePixels,
    tiles: SceneTiles,
    record: ShardRecord,
) -> dict[str, int]:
    """Write the labels of all tiles and levels; return fallbacks with counts."""
    assert part.scene.label is not None  # as above
    rule = task.options.raster_rule(part.scene.label)
    if rule is None:
        with record.stage("labels"):
            ground, notes = road_ground(part, task)
        with record.stage("burn"):
            _burn_tiles(part, region, task.meta, ground, tiles)
        return notes
    with record.stage("labels"):
        area = SceneWindow(*source.origin, *source.pixels.values.shape[:2])
        valid = None if source.pixels.valid is None else source.pixels.valid != 0
        if part.surveyed is not None and not part.whole:  # the survey has refused what it must
            valid = np.zeros((area.height, area.width), np.bool_)
        codes, notes = read_mask(part.scene.label, rule, _grid(part), area, valid)
    with record.stage("burn"):
        for level in task.meta.levels:
            factor = task.meta.tile // level
            for i, window in enumerate(part.scene.windows):
                ys, xs = (
                    _edges(part, task.meta.tile, factor, source, window, axis) for axis in (0, 1)
                )
                majority(codes, ys, xs, tiles.label[level][i], roads=rule.roads)
    return notes


def _burn_tiles(
    part: ScenePart, region: Region, meta: StoreMeta, ground: SpeedPolygons, tiles: SceneTiles
) -> None:
    """Burn every level on its own grid, all tiles at once where they share one pixel grid."""
    finest = _grid(part).resized(*part.scene.shape)
    for level in meta.levels:
        factor = meta.tile // level
        aligned = all(
            (row - region.top) % factor == 0 and (col - region.left) % factor == 0
            for row, col in part.scene.windows
        )
        if aligned:
            mask = _burn(finest, region, factor, ground, meta)
        for i, (row, col) in enumerate(part.scene.windows):
            own = Region(
                row,
                col,
                min(row + meta.tile, part.scene.shape[0]),
                min(col + meta.tile, part.scene.shape[1]),
            )
            height = -(-(own.bottom - own.top) // factor)
            width = -(-(own.right - own.left) // factor)
            if aligned:
                y, x = (row - region.top) // factor, (col - region.left) // factor
                burned = mask[y : y + height, x : x + width]
            else:
                burned = _burn(finest, own, factor, ground, meta)
            tiles.label[level][i, :height, :width] = burned


def _burn(
    finest: Grid, region: Region, factor: int, ground: SpeedPolygons, meta: StoreMeta
) -> NDArray[np.uint8]:
    """Return a region burned on pixels ``factor`` times as large as those of the finest level."""
    height = -(-(region.bottom - region.top) // factor)
    width = -(-(region.right - region.left) // factor)
    window = finest.window(region.top, region.left, height * factor, width * factor)
    around = BACKGROUND if meta.has_background else NODATA
    transform = window.resized(height, width).transform
    return burn(ground, transform, (height, width), around=around)


def _render_tiles(
    part: ScenePart, meta: StoreMeta, source: SourcePixels, tiles: SceneTiles
) -> None:
    """Write the images of all tiles and levels, and nodata into their labels where they are 0."""
    for level in meta.levels:
        factor = meta.tile // level
        valid = np.empty((level, level), np.uint8)
        for i, window in enumerate(part.scene.windows):
            ys, xs = (_edges(part, meta.tile, factor, source, window, axis) for axis in (0, 1))
            image, label = tiles.image[level][i], tiles.label[level][i]
            imagery.render(source.pixels, source.tables, ys, xs, image, valid)
            if source.pixels.valid is not None:
                height, width = len(ys) - 1, len(xs) - 1
                label[:height, :width][valid[:height, :width] == 0] = NODATA


def _edges(
    part: ScenePart,
    tile: int,
    factor: int,
    source: SourcePixels,
    window: tuple[int, int],
    axis: int,
) -> NDArray[np.float64]:
    """Return the edges of a tile's pixels along one axis, in pixels of the source."""
    grid = _grid(part)
    length = (grid.height, grid.width)[axis]
    count = -(-min(tile, part.scene.shape[axis] - window[axis]) // factor)
    scale = length / part.scene.shape[axis]
    return imagery.pixel_edges(window[axis], count, factor, scale, length) - source.origin[axis]
