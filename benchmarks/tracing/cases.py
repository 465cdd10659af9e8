"""Chips whose roads are known, as perfect speed masks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import rasterio
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoprep.grid import Grid
from geoprep.labels import burn, read_roads, speed_polygons
from geoprep.roads.centrelines import RoadRaster
from geoprep.roads.centrelines.pixels import ArrayPixels
from geoprep.roads.network import RoadNetwork
from geoprep.roads.reading import read_labels
from geoprep.speed import NO_DATA

_SIDE: Final = 1300
_DEGREES: Final = 2.7e-6
_VEGAS: Final = (-115.1706276, 36.2406177)
"""Upper left corner of img0: all chips of Vegas lie on one lattice."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One labelled chip.

    Attributes
    ----------
    name
        As in ``img0``.
    speed
        uint8 (y, x): mph burned from the labels, 0 no road.
    grid
        Where it lies.
    truth
        The labels' network.
    """

    name: str
    speed: NDArray[np.uint8]
    grid: Grid
    truth: RoadNetwork

    @property
    def mask(self) -> RoadRaster:
        """The burned speeds as a raster to trace."""
        return RoadRaster(
            self.name,
            ArrayPixels(self.speed[None]),
            self.grid.gsd_m(),
            self.grid,
            "speed",
            (1,),
            speed=1,
            nodata=NO_DATA,
        )

    @property
    def area_km2(self) -> float:
        """Ground that the chip covers."""
        across, down = self.grid.gsd_m()
        return across * down * self.speed.size / 1e6


def chips(area: Path) -> Iterator[Chip]:
    """Yield the labelled chips of a folder in SpaceNet's layout, empty ones left out."""
    for label in sorted((area / "geojson_roads_speed").glob("*.geojson")):
        image = area / "PS-RGB" / f"{label.stem.replace('geojson_roads_speed', 'PS-RGB')}.tif"
        grid = _grid(image) if image.exists() else _on_lattice(label)
        truth = read_labels(label)
        if len(truth.lines):
            name = re.sub(r".*_(\w+\d+)", r"\1", label.stem)
            roads = read_roads(label.read_bytes(), name=str(label))
            polygons = speed_polygons(roads, grid)
            mask = burn(polygons, grid.transform, (grid.height, grid.width))
            yield Chip(name, mask, grid, truth)


def _grid(image: Path) -> Grid:
    with rasterio.open(image) as dataset:
        return Grid(dataset.height, dataset.width, dataset.transform, dataset.crs.to_string())


def _on_lattice(label: Path) -> Grid:
    """Return the grid of a chip of Vegas whose image is not at hand: the cell its roads lie in."""
    features = json.loads(label.read_text())["features"]
    lines = [shapely.geometry.shape(feature["geometry"]) for feature in features]
    west, south, east, north = shapely.total_bounds(lines).tolist()
    side = _SIDE * _DEGREES
    left = _VEGAS[0] + np.floor(((west + east) / 2 - _VEGAS[0]) / side) * side
    top = _VEGAS[1] - np.floor((_VEGAS[1] - (south + north) / 2) / side) * side
    transform = Affine(_DEGREES, 0, left, 0, -_DEGREES, top)
    return Grid(_SIDE, _SIDE, transform, "EPSG:4326")
