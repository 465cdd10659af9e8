"""Read the roads of a scene: from its own label file, or from one vector file for all scenes.

A file for many scenes is read once per process and indexed, so that each queries its own roads.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray
from pyproj.exceptions import ProjError

from geoprep.crs import (
    LONLAT,
    Bounds,
    beside,
    boxes_around,
    reproject,
    transformer,
    turn_of,
)
from geoprep.errors import LabelError, SourceError
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.vector_labels import WIDEN, LabelShapes, LabelTable, read_label_table
from geoprep.labels.vector_names import vector_parts
from geoprep.storage.addresses import is_local
from geoprep.storage.versions import read_bytes
from geoprep.texts import counted

_INSET: Final = 0.001
"""Share of a scene's sides: a line that ends at its edge is the neighbour's (1 px in 1000)."""


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A road table with a spatial index of its lines; threads may query it at the same time."""

    table: LabelTable
    tree: shapely.STRtree

    @classmethod
    def of(cls, table: LabelTable) -> LabelFile:
        """Return the indexed table of a file."""
        return cls(table, shapely.STRtree(table.lines))

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return self.table.name

    def roads_within(self, bounds: Bounds, bounds_crs: str, margin_m: float) -> LabelShapes:
        """Return the roads that intersect some bounds and a margin in metres around them."""
        return self.table.roads_at(self._near(bounds, bounds_crs, margin_m))

    def covers(self, scene: Bounds, crs: str) -> bool:
        """Return whether this file for many scenes is a label of one of them.

        It is if a line crosses the scene, or the scene's centre lies within the extent of all
        lines: a scene there without roads is background. So is any scene of a file without
        features.
        """
        if not self.table.notes or self._touches(scene, crs):
            return True
        if not len(self.table.lines):
            return False
        left, bottom, right, top = shapely.total_bounds(self.table.lines).tolist()
        middle = (scene[0] + scene[2]) / 2, (scene[1] + scene[3]) / 2
        x, y = transformer(crs, self.table.crs).transform(*middle)
        x = beside(np.array([x]), self.table.crs, (left + right) / 2)[0]
        return bool(left <= x <= right and bottom <= y <= top)

    def require_touch(self, scene: Bounds, crs: str) -> None:
        """Refuse a scene's own label if it has features and none of them intersects the scene.

        Features that are not roads for cars count too: they show that the file is of this scene.
        """
        count = len(self.table.notes)
        if not count or self._touches(scene, crs):
            return
        if not len(self.table.lines):
            raise LabelError(f"{self.name}: {self.table.unusable(crs)}")
        raise LabelError(
            f"{self.name}: none of its {counted(count, 'feature')} intersects the scene; its lines "
            f"are at {self.place()}, the scene is at {_lonlat(scene, crs)}"
        )

    def place(self) -> str:
        """Return the ranges of longitude and latitude of all lines, as text."""
        if not len(self.table.lines):
            return "no location (there are no lines)"
        return _lonlat(tuple(shapely.total_bounds(self.table.lines).tolist()), self.table.crs)

    def _near(self, bounds: Bounds, crs: str, margin_m: float) -> NDArray[np.intp]:
        try:
            boxes = boxes_around(bounds, crs, self.table.crs, margin_m)
        except ProjError:  # the bounds are not on Earth
            boxes = []
        turn = turn_of(self.table.crs)
        indexes = [
            self.tree.query(shapely.box(left + x, bottom, right + x, top), predicate="intersects")
            for left, bottom, right, top in boxes
            for x in {0, -turn, turn}
        ]
        return np.unique(np.concatenate([np.empty(0, dtype=np.intp), *indexes]))

    def _touches(self, scene: Bounds, crs: str) -> bool:
        return _cross(self.table.lines[self._near(scene, crs, 0.0)], self.table.crs, scene, crs)


