"""Outlines of a scene's roads, computed once for all shards of the scene."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future

from shapely.errors import GEOSException

from geoprep.building.records import ScenePart, ShardTask
from geoprep.errors import LabelError
from geoprep.labels import SpeedPolygons, read_roads, speed_polygons

Ground = tuple[SpeedPolygons, dict[str, int]]
"""Outlines of the roads, and fallbacks of their attributes with counts."""

_KEPT_SCENES = 4
_Key = tuple[object, ...]
_lock = threading.Lock()
_kept: OrderedDict[_Key, Future[Ground]] = OrderedDict()


def road_ground(part: ScenePart, task: ShardTask) -> Ground:
    """Return the outlines of the roads of a labelled scene.

    Shards of one scene are built at the same time: the first call computes, others wait for it.
    """
    if part.whole:
        return _find(part, task)
    key = task.fingerprint, task.store, task.options, part.index
    with _lock:
        future = _kept.get(key)
        mine = future is None
        if future is None:
            future = _kept[key] = Future()
            while len(_kept) > _KEPT_SCENES:
                _kept.popitem(last=False)
    if mine:
        try:
            future.set_result(_find(part, task))
        except BaseException as error:  # raised in waiting threads too
            future.set_exception(error)
            _kept.pop(key, None)
    return future.result()


def release_ground() -> None:
    """Release the outlines, at the end of a build."""
    with _lock:
        _kept.clear()


def _find(part: ScenePart, task: ShardTask) -> Ground:
    options, scene = task.options, part.scene
    grid, label = scene.grid, scene.label
    assert grid is not None  # a scene whose image has no grid has failed in the plan
    assert label is not None
    shared = label == task.road_file
    roads = read_roads(
        label,
        rule=options.speed_rule(scene.schema),
        bounds=grid.bounds if shared else None,
        bounds_crs=grid.crs,
        margin_m=options.buffer,
        scene=None if shared else grid.bounds,
    )
    try:
        half_widths = roads.half_widths(options.buffer)
        return speed_polygons(roads, grid, buffer_m=half_widths), dict(roads.notes)
    except GEOSException as error:
        raise LabelError(
            f"{label}: its roads cannot be widened ({error}). Check them with ogrinfo, or remove "
            "the label to build the scene as unlabelled"
        ) from error
