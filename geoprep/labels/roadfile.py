"""The roads of one label file with an index: which of them a scene has, and whether it has any.

A file that serves many scenes is read once per process, so that each scene only asks for the roads
within its bounds.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray
from pyproj.exceptions import ProjError

from geoprep.crs import LONLAT, Bounds, boxes_around, is_geographic, reproject, transformer
from geoprep.errors import LabelError
from geoprep.labels.rule import SpeedRule
from geoprep.labels.table import Roads, RoadTable
from geoprep.labels.vectors import SHAPEFILE_PARTS, read_road_table

_KEPT_FILES: Final = 4
_INSET: Final = 0.001
"""Share of a scene's sides: a line that ends at its edge is the neighbour's (1 pixel in 1000)."""


@dataclass(frozen=True, slots=True)
class RoadFile:
    """A road table with an index of its lines (safe to query from many threads)."""

    table: RoadTable
    tree: shapely.STRtree
    name: str

    @classmethod
    def of(cls, table: RoadTable, name: str) -> RoadFile:
        """Index a table; ``name`` is what messages call the file."""
        return cls(table, shapely.STRtree(table.lines), name)

    def roads_within(self, bounds: Bounds, bounds_crs: str, margin_m: float) -> Roads:
        """Return the roads that touch some bounds, widened by a margin.

        Parameters
        ----------
        bounds, bounds_crs
            Left, bottom, right, top, in any CRS.
        margin_m
            Metres on the ground: as much as roads are widened by whose width is not told.
        """
        margin_m = max(margin_m, self.table.widest)
        return self.table.roads_at(self._near(bounds, bounds_crs, margin_m))

    def covers(self, scene: Bounds, crs: str) -> bool:
        """Return whether this file, made for many scenes, says something about one of them.

        It does where a line runs in the scene or the scene's centre lies within the extent of all
        lines: then a scene without a road is one. A file without any feature says "no roads".
        """
        if not self.table.notes or self._touches(scene, crs):
            return True
        if not len(self.table.lines):
            return False
        left, bottom, right, top = shapely.total_bounds(self.table.lines).tolist()
        middle = (scene[0] + scene[2]) / 2, (scene[1] + scene[3]) / 2
        x, y = transformer(crs, self.table.crs).transform(*middle)
        return bool(left <= x <= right and bottom <= y <= top)

    def require_touch(self, scene: Bounds, crs: str) -> None:
        """Refuse a scene's own label that has features, none of which lies in the scene.

        Lines where no car drives count: who drew them looked at the scene.

        Parameters
        ----------
        scene, crs
            Bounds of the whole scene, left, bottom, right, top.

        Raises
        ------
        LabelError
            The message gives both places, and the likely cause.
        """
        count = len(self.table.notes)
        if not count or self._touches(scene, crs):
            return
        if not len(self.table.lines):
            raise LabelError(f"{self.name}: none of its {count} features is a road line or area")
        raise LabelError(
            f"{self.name}: none of its {count} features lies in the scene; its lines are at "
            f"{self.place()}, the scene is at {_lonlat(scene, crs)}{self._swapped(scene, crs)}"
        )

    def place(self) -> str:
        """Return where the lines are, in words: the ranges of longitude and latitude."""
        if not len(self.table.lines):
            return "no place at all"
        return _lonlat(tuple(shapely.total_bounds(self.table.lines).tolist()), self.table.crs)

    def _near(self, bounds: Bounds, crs: str, margin_m: float) -> NDArray[np.intp]:
        try:
            boxes = boxes_around(bounds, crs, self.table.crs, margin_m)
        except ProjError:  # bounds that are no place on Earth have no roads
            boxes = []
        found = [self.tree.query(shapely.box(*box), predicate="intersects") for box in boxes]
        return np.unique(np.concatenate([np.empty(0, dtype=np.intp), *found]))

    def _touches(self, scene: Bounds, crs: str) -> bool:
        return _cross(self.table.lines[self._near(scene, crs, 0.0)], self.table.crs, scene, crs)

    def _swapped(self, scene: Bounds, crs: str) -> str:
        """Return the hint that latitude stands before longitude, if that is what is wrong."""
        if not is_geographic(self.table.crs):
            return ""
        turned = shapely.transform(self.table.lines, lambda xy: xy[:, ::-1])
        if not _cross(turned, self.table.crs, scene, crs):
            return ""
        return ": latitude stands before longitude; turn them with ogr2ogr -swapxy fixed.geojson"


def _cross(lines: NDArray[np.object_], lines_crs: str, scene: Bounds, crs: str) -> bool:
    """Return whether any line runs in a scene, a thousandth of it at its edges left out."""
    left, bottom, right, top = scene
    aside, up = (right - left) * _INSET, (top - bottom) * _INSET
    inner = shapely.box(left + aside, bottom + up, right - aside, top - up)
    moved = reproject(lines, lines_crs, crs)
    somewhere = np.isfinite(shapely.bounds(moved)).all(axis=1)
    return bool(shapely.intersects(moved[somewhere], inner).any())


def _lonlat(bounds: Bounds, crs: str) -> str:
    """Return a place in words; what is no place on Earth as it is."""
    try:
        west, south, east, north = transformer(crs, LONLAT).transform_bounds(*bounds)
    except ProjError:
        west = math.inf
    if math.isinf(west):
        return f"{', '.join(f'{value:g}' for value in bounds)} in {crs[:60]}, no place on Earth"
    return f"longitude {west:.4f} to {east:.4f}, latitude {south:.4f} to {north:.4f}"


def open_road_file(path: Path, rule: SpeedRule) -> RoadFile:
    """Return a road file, read at most once per process as long as it does not change.

    Raises
    ------
    LabelError
        If the file cannot be read, has no layer of lines or areas, no CRS, or lacks a field.
    """
    key = (path.resolve(), _fingerprint(path), rule)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
        _kept[key] = RoadFile.of(read_road_table(path, rule), str(path))
        while len(_kept) > _KEPT_FILES:
            _kept.popitem(last=False)
        return _kept[key]


_Key = tuple[Path, tuple[tuple[int, int], ...], SpeedRule]
_lock = threading.Lock()
_kept: OrderedDict[_Key, RoadFile] = OrderedDict()


def _fingerprint(path: Path) -> tuple[tuple[int, int], ...]:
    """Return (mtime, size) of a file and of the files beside it that a Shapefile consists of."""
    files = [path, *(path.with_suffix(suffix) for suffix in SHAPEFILE_PARTS)]
    try:
        path.stat()
    except OSError as error:
        raise LabelError(f"{path}: cannot be read ({error.strerror}); check --labels") from error
    stats = [file.stat() for file in files if file.exists()]
    return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
