"""Offsets that the user gives, by which labels are moved that lie off their images."""

from __future__ import annotations

import math
from dataclasses import replace

from geoprep.errors import UsageError
from geoprep.plan.given_splits import match_scenes, read_scene_list
from geoprep.plan.planned_scene import PlannedScene


def move_labels(path: str, scenes: list[PlannedScene]) -> tuple[list[PlannedScene], str]:
    """Return the scenes with the offsets of a CSV file, and a note on which labels are moved.

    Those whose offset is not certain stay where they are.
    """
    source = f"`label_offsets` {path}"
    rows = read_scene_list(source, path)
    if not rows or not {"dx", "dy"} <= rows[0][1].keys():
        raise UsageError(f"{source}: expected a CSV file with rows of scene, dx and dy in metres")
    given = [(cells["scene"], _offset(f"{source}: row {row}", cells)) for row, cells in rows]
    moved, stay = list(scenes), []
    for i, offset in enumerate(match_scenes(source, given, scenes)):
        scene = scenes[i]
        if offset is None or scene.grid is None or scene.label is None:
            continue
        dx, dy, certain = offset
        if certain:
            x, y = scene.grid.gsd_m()
            moved[i] = replace(scene, label_offset=(dx / x, dy / y))
        else:
            stay.append(scene.id)
    note = f"labels moved by {path}: {sum(any(one.label_offset) for one in moved)} scenes"
    if stay:
        note += f"; left as they are, since the offset is not certain: {', '.join(stay)}"
    return moved, note


def _offset(where: str, cells: dict[str, str]) -> tuple[float, float, bool]:
    """Return the metres that a label moves to the right and down, and whether they are certain.

    They are not if their interval is wider, or column ``certain`` says no.
    """
    if cells.get("certain", "").lower() == "no":
        return 0.0, 0.0, False
    unit = cells.get("unit") or "metres"
    if unit != "metres":
        raise UsageError(f"{where}: unit {unit!r}. Convert dx, dy and interval to metres")
    dx, dy = (_number(where, name, cells[name]) for name in ("dx", "dy"))
    interval = _number(where, "interval", cells.get("interval") or "0")
    return dx, dy, interval <= math.hypot(dx, dy)


def _number(where: str, column: str, text: str) -> float:
    """Return the number of a cell; spreadsheets may write it with a decimal comma."""
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{where}: {column} {text!r} is not a number. Correct or delete the row")
    return value
