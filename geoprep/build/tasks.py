"""The work of a build: one shard of a store, or a look at one scene beforehand.

Plain data in, files and a small record out: a task may run in a thread, another process or on
another machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from geoprep.build.records import Outcome, ShardRecord, ShardTask, SurveyRecord, SurveyTask
from geoprep.build.scene import SceneTiles, render_scene, too_empty
from geoprep.errors import GeoprepError
from geoprep.imagery import kernels
from geoprep.imagery import pixels as imagery
from geoprep.speed import NO_DATA
from geoprep.storage.addresses import open_image
from geoprep.store.schema import PIXEL_ARRAYS, StoreMeta
from geoprep.store.shards import ShardWriter, shard_path

SURVEY_ROWS = 1024
"""Rows of an image held at once while its histogram is taken."""


def build_shard(task: ShardTask) -> ShardRecord:
    """Build one shard of every pixel array.

    A scene that cannot be built leaves tiles of no data and its reason in the record; a disk that
    cannot be written to raises OSError, and no part of a shard is left under a final name.
    """
    record = ShardRecord(task.shard)
    statistics = _Statistics(task.meta)
    writers: dict[str, ShardWriter] = {}
    try:
        for name in task.meta.pixel_arrays():
            path = shard_path(Path(task.store), name, task.shard)
            writers[name] = ShardWriter(path, task.meta.shard_tiles, task.meta.codec)
        for part in task.parts:
            tiles, outcome = render_scene(part, task, record)
            record.scenes[str(part.index)] = outcome
            with record.stage("count"):
                statistics.add(tiles, record, part.counted and outcome.status == "ok")
            with record.stage("compress and write"):
                _append(tiles, writers)
        for name, writer in writers.items():
            written = writer.close()
            record.files[name] = written.digest, written.nbytes
    except BaseException:
        for writer in writers.values():
            writer.abort()
        raise
    record.histogram_band, record.histogram_speed = statistics.totals()
    return record


def _append(tiles: SceneTiles, writers: dict[str, ShardWriter]) -> None:
    for name in PIXEL_ARRAYS:
        for level, pixels in getattr(tiles, name).items():
            for tile in pixels:
                writers[f"{level}/{name}"].add(tile)


class _Statistics:
    """Histograms of a shard's training tiles, finest level."""

    def __init__(self, meta: StoreMeta) -> None:
        self.finest = meta.levels[0]
        self.bands = (0,) * len(meta.bands)
        self.band = np.zeros((2, len(meta.bands), 256), np.int64)
        self.speed = np.zeros(256, np.int64)

    def add(self, tiles: SceneTiles, record: ShardRecord, counted: bool) -> None:
        """Take the fractions of every tile, and its histograms where they count."""
        unmasked = np.empty((0, 0), np.uint8)
        for image, speed in zip(tiles.image[self.finest], tiles.speed[self.finest], strict=True):
            per_speed = imagery.count_mask(speed)
            labelled = int(per_speed[:NO_DATA].sum())
            roads = labelled - int(per_speed[0])
            record.road_fraction.append(roads / labelled if labelled else 0.0)
            of_image = np.zeros_like(self.band)
            kernels.count_values(image, unmasked, self.bands, of_image)
            # 0 is nodata, in every band: one band tells how much of it there is.
            record.valid_fraction.append(1 - int(of_image[:, 0, 0].sum()) / speed.size)
            if counted:
                self.speed += per_speed
                self.band += of_image

    def totals(self) -> tuple[list[list[int]], list[int]]:
        """Return the histograms as plain lists, nodata left out of the bands'."""
        self.band[..., 0] = 0  # 0 is nodata, in every band and only there
        return self.band.sum(axis=0).tolist(), self.speed.tolist()


def survey_scene(task: SurveyTask) -> SurveyRecord:
    """Look at a whole scene, a strip at a time: its limits, and whether it can be used."""
    try:
        counts, nodata, size = _histogram(task)
    except GeoprepError as error:
        return SurveyRecord(task.index, Outcome("failed", str(error)))
    if reason := too_empty(nodata, task.options):
        return SurveyRecord(task.index, Outcome("skipped", reason), size)
    if task.scope == "city":
        present = [np.flatnonzero(of_band) for of_band in counts]
        histogram = tuple(
            (tuple(values.tolist()), tuple(of_band[values].tolist()))
            for values, of_band in zip(present, counts, strict=True)
        )
        return SurveyRecord(task.index, Outcome(), size, histogram)
    if task.scope == "scene":
        limits = imagery.percentile_limits(counts)
        outcome = Outcome(limits=tuple((low, high) for low, high in limits.tolist()))
        return SurveyRecord(task.index, outcome, size)
    return SurveyRecord(task.index, Outcome(), size)


def _histogram(task: SurveyTask) -> tuple[NDArray[np.int64], float, int]:
    """Return int64 (band, value), the share of nodata, and the bytes that were read."""
    valid_pixels, size = 0, 0
    counts: NDArray[np.int64] | None = None
    with open_image(task.image) as dataset:
        for row in range(0, dataset.height, SURVEY_ROWS):
            rows = min(SURVEY_ROWS, dataset.height - row)
            strip = imagery.read_pixels(dataset, task.bands, Window(0, row, dataset.width, rows))
            size += strip.values.nbytes
            valid_pixels += strip.valid_pixels
            of_strip = imagery.count_source(strip)
            counts = of_strip if counts is None else counts + of_strip
        assert counts is not None  # an image has at least one row
        return counts, 1 - valid_pixels / (dataset.height * dataset.width), size
