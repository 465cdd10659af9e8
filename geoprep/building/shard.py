"""From a scene to a shard: read, render to tiles of every level with their labels, and write.

Plain data in, a small record out, so that tasks run in threads and on other machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.building.options import BuildOptions
from geoprep.building.records import Outcome, SceneTiles, ShardRecord, ShardTask
from geoprep.building.scene import TRAIN
from geoprep.building.tile_run import TilePixels, TileRun, label_tiles
from geoprep.errors import GeoprepError
from geoprep.imagery.counts import TileCounts, road_share
from geoprep.imagery.resample import render
from geoprep.imagery.rescale import lookup_tables
from geoprep.imagery.rows import SceneRows
from geoprep.speed import NODATA
from geoprep.storage.sinks import open_sink
from geoprep.store.layout import pixel_layouts, shard_key
from geoprep.store.schema import StoreMeta
from geoprep.store.shards import ShardWriter


def build_shard(task: ShardTask) -> ShardRecord:
    """Write one shard of every pixel array and return its record.

    A scene that cannot be built gets nodata tiles, and a reason in the record.
    """
    record = ShardRecord(task.shard)
    counts = TileCounts(len(task.meta.bands))
    writers: dict[str, ShardWriter] = {}
    sink = open_sink(task.store)
    try:
        for name in task.meta.pixel_arrays():
            file = sink.create(shard_key(name, task.shard))
            writers[name] = ShardWriter(file, task.meta.shard_tiles, task.meta.codec)
        for tiles in task.scenes:
            arrays, outcome = render_scene(tiles, task, record)
            record.scenes[str(tiles.index)] = outcome
            with record.stage("count"):
                counted = [outcome.status == "ok" and split == TRAIN for split in tiles.splits]
                _count(arrays, task.meta, counts, record, counted)
            with record.stage("compress and write"):
                for name, pixels in arrays.items():
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
    record.values, record.ends = counts.values, counts.ends
    record.histogram_band, record.histogram_speed = counts.band.tolist(), counts.label.tolist()
    return record


def _count(
    arrays: TilePixels,
    meta: StoreMeta,
    counts: TileCounts,
    record: ShardRecord,
    counted: Sequence[bool],
) -> None:
    classes, (images, labels, *_) = len(meta.class_names), arrays.values()  # of the finest level
    for image, label, taken in zip(images, labels, counted, strict=True):
        per_label, valid, shades = counts.add(image, label, counted=taken)
        record.road_fraction.append(road_share(per_label, background=meta.has_background))
        record.valid_fraction.append(valid)
        record.shades.append(shades)
        if classes:
            record.class_pixels.append(per_label[:classes].tolist())


def render_scene(
    tiles: SceneTiles, task: ShardTask, record: ShardRecord
) -> tuple[TilePixels, Outcome]:
    """Return the pixels of a scene's tiles and its outcome, also for unusable input."""
    scene, surveyed = tiles.scene, tiles.surveyed
    if surveyed is not None and not surveyed.has_pixels:
        return _empty(len(tiles), task.meta), surveyed
    # Filling tiles that are overwritten completely would take a tenth of the rendering time.
    covered = min(scene.windows.shape) >= task.meta.tile and scene.label is not None
    arrays = _empty(len(tiles), task.meta, filled=not covered)
    try:
        outcome = _fill(arrays, tiles, task, record)
        scene.inputs.require_unchanged()
    except (GeoprepError, OSError) as error:  # such as a network share that is lost
        named = isinstance(error, GeoprepError)
        outcome = Outcome("failed", str(error) if named else f"{scene.image}: {error}")
    if not outcome.has_pixels:
        arrays = _empty(len(tiles), task.meta)
    return arrays, outcome


def _fill(arrays: TilePixels, tiles: SceneTiles, task: ShardTask, record: ShardRecord) -> Outcome:
    """Read and render the tiles: all of a scene at once, else in runs of rows."""
    scene, notes, black = tiles.scene, Counter[str](), 0
    of_pixels = task.options.classes is not None and scene.rule is not None
    whole = tiles.first, tiles.stop
    mask = None if tiles.surveyed is None else tiles.surveyed.mask_file or ""
    with SceneRows(scene.pixels, scene.inputs, mask) as source:
        for first, stop in [whole] if tiles.are_all else scene.windows.runs(*whole):
            with record.stage("decode"):
                run = TileRun.read(task, tiles, (first, stop), source)
            pixels = run.pixels
            record.source_bytes += pixels.values.nbytes
            if tiles.are_all:
                black = pixels.black_pixels
                if reason := too_empty(1 - pixels.valid_pixels / pixels.area, task.options):
                    return Outcome("skipped", reason, black=black)
            with record.stage("limits"):
                limits = run.limits()
                tables = lookup_tables(limits, pixels.values.dtype.name)
            chosen = slice(first - tiles.first, stop - tiles.first)
            own = {name: array[chosen] for name, array in arrays.items()}
            if scene.label is not None:
                add_notes(notes, label_tiles(run, own, record), of_pixels=of_pixels)
            with record.stage("render"):
                _render_tiles(run, tables, own)
    if tiles.surveyed is not None and tiles.surveyed.notes:  # runs overlap, its strips do not
        notes = Counter(tiles.surveyed.notes)
    status = ("unlabelled", "no label file") if scene.label is None else ("ok", "")
    kept = tuple((float(low), float(high)) for low, high in limits)
    return Outcome(*status, kept, dict(notes), black)


def _render_tiles(run: TileRun, tables: NDArray[Any], own: TilePixels) -> None:
    """Write the images of all tiles and levels, and nodata into their labels where they are 0."""
    for images, labels, factor in run.levels(own):
        valid = np.empty(labels.shape[1:], np.uint8)
        for image, label, corner in zip(images, labels, run.corners, strict=True):
            ys, xs = run.edges(corner, factor)
            render(run.pixels, tables, ys, xs, image, valid)
            if run.pixels.valid is not None:
                height, width = len(ys) - 1, len(xs) - 1
                label[:height, :width][valid[:height, :width] == 0] = NODATA


def _empty(count: int, meta: StoreMeta, *, filled: bool = True) -> TilePixels:
    """Return tiles, ``filled`` with nodata (image 0, label 255) or uninitialised."""
    arrays = {}
    for name, layout in pixel_layouts(meta).items():
        arrays[name] = np.empty((count, *layout.tile_shape), np.uint8)
        if filled:
            arrays[name].fill(layout.fill)
    return arrays


def too_empty(nodata: float, options: BuildOptions) -> str:
    """Return why a scene with this share of nodata is skipped; empty if it is not."""
    if nodata <= options.max_nodata:
        return ""
    return f"{nodata:.1%} nodata, more than --max-nodata {options.max_nodata:g}"


def add_notes(notes: Counter[str], more: Mapping[str, int], *, of_pixels: bool) -> None:
    """Add remarks on some rows of a label: counts of pixels, or else of the whole label."""
    if of_pixels:
        notes += Counter(more)
    else:
        notes |= Counter(more)
