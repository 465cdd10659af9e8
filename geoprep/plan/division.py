"""Which tiles train, validate and test: by scene, by block of ground, or by areas of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from geoprep.crs import to_lonlat
from geoprep.grid import Grid
from geoprep.plan.areas import read_areas
from geoprep.plan.layout import Layout
from geoprep.plan.splits import apart, assign_splits, blocks

_METRES_PER_DEGREE = 111_200.0


@dataclass(frozen=True, slots=True)
class Member:
    """What is known of a scene when it is given its splits.

    Attributes
    ----------
    area
        City or set that it belongs to.
    grid
        Of the source; None when the image cannot be opened.
    labelled
        Whether it has a label.
    """

    id: str
    area: str
    grid: Grid | None
    labelled: bool


def divide(
    members: Sequence[Member], layout: Layout
) -> tuple[list[tuple[int, ...]], tuple[str, ...]]:
    """Return the split of every tile of every scene, and lines that a person should see.

    Blocks divide scenes that are larger than a block, tile by tile; others stay whole. Where tiles
    of one scene overlap and their splits differ, those of training become unused, and validation
    yields to test: no pixel is in two splits.

    Raises
    ------
    UsageError
        The file of areas cannot be used.
    """
    options = layout.options
    if options.split_file is not None:
        areas = read_areas(options.split_file)
        found = [
            areas.splits(layout.target(one.grid), layout.windows(one.grid), layout.tile)
            for one in members
        ]
    elif options.split_by == "block" and any(_exceeds_block(one.grid, layout) for one in members):
        found = _by_tile(members, layout)
    else:
        found = _by_scene(members, layout)
    kept = [
        apart(layout.windows(one.grid), splits, layout.tile)
        for one, splits in zip(members, found, strict=True)
    ]
    return kept, _notes(kept, layout)


def _exceeds_block(grid: Grid | None, layout: Layout) -> bool:
    if grid is None:
        return False
    x, y = grid.gsd_m()
    return max(grid.width * x, grid.height * y) > 1000 * layout.options.block_km


def _by_scene(members: Sequence[Member], layout: Layout) -> list[tuple[int, ...]]:
    groups = [one.id for one in members]
    if layout.options.split_by == "block":
        places = np.array([_places(one.grid, [(0, 0)], None)[0] for one in members])
        cells = blocks(places, [_area(one) for one in members], layout.options.block_km)
        groups = [str(cell) for cell in cells]
    splits = _assigned(groups, [one.labelled for one in members], layout)
    counts = [len(layout.windows(one.grid)) for one in members]
    return [(int(split),) * count for split, count in zip(splits, counts, strict=True)]


def _by_tile(members: Sequence[Member], layout: Layout) -> list[tuple[int, ...]]:
    places, areas, labelled, ends = [], [], [], [0]
    for one in members:
        windows = layout.windows(one.grid)
        if _exceeds_block(one.grid, layout):
            places.append(_places(layout.target(one.grid), windows, layout.tile))
        else:
            places.append(np.repeat(_places(one.grid, [(0, 0)], None), len(windows), axis=0))
        areas += [_area(one)] * len(windows)
        labelled += [one.labelled] * len(windows)
        ends.append(ends[-1] + len(windows))
    cells = blocks(np.concatenate(places), areas, layout.options.block_km)
    splits = _assigned([str(cell) for cell in cells], labelled, layout).tolist()
    return [tuple(splits[a:b]) for a, b in pairwise(ends)]


def _area(member: Member) -> str:
    """Return what blocks are counted in: a scene without a place on the ground is its own."""
    return member.area if member.grid is None or member.grid.georeferenced else member.id


def _assigned(groups: Sequence[str], labelled: Sequence[bool], layout: Layout) -> NDArray[np.uint8]:
    options = layout.options
    return assign_splits(
        groups, labelled, val=options.val, test=options.test, seed=options.split_seed
    )


def _places(
    grid: Grid | None, windows: Sequence[tuple[int, int]], tile: int | None
) -> NDArray[np.float64]:
    """Return float64 (window, 2): longitude and latitude of centres, NaN without a grid.

    On a plain grid, degrees of the same length in metres. ``tile`` None: of the whole grid.
    """
    if grid is None:
        return np.full((len(windows), 2), np.nan)
    corners = np.array(windows, np.float64)
    sides = np.array([grid.height, grid.width], np.float64)
    rows, cols = (corners + np.minimum(sides - corners, sides if tile is None else tile) / 2).T
    xs, ys = grid.transform * (cols, rows)
    if not grid.georeferenced:
        return np.column_stack([xs, ys]) / _METRES_PER_DEGREE
    return np.column_stack(to_lonlat(grid.crs).transform(xs, ys))


def _notes(splits: Sequence[tuple[int, ...]], layout: Layout) -> tuple[str, ...]:
    options, there = layout.options, {split for of_scene in splits for split in of_scene}
    if options.split_file is not None or options.val + options.test in (0, 1) or there - {0}:
        return ()
    if options.split_by == "block":
        return ("all imagery lies in one block, which trains: use a smaller --block-km",)
    return (
        "one scene is one split, which trains: --split-by block divides its tiles, --split-file "
        "by areas that you draw",
    )
