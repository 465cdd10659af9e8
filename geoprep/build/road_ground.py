"""Outlines of a scene's roads, computed once for all shards of the scene."""

from __future__ import annotations

import threading
from functools import lru_cache

from geoprep.build.records import ScenePart, ShardTask
from geoprep.labels import RoadOutlines, read_roads

Ground = tuple[RoadOutlines, dict[str, int]]
"""Outlines of the roads, and fallbacks of their attributes with counts."""


class _Slot:
    """The outlines of one scene, once they are computed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ground: Ground | None = None


@lru_cache(maxsize=4)
def _slot(*_scene: object) -> _Slot:
    return _Slot()


def road_ground(part: ScenePart, task: ShardTask) -> Ground:
    """Return the outlines of the roads of a labelled scene.

    Shards of one scene are built at the same time: the first call computes, others wait for it.
    """
    if part.whole:
        return _find(part, task)
    slot = _slot(task.fingerprint, task.store, task.options, part.index)
    with slot.lock:
        if slot.ground is None:
            slot.ground = _find(part, task)
        return slot.ground


def release_ground() -> None:
    """Release the outlines, at the end of a build."""
    _slot.cache_clear()


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
    return RoadOutlines.of(roads, grid, roads.half_widths(options.buffer)), dict(roads.notes)
