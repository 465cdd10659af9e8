"""SpaceNet chips with known roads: as perfect masks, and as predictions with simulated errors.

A simulation of the errors of a segmentation model: missed roads, false roads and ragged edges. All
errors change the log odds of a road:

- across the edge of a road the log odds rise by `SLOPE` per metre, from 6 m outside to 2 m inside;
- ragged edges: smooth noise of standard deviation 1.2 correlated over 1.5 m, and of 0.6 over 15 m;
- gaps, as from trees and shadows: ellipses of 3 to 12 m radius on roads, `GAPS_PER_KM`, reduce the
  log odds by 2 to 8, so that some gaps keep a low probability and some none;
- blobs, as from car parks and roofs: ellipses of 2 to 9 m, `BLOBS_PER_KM2`, add 5 to 9;
- speeds: the odds of the correct bin are 4 to 1 against its neighbours; in a tenth of the area, in
  patches of about 40 m, a neighbouring bin is more probable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, gaussian_filter

from geoprep.grid import Grid
from geoprep.imagery.headers import describe
from geoprep.labels.burning import LabelOutlines, burn
from geoprep.labels.label_shapes import read_shapes
from geoprep.roads.centrelines.bands import ArrayBands
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.formats.files import read_labels
from geoprep.roads.network import RoadGraph
from geoprep.speed import BIN_COUNT, BIN_TABLE, NODATA

_SIDE: Final = 1300
_DEGREES: Final = 2.7e-6
_VEGAS: Final = (-115.1706276, 36.2406177)
"""Upper left corner of img0: all chips of Vegas lie on one grid."""


SLOPE: Final = 2.0
GAPS_PER_KM: Final = 6.0
BLOBS_PER_KM2: Final = 150.0
_BIN_MPH: Final = (10.0, 18.3, 25.6, 35.0, 45.0, 55.0, 65.0)
_ROAD_WIDTH_M: Final = 4.0

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Chip:
    """One labelled chip.

    Attributes
    ----------
    name
        Name such as ``img0``.
    speed
        uint8 (y, x): mph burned from the labels; 0 is background.
    grid
        Grid of the chip.
    truth
        Road network of the label.
    """

    name: str
    speed: NDArray[np.uint8]
    grid: Grid
    truth: RoadGraph

    @property
    def mask(self) -> RoadRaster:
        """The burned speeds as a raster to trace."""
        bands, gsd = ArrayBands(self.speed[None]), self.grid.gsd_m()
        return RoadRaster(
            self.name, bands, gsd, self.grid, "speed", (1,), speed_band=1, nodata=NODATA
        )

    @property
    def area_km2(self) -> float:
        """Area of the chip in square kilometres."""
        across, down = self.grid.gsd_m()
        return across * down * self.speed.size / 1e6


def chips(area: Path) -> Iterator[Chip]:
    """Yield the labelled chips of a folder in SpaceNet's layout, except those without roads."""
    for label in sorted((area / "geojson_roads_speed").glob("*.geojson")):
        image = area / "PS-RGB" / f"{label.stem.replace('geojson_roads_speed', 'PS-RGB')}.tif"
        grid = describe(str(image)).grid if image.exists() else _grid_of_label(label)
        truth, _ = read_labels(label)
        if len(truth.lines):
            name = re.sub(r".*_(\w+\d+)", r"\1", label.stem)
            roads = read_shapes(label)
            mask = burn(LabelOutlines.of(roads, grid).within(grid), grid)
            yield Chip(name, mask, grid, truth)


def _grid_of_label(label: Path) -> Grid:
    """Return the grid of a Vegas chip without an image, from the bounds of its roads."""
    features = json.loads(label.read_text())["features"]
    lines = [shapely.geometry.shape(feature["geometry"]) for feature in features]
    west, south, east, north = shapely.total_bounds(lines).tolist()
    side = _SIDE * _DEGREES
    left = _VEGAS[0] + np.floor(((west + east) / 2 - _VEGAS[0]) / side) * side
    top = _VEGAS[1] - np.floor((_VEGAS[1] - (south + north) / 2) / side) * side
    transform = Affine(_DEGREES, 0, left, 0, -_DEGREES, top)
    return Grid(_SIDE, _SIDE, transform, "EPSG:4326")


