"""Checks of labels before a build: their kind, whether they fit the images, and missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from geoprep.building.options import BuildOptions
from geoprep.building.scene import ALL_BACKGROUND, Described
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.labels.label_shapes import LabelFile, open_label_file, refuse_points
from geoprep.labels.mask_files import is_mask_georeferenced, mask_values
from geoprep.labels.vector_files import UNSELECTED
from geoprep.labels.vector_names import is_vector
from geoprep.sources.label_matching import IMAGE_SUFFIXES
from geoprep.sources.scene import SourceScenes
from geoprep.storage.addresses import is_remote
from geoprep.store.classes import BACKGROUND_NAME
from geoprep.texts import counted

_LABELS_TRIED: Final = 8


class CheckedLabels(NamedTuple):
    """The labels of the scenes of a build, in their order."""

    labels: list[str | None]  # of every scene; `ALL_BACKGROUND` where a missing one means that
    shared: str | None  # file that all scenes share; None if they have labels of their own
    outside: list[str]  # why the shared file does not cover a scene; empty if it does
    notes: list[str]  # for the user


def check_kinds(sources: Sequence[SourceScenes], options: BuildOptions) -> None:
    """Check that the options fit the kind of labels, vectors or rasters."""
    labels = [
        scene.label for source in sources for scene in source.scenes if scene.label is not None
    ]
    labels += [source.shared_label for source in sources if source.shared_label is not None]
    masks = [label for label in labels if label.lower().endswith(IMAGE_SUFFIXES)]
    vectors = [label for label in labels if is_vector(label)]
    if masks and options.mask_rule is None and options.classes is None:
        raise UsageError(
            f"{masks[0]} is a raster that contains {mask_values(masks[0])}. For "
            "classes give `classes`, such as building=255; for roads `label_values`, such as 255, "
            "or the meaning of its speeds by `label_speeds`"
        )
    if len(masks) > 1 and len(set(masks)) == 1 and not is_mask_georeferenced(masks[0]):
        raise UsageError(
            f"{masks[0]} is the label of {len(masks)} images but is not "
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
        rule = options.class_rule
        if masks and rule and not any(rule.values):
            raise UsageError(
                f"{masks[0]} is a raster that contains {mask_values(masks[0])}: "
                f"give each class its value in `classes`, such as {rule.names[-1]}=255"
            )
    if vectors and options.mask_rule is not None:
        raise UsageError(
            f"{vectors[0]} is a vector file. Leave out `label_values` and `label_speeds`, or build "
            "a separate store from the raster labels"
        )


def _check_options_of_classes(vectors: bool, options: BuildOptions) -> None:
    """Refuse options for the other kind of labels."""
    of_rasters = {"label_nodata": options.label_nodata, "tolerance": options.tolerance or None}
    of_vectors = {name: getattr(options, name) for name in ("class_field", "layer", "where")}
    for name, value in (of_rasters if vectors else of_vectors).items():
        if value is not None:
            kinds = ("raster", "vectors") if vectors else ("vector", "rasters")
            raise UsageError(
                name, f"is for {kinds[0]} labels, and the labels are {kinds[1]}: leave it out"
            )
    if options.class_rule is not None and not vectors:
        options.class_rule.require_others()


def check_labels(
    sources: Sequence[SourceScenes], scenes: Sequence[Described], options: BuildOptions
) -> CheckedLabels:
    """Return the labels of scenes; raise an error if they cannot be those of these images."""
    vectors = (
        one.label for one in scenes if one.label and not one.failure and is_vector(one.label)
    )
    # GDAL writes a file beside a compressed tar that it reads labels in.
    own = [file for file in vectors if not is_remote(file) and not file.startswith("/vsitar/")]
    refuse_points(own[:_LABELS_TRIED], options.speed_rule(options.schema))
    roads = _open_shared(sources, options)
    outside, notes = [""] * len(scenes), list[str]()
    without_background = options.class_rule and BACKGROUND_NAME not in options.class_rule.names
    if roads:
        outside, notes = check_shared_roads(roads, [scene.grid for scene in scenes])
        if without_background:
            rest = "pixels outside its features have no label; if they are background, begin"
            notes.append(f"{roads.name}: {rest} `classes` with {BACKGROUND_NAME}")
    labels = [scene.label or (roads.name if roads else None) for scene in scenes]
    if options.missing_label == "background":
        missing = labels.count(None)
        if roads or missing == len(labels):
            raise UsageError("missing_label", "needs `labels` of a file per image: leave it out")
        if without_background:
            raise UsageError(
                "missing_label",
                f"background needs a class of that name: begin `classes` with {BACKGROUND_NAME}",
            )
        notes += [f"{counted(missing, 'image')} without a label file: background"] * bool(missing)
        labels = [ALL_BACKGROUND if label is None else label for label in labels]
    return CheckedLabels(labels, roads.name if roads else None, outside, notes)


def _open_shared(sources: Sequence[SourceScenes], options: BuildOptions) -> LabelFile | None:
    """Return the road file that all scenes share; None if scenes have labels of their own.

    It is read once, so that an unusable file is one error and not one per scene.
    """
    names = {source.shared_label for source in sources if source.shared_label}
    if len(names) > 1:
        raise UsageError("several label files for all scenes: build a separate store for each")
    return open_label_file(Path(names.pop()), options.speed_rule(options.schema)) if names else None


def vector_label_failure(label: str | None, grid: Grid | None) -> str:
    """Return why a label cannot be drawn on a scene's grid; empty if it can."""
    if label is None or grid is None or grid.georeferenced or not is_vector(label):
        return ""
    return (
        f"{label}: vector labels need a georeferenced image. Georeference the image, or give it "
        "a raster label of the same size"
    )


def check_shared_roads(
    roads: LabelFile, grids: Sequence[Grid | None]
) -> tuple[list[str], list[str]]:
    """Return per scene why a shared road file does not cover it ("" where it does), and notes."""
    if UNSELECTED in roads.table.file_notes:
        raise LabelError(f"{roads.name}: {UNSELECTED}. Check the condition and its letters")
    inside = [
        grid is not None and grid.georeferenced and roads.covers(grid.bounds, grid.crs)
        for grid in grids
    ]
    usable = [grid for grid in grids if grid is not None]
    if not any(inside):
        if usable and not any(grid.georeferenced for grid in usable):
            raise LabelError(vector_label_failure(roads.name, usable[0]))
        placed = next(grid for grid in usable if grid.georeferenced)
        if len(roads.table.lines):
            why = f"its features are at {roads.place()}. Check its CRS"
        else:
            why = roads.table.unusable(placed.crs)
        raise LabelError(
            f"{roads.name} covers none of the scenes: {why}. For one file per scene "
            "give `labels` a folder or a quoted pattern"
        )
    outside = f"{roads.name}: the scene is outside the extent of its features, {roads.place()}"
    failures = [
        "" if grid is None or ok else vector_label_failure(roads.name, grid) or outside
        for grid, ok in zip(grids, inside, strict=True)
    ]
    notes = []
    if any(failures):
        notes.append(
            f"{roads.name} is the label of all {len(usable)} scenes; those that fail outside its "
            f"extent: {sum(map(bool, failures))}. For one file per scene "
            "give `labels` a folder or a quoted pattern"
        )
    notes += [f"{roads.name}: {note}" for note in roads.table.file_notes]
    if left_out := roads.table.lineless():
        listed = ", ".join(f"{what}: {count:,}" for what, count in left_out.items())
        notes.append(f"{roads.name}: features left out ({listed})")
    return failures, notes
