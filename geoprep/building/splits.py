"""Splits of tiles: by scene, by block of ground, or as given; and ground that splits share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np
import shapely
import xxhash
from numpy.typing import NDArray

from geoprep.building.given_splits import folder_splits, given_splits, tile_outlines
from geoprep.building.options import BuildOptions
from geoprep.building.scene import TEST, TRAIN, UNUSED, VAL, Planned
from geoprep.components import connected
from geoprep.crs import LONLAT, METRES_PER_DEGREE, reproject, to_lonlat
from geoprep.grid import Grid, Windows
from geoprep.store.schema import SPLIT_NAMES

Splits = list[tuple[int, ...]]
"""Split of every tile, by scene. Larger numbers hold more: TEST over VAL over TRAIN."""


def divide(
    scenes: Sequence[Planned], cities: Sequence[str], options: BuildOptions
) -> tuple[Splits, list[list[int]], tuple[str, ...]]:
    """Return the split of every tile of every scene, groups of scenes, and notes for the user.

    1. Splits are those of a file or of folders if given; else groups are assigned by a hash
       (`assign_splits`): scenes, or blocks, which divide larger scenes tile by tile.
    2. Where tiles of one scene overlap and their splits differ, the weaker ones become unused, so
       that no pixel of a scene is in two splits.
    3. Tiles that show ground of another split in another image are counted or become unused.

    Images with the same bytes are in one split. ``cities`` has one name per source, each of which
    has blocks of its own, wherever its files are. Later divisions keep groups together: scenes of
    the same bytes, block or folder, and those that overlap.
    """
    seen = dict[int, int]()
    firsts = [
        seen.setdefault(scene.inputs.digest, i) if scene.inputs and scene.inputs.digest else i
        for i, scene in enumerate(scenes)
    ]
    first_scenes = [scenes[i] for i in firsts]
    with_label = {first for first, scene in zip(firsts, scenes, strict=True) if scene.labelled}
    labelled = [first in with_label for first in firsts]
    areas = [
        scene.id if scene.grid and not scene.grid.georeferenced else cities[scene.city]
        for scene in first_scenes
    ]
    groups: list[Hashable] = [*firsts]
    drawn = ""
    if options.split_file is not None:
        splits = given_splits(options.split_file, scenes)
    elif options.split_by == "folder":
        of_folders = folder_splits(scenes)
        drawn = _draw_val(of_folders, [scene.id for scene in first_scenes], labelled, options)
        splits = _whole(scenes, of_folders)
        groups = [PurePosixPath(scene.image).parent for scene in first_scenes]
    elif options.split_by == "block" and any(_exceeds_block(scene, options) for scene in scenes):
        splits = _by_tile(scenes, areas, labelled, options)
    else:
        groups = [scene.id for scene in first_scenes]
        if options.split_by == "block":
            centres = np.concatenate([_centre(scene) for scene in first_scenes])
            groups = [*blocks(centres, areas, options.block_km)]
        splits = _whole(scenes, _assigned(groups, labelled, options))
    splits = [apart(one.windows, own) for one, own in zip(scenes, splits, strict=True)]
    notes = [drawn, _all_training(splits, options), _equal_images(scenes, splits, firsts)]
    overlaps = _overlapping(scenes)
    splits, note = _without_shared_ground(
        scenes, splits, overlaps, removed=options.split_overlap == "unused"
    )
    return splits, _joined(groups, overlaps), tuple(filter(None, [*notes, note]))


def _overlapping(scenes: Sequence[Planned]) -> list[tuple[int, int]]:
    """Return the pairs of georeferenced scenes that overlap, each both ways."""
    placed = [i for i, scene in enumerate(scenes) if scene.grid and scene.grid.georeferenced]
    if not placed:
        return []
    shapes = [scenes[i].windows.shape for i in placed]
    whole = [
        _outlines(scenes[i], Windows(shape, side=max(shape), overlap=0))
        for i, shape in zip(placed, shapes, strict=True)
    ]
    pairs = np.array(placed)[_intersecting(np.concatenate(whole))].T.tolist()
    return [(one, other) for one, other in pairs if one != other]


def _joined(groups: Sequence[Hashable], overlaps: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the scenes of every group of several; overlaps join groups."""
    seen = dict[Hashable, int]()
    pairs = [(i, seen.setdefault(group, i)) for i, group in enumerate(groups)]
    together = defaultdict[int, list[int]](list)
    _, component = connected(np.array([*pairs, *overlaps]), len(groups))
    for i, number in enumerate(component.tolist()):
        together[number].append(i)
    return [scenes for scenes in together.values() if len(scenes) > 1]


