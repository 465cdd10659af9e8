"""From a scene to a shard: read, render to tiles of every level with their labels, and write.

Plain data in, a small record out, so that tasks run in threads and on other machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.building.options import BuildOptions
from geoprep.building.piece import Piece, Tiles, label_tiles, pieces
from geoprep.building.records import Outcome, ScenePart, ShardRecord, ShardTask
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
        for part in task.parts:
            tiles, outcome = render_scene(part, task, record)
            record.scenes[str(part.index)] = outcome
            with record.stage("count"):
                ok = outcome.status == "ok"
                counted = [ok and counts for counts in part.counted]
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
    record.values, record.ends = counts.values, counts.ends
    record.histogram_band, record.histogram_speed = counts.band.tolist(), counts.label.tolist()
    return record


def _count(
    tiles: Tiles,
    meta: StoreMeta,
    counts: TileCounts,
    record: ShardRecord,
    counted: Sequence[bool],
) -> None:
    classes, (images, labels, *_) = len(meta.class_names), tiles.values()  # of the finest level
    for image, label, taken in zip(images, labels, counted, strict=True):
        per_label, valid, shades = counts.add(image, label, counted=taken)
        record.road_fraction.append(road_share(per_label, background=meta.has_background))
        record.valid_fraction.append(valid)
        record.shades.append(shades)
        if classes:
            record.class_pixels.append(per_label[:classes].tolist())


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
        part.scene.require_unchanged()
    except (GeoprepError, OSError) as error:  # such as a network share that is lost
        named = isinstance(error, GeoprepError)
        outcome = Outcome("failed", str(error) if named else f"{part.scene.image}: {error}")
    if not outcome.has_pixels:
        tiles = _blank(count, task.meta)
    return tiles, outcome


def _fill(tiles: Tiles, part: ScenePart, task: ShardTask, record: ShardRecord) -> Outcome:
    """Read and render a part in the pieces that `pieces` returns."""
    notes, label = Counter[str](), part.scene.label
    pixels = bool(task.options.classes and label and task.options.raster_rule(label))
    with SceneRows(part.scene.pixels, part.scene.inputs) as source:
        for run in pieces(part, task.meta.tile):
            whole, windows = part.whole, (run.start, run.stop)
            some = part if whole else replace(part, scene=part.scene.tiles(*windows))
            own_tiles = {name: pixels[run] for name, pixels in tiles.items()}
            outcome = _fill_piece(own_tiles, some, task, record, source)
            if outcome.status == "skipped":
                return outcome
            add_notes(notes, outcome.notes, pixels=pixels)
    if part.surveyed is not None and part.surveyed.notes:  # pieces overlap, its strips do not
        notes = Counter(part.surveyed.notes)
    return replace(outcome, notes=dict(notes))


def _fill_piece(
    tiles: Tiles, part: ScenePart, task: ShardTask, record: ShardRecord, source: SceneRows
) -> Outcome:
    with record.stage("decode"):
        piece = Piece.read(part, task, source)
    pixels = piece.pixels
    record.source_bytes += pixels.values.nbytes
    black = pixels.black_pixels if part.whole else 0
    if part.whole and (reason := too_empty(1 - pixels.valid_pixels / pixels.area, task.options)):
        return Outcome("skipped", reason, black=black)
    with record.stage("limits"):
        limits = piece.limits()
        tables = lookup_tables(limits, pixels.values.dtype.name)
    kept = tuple((float(low), float(high)) for low, high in limits)
    if part.scene.label is None:
        outcome = Outcome("unlabelled", "no label file", kept, black=black)
    else:
        notes = label_tiles(piece, tiles, record)
        outcome = Outcome("ok", "", kept, notes, black)
    with record.stage("render"):
        _render_tiles(piece, tables, tiles)
    return outcome


def _render_tiles(piece: Piece, tables: NDArray[Any], tiles: Tiles) -> None:
    """Write the images of all tiles and levels, and nodata into their labels where they are 0."""
    for images, labels, factor in piece.levels(tiles):
        valid = np.empty(labels.shape[1:], np.uint8)
        for image, label, window in zip(images, labels, piece.part.scene.windows, strict=True):
            ys, xs = piece.edges(window, factor)
            render(piece.pixels, tables, ys, xs, image, valid)
            if piece.pixels.valid is not None:
                height, width = len(ys) - 1, len(xs) - 1
                label[:height, :width][valid[:height, :width] == 0] = NODATA


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


def too_empty(nodata: float, options: BuildOptions) -> str:
    """Return why a scene with this share of nodata is skipped; empty if it is not."""
    if nodata <= options.max_nodata:
        return ""
    return f"{nodata:.1%} nodata, more than --max-nodata {options.max_nodata:g}"


def add_notes(notes: Counter[str], more: Mapping[str, int], *, pixels: bool) -> None:
    """Add remarks on a part of a label: counts of ``pixels``, else of the whole label."""
    if pixels:
        notes += Counter(more)
    else:
        notes |= Counter(more)
