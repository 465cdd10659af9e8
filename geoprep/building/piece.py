"""Tiles of a scene that are rendered together: the pixels of the image below them, and labels."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from geoprep.building.options import parse_rescale
from geoprep.building.records import ScenePart, ShardRecord, ShardTask
from geoprep.building.scene import ALL_BACKGROUND, PlannedScene
from geoprep.grid import Grid
from geoprep.imagery.counts import count_source
from geoprep.imagery.decoding import ImageWindow, decided
from geoprep.imagery.resample import pixel_edges
from geoprep.imagery.rescale import percentile_limits, source_limits
from geoprep.imagery.rows import SceneRows
from geoprep.imagery.validity import read_bits
from geoprep.labels.burning import LabelOutlines, burn
from geoprep.labels.downsampling import majority
from geoprep.labels.label_shapes import read_shapes
from geoprep.labels.mask_files import SceneWindow, read_mask
from geoprep.labels.raster_rules import ClassRaster
from geoprep.speed import BACKGROUND, NODATA

Tiles = dict[str, NDArray[np.uint8]]
"""Tiles by pixel array, such as ``650/image``: uint8 (tile, y, x, band) or (tile, y, x)."""


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
        height, width = part.scene.shape
        bottom, right = min(max(rows) + tile, height), min(max(cols) + tile, width)
        return cls(min(rows), min(cols), bottom, right)

    @property
    def area(self) -> int:
        """Number of pixels."""
        return (self.bottom - self.top) * (self.right - self.left)

    def on(self, finest: Grid) -> Grid:
        """Return its grid, from that of the scene's finest level."""
        height, width = self.bottom - self.top, self.right - self.left
        return finest.window(self.top, self.left, height, width)


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
    joined = runs[:1]

    def area(run: slice) -> int:
        return Region.of(part, part.scene.windows[run], tile).area

    for run in runs[1:]:
        both = slice(joined[-1].start, run.stop)
        if area(both) < area(joined[-1]) + area(run):
            joined[-1] = both
        else:
            joined.append(run)
    return joined


