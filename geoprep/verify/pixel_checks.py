"""Checks of the pixels, and of the statistics that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.speed import NODATA, UNKNOWN_SPEED
from geoprep.storage import StoreFiles
from geoprep.store import PIXEL_ARRAYS, StoreMeta, TileTable, pixel_layouts
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
    band, speed
        int64 (band, 256) and (256), histograms of usable training tiles at the finest level.
    roads, valid
        Tile to fraction at the finest level.
    """

    problems: list[Problem] = field(default_factory=list)
    shards: int = 0
    chunks: int = 0
    skipped: int = 0
    band: NDArray[np.int64] | None = None
    speed: NDArray[np.int64] | None = None
    roads: dict[int, float] = field(default_factory=dict)
    valid: dict[int, float] = field(default_factory=dict)

    def add(self, other: Findings) -> None:
        """Add the results of another job."""
        self.problems += other.problems
        self.shards += other.shards
        self.chunks += other.chunks
        self.skipped += other.skipped
        self.roads |= other.roads
        self.valid |= other.valid
        for name in ("band", "speed"):
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
    for name in PIXEL_ARRAYS:
        array = f"{job.level}/{name}"
        expected = tables.digest_of(array, job.shard)
        readers.append(ShardReader(job, layouts[array], files, expected, partial(report, array)))
        found.shards += readers[-1].found
    count = imagery.TileCounts(len(meta.bands)) if job.level == meta.levels[0] else None
    for tile in range(job.first, job.stop):
        image, speed = (reader.tile(tile) for reader in readers)
        found.chunks += (image is not None) + (speed is not None)
        if image is None or speed is None:
            found.skipped += count is not None
            continue
        faults = chain(_faults(image, speed, tables.status_of(tile)), _speed_faults(speed, meta))
        for name, message in faults:
            report(f"{job.level}/{name}", tile, message)
        if count is not None:
            trained = tables.status_of(tile) == "ok" and tables.split_of(tile) == TRAIN
            found.roads[tile], found.valid[tile] = count.add(image, speed, counted=trained)
    if count is not None:
        found.band, found.speed = count.band, count.speed
    return found


def _faults(
    image: NDArray[np.uint8], speed: NDArray[np.uint8], status: str | None
) -> Iterator[tuple[str, str]]:
    """Yield (array, message) for every rule that the pixels of a tile break."""
    valid = imagery.find_valid(image, image.shape[2], 0)
    partly = int(np.count_nonzero(valid) * image.shape[2] - np.count_nonzero(image))
    if partly:
        yield "image", f"{partly} values are 0 (nodata) where other bands are not"
    wrong = int(np.count_nonzero((valid == 0) & (speed != NODATA)))
    if wrong:
        yield "speed", f"{wrong} pixels have a speed where the image is nodata"
    if status is None:
        return
    if status not in WITH_PIXELS and valid.any():
        yield "image", f"pixels in a scene that is {status}"
    if status != "ok" and (speed != NODATA).any():
        yield "speed", f"labelled pixels in a scene that is {status}"


def _speed_faults(speed: NDArray[np.uint8], meta: StoreMeta) -> Iterator[tuple[str, str]]:
    """Yield (array, message) for speeds in a store whose roads have none."""
    known = 0 if meta.has_speeds else int(np.count_nonzero((speed > 0) & (speed < UNKNOWN_SPEED)))
    if known:
        yield "speed", f"{known} pixels have a speed in a store whose roads have none"


def check_statistics(found: Findings, tables: Tables) -> Iterator[Problem]:
    """Compare histograms and fractions with those recomputed from the pixels.

    Histograms are not compared if a tile could not be read, which has been reported.
    """
    if tables.tiles is None:
        return
    if not found.skipped:
        for name, counted in (("band", found.band), ("speed", found.speed)):
            stored = tables.arrays.get(f"histogram/{name}")
            if stored is not None and not np.array_equal(stored, counted):  # type: ignore[arg-type]
                yield Problem.of(
                    f"histogram/{name}", "differs from the pixels of the training tiles"
                )
    yield from _compare("road_fraction", found.roads, tables, tables.tiles)
    yield from _compare("valid_fraction", found.valid, tables, tables.tiles)


def _compare(
    column: str, counted: dict[int, float], tables: Tables, tiles: TileTable
) -> Iterator[Problem]:
    stored = getattr(tiles, column)
    for tile, value in sorted(counted.items()):
        if stored[tile] != np.float32(value):
            message = f"is {stored[tile]:g}, but {value:g} by the pixels"
            yield Problem(column, None, tile, tables.scene_of(tile), message)