def simulate_prediction(chip: Chip, seed: int) -> RoadRaster:
    """Return a simulated prediction of a chip with errors: speed bins and any road."""
    rng = np.random.default_rng(seed)
    gsd = chip.grid.gsd_m()
    odds = _edges(chip.speed > 0, gsd)
    odds += _smooth(rng, odds.shape, gsd, 1.5, 1.2) + _smooth(rng, odds.shape, gsd, 15.0, 0.6)
    road = np.argwhere(chip.speed > 0)
    kilometres = len(road) * gsd[0] * gsd[1] / _ROAD_WIDTH_M / 1000
    for row, col in road[rng.integers(0, len(road), rng.poisson(GAPS_PER_KM * kilometres))]:
        _change_ellipse(odds, (row, col), gsd, rng, radius=(3.0, 12.0), change=(-8.0, -2.0))
    for _ in range(rng.poisson(BLOBS_PER_KM2 * chip.area_km2)):
        place = tuple(rng.integers(0, odds.shape))
        _change_ellipse(odds, place, gsd, rng, radius=(2.0, 9.0), change=(5.0, 9.0))
    road_probability = 1 / (1 + np.exp(-odds))
    bands = np.concatenate([_bins(chip, rng, gsd) * road_probability, road_probability[None]])
    written = ArrayBands(np.clip(bands * 255 + 0.5, 0, 254).astype(np.uint8))
    road_band, classes = (BIN_COUNT + 1,), tuple(enumerate(_BIN_MPH, 1))
    return RoadRaster(chip.name, written, gsd, chip.grid, "probability", road_band, classes)


def _edges(road: NDArray[np.bool_], gsd: tuple[float, float]) -> Floats:
    """Return log odds from the distance to the edge of the road."""
    sampling = gsd[::-1]
    inside = distance_transform_edt(road, sampling)
    outside = distance_transform_edt(~road, sampling)
    odds: Floats = (SLOPE * np.clip(inside - outside, -6.0, 2.0)).astype(np.float32)
    return odds


def _smooth(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    gsd: tuple[float, float],
    length_m: float,
    size: float,
) -> Floats:
    """Return smooth noise with standard deviation ``size``, correlated over ``length_m``."""
    coarse = max(1, int(length_m / max(gsd) / 3))  # smooth noise needs only a coarse grid
    small = [side // coarse + 2 for side in shape]
    noise = gaussian_filter(rng.normal(size=small), length_m / np.array(gsd[::-1]) / coarse)
    noise *= size / noise.std()
    whole = noise.repeat(coarse, 0).repeat(coarse, 1)[: shape[0], : shape[1]]
    return np.asarray(whole, np.float32)


def _change_ellipse(
    odds: Floats,
    place: tuple[int, ...],
    gsd: tuple[float, float],
    rng: np.random.Generator,
    *,
    radius: tuple[float, float],
    change: tuple[float, float],
) -> None:
    """Change the log odds within a random ellipse, in place."""
    high, wide = rng.uniform(*radius, 2)
    reach = int(high / gsd[1]) + 1, int(wide / gsd[0]) + 1
    rows = slice(max(place[0] - reach[0], 0), place[0] + reach[0] + 1)
    cols = slice(max(place[1] - reach[1], 0), place[1] + reach[1] + 1)
    part = odds[rows, cols]
    y = (np.arange(part.shape[0])[:, None] + rows.start - place[0]) * gsd[1] / high
    x = (np.arange(part.shape[1])[None] + cols.start - place[1]) * gsd[0] / wide
    part[y**2 + x**2 < 1] += rng.uniform(*change)


def _bins(chip: Chip, rng: np.random.Generator, gsd: tuple[float, float]) -> Floats:
    """Return the probability of every bin, float32 (bin, y, x): mostly highest in the right one."""
    nearest = distance_transform_edt(chip.speed == 0, return_distances=False, return_indices=True)
    right = BIN_TABLE[chip.speed[tuple(nearest)]].astype(np.int64) - 1
    doubt = _smooth(rng, right.shape, gsd, 40.0, 1.0)
    wrong = np.where(doubt > 0, 1, -1)
    likely = np.clip(np.where(np.abs(doubt) > 1.64, right + wrong, right), 0, BIN_COUNT - 1)
    shares = np.full((BIN_COUNT, *right.shape), 0.02, np.float32)
    for step, share in ((-1, 0.2), (1, 0.2), (0, 0.8)):
        bins = np.clip(likely + step, 0, BIN_COUNT - 1)[None]
        np.put_along_axis(shares, bins, np.float32(share), axis=0)
    return shares
