"""Checks of the pixels, and of the statistics that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.speed import NODATA, UNKNOWN_SPEED
from geoprep.storage import StoreFiles
from geoprep.store import StoreMeta, TileTable, pixel_layouts
from geoprep.verify.metadata_checks import Problem
from geoprep.verify.shard_checks import ShardJob, ShardReader
from geoprep.verify.table_checks import WITH_PIXELS, Tables

TRAIN = 0


@dataclass(slots=True)
class Findings:
    """Results of the shards of a job, or the sum over jobs.

    Attributes
    ----------
    skipped
        Number of tiles of the finest level that could not be read.
    band, label
        int64 (band, 256) and (256), histograms of usable training tiles at the finest level.
    roads, valid
        Tile to fraction at the finest level.
    class_pixels
        Tile to int64 (class), pixels per class at the finest level; empty for speeds.
    """

    problems: list[Problem] = field(default_factory=list)
    shards: int = 0
    chunks: int = 0
    skipped: int = 0
    band: NDArray[np.int64] | None = None
    label: NDArray[np.int64] | None = None
    roads: dict[int, float] = field(default_factory=dict)
    valid: dict[int, float] = field(default_factory=dict)
    class_pixels: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def add(self, other: Findings) -> None:
        """Add the results of another job."""
        self.problems += other.problems
        self.shards += other.shards
        self.chunks += other.chunks
        self.skipped += other.skipped
        self.roads |= other.roads
        self.valid |= other.valid
        self.class_pixels |= other.class_pixels
        for name in ("band", "label"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if theirs is not None:
                setattr(self, name, theirs if mine is None else mine + theirs)


def check_job(job: ShardJob, files: StoreFiles, meta: StoreMeta, tables: Tables) -> Findings:
    """Read the two shards of a job, one tile at a time, and check all of it."""
    found = Findings()

    def report(array: str, tile: int | None, message: str) -> None:
        scene = None if tile is None else tables.scene_of(tile)
        found.problems.append(Problem(array, job.shard, tile, scene, message))

    layouts, readers = pixel_layouts(meta), []
    for name in meta.array_names:
        array = f"{job.level}/{name}"
        expected = tables.digest_of(array, job.shard)
        readers.append(ShardReader(job, layouts[array], files, expected, partial(report, array)))
        found.shards += readers[-1].found
    count = imagery.TileCounts(len(meta.bands)) if job.level == meta.levels[0] else None
    for tile in range(job.first, job.stop):
        image, label = (reader.tile(tile) for reader in readers)
        found.chunks += (image is not None) + (label is not None)
        if image is None or label is None:
            found.skipped += count is not None
            continue
        valid = imagery.find_valid(image, image.shape[2], 0)
        of_image = _image_faults(image, valid, tables.status_of(tile))
        of_label = _label_faults(label, valid, tables.status_of(tile), meta)
        for name, faults in zip(meta.array_names, (of_image, of_label), strict=True):
            for message in faults:
                report(f"{job.level}/{name}", tile, message)
        if count is not None:
            trained = tables.status_of(tile) == "ok" and tables.split_of(tile) == TRAIN
            per_label, found.valid[tile] = count.add(image, label, counted=trained)
            found.roads[tile] = imagery.road_share(per_label, background=meta.has_background)
            if meta.has_classes:
                found.class_pixels[tile] = per_label[: len(meta.class_names)]
    if count is not None:
        found.band, found.label = count.band, count.label
    return found


def _image_faults(
    image: NDArray[np.uint8], valid: NDArray[np.uint8], status: str | None
) -> Iterator[str]:
    """Yield a message for every rule that the image of a tile breaks."""
    partly = int(np.count_nonzero(valid) * image.shape[2] - np.count_nonzero(image))
    if partly:
        yield f"{partly} values are 0 (nodata) where other bands are not"
    if status is not None and status not in WITH_PIXELS and valid.any():
        yield f"pixels in a scene that is {status}"


def _label_faults(
    label: NDArray[np.uint8], valid: NDArray[np.uint8], status: str | None, meta: StoreMeta
) -> Iterator[str]:
    """Yield a message for every rule that the label of a tile breaks."""
    wrong = int(np.count_nonzero((valid == 0) & (label != NODATA)))
    if wrong:
        what = "class" if meta.has_classes else "speed"
        yield f"{wrong} pixels have a {what} where the image is nodata"
    if status not in (None, "ok") and (label != NODATA).any():
        yield f"labelled pixels in a scene that is {status}"
    if meta.has_classes:
        outside = int(np.count_nonzero((label >= len(meta.class_names)) & (label != NODATA)))
        if outside:
            yield f"{outside} pixels have a byte that no class has"
    elif not meta.has_speeds:
        known = int(np.count_nonzero((label > 0) & (label < UNKNOWN_SPEED)))
        if known:
            yield f"{known} pixels have a speed in a store whose roads have none"


def check_statistics(found: Findings, tables: Tables) -> Iterator[Problem]:
    """Compare histograms and fractions with those recomputed from the pixels.

    Histograms are not compared if a tile could not be read, which has been reported.
    """
    if tables.tiles is None:
        return
    if not found.skipped:
        for name, counted in _histograms(found):
            stored = tables.arrays.get(f"histogram/{name}")
            if stored is not None and not np.array_equal(stored, counted):  # type: ignore[arg-type]
                yield Problem.of(
                    f"histogram/{name}", "differs from the pixels of the training tiles"
                )
    yield from _compare("road_fraction", found.roads, tables, tables.tiles)
    yield from _compare("valid_fraction", found.valid, tables, tables.tiles)
    stored = tables.arrays.get("class_pixels")
    for tile, counted in sorted(found.class_pixels.items()):
        if stored is not None and not np.array_equal(stored[tile : tile + 1], counted[None]):
            message = "differs from the pixels per class"
            yield Problem("class_pixels", None, tile, tables.scene_of(tile), message)


def _histograms(found: Findings) -> Iterator[tuple[str, NDArray[np.int64] | None]]:
    """Yield name and counts of the histograms; of the two of labels a store has one."""
    yield "band", found.band
    yield "speed", found.label
    yield "label", found.label


def _compare(
    column: str, counted: dict[int, float], tables: Tables, tiles: TileTable
) -> Iterator[Problem]:
    stored = getattr(tiles, column)
    for tile, value in sorted(counted.items()):
        if stored[tile] != np.float32(value):
            message = f"is {stored[tile]:g}, but {value:g} by the pixels"
            yield Problem(column, None, tile, tables.scene_of(tile), message)