def read_shapes(
    label: str | os.PathLike[str],
    *,
    rule: SpeedRule | None = None,
    bounds: Bounds | None = None,
    bounds_crs: str | None = None,
    margin_m: float = 2.0,
    scene: Bounds | None = None,
) -> LabelShapes:
    """Return the roads of one scene, with a speed each.

    ``label`` is the address of a file of any format. ``bounds`` (left, bottom, right, top in
    ``bounds_crs``) are given for a file of many scenes, with a margin of as many metres as roads
    are widened by. ``scene``, the bounds of the whole scene, is given for its own label: one with
    features, none of which intersects the scene, is refused.
    """
    rule = rule or SpeedRule()
    if bounds_crs is None:
        return _read_table(os.fspath(label), rule).roads()
    if bounds is not None and is_local(os.fspath(label)):
        file = open_label_file(Path(label), rule)
    else:
        file = LabelFile.of(_read_table(os.fspath(label), rule))
    if scene is not None:
        file.require_touch(scene, bounds_crs)
    if bounds is None:
        return file.table.roads()
    return file.roads_within(bounds, bounds_crs, margin_m)


def refuse_points(labels: Iterable[str], rule: SpeedRule) -> None:
    """Raise LabelError if some labels have features, of which all are points without a radius."""
    refused = ""
    for label in labels:
        try:
            table = _read_table(label, rule)
            if len(table.lines):
                return
            why = f"{label}: {table.unusable()}"
        except LabelError as error:  # others fail their scene
            why = str(error)
        refused = refused or (why if WIDEN in why else "")
    if refused:
        raise LabelError(refused)


def _read_table(address: str, rule: SpeedRule) -> LabelTable:
    if is_local(address):
        return read_label_table(Path(address), rule)
    try:
        return read_label_table(read_bytes(address), rule, address)
    except SourceError as error:
        raise LabelError(
            f"{error} Check the path, or remove the label to build the scene as unlabelled."
        ) from error


def _cross(lines: NDArray[np.object_], lines_crs: str, scene: Bounds, crs: str) -> bool:
    """Return whether any line crosses a scene, without a thousandth of it along its edges."""
    left, bottom, right, top = scene
    aside, up = (right - left) * _INSET, (top - bottom) * _INSET
    inner = shapely.box(left + aside, bottom + up, right - aside, top - up)
    moved = reproject(lines, lines_crs, crs)
    xy = shapely.get_coordinates(moved)
    xy[:, 0] = beside(xy[:, 0], crs, (left + right) / 2)
    moved = shapely.set_coordinates(moved.copy(), xy)
    somewhere = np.isfinite(shapely.bounds(moved)).all(axis=1)
    return bool(shapely.intersects(moved[somewhere], inner).any())


def _lonlat(bounds: Bounds, crs: str) -> str:
    """Return bounds as text, in degrees if they are on Earth."""
    try:
        west, south, east, north = transformer(crs, LONLAT).transform_bounds(*bounds)
    except ProjError:
        west = math.inf
    if math.isinf(west):
        return f"{', '.join(f'{value:g}' for value in bounds)} in {crs[:60]}, not on Earth"
    return f"longitude {west:.4f} to {east:.4f}, latitude {south:.4f} to {north:.4f}"


def open_label_file(path: Path, rule: SpeedRule) -> LabelFile:
    """Return a road file; it is read once per process unless it changes."""
    with _lock:
        return _opened(path, _fingerprint(path), rule)


@lru_cache(maxsize=4)
def _opened(path: Path, _state: _Fingerprint, rule: SpeedRule) -> LabelFile:
    return LabelFile.of(read_label_table(path, rule))


_Fingerprint = tuple[tuple[int, int], ...]
_lock = threading.Lock()


def _fingerprint(path: Path) -> _Fingerprint:
    """Return (mtime, size) of all files of a vector file."""
    try:
        stats = [file.stat() for file in vector_parts(path)]
    except OSError as error:
        raise LabelError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
