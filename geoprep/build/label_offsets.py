"""Offsets that the user gives, by which labels are moved that lie off their images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from geoprep.build.given_splits import match_scenes, read_scene_list
from geoprep.build.planned_scene import PlannedScene
from geoprep.errors import UsageError


def move_labels(path: str, scenes: Sequence[PlannedScene]) -> tuple[list[PlannedScene], str]:
    """Return the scenes with the offsets of a CSV file, and a note on which labels are moved.

    Labels with an uncertain offset stay.
    """
    source = f"`label_offsets` {path}"
    rows = read_scene_list(source, path)
    if not rows or not {"dx", "dy"} <= rows[0][1].keys():
        raise UsageError(f"{source}: expected a CSV file with rows of scene, dx and dy")
    given = [(cells["scene"], _offset(f"{source}: row {row}", cells)) for row, cells in rows]
    moved = list(scenes)
    for i, offset in enumerate(match_scenes(source, given, scenes)):
        scene, grid = scenes[i], scenes[i].grid
        if offset is None or grid is None or scene.label is None:
            continue
        dx, dy, unit, certain = offset
        x, y = grid.gsd_m()
        if unit == "pixels":
            x, y = scene.shape[1] / grid.width, scene.shape[0] / grid.height
        way = (dx / x, dy / y) if certain else (0.0, 0.0)
        moved[i] = replace(scene, label_offset=way, has_uncertain_offset=not certain)
    note = f"labels moved by {path}: {sum(any(one.label_offset) for one in moved)} scenes"
    if stay := [scene.id for scene in moved if scene.has_uncertain_offset]:
        note += f"; left as they are, since the offset is not certain: {', '.join(stay)}"
    return moved, note


def _offset(where: str, cells: dict[str, str]) -> tuple[float, float, str, bool]:
    """Return the way of a label to the right and down, its unit, and whether it is certain.

    It is not if its interval is wider, or column ``certain`` says no.
    """
    unit = cells.get("unit") or "metres"
    if unit not in ("pixels", "metres"):  # pixels are those of the finest level
        raise UsageError(f"{where}: unit {unit!r} is unknown: use metres or pixels")
    if cells.get("certain", "").lower() == "no":
        return 0.0, 0.0, unit, False
    dx, dy = (_number(where, name, cells[name]) for name in ("dx", "dy"))
    interval = _number(where, "interval", cells.get("interval") or "0")
    return dx, dy, unit, is_certain(dx, dy, interval)


def is_certain(dx: float, dy: float, interval: float) -> bool:
    """Return whether an offset is not shorter than its interval; without one (NaN) it is not."""
    return interval <= math.hypot(dx, dy)


def _number(where: str, column: str, text: str) -> float:
    """Return the number of a cell; spreadsheets may write it with a decimal comma."""
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{where}: {column} {text!r} is not a number. Correct or delete the row")
    return value
