"""One file of roads for all scenes: read once, and asked about which scenes it says something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.labels import RoadFile, open_road_file
from geoprep.plan.options import BuildOptions
from geoprep.sources import Found

_VECTOR_SUFFIXES: Final = (".geojson", ".json", ".gpkg", ".shp", ".fgb", ".csv", ".parquet")


def open_shared_roads(found: Sequence[Found], options: BuildOptions) -> RoadFile | None:
    """Read the one file of roads: without it every scene would fail, each for the same reason."""
    names = {one.road_file for one in found if one.road_file}
    if len(names) > 1:
        raise UsageError("more than one file of roads for all scenes: build their stores apart")
    return open_road_file(Path(names.pop()), options.speed_rule(options.schema)) if names else None


def unfit_label(label: str | None, grid: Grid | None) -> str:
    """Return why a label cannot be drawn on a scene's grid, or nothing."""
    if label is None or grid is None or grid.georeferenced:
        return ""
    if not label.lower().endswith(_VECTOR_SUFFIXES):
        return ""
    return (
        f"{label}: roads in coordinates, and the image has no place on the ground to draw them "
        "in: give it a mask of its own pixels as label, or georeference the image"
    )


def judge_shared_roads(
    roads: RoadFile, grids: Sequence[Grid | None]
) -> tuple[list[str], tuple[str, ...]]:
    """Say which scenes the one file of roads is a label of.

    Returns
    -------
    list of str
        Why it says nothing about a scene, "" where it does.
    tuple of str
        Lines that a person should see.

    Raises
    ------
    LabelError
        It covers no scene at all.
    """
    inside = [
        grid is not None and grid.georeferenced and roads.covers(grid.bounds, grid.crs)
        for grid in grids
    ]
    usable = [grid for grid in grids if grid is not None]
    if not any(inside):
        if usable and not any(grid.georeferenced for grid in usable):
            raise LabelError(unfit_label(roads.name, usable[0]))
        raise LabelError(
            f"{roads.name} covers none of the {len(usable)} scenes: its roads are at "
            f"{roads.place()}. Check its CRS; for one file per scene give --labels a folder or a "
            "quoted pattern."
        )
    why = f"{roads.name}: the scene lies outside the extent of its roads, {roads.place()}"
    reasons = [
        "" if grid is None or ok else unfit_label(roads.name, grid) or why
        for grid, ok in zip(grids, inside, strict=True)
    ]
    notes = []
    if any(reasons):
        notes.append(
            f"{roads.name} was read as the roads of all {len(usable)} scenes; "
            f"{sum(map(bool, reasons))} lie outside its extent and are not labelled. For one file "
            "per scene give --labels a folder or a quoted pattern."
        )
    notes += [f"{roads.name}: {note}" for note in roads.table.file_notes]
    if left_out := roads.table.lineless():
        listed = ", ".join(f"{count} x {what}" for what, count in left_out.items())
        notes.append(f"{roads.name}: features left out: {listed}")
    return reasons, tuple(notes)
