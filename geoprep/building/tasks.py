"""The work of a build: one shard of a store, or a look at some rows of a scene beforehand.

Plain data in, files and a small record out: a task may run in a thread, another process or on
another machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rasterio.windows import Window

from geoprep import imagery
from geoprep.building.bits import write_bits
from geoprep.building.records import ShardRecord, ShardTask, Stopped, SurveyRecord, SurveyTask
from geoprep.building.scene import SceneTiles, render_scene
from geoprep.errors import GeoprepError
from geoprep.executors import stopped
from geoprep.storage import open_image, open_sink
from geoprep.store import PIXEL_ARRAYS, ShardWriter, shard_key


def build_shard(task: ShardTask) -> ShardRecord:
    """Build one shard of every pixel array.

    A scene that cannot be built leaves tiles of no data and its reason in the record. A disk that
    cannot be written to raises OSError, a bucket OutputError, and no part of a shard is left under
    a final name.
    """
    record = ShardRecord(task.shard)
    counts = imagery.TileCounts(len(task.meta.bands))
    writers: dict[str, ShardWriter] = {}
    sink = open_sink(task.store)
    try:
        for name in task.meta.pixel_arrays():
            file = sink.create(shard_key(name, task.shard))
            writers[name] = ShardWriter(file, task.meta.shard_tiles, task.meta.codec)
        for part in task.parts:
            tiles, outcome = render_scene(part, task, record)
            record.scenes[str(part.index)] = outcome
            with record.stage("count"):
                ok = outcome.status == "ok"
                counted = [ok and one for one in part.counted]
                _count(tiles, task.meta.levels[0], counts, record, counted)
            with record.stage("compress and write"):
                _append(tiles, writers)
        for name, writer in writers.items():
            with record.stage("compress and write"):
                written = writer.close()
            record.files[name] = written.digest, written.nbytes
            if written.tag:
                record.tags[name] = written.tag
    except BaseException:
        for writer in writers.values():
            writer.abort()
        raise
    record.histogram_band, record.histogram_speed = counts.band.tolist(), counts.speed.tolist()
    return record


def try_scenes(task: ShardTask) -> None:
    """Render a task's scenes and write nothing: to see whether that takes a process down."""
    for part in task.parts:
        render_scene(part, task, ShardRecord(task.shard))


def _count(
    tiles: SceneTiles,
    finest: int,
    counts: imagery.TileCounts,
    record: ShardRecord,
    counted: Sequence[bool],
) -> None:
    for image, speed, taken in zip(tiles.image[finest], tiles.speed[finest], counted, strict=True):
        roads, valid = counts.add(image, speed, counted=taken)
        record.road_fraction.append(roads)
        record.valid_fraction.append(valid)


def _append(tiles: SceneTiles, writers: dict[str, ShardWriter]) -> None:
    for name in PIXEL_ARRAYS:
        for level, pixels in getattr(tiles, name).items():
            for tile in pixels:
                writers[f"{level}/{name}"].add(tile)


def survey_rows(task: SurveyTask) -> SurveyRecord:
    """Look at some rows of a scene, or all: their histogram, and how much is imagery."""
    if stopped():
        raise Stopped
    if task.failure:
        return SurveyRecord(task, failure=task.failure)
    try:
        with open_image(task.image) as dataset:
            window = None
            if task.rows is not None:
                first, last = task.rows
                window = Window(0, first, dataset.width, last - first)
            pixels = imagery.read_pixels(dataset, task.bands, window, nodata=task.nodata)
            untold = task.nodata is None and not imagery.marks_nodata(dataset)
    except GeoprepError as error:
        return SurveyRecord(task, failure=str(error))
    black = 0
    if task.missing is not None and task.rows is not None and untold and pixels.valid is not None:
        found = pixels.valid == 0
        if imagery.is_held_wide(pixels.values):  # NaN is missing wherever it lies
            found &= imagery.find_usable(pixels.values, None)
        black = int(np.count_nonzero(found))
        write_bits(task.missing, task.rows[0], found)
    counts = imagery.count_source(pixels)
    present = [np.flatnonzero(of_band) for of_band in counts]
    return SurveyRecord(
        task,
        pixels=pixels.area,
        valid=pixels.valid_pixels,
        black=black,
        source_bytes=pixels.values.nbytes,
        bins=counts.shape[1],
        histogram=tuple((v, of_band[v]) for v, of_band in zip(present, counts, strict=True)),
    )