def _whole(scenes: Sequence[Planned], splits: Sequence[int]) -> Splits:
    """Return one split for all tiles of each scene."""
    return [(split,) * len(scene.windows) for scene, split in zip(scenes, splits, strict=True)]


def _exceeds_block(scene: Planned, options: BuildOptions) -> bool:
    if scene.grid is None:
        return False
    x, y = scene.grid.gsd_m()
    return max(scene.grid.width * x, scene.grid.height * y) > 1000 * options.block_km


def _by_tile(
    scenes: Sequence[Planned],
    areas: Sequence[str],
    labelled: Sequence[bool],
    options: BuildOptions,
) -> Splits:
    """Assign blocks of tiles to splits; smaller scenes than a block stay whole."""
    centres = [
        _centres(scene.target, scene.windows.corners, scene.windows.side)
        if _exceeds_block(scene, options)
        else np.repeat(_centre(scene), len(scene.windows), axis=0)
        for scene in scenes
    ]
    counts = [len(scene.windows) for scene in scenes]
    of_tile = np.repeat(np.array(areas, object), counts).tolist()
    groups = blocks(np.concatenate(centres), of_tile, options.block_km)
    splits = _assigned(groups, np.repeat(labelled, counts).tolist(), options)
    ends = np.cumsum([0, *counts]).tolist()
    return [tuple(splits[start:stop]) for start, stop in pairwise(ends)]


def _centre(scene: Planned) -> NDArray[np.float64]:
    return _centres(scene.grid, [(0, 0)], None)


def _centres(
    grid: Grid | None, windows: Sequence[tuple[int, int]], tile: int | None
) -> NDArray[np.float64]:
    """Return float64 (window, 2): longitude and latitude of centres, NaN without a grid.

    Without georeference, degrees of the same length in metres. ``tile`` None: the whole grid.
    """
    if grid is None:
        return np.full((len(windows), 2), np.nan)
    corners = np.array(windows, np.float64)
    sides = np.array(grid.shape, np.float64)
    middles = corners + np.minimum(sides - corners, sides if tile is None else tile) / 2
    centres = grid.to_xy(middles[:, ::-1])
    if not grid.georeferenced:
        return centres / METRES_PER_DEGREE
    return np.column_stack(to_lonlat(grid.crs).transform(*centres.T))


def blocks(
    lonlat: Sequence[tuple[float, float]] | NDArray[np.float64],
    areas: Sequence[str],
    block_km: float,
) -> list[tuple[str, int, int]]:
    """Return the block of ground that contains the centre of each scene, or tile.

    Blocks are ``block_km`` wide near the middle of each area. Neighbouring scenes are then rarely
    in different splits, where held-out scenes would resemble those for training. Centres are in
    degrees; NaN gives a block of its area without position.
    """
    degrees, km_per_degree = np.asarray(lonlat, np.float64).reshape(-1, 2), METRES_PER_DEGREE / 1000
    result: list[tuple[str, int, int]] = [("", 0, 0)] * len(areas)
    for area in sorted(set(areas)):
        rows = [i for i, name in enumerate(areas) if name == area]
        centres = np.nan_to_num(degrees[rows])
        known = np.isfinite(degrees[rows, 1])
        middle = np.radians(centres[known, 1].mean() if known.any() else 0.0)
        scale = np.array([km_per_degree * np.cos(middle), km_per_degree]) / block_km
        cells = np.floor(centres * scale).astype(int)
        for i, (x, y) in zip(rows, cells, strict=True):
            result[i] = (area, int(x), int(y))
    return result


