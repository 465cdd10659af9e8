"""Tiles of a scene that are rendered together: the pixels of the image below them, and labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.building.options import parse_rescale
from geoprep.building.records import SceneTiles, ShardRecord, ShardTask
from geoprep.building.scene import ALL_BACKGROUND, Planned
from geoprep.executors.shared import Shared
from geoprep.grid import Grid, SceneWindow
from geoprep.imagery.counts import count_source
from geoprep.imagery.decoding import ImageWindow
from geoprep.imagery.resample import pixel_edges
from geoprep.imagery.rescale import percentile_limits, source_limits
from geoprep.imagery.rows import SceneRows
from geoprep.labels.burning import LabelOutlines, burn
from geoprep.labels.downsampling import majority
from geoprep.labels.label_shapes import read_shapes
from geoprep.labels.mask_files import read_mask
from geoprep.labels.raster_rules import ClassRaster
from geoprep.speed import BACKGROUND, NODATA

TilePixels = dict[str, NDArray[np.uint8]]
"""Tiles by pixel array, such as ``650/image``: uint8 (tile, y, x, band) or (tile, y, x)."""


@dataclass(frozen=True, slots=True)
class TileRun:
    """Tiles of a scene that are rendered together, and the pixels of the image below them."""

    task: ShardTask
    tiles: SceneTiles  # in which they are
    first: int  # of the scene's tiles
    stop: int  # after the last
    pixels: ImageWindow
    origin: tuple[int, int]  # row and column in the image of the first pixel

    @classmethod
    def read(
        cls, task: ShardTask, tiles: SceneTiles, run: tuple[int, int], source: SceneRows
    ) -> TileRun:
        """Read the pixels below a run of tiles."""
        if tiles.are_all:
            return cls(task, tiles, *run, source.whole(), (0, 0))
        scene = tiles.scene
        rows, cols = _below(scene, scene.windows.around(*run))
        return cls(task, tiles, *run, source.pixels(rows, cols), (rows.start, cols.start))

    @property
    def scene(self) -> Planned:
        """The scene of the tiles."""
        return self.tiles.scene

    @property
    def grid(self) -> Grid:
        """The grid of the image."""
        return self.scene.pixels.grid

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """Row and column in the scene of every tile."""
        return self.scene.windows.corners[self.first : self.stop]

    def levels(self, own: TilePixels) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], int]]:
        """Yield images and labels of every level, and how much larger its pixels are."""
        for level in self.task.meta.levels:
            label = own[f"{level}/{self.task.meta.label_array}"]
            yield own[f"{level}/image"], label, self.task.meta.tile // level

    def edges(self, corner: tuple[int, int], factor: int) -> Iterator[NDArray[np.float64]]:
        """Yield the edges of a tile's pixels along y and x, in pixels that were read."""
        for axis, length in enumerate(self.grid.shape):
            finest = self.scene.windows.shape[axis]
            count = -(-min(self.task.meta.tile, finest - corner[axis]) // factor)
            edges = pixel_edges(corner[axis], count, factor, length / finest, length)
            yield edges - self.origin[axis]

    def limits(self) -> NDArray[np.float64]:
        """Return float64 (band, 2), the source values that become black and white."""
        if self.tiles.surveyed is not None and self.tiles.surveyed.limits:
            return np.array(self.tiles.surveyed.limits)
        fixed = parse_rescale(self.task.meta.rescale)
        if fixed is None:
            return percentile_limits(count_source(self.pixels))
        units = () if self.task.meta.rescale == "none" else self.scene.pixels.units
        return source_limits(fixed, len(self.task.meta.bands), units)


def _below(scene: Planned, window: SceneWindow) -> tuple[slice, slice]:
    """Return the rows and columns of an image below a window of its finest level."""
    starts, lengths = window[:2], scene.pixels.grid.shape
    stops = window.row + window.height, window.col + window.width
    scales = [length / finest for length, finest in zip(lengths, scene.windows.shape, strict=True)]
    rows, cols = (
        slice(int(start * scale), min(math.ceil(stop * scale), length))
        for start, stop, scale, length in zip(starts, stops, scales, lengths, strict=True)
    )
    return rows, cols


# Labels


def label_tiles(run: TileRun, own: TilePixels, record: ShardRecord) -> dict[str, int]:
    """Write the labels of all tiles and levels; return remarks with counts."""
    scene, pixels = run.scene, run.pixels
    assert scene.label is not None
    if scene.label == ALL_BACKGROUND:
        for _, labels, factor in run.levels(own):
            for label, corner in zip(labels, run.corners, strict=True):
                ys, xs = run.edges(corner, factor)
                label[: len(ys) - 1, : len(xs) - 1] = BACKGROUND
        return {}
    if (rule := scene.rule) is None:
        with record.stage("labels"):
            outlines, notes = _road_outlines(run.tiles, run.task)
        with record.stage("burn"):
            _burn_tiles(run, outlines, own)
        return notes
    with record.stage("labels"):
        window = SceneWindow(*run.origin, *pixels.values.shape[:2])
        valid = None if pixels.valid is None else pixels.valid != 0
        if run.tiles.surveyed is not None and not run.tiles.are_all:  # which has refused values
            valid = np.zeros((window.height, window.width), np.bool_)
        codes, notes = read_mask(scene.label, rule, run.grid, window, valid)
    with record.stage("burn"):
        for _, labels, factor in run.levels(own):
            for label, corner in zip(labels, run.corners, strict=True):
                ys, xs = run.edges(corner, factor)
                majority(codes, ys, xs, label, roads=not isinstance(rule, ClassRaster))
    return notes


def _burn_tiles(run: TileRun, outlines: LabelOutlines, own: TilePixels) -> None:
    """Burn every level on its own grid, all tiles at once where they share one pixel grid."""
    windows, meta = run.scene.windows, run.task.meta
    finest = run.grid.resized(*windows.shape)
    around = windows.around(run.first, run.stop)
    ground = finest.window(*around)
    empty = BACKGROUND if meta.has_background else NODATA
    shapes = outlines.within(ground.coarser(meta.tile // min(meta.levels)))
    for _, labels, factor in run.levels(own):
        aligned = all(
            (row - around.row) % factor == 0 and (col - around.col) % factor == 0
            for row, col in run.corners
        )
        if aligned:
            mask = burn(shapes, ground.coarser(factor), around=empty)
        for number, label in enumerate(labels, start=run.first):
            window = windows.around(number, number + 1)
            grid = finest.window(*window).coarser(factor)
            if aligned:
                y, x = (window.row - around.row) // factor, (window.col - around.col) // factor
                burned = mask[y : y + grid.height, x : x + grid.width]
            else:
                burned = burn(shapes, grid, around=empty)
            label[: grid.height, : grid.width] = burned


_Outlines = tuple[LabelOutlines, dict[str, int]]
"""Outlines of the roads of a scene, and fallbacks of their attributes with counts."""


_outlines: Final = Shared[_Outlines](4)


def _road_outlines(tiles: SceneTiles, task: ShardTask) -> _Outlines:
    """Return the outlines of the roads of a labelled scene.

    Shards of one scene are built at the same time: the first call computes, others wait for it.
    """
    if tiles.are_all:
        return _read_outlines(tiles.scene, task)
    key = task.fingerprint, task.store, task.options, tiles.index
    return _outlines.get(key, lambda: _read_outlines(tiles.scene, task))


def release_outlines() -> None:
    """Release the outlines, at the end of a build."""
    _outlines.clear()


def _read_outlines(scene: Planned, task: ShardTask) -> _Outlines:
    options, grid, label = task.options, scene.pixels.grid, scene.label
    assert label is not None
    shared = label == task.shared_label
    roads = read_shapes(
        label,
        rule=options.speed_rule(scene.schema),
        bounds=grid.bounds if shared else None,
        bounds_crs=grid.crs,
        margin_m=options.half_width,
        scene=None if shared else grid.bounds,
    )
    return LabelOutlines.of(roads, grid, options.half_width), dict(roads.notes)
