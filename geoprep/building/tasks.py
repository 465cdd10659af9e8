"""The tasks of a build: write one shard, or survey some rows of a scene.

A task takes plain data, writes files and returns a small record, so it can run in a thread, in
another process or on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rasterio.windows import Window

from geoprep import imagery
from geoprep.building.nodata_bits import write_bits
from geoprep.building.records import (
    ShardRecord,
    ShardTask,
    SurveyRecord,
    SurveyTask,
    TaskStopped,
)
from geoprep.building.rendering import SceneTiles, render_scene
from geoprep.errors import GeoprepError
from geoprep.executors import stopped
from geoprep.storage import open_image, open_sink
from geoprep.store import ShardWriter, StoreMeta, shard_key


def build_shard(task: ShardTask) -> ShardRecord:
    """Write one shard of every pixel array and return its record.

    A scene that cannot be built gets nodata tiles, and a reason in the record. No partial shard is
    left under its final name.

    Raises
    ------
    OSError
        The disk cannot be written.
    OutputError
        The bucket cannot be written.
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
                _count(tiles, task.meta, counts, record, counted)
            with record.stage("compress and write"):
                _append(tiles, task.meta.label_array, writers)
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
    record.histogram_band, record.histogram_speed = counts.band.tolist(), counts.label.tolist()
    return record


def try_scenes(task: ShardTask) -> None:
    """Render the scenes of a task and write nothing, to find a scene that crashes the process."""
    for part in task.parts:
        render_scene(part, task, ShardRecord(task.shard))


def _count(
    tiles: SceneTiles,
    meta: StoreMeta,
    counts: imagery.TileCounts,
    record: ShardRecord,
    counted: Sequence[bool],
) -> None:
    finest, classes = meta.levels[0], len(meta.class_names)
    for image, label, taken in zip(tiles.image[finest], tiles.label[finest], counted, strict=True):
        per_label, valid = counts.add(image, label, counted=taken)
        record.road_fraction.append(imagery.road_share(per_label, background=meta.has_background))
        record.valid_fraction.append(valid)
        if classes:
            record.class_pixels.append(per_label[:classes].tolist())


def _append(tiles: SceneTiles, label_array: str, writers: dict[str, ShardWriter]) -> None:
    for name, levels in (("image", tiles.image), (label_array, tiles.label)):
        for level, pixels in levels.items():
            for tile in pixels:
                writers[f"{level}/{name}"].add(tile)


def survey_rows(task: SurveyTask) -> SurveyRecord:
    """Return the histogram and the amount of imagery of some rows of a scene, or of all."""
    if stopped():
        raise TaskStopped
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
    if (
        task.nodata_file is not None
        and task.rows is not None
        and untold
        and pixels.valid is not None
    ):
        found = pixels.valid == 0
        if imagery.is_held_wide(pixels.values):  # NaN is nodata without the rule
            found &= imagery.find_usable(pixels.values, None)
        black = int(np.count_nonzero(found))
        write_bits(task.nodata_file, task.rows[0], found)
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
