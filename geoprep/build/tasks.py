"""The tasks of a build: write one shard, or survey some rows of a scene.

Plain data in, a small record out, so that they run in threads and on other machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rasterio.windows import Window

from geoprep import imagery
from geoprep.build.records import (
    LabelRecord,
    ShardRecord,
    ShardTask,
    SurveyRecord,
    SurveyTask,
    TaskStopped,
)
from geoprep.build.rendering import Tiles, render_scene
from geoprep.errors import GeoprepError, LabelError
from geoprep.executors import stopped
from geoprep.labels import SceneWindow, UnlistedError, read_mask
from geoprep.storage import open_image, open_sink
from geoprep.store import ShardWriter, StoreMeta, shard_key


def build_shard(task: ShardTask) -> ShardRecord:
    """Write one shard of every pixel array and return its record.

    A scene that cannot be built gets nodata tiles, and a reason in the record.
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
                for name, pixels in tiles.items():
                    for tile in pixels:
                        writers[name].add(tile)
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
    tiles: Tiles,
    meta: StoreMeta,
    counts: imagery.TileCounts,
    record: ShardRecord,
    counted: Sequence[bool],
) -> None:
    classes, (images, labels, *_) = len(meta.class_names), tiles.values()  # of the finest level
    for image, label, taken in zip(images, labels, counted, strict=True):
        per_label, valid = counts.add(image, label, counted=taken)
        record.road_fraction.append(imagery.road_share(per_label, background=meta.has_background))
        record.valid_fraction.append(valid)
        if classes:
            record.class_pixels.append(per_label[:classes].tolist())


def survey_rows(task: SurveyTask) -> SurveyRecord:
    """Return the histogram and the validity of some rows of a scene."""
    if stopped():
        raise TaskStopped
    if task.failure:
        return SurveyRecord(task, failure=task.failure)
    from scipy.sparse import csr_array  # few builds have a survey

    scene, nodata, window = task.scene, task.options.nodata, None
    try:
        with open_image(scene.image) as dataset:
            if task.rows is not None:
                first, last = task.rows
                window = Window(0, first, dataset.width, last - first)
            pixels = imagery.read_pixels(dataset, task.bands, window, nodata=nodata)
    except GeoprepError as error:
        return SurveyRecord(task, failure=str(error))
    record = SurveyRecord(
        task,
        pixels=pixels.area,
        valid=pixels.valid_pixels,
        source_bytes=pixels.values.nbytes,
        counts=csr_array(imagery.count_source(pixels)),
    )
    if window is None:  # the only shard of the scene reads all rows again
        return record
    return replace(record, validity=imagery.strip_validity(pixels.valid, pixels.black))


def survey_label(task: SurveyTask) -> LabelRecord:
    """Return remarks on, or errors of, some rows of a scene's raster label.

    Values are errors only where pixels of the image are valid.
    """
    if stopped():
        raise TaskStopped
    if task.failure:
        return LabelRecord(task, failure=task.failure)
    scene, rows, valid = task.scene, task.rows, None
    assert scene.label is not None
    assert scene.grid is not None
    assert rows is not None
    rule = task.options.raster_rule(scene.label)
    assert rule is not None
    if task.mask_file is not None:
        cols = slice(0, scene.grid.width)
        valid = imagery.read_bits(task.mask_file, scene.grid.width, slice(*rows), cols) != 0
    try:
        area = SceneWindow(rows[0], 0, rows[1] - rows[0], scene.grid.width)
        return LabelRecord(task, notes=read_mask(scene.label, rule, scene.grid, area, valid)[1])
    except UnlistedError as error:
        return LabelRecord(task, unlisted=error.pixels)
    except LabelError as error:
        return LabelRecord(task, failure=str(error))