def _draw_val(
    given: list[int], ids: Sequence[str], labelled: Sequence[bool], options: BuildOptions
) -> str:
    """Assign scenes for training to validation, where only others are given; return a note."""
    training = [i for i, split in enumerate(given) if split == TRAIN]
    if VAL in given or TEST not in given or not options.val:
        ignored = VAL in given and options.val != type(options).val
        return "`val` is not used: a folder is named val" if ignored else ""
    names, known = zip(*((ids[i], labelled[i]) for i in training), strict=True)
    drawn = assign_splits(names, known, val=options.val, test=0.0, seed=options.split_seed)
    for i, split in zip(training, drawn.tolist(), strict=True):
        given[i] = split
    return (
        f"no folder is named val: {given.count(VAL)} of {len(training)} images of the others than "
        f"test are for validation (`val` {options.val:g})"
    )


def _assigned(
    groups: Sequence[Hashable], labelled: Sequence[bool], options: BuildOptions
) -> list[int]:
    names = [str(group) for group in groups]
    splits = assign_splits(
        names, labelled, val=options.val, test=options.test, seed=options.split_seed
    )
    return [*map(int, splits)]


def assign_splits(
    groups: Sequence[Hashable], labelled: Sequence[bool], *, val: float, test: float, seed: int
) -> NDArray[np.uint8]:
    """Return the split of every scene or tile, uint8: 0 train, 1 val, 2 test.

    Added scenes change the split of few others:

    1. Labelled and unlabelled scenes are divided separately, since only labelled ones are used for
       training.
    2. Groups, each of which stays in one split, are ranked by a hash of their name and the seed.
    3. The first ones are for validation, the next ones for testing, until each split has its share
       of the scenes. A split with a share above 0 gets at least one group while one remains for
       training.
    """
    kept = 0 if val + test >= 1 else 1  # groups that remain for training
    rest = TRAIN if kept else TEST if test > 0 else VAL
    splits = np.full(len(groups), rest, np.uint8)
    for kind in (True, False):
        members = [i for i, has in enumerate(labelled) if bool(has) is kind]
        by_group: dict[Hashable, list[int]] = {}
        for i in members:
            by_group.setdefault(groups[i], []).append(i)
        ranked = sorted(
            by_group, key=lambda group: xxhash.xxh3_128_hexdigest(f"{seed}:{group!r}".encode())
        )
        position = 0
        for split, share in ((VAL, val), (TEST, test)):
            wanted, taken = share * len(members), 0
            while share > 0 and position < len(ranked) - kept:
                size = len(by_group[ranked[position]])
                # Stop where another group would overshoot by more than is missing now, or where the
                # last group must be kept for the test split.
                last = split == VAL and test > 0 and position == len(ranked) - 1 - kept
                if taken and (taken + size / 2 > wanted or last):
                    break
                splits[by_group[ranked[position]]] = split
                taken += size
                position += 1
    return splits


def apart(windows: Windows, splits: tuple[int, ...]) -> tuple[int, ...]:
    """Return the splits of a scene's tiles, unused where a tile overlaps one of another split.

    Training tiles yield to those for validation and testing, validation tiles to those for testing.
    """
    if len(set(splits)) == 1:
        return splits
    (rows, cols), side = np.array(windows.corners).T, windows.side
    boxes = np.asarray(shapely.box(cols, rows, cols + side, rows + side), object)
    tiles, others = shapely.STRtree(boxes).query(boxes, predicate="overlaps")
    kept = np.array(splits)
    loses = (kept[tiles] < kept[others]) & (kept[others] != UNUSED)
    kept[tiles[loses]] = UNUSED
    return tuple(kept.tolist())