@dataclass(frozen=True, slots=True)
class Piece:
    """Tiles of a scene that are rendered together, and the pixels of the image below them."""

    task: ShardTask
    part: ScenePart
    grid: Grid  # of the image
    pixels: ImageWindow
    origin: tuple[int, int]  # row and column in the image of the first pixel

    @classmethod
    def read(cls, part: ScenePart, task: ShardTask, source: SceneRows) -> Piece:
        """Read the pixels below a part's tiles."""
        grid = part.scene.pixels.grid
        if part.whole:
            return cls(task, part, grid, source.whole(), (0, 0))
        region = Region.of(part, part.scene.windows, task.meta.tile)
        rows, cols = _source_window(part.scene, region)
        pixels = ImageWindow(source.values(rows, cols))
        if part.surveyed is not None and (file := part.surveyed.mask_file):
            pixels = decided(pixels, read_bits(file, grid.width, rows, cols))
        return cls(task, part, grid, pixels, (rows.start, cols.start))

    def levels(self, tiles: Tiles) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], int]]:
        """Yield images and labels of every level, and how much larger its pixels are."""
        for level in self.task.meta.levels:
            label = tiles[f"{level}/{self.task.meta.label_array}"]
            yield tiles[f"{level}/image"], label, self.task.meta.tile // level

    def edges(self, window: tuple[int, int], factor: int) -> Iterator[NDArray[np.float64]]:
        """Yield the edges of a tile's pixels along y and x, in pixels that were read."""
        for axis, length in enumerate((self.grid.height, self.grid.width)):
            finest = self.part.scene.shape[axis]
            count = -(-min(self.task.meta.tile, finest - window[axis]) // factor)
            edges = pixel_edges(window[axis], count, factor, length / finest, length)
            yield edges - self.origin[axis]

    def limits(self) -> NDArray[np.float64]:
        """Return float64 (band, 2), the source values that become black and white."""
        if self.part.surveyed is not None and self.part.surveyed.limits:
            return np.array(self.part.surveyed.limits)
        fixed = parse_rescale(self.task.meta.rescale)
        if fixed is None:
            return percentile_limits(count_source(self.pixels))
        units = () if self.task.meta.rescale == "none" else self.part.scene.pixels.units
        return source_limits(fixed, len(self.task.meta.bands), units)


def _source_window(scene: PlannedScene, region: Region) -> tuple[slice, slice]:
    """Return the rows and columns of an image below a region of its finest level."""
    lengths = scene.pixels.grid.shape
    starts, stops = (region.top, region.left), (region.bottom, region.right)
    scales = [length / finest for length, finest in zip(lengths, scene.shape, strict=True)]
    rows, cols = (
        slice(int(start * scale), min(math.ceil(stop * scale), length))
        for start, stop, scale, length in zip(starts, stops, scales, lengths, strict=True)
    )
    return rows, cols


# Labels


def label_tiles(piece: Piece, tiles: Tiles, record: ShardRecord) -> dict[str, int]:
    """Write the labels of all tiles and levels; return remarks with counts."""
    task, part, pixels = piece.task, piece.part, piece.pixels
    assert part.scene.label is not None
    if part.scene.label == ALL_BACKGROUND:
        for _, labels, factor in piece.levels(tiles):
            for label, window in zip(labels, part.scene.windows, strict=True):
                ys, xs = piece.edges(window, factor)
                label[: len(ys) - 1, : len(xs) - 1] = BACKGROUND
        return {}
    rule = task.options.raster_rule(part.scene.label)
    if rule is None:
        with record.stage("labels"):
            outlines, notes = _road_outlines(part, task)
        with record.stage("burn"):
            _burn_tiles(piece, outlines, tiles)
        return notes
    with record.stage("labels"):
        area = SceneWindow(*piece.origin, *pixels.values.shape[:2])
        valid = None if pixels.valid is None else pixels.valid != 0
        if part.surveyed is not None and not part.whole:  # the survey has refused what it must
            valid = np.zeros((area.height, area.width), np.bool_)
        codes, notes = read_mask(part.scene.label, rule, piece.grid, area, valid)
    with record.stage("burn"):
        for _, labels, factor in piece.levels(tiles):
            for label, window in zip(labels, part.scene.windows, strict=True):
                ys, xs = piece.edges(window, factor)
                majority(codes, ys, xs, label, roads=not isinstance(rule, ClassRaster))
    return notes


def _burn_tiles(piece: Piece, outlines: LabelOutlines, tiles: Tiles) -> None:
    """Burn every level on its own grid, all tiles at once where they share one pixel grid."""
    part, tile = piece.part, piece.task.meta.tile
    finest = piece.grid.resized(*part.scene.shape)
    around = BACKGROUND if piece.task.meta.has_background else NODATA
    region = Region.of(part, part.scene.windows, tile)
    shapes = outlines.within(region.on(finest).coarser(tile // min(piece.task.meta.levels)))
    for _, labels, factor in piece.levels(tiles):
        aligned = all(
            (row - region.top) % factor == 0 and (col - region.left) % factor == 0
            for row, col in part.scene.windows
        )
        if aligned:
            mask = burn(shapes, region.on(finest).coarser(factor), around=around)
        for label, (row, col) in zip(labels, part.scene.windows, strict=True):
            grid = Region.of(part, [(row, col)], tile).on(finest).coarser(factor)
            if aligned:
                y, x = (row - region.top) // factor, (col - region.left) // factor
                burned = mask[y : y + grid.height, x : x + grid.width]
            else:
                burned = burn(shapes, grid, around=around)
            label[: grid.height, : grid.width] = burned


_Outlines = tuple[LabelOutlines, dict[str, int]]
"""Outlines of the roads of a scene, and fallbacks of their attributes with counts."""


class _Slot:
    """The outlines of one scene, once they are computed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.outlines: _Outlines | None = None


@lru_cache(maxsize=4)
def _slot(*_scene: object) -> _Slot:
    return _Slot()


def _road_outlines(part: ScenePart, task: ShardTask) -> _Outlines:
    """Return the outlines of the roads of a labelled scene.

    Shards of one scene are built at the same time: the first call computes, others wait for it.
    """
    if part.whole:
        return _read_outlines(part, task)
    slot = _slot(task.fingerprint, task.store, task.options, part.index)
    with slot.lock:
        if slot.outlines is None:
            slot.outlines = _read_outlines(part, task)
        return slot.outlines


def release_outlines() -> None:
    """Release the outlines, at the end of a build."""
    _slot.cache_clear()


def _read_outlines(part: ScenePart, task: ShardTask) -> _Outlines:
    options, scene = task.options, part.scene
    grid, label = scene.pixels.grid, scene.label
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
    return LabelOutlines.of(roads, grid, roads.half_widths(options.half_width)), dict(roads.notes)
