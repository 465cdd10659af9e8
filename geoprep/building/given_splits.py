"""Splits that the user gives: areas or a list of scenes in a file, or names of folders."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from io import StringIO
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.building.scene import TEST, TRAIN, UNUSED, VAL, Planned
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid, Windows
from geoprep.store.schema import SPLITS

COLUMN: Final = "split"
_AREA: Final = 2
"""Dimensions of a polygon."""
_FOLDERS: Final = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation"), VAL),
    **dict.fromkeys(("test", "testing"), TEST),
}
"""Names of folders, in lower case, and the split of the images in them."""


def given_splits(path: str, scenes: Sequence[Planned]) -> list[tuple[int, ...]]:
    """Return the split of every tile of every scene by a file: a list of scenes, or areas."""
    rows = _read_scene_list(path)
    if rows is None:
        return _splits_by_area(path, scenes)
    splits = _listed_splits(path, rows, scenes)
    return [(split,) * len(scene.windows) for scene, split in zip(scenes, splits, strict=True)]


def _splits_by_area(path: str, scenes: Sequence[Planned]) -> list[tuple[int, ...]]:
    """Return the split of the area that contains the centre of each tile.

    A tile that reaches further than a pixel into an area of another split is unused. Tiles in no
    area, and scenes that are not georeferenced, get the rest.
    """
    areas, crs, rest = _read_areas(path)
    result = []
    for scene in scenes:
        splits = np.full(len(scene.windows), rest)
        if scene.target is not None and scene.target.georeferenced:
            near = scene.target.areas_near(areas, crs)
            shapely.prepare(near)
            ground = tile_outlines(scene.target, scene.windows)
            centres = shapely.centroid(ground)
            for split, area in enumerate(near):
                splits[shapely.covers(area, centres)] = split
            for split, area in enumerate(near):
                splits[shapely.intersects(area, ground) & (splits != split)] = UNUSED
        result.append(tuple(splits.tolist()))
    return result


def _read_areas(path: str) -> tuple[NDArray[np.object_], str, int]:
    """Return areas by split, of polygons with an attribute ``split``; their CRS; the rest's split.

    They are in the CRS of the file.
    """
    from geoprep.labels.vector_files import VectorFile  # imports pyogrio

    try:
        file = VectorFile.open(Path(path))
        layers = list(file.layers.values())[:1]
        features = file.read(layers, [COLUMN]) if layers else None
    except LabelError as error:
        raise UsageError("split_file", f"{error}") from error
    if features is not None and COLUMN not in features.fields:
        raise UsageError("split_file", f"{path}: has no column {COLUMN!r} of train, val or test")
    if features is None or not (shapely.get_dimensions(features.shapes) == _AREA).any():
        raise UsageError(
            "split_file",
            f"{path}: holds no polygons. Give polygons with a column {COLUMN!r}, or a "
            "CSV file with columns scene and split",
        )
    names = [str(attributes[COLUMN]) for attributes in features.attributes]
    splits = np.array(_split_numbers(names, path))[features.feature]
    areas = shapely.make_valid(features.shapes)
    unions = np.array([shapely.union_all(areas[splits == s]) for s in range(len(SPLITS))])
    return unions, features.crs, _rest(splits.tolist())


def _read_scene_list(path: str) -> list[dict[str, str]] | None:
    """Return the rows of a CSV file with a column ``scene``; None for another file."""
    if not Path(path).is_file():
        raise UsageError("split_file", f"{path}: no such file; check the path")
    if not path.lower().endswith(".csv"):
        return None
    text = Path(path).read_bytes().decode("utf-8-sig", errors="replace")
    header = text.partition("\n")[0]
    try:
        rows = list(csv.reader(StringIO(text), delimiter=max(",;\t", key=header.count)))
    except csv.Error as error:
        raise UsageError("split_file", f"{path}: cannot be read as CSV ({error})") from error
    columns = [name.strip() for name in rows[0]] if rows else []
    if "scene" not in columns:
        return None
    return [
        dict(zip_longest(columns, map(str.strip, row), fillvalue="")) for row in rows[1:] if row
    ]


def _listed_splits(
    path: str, rows: Sequence[Mapping[str, str]], scenes: Sequence[Planned]
) -> list[int]:
    """Return the split of every scene by the rows of a list.

    A row names a scene by its id, or by the name of its image with or without suffix, or several
    by a pattern with ``*``, ``?`` or ``[...]``. A row with the exact name counts before patterns;
    of several patterns the first that matches.
    """
    splits = _split_numbers([cells.get(COLUMN, "") for cells in rows], path)
    images = [PurePosixPath(scene.image) for scene in scenes]
    names = [
        (scene.id, image.name, image.stem) for scene, image in zip(scenes, images, strict=True)
    ]
    known = {name for of_scene in names for name in of_scene}
    exact: dict[str, int] = {}
    patterns: list[tuple[str, int]] = []
    for name, split in zip((cells["scene"] for cells in rows), splits, strict=True):
        if set(name) & set("*?[") and name not in known:
            patterns.append((name, split))
        elif exact.setdefault(name, split) != split:
            raise UsageError("split_file", f"{path}: lists {name} twice, with different values")
    matched, scene_splits = set[str](), list[int]()
    for of_scene in names:
        hits = [(name, exact[name]) for name in of_scene if name in exact] or [
            hit for hit in patterns if any(fnmatchcase(name, hit[0]) for name in of_scene)
        ]
        scene_splits.append(hits[0][1] if hits else _rest(splits))
        matched.update(name for name, _ in hits)
    if missing := [name for name in (*exact, *(p for p, _ in patterns)) if name not in matched]:
        raise UsageError(
            "split_file",
            f"{path}: no scene matches {len(missing)} of its rows, the first "
            f"{missing[0]!r}. Correct or delete them; scenes have ids such as {scenes[0].id}",
        )
    return scene_splits


def folder_splits(scenes: Sequence[Planned]) -> list[int]:
    """Return the split of every scene by the folder nearest to its image: train, val or test.

    Folders may be called training, valid, validation and testing too. Scenes in none of them are
    unused if some are in train, else for training.
    """
    named = [
        next((_FOLDERS[p.name] for p in folder.parents if p.name in _FOLDERS), None)
        for folder in (PurePosixPath(scene.image.lower()) for scene in scenes)
    ]
    given = [split for split in named if split is not None]
    if not given:
        raise UsageError(
            "split_by",
            f"folder: no image is in a folder named train, val or test. The first is "
            f"{scenes[0].image}",
        )
    rest = _rest(given)
    return [rest if split is None else split for split in named]


def _rest(given: Sequence[int]) -> int:
    """Return the split of scenes that are not given: unused if training data are given."""
    return UNUSED if TRAIN in given else TRAIN


def _split_numbers(names: Sequence[str], path: str) -> list[int]:
    cleaned = [name.strip().lower() for name in names]
    unknown = sorted(set(cleaned) - set(SPLITS))
    if unknown or not cleaned:
        raise UsageError(
            "split_file",
            f"{path}: column {COLUMN!r} contains {', '.join(unknown) or 'nothing'}. "
            f"Expected {', '.join(SPLITS)}",
        )
    return [SPLITS.index(name) for name in cleaned]


def tile_outlines(grid: Grid, windows: Windows) -> NDArray[np.object_]:
    """Return the outlines of tiles without padding, polygons in the CRS of the grid.

    They are smaller by a pixel on every side, since neighbours may share a row of pixels.
    """
    first = np.array(windows.corners, np.float64)
    last = np.minimum(first + windows.side, grid.shape)
    insets = np.minimum(1, (last - first) / 2)
    (top, left), (bottom, right) = (first + insets).T, (last - insets).T
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    rings = grid.to_xy(np.moveaxis(np.array(corners), 2, 0))  # (tile, corner, x and y)
    return np.asarray(shapely.polygons(rings), object)