def _without_shared_ground(
    scenes: Sequence[Planned],
    splits: Splits,
    overlaps: Sequence[tuple[int, int]],
    *,
    removed: bool,
) -> tuple[Splits, str]:
    """Return the splits, and a note on tiles that show ground of another split in another image.

    The weaker of them become unused if they are ``removed``. Outlines are compared in longitude and
    latitude; images that are not georeferenced are left out. Unused tiles do not count.
    """
    used = [set(of_scene) - {UNUSED} for of_scene in splits]
    involved = {i for i, k in overlaps if used[i] and used[k] and len(used[i] | used[k]) > 1}
    if not involved:
        return splits, ""
    outlines = [_outlines(scenes[i], scenes[i].windows) for i in sorted(involved)]
    counts = [len(splits[i]) for i in sorted(involved)]
    owners = np.repeat(sorted(involved), counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    of_tile = np.concatenate([splits[i] for i in sorted(involved)])
    tiles, others = _intersecting(np.concatenate(outlines))
    counted = (of_tile[tiles] != UNUSED) & (of_tile[others] != UNUSED)
    counted &= (owners[tiles] != owners[others]) & (of_tile[tiles] != of_tile[others])
    tiles, others = tiles[counted], others[counted]
    if not len(tiles):
        return splits, ""
    if not removed:
        example = " and ".join(
            f"{scenes[owners[i]].id} ({SPLIT_NAMES[of_tile[i]]})" for i in (tiles[0], others[0])
        )
        return splits, (
            f"{len(np.unique(owners[tiles])):,} images overlap images of another split "
            f"({len(np.unique(tiles)):,} tiles, such as {example}), so scores of held-out data may "
            "be too high. Use `split_by` block, and `split_overlap` unused to leave such tiles out"
        )
    weaker = np.unique(tiles[of_tile[tiles] < of_tile[others]])
    kept = [np.array(of_scene) for of_scene in splits]
    for owner, number in zip(owners[weaker], numbers[weaker], strict=True):
        kept[owner][number] = UNUSED
    return [tuple(of_scene.tolist()) for of_scene in kept], (
        "tiles that are unused since an overlapping image shows their ground in another split: "
        f"{len(weaker):,}"
    )


def _outlines(scene: Planned, windows: Windows) -> NDArray[np.object_]:
    """Return the outlines of tiles in longitude and latitude."""
    assert scene.target is not None  # the callers leave others out
    outlines = reproject(tile_outlines(scene.target, windows), scene.target.crs, LONLAT)
    lonlat = shapely.get_coordinates(outlines).reshape(len(outlines), -1, 2)
    lon = lonlat[..., 0]
    lon[(np.ptp(lon, axis=1, keepdims=True) > 180) & (lon < 0)] += 360  # across 180 degrees
    result: NDArray[np.object_] = shapely.set_coordinates(outlines.copy(), lonlat.reshape(-1, 2))
    return result


def _intersecting(outlines: NDArray[np.object_]) -> NDArray[np.intp]:
    """Return the indices of outlines that intersect, each pair both ways, intp (2, pair)."""
    usable = np.flatnonzero(np.isfinite(shapely.bounds(outlines)).all(axis=1))
    pairs = shapely.STRtree(outlines[usable]).query(outlines[usable], predicate="intersects")
    return np.asarray(usable[pairs])


def _equal_images(scenes: Sequence[Planned], splits: Splits, firsts: Sequence[int]) -> str:
    """Return a note about images with equal bytes in different splits, which the user has given."""
    apart_from = [i for i, first in enumerate(firsts) if set(splits[i]) != set(splits[first])]
    if not apart_from:
        return ""
    i = apart_from[0]
    return (
        f"images with the same bytes as one of another split: {len(apart_from):,}, such as "
        f"{scenes[i].id} and {scenes[firsts[i]].id}: remove one of each"
    )


def _all_training(splits: Splits, options: BuildOptions) -> str:
    """Return a note if all tiles are for training and other splits were asked for."""
    others = {split for of_scene in splits for split in of_scene} - {TRAIN}
    if options.split_file is not None or options.val + options.test in (0, 1) or others:
        return ""
    if options.split_by == "folder":
        return "all images are for training: no folder is named val or test"
    if options.split_by == "block":
        return "all imagery is in one block, for training: use a smaller `block_km`"
    return (
        "the only scene is for training. Use `split_by` block to divide its tiles, or a "
        "`split_file` with areas"
    )
