"""Rendering of a scene, or its part in one shard, to tiles of every level: image and label."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from geoprep import imagery
from geoprep.build.options import BuildOptions, parse_rescale
from geoprep.build.records import Outcome, ScenePart, ShardRecord, ShardTask
from geoprep.build.road_ground import road_ground
from geoprep.build.scene import PlannedScene
from geoprep.errors import GeoprepError, ImageError
from geoprep.grid import Grid
from geoprep.labels import RoadOutlines, SceneWindow, burn, majority, read_mask
from geoprep.speed import BACKGROUND, NODATA
from geoprep.storage import open_image
from geoprep.store import StoreMeta, pixel_layouts

Tiles = dict[str, NDArray[np.uint8]]
"""Tiles by pixel array, such as ``650/image``: uint8 (tile, y, x, band) or (tile, y, x)."""


def _blank(count: int, meta: StoreMeta) -> Tiles:
    """Return nodata tiles: image 0, label 255."""
    return {
        name: np.full((count, *layout.tile_shape), layout.fill, np.uint8)
        for name, layout in pixel_layouts(meta).items()
    }


def _unwritten(count: int, meta: StoreMeta) -> Tiles:
    """Return uninitialised tiles, for scenes that fill them completely."""
    layouts = pixel_layouts(meta).items()
    return {name: np.empty((count, *layout.tile_shape), np.uint8) for name, layout in layouts}


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


@dataclass(frozen=True, slots=True)
class Piece:
    """Tiles of a scene that are rendered together, and the pixels of the image below them."""

    part: ScenePart
    meta: StoreMeta
    grid: Grid  # of the image
    pixels: imagery.ImageWindow
    origin: tuple[int, int]  # row and column in the image of the first pixel

    @classmethod
    def read(cls, part: ScenePart, task: ShardTask) -> Piece:
        """Read the pixels below a part's tiles."""
        grid, bands, nodata = part.scene.grid, task.meta.band_indexes, task.options.nodata
        assert grid is not None  # a scene whose image has no grid has failed in the plan
        with open_image(part.scene.image) as dataset:
            if (dataset.height, dataset.width) != (grid.height, grid.width):
                raise ImageError(f"{part.scene.image} changed its size while the store was built")
            if part.whole:
                pixels = imagery.read_pixels(dataset, bands, nodata=nodata)
                return cls(part, task.meta, grid, pixels, (0, 0))
            region = Region.of(part, part.scene.windows, task.meta.tile)
            rows, cols = _source_window(part.scene, region)
            window = Window(cols.start, rows.start, cols.stop - cols.start, rows.stop - rows.start)
            mask = None
            if part.surveyed is not None and (file := part.surveyed.mask_file):
                mask = imagery.read_bits(file, grid.width, rows, cols)
            pixels = imagery.read_pixels(dataset, bands, window, nodata=nodata, mask=mask)
            return cls(part, task.meta, grid, pixels, (rows.start, cols.start))

    def levels(self, tiles: Tiles) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], int]]:
        """Yield images and labels of every level, and how much larger its pixels are."""
        for level in self.meta.levels:
            label = tiles[f"{level}/{self.meta.label_array}"]
            yield tiles[f"{level}/image"], label, self.meta.tile // level

    def edges(self, window: tuple[int, int], factor: int) -> Iterator[NDArray[np.float64]]:
        """Yield the edges of a tile's pixels along y and x, in pixels that were read."""
        for axis, length in enumerate((self.grid.height, self.grid.width)):
            finest = self.part.scene.shape[axis]
            count = -(-min(self.meta.tile, finest - window[axis]) // factor)
            edges = imagery.pixel_edges(window[axis], count, factor, length / finest, length)
            yield edges - self.origin[axis]

    def limits(self) -> NDArray[np.float64]:
        """Return float64 (band, 2), the source values that become black and white."""
        if self.part.surveyed is not None and self.part.surveyed.limits:
            return np.array(self.part.surveyed.limits)
        fixed = parse_rescale(self.meta.rescale)
        if fixed is None:
            return imagery.percentile_limits(imagery.count_source(self.pixels))
        return np.tile(fixed, (len(self.meta.bands), 1))


def _source_window(scene: PlannedScene, region: Region) -> tuple[slice, slice]:
    """Return the rows and columns of an image below a region of its finest level."""
    assert scene.grid is not None
    lengths = scene.grid.height, scene.grid.width
    starts, stops = (region.top, region.left), (region.bottom, region.right)
    scales = [length / finest for length, finest in zip(lengths, scene.shape, strict=True)]
    rows, cols = (
        slice(int(start * scale), min(math.ceil(stop * scale), length))
        for start, stop, scale, length in zip(starts, stops, scales, lengths, strict=True)
    )
    return rows, cols


def render_scene(part: ScenePart, task: ShardTask, record: ShardRecord) -> tuple[Tiles, Outcome]:
    """Return a scene's tiles and its outcome. Unusable input gives a status, not an exception."""
    count = len(part.scene.windows)
    if part.surveyed is not None and not part.surveyed.has_pixels:
        return _blank(count, task.meta), part.surveyed
    # Filling tiles that are overwritten completely would take a tenth of the rendering time.
    covered = min(part.scene.shape) >= task.meta.tile and part.scene.label is not None
    tiles = (_unwritten if covered else _blank)(count, task.meta)
    try:
        outcome = _fill(tiles, part, task, record)
    except GeoprepError as error:
        outcome = Outcome("failed", str(error))
    if not outcome.has_pixels:
        tiles = _blank(count, task.meta)
    return tiles, outcome


def too_empty(nodata: float, options: BuildOptions) -> str:
    """Return why a scene with this share of nodata is skipped; empty if it is not."""
    if nodata <= options.max_nodata:
        return ""
    return f"{nodata:.1%} nodata, more than --max-nodata {options.max_nodata:g}"


def _fill(tiles: Tiles, part: ScenePart, task: ShardTask, record: ShardRecord) -> Outcome:
    """Read and render a part in the pieces that `pieces` returns."""
    notes = Counter[str]()
    for run in pieces(part, task.meta.tile):
        piece = part if part.whole else replace(part, scene=part.scene.tiles(run.start, run.stop))
        outcome = _fill_piece({name: one[run] for name, one in tiles.items()}, piece, task, record)
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

    def area(run: slice) -> int:
        return Region.of(part, part.scene.windows[run], tile).area

    for run in runs[1:]:
        joined = slice(found[-1].start, run.stop)
        if area(joined) < area(found[-1]) + area(run):
            found[-1] = joined
        else:
            found.append(run)
    return found


def _fill_piece(tiles: Tiles, part: ScenePart, task: ShardTask, record: ShardRecord) -> Outcome:
    with record.stage("decode"):
        piece = Piece.read(part, task)
    pixels = piece.pixels
    record.source_bytes += pixels.values.nbytes
    black = pixels.black_pixels if part.whole else 0
    if part.whole and (reason := too_empty(1 - pixels.valid_pixels / pixels.area, task.options)):
        return Outcome("skipped", reason, black=black)
    with record.stage("limits"):
        limits = piece.limits()
        tables = imagery.lookup_tables(limits, pixels.values.dtype.name)
    kept = tuple((float(low), float(high)) for low, high in limits)
    if part.scene.label is None:
        outcome = Outcome("unlabelled", "no label file", kept, black=black)
    else:
        outcome = Outcome("ok", "", kept, _label_tiles(piece, task, tiles, record), black)
    with record.stage("render"):
        _render_tiles(piece, tables, tiles)
    return outcome


def _label_tiles(
    piece: Piece, task: ShardTask, tiles: Tiles, record: ShardRecord
) -> dict[str, int]:
    """Write the labels of all tiles and levels; return remarks with counts."""
    part, pixels = piece.part, piece.pixels
    assert part.scene.label is not None
    rule = task.options.raster_rule(part.scene.label)
    if rule is None:
        with record.stage("labels"):
            ground, notes = road_ground(part, task)
        with record.stage("burn"):
            _burn_tiles(piece, ground, tiles)
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
                majority(codes, ys, xs, label, roads=rule.roads)
    return notes


def _burn_tiles(piece: Piece, ground: RoadOutlines, tiles: Tiles) -> None:
    """Burn every level on its own grid, all tiles at once where they share one pixel grid."""
    part, tile = piece.part, piece.meta.tile
    finest = piece.grid.resized(*part.scene.shape)
    around = BACKGROUND if piece.meta.has_background else NODATA
    region = Region.of(part, part.scene.windows, tile)
    shapes = ground.within(region.on(finest).coarser(tile // min(piece.meta.levels)))
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


def _render_tiles(piece: Piece, tables: NDArray[Any], tiles: Tiles) -> None:
    """Write the images of all tiles and levels, and nodata into their labels where they are 0."""
    for images, labels, factor in piece.levels(tiles):
        valid = np.empty(labels.shape[1:], np.uint8)
        for image, label, window in zip(images, labels, piece.part.scene.windows, strict=True):
            ys, xs = piece.edges(window, factor)
            imagery.render(piece.pixels, tables, ys, xs, image, valid)
            if piece.pixels.valid is not None:
                height, width = len(ys) - 1, len(xs) - 1
                label[:height, :width][valid[:height, :width] == 0] = NODATA
