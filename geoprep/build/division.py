"""Assignment of tiles to splits: by scene, by block of ground, or as the user gives them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.build.given_splits import folder_splits, listed_splits, read_areas, read_scene_list
from geoprep.build.layout import Layout
from geoprep.build.overlaps import shared_ground
from geoprep.build.planned_scene import PlannedScene
from geoprep.build.splits import apart, assign_splits, blocks
from geoprep.grid import Grid

_METRES_PER_DEGREE: Final = 111_200.0

Splits = list[tuple[int, ...]]
"""Split of every tile, by scene."""


def divide(
    scenes: Sequence[PlannedScene],
    areas: Sequence[str],
    labelled: Sequence[bool],
    firsts: Sequence[int],
    layout: Layout,
) -> tuple[Splits, tuple[str, ...]]:
    """Return the split of every tile of every scene, and notes for the user.

    Blocks divide scenes that are larger than a block, tile by tile; other scenes stay whole. Where
    tiles of one scene overlap and their splits differ, those for training become unused, and
    validation yields to testing: no pixel of a scene is in two splits. ``areas`` is the city or
    data set of each scene, ``labelled`` whether it has a usable label, and ``firsts`` the first
    scene whose image has the same bytes, which gets the same split.
    """
    options = layout.options
    first_scenes = [scenes[i] for i in firsts]
    with_label = {first for first, has in zip(firsts, labelled, strict=True) if has}
    labelled = [first in with_label for first in firsts]
    areas = [_block_area(one, areas[i]) for one, i in zip(first_scenes, firsts, strict=True)]
    if options.split_file is not None:
        rows = read_scene_list(options.split_file)
        if rows is not None:
            found = _whole(scenes, listed_splits(options.split_file, rows, scenes))
        else:
            given = read_areas(options.split_file)
            found = [given.splits(one, layout.tile) for one in scenes]
    elif options.split_by == "folder":
        found = _whole(scenes, folder_splits(scenes))
    elif options.split_by == "block" and any(_exceeds_block(one.grid, layout) for one in scenes):
        found = _by_tile(scenes, areas, labelled, layout)
    else:
        found = _by_scene(first_scenes, areas, labelled, scenes, layout)
    kept = [
        apart(one.windows, splits, layout.tile) for one, splits in zip(scenes, found, strict=True)
    ]
    notes = [*_notes(kept, layout), *_equal_image_notes(scenes, kept, firsts)]
    if (shared := shared_ground(scenes, kept, layout.tile)) is not None:
        removed = options.split_overlap == "unused"
        notes.append(shared.note(scenes, removed=removed))
        kept = shared.without(kept) if removed else kept
    return kept, tuple(notes)


def _exceeds_block(grid: Grid | None, layout: Layout) -> bool:
    if grid is None:
        return False
    x, y = grid.gsd_m()
    return max(grid.width * x, grid.height * y) > 1000 * layout.options.block_km


def _whole(scenes: Sequence[PlannedScene], splits: Sequence[int]) -> Splits:
    """Return one split for all tiles of each scene."""
    return [(split,) * len(one.windows) for one, split in zip(scenes, splits, strict=True)]


def _by_scene(
    first_scenes: Sequence[PlannedScene],
    areas: Sequence[str],
    labelled: Sequence[bool],
    scenes: Sequence[PlannedScene],
    layout: Layout,
) -> Splits:
    groups = [one.id for one in first_scenes]
    if layout.options.split_by == "block":
        places = np.array([_centres(one.grid, [(0, 0)], None)[0] for one in first_scenes])
        groups = [str(cell) for cell in blocks(places, areas, layout.options.block_km)]
    return _whole(scenes, _assigned(groups, labelled, layout).tolist())


def _by_tile(
    scenes: Sequence[PlannedScene],
    areas: Sequence[str],
    labelled: Sequence[bool],
    layout: Layout,
) -> Splits:
    places, of_tile, has_label, ends = [], [], [], [0]
    for one, area, has in zip(scenes, areas, labelled, strict=True):
        count = len(one.windows)
        if _exceeds_block(one.grid, layout):
            places.append(_centres(one.target, one.windows, layout.tile))
        else:
            places.append(np.repeat(_centres(one.grid, [(0, 0)], None), count, axis=0))
        of_tile += [area] * count
        has_label += [has] * count
        ends.append(ends[-1] + count)
    cells = blocks(np.concatenate(places), of_tile, layout.options.block_km)
    splits = _assigned([str(cell) for cell in cells], has_label, layout).tolist()
    return [tuple(splits[a:b]) for a, b in pairwise(ends)]


def _block_area(scene: PlannedScene, area: str) -> str:
    """Return the area in which blocks are counted: a scene's own if it is not georeferenced."""
    return area if scene.grid is None or scene.grid.georeferenced else scene.id


def _assigned(groups: Sequence[str], labelled: Sequence[bool], layout: Layout) -> NDArray[np.uint8]:
    options = layout.options
    return assign_splits(
        groups, labelled, val=options.val, test=options.test, seed=options.split_seed
    )


def _centres(
    grid: Grid | None, windows: Sequence[tuple[int, int]], tile: int | None
) -> NDArray[np.float64]:
    """Return float64 (window, 2): longitude and latitude of centres, NaN without a grid.

    Without georeference, degrees of the same length in metres. ``tile`` None: the whole grid.
    """
    if grid is None:
        return np.full((len(windows), 2), np.nan)
    corners = np.array(windows, np.float64)
    sides = np.array([grid.height, grid.width], np.float64)
    rows, cols = (corners + np.minimum(sides - corners, sides if tile is None else tile) / 2).T
    pixels = np.column_stack([cols, rows])
    if not grid.georeferenced:
        return grid.to_xy(pixels) / _METRES_PER_DEGREE
    return grid.to_crs(pixels, "EPSG:4326")


def _equal_image_notes(
    scenes: Sequence[PlannedScene], splits: Splits, firsts: Sequence[int]
) -> list[str]:
    """Return a note about images with equal bytes in different splits, which the user has given."""
    apart_from = [i for i, first in enumerate(firsts) if set(splits[i]) != set(splits[first])]
    if not apart_from:
        return []
    i = apart_from[0]
    return [
        f"{len(apart_from):,} images have the same bytes as an image of another split, such as "
        f"{scenes[i].id} and {scenes[firsts[i]].id}: remove one of each"
    ]


def _notes(splits: Splits, layout: Layout) -> list[str]:
    options, there = layout.options, {split for of_scene in splits for split in of_scene}
    if options.split_file is not None or options.val + options.test in (0, 1) or there - {0}:
        return []
    if options.split_by == "folder":
        return ["all images are for training: no folder is named val or test"]
    if options.split_by == "block":
        return ["all imagery is in one block, for training: use a smaller `block_km`"]
    return [
        "the only scene is for training. Use `split_by` block to divide its tiles, or a "
        "`split_file` with areas"
    ]
