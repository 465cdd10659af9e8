"""Checks of labels before a build: their kind, and which scenes a shared road file covers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geoprep.build.options import BuildOptions
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.labels import (
    RoadFile,
    is_mask_georeferenced,
    is_vector,
    mask_values,
    open_road_file,
)
from geoprep.sources import IMAGE_SUFFIXES, SourceScenes
from geoprep.storage import split_address


def check_kinds(found: Sequence[SourceScenes], options: BuildOptions) -> None:
    """Check that the options fit the kind of labels, vectors or rasters."""
    labels = [scene.label for one in found for scene in one.scenes if scene.label is not None]
    labels += [one.road_file for one in found if one.road_file is not None]
    masks = [label for label in labels if label.lower().endswith(IMAGE_SUFFIXES)]
    vectors = [label for label in labels if is_vector(label)]
    if masks and options.mask_rule is None and options.classes is None:
        raise UsageError(
            f"{split_address(masks[0])[0]} is a raster. Give the values that are road, such as "
            f"`label_values` 255 (it contains {mask_values(masks[0])}), or the meaning of its "
            "speeds by `label_speeds`. For labels that are not roads give `classes`"
        )
    if len(masks) > 1 and len(set(masks)) == 1 and not is_mask_georeferenced(masks[0]):
        raise UsageError(
            f"{split_address(masks[0])[0]} is the label of {len(masks)} images but is not "
            "georeferenced. Georeference it, or give `labels` a folder or a quoted pattern of one "
            "raster per image"
        )
    if options.classes is not None:
        if masks and vectors:
            raise UsageError(
                f"labels are rasters ({masks[0]}) and vectors ({vectors[0]}): give `labels` a "
                "pattern of one kind"
            )
        _check_options_of_classes(bool(vectors), options)
    if vectors and options.mask_rule is not None:
        raise UsageError(
            f"{vectors[0]} is a vector file. Leave out `label_values` and `label_speeds`, or build "
            "a separate store from the raster labels"
        )


def _check_options_of_classes(vectors: bool, options: BuildOptions) -> None:
    """Refuse options for the other kind of labels."""
    of_rasters = {"label_nodata": options.label_nodata, "tolerance": options.tolerance or None}
    of_vectors = {
        name: getattr(options, name) for name in ("class_field", "width_field", "layer", "where")
    }
    for name, value in (of_rasters if vectors else of_vectors).items():
        if value is not None:
            kinds = ("raster", "vectors") if vectors else ("vector", "rasters")
            raise UsageError(
                f"`{name}` is for {kinds[0]} labels, and the labels are {kinds[1]}: leave it out"
            )


def open_shared_roads(found: Sequence[SourceScenes], options: BuildOptions) -> RoadFile | None:
    """Return the road file that all scenes share; None if scenes have labels of their own.

    It is read once, so that an unusable file is one error and not one per scene.
    """
    names = {one.road_file for one in found if one.road_file}
    if len(names) > 1:
        raise UsageError("several road files for all scenes: build a separate store for each")
    return open_road_file(Path(names.pop()), options.speed_rule(options.schema)) if names else None


def vector_label_failure(label: str | None, grid: Grid | None) -> str:
    """Return why a label cannot be drawn on a scene's grid; empty if it can."""
    if label is None or grid is None or grid.georeferenced or not is_vector(label):
        return ""
    return (
        f"{label}: vector labels need a georeferenced image. Georeference the image, or give it "
        "a raster label of the same size"
    )


def check_shared_roads(
    roads: RoadFile, grids: Sequence[Grid | None]
) -> tuple[list[str], tuple[str, ...]]:
    """Return per scene why a shared road file does not cover it ("" where it does), and notes."""
    inside = [
        grid is not None and grid.georeferenced and roads.covers(grid.bounds, grid.crs)
        for grid in grids
    ]
    usable = [grid for grid in grids if grid is not None]
    if not any(inside):
        if usable and not any(grid.georeferenced for grid in usable):
            raise LabelError(vector_label_failure(roads.name, usable[0]))
        if len(roads.table.lines):
            why = f"its roads are at {roads.place()}. Check its CRS"
        else:
            why = (
                f"none of its {len(roads.table.notes)} features is a line or area. Give road "
                "centre lines or the areas of roads"
            )
        raise LabelError(
            f"{roads.name} covers none of the {len(usable)} scenes: {why}. For one file per scene "
            "give `labels` a folder or a quoted pattern"
        )
    outside = f"{roads.name}: the scene is outside the extent of its roads, {roads.place()}"
    failures = [
        "" if grid is None or ok else vector_label_failure(roads.name, grid) or outside
        for grid, ok in zip(grids, inside, strict=True)
    ]
    notes = []
    if any(failures):
        notes.append(
            f"{roads.name} is the label of all {len(usable)} scenes; "
            f"{sum(map(bool, failures))} are outside its extent and fail. For one file per scene "
            "give `labels` a folder or a quoted pattern"
        )
    notes += [f"{roads.name}: {note}" for note in roads.table.file_notes]
    if left_out := roads.table.lineless():
        listed = ", ".join(f"{what}: {count:,}" for what, count in left_out.items())
        notes.append(f"{roads.name}: features left out ({listed})")
    return failures, tuple(notes)
