"""Small scenes on disk, of every kind that a build accepts or rejects."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import rasterio
from affine import Affine
from numpy.typing import NDArray
from rasterio.enums import ColorInterp

from geoprep.building.options import BuildOptions
from geoprep.building.plan import Plan, make_plan
from geoprep.building.request import Progress
from geoprep.building.run import build
from geoprep.executors.threads import Executor, Threads
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.store.reader import StoreReader
from helpers.geojson import feature, write_features

Array = NDArray[Any]
Line = Sequence[tuple[float, float]]
"""Points as (column, row) of the image."""


@dataclass(frozen=True)
class Place:
    """CRS and affine transform of an image."""

    crs: str | None
    transform: Affine


PLACES = {
    # Square degrees, as SpaceNet's chips: 0.243 x 0.300 m on the ground in Las Vegas.
    "degrees": Place("EPSG:4326", Affine(2.7e-6, 0, -115.1706276, 0, -2.7e-6, 36.2406177)),
    "utm": Place("EPSG:32637", Affine(0.31, 0, 413871.25, 0, -0.31, 6180032.5)),
    "mercator": Place("EPSG:3857", Affine(0.5, 0, 4187500.0, 0, -0.5, 7508600.0)),
    "south_up": Place("EPSG:32637", Affine(0.31, 0, 413871.25, 0, 0.31, 6180032.5)),
    "rotated": Place("EPSG:32637", Affine(0.2762, 0.1407, 413871.25, 0.1407, -0.2762, 6180032.5)),
}

# Columns and rows as shares of the image's sides, and the SpaceNet 3 attributes of each road.
ROADS: tuple[tuple[Line, dict[str, str]], ...] = (
    (((-0.1, 0.30), (0.55, 0.36), (1.1, 0.21)), {"road_type": "1", "lane_numbe": "4"}),
    (((0.42, -0.1), (0.47, 0.62), (0.31, 1.1)), {"road_type": "5", "lane_numbe": "2"}),
    (((0.05, 0.85), (0.93, 0.71)), {"road_type": "7", "lane_numbe": "1", "paved": "2"}),
)


def texture(
    height: int, width: int, bands: int = 3, dtype: str = "uint8", seed: int = 0, top: int = 0
) -> Array:
    """Return (y, x, band) pixels from 1 up: smooth ground with noise on it, never nodata.

    ``top`` is the largest value; by default 255, or 2047 (11 bits) for uint16.
    """
    rng = np.random.default_rng(seed)
    top = top or (255 if dtype == "uint8" else 2047)
    y, x = np.mgrid[0:height, 0:width]
    phase = rng.uniform(0, 6, (bands, 2))
    waves = [np.sin(y / 23 + a) + np.cos(x / 31 + b) for a, b in phase]
    ground = 0.5 + 0.17 * np.stack(waves, axis=-1) + rng.normal(0, 0.06, (height, width, bands))
    pixels: Array = np.clip(np.round(ground * top), 1, top).astype(dtype)
    return pixels


def write_image(
    path: Path,
    values: Array,
    place: Place = PLACES["degrees"],
    *,
    nodata: float | None = None,
    alpha: Array | None = None,
    mask: Array | None = None,
    compress: str | None = "lzw",
) -> Path:
    """Write (y, x, band) pixels as a GeoTIFF.

    ``alpha`` (y, x) becomes a last band, ``mask`` (y, x, True: valid) a ``.msk`` file beside it.
    """
    layers = [*np.moveaxis(values, -1, 0), *([alpha] if alpha is not None else [])]
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False),
        rasterio.open(
            path,
            "w",
            driver="GTiff",
            height=values.shape[0],
            width=values.shape[1],
            count=len(layers),
            dtype=values.dtype,
            crs=place.crs,
            transform=place.transform,
            nodata=nodata,
            compress=compress,
            # GDAL takes the fourth of four bands for alpha by default.
            photometric="rgb" if values.shape[-1] == 3 else "minisblack",
            alpha="no" if alpha is None else "yes",
        ) as file,
    ):
        for i, layer in enumerate(layers, start=1):
            file.write(layer.astype(values.dtype), i)
        meanings = [ColorInterp.red, ColorInterp.green, ColorInterp.blue]
        known = meanings if values.shape[-1] == 3 else [ColorInterp.gray] * values.shape[-1]
        file.colorinterp = [*known, *([ColorInterp.alpha] if alpha is not None else [])]
        if mask is not None:
            file.write_mask(mask)
    return path


def write_roads(
    path: Path,
    place: Place,
    size: tuple[int, int],
    roads: Sequence[tuple[Line, dict[str, str]]] = ROADS,
) -> Path:
    """Write roads, given in shares of an image's sides, as GeoJSON in longitude and latitude."""
    to_lonlat = pyproj.Transformer.from_crs(place.crs, "OGC:CRS84", always_xy=True)
    height, width = size
    features = []
    for line, properties in roads:
        points = [place.transform * (x * width, y * height) for x, y in line]
        lonlat = [to_lonlat.transform(*point) for point in points]
        features.append(feature(lonlat, **{"paved": "1", **properties}))
    return write_features(path, features)


def write_scene(
    folder: Path,
    name: str,
    values: Array,
    place: Place = PLACES["degrees"],
    *,
    labelled: bool = True,
    roads: Sequence[tuple[Line, dict[str, str]]] = ROADS,
    **image: Any,
) -> Scene:
    """Write an image and, by default, its label."""
    tif = write_image(folder / f"{name}.tif", values, place, **image)
    label = None
    if labelled:
        size = values.shape[0], values.shape[1]
        label = str(write_roads(folder / f"{name}.geojson", place, size, roads))
    return Scene(name, str(tif), label)


def row_of_scenes(
    folder: Path,
    count: int,
    size: int | Sequence[tuple[int, int]] = 128,
    dtype: str = "uint8",
    bands: int = 3,
    place: Place = PLACES["degrees"],
) -> list[Scene]:
    """Write labelled scenes side by side, west to east, each with pixels of its own.

    ``size`` is one side for all, or (height, width) tuples taken in turn.
    """
    shapes = [(size, size)] if isinstance(size, int) else list(size)
    scenes, left = [], 0
    for i in range(count):
        height, width = shapes[i % len(shapes)]
        own = Place(place.crs, place.transform * Affine.translation(left, 0))
        pixels = texture(height, width, bands, dtype, seed=i)
        scenes.append(write_scene(folder, f"quay_{i}", pixels, own))
        left += width
    return scenes


def truncate(path: str | Path, keep: float = 0.5) -> None:
    """Cut a file short, as an interrupted download leaves it."""
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * keep)])


def plan_of(
    scenes: Sequence[Scene] | SourceScenes,
    *,
    product: str | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Plan:
    """Return the plan of a build of these scenes."""
    if not isinstance(scenes, SourceScenes):
        scenes = SourceScenes(tuple(scenes), origin="factory", product=product)
    return make_plan([scenes], ["custom"], BuildOptions(**options), executor or Threads(2))


def build_of(out: Path, scenes: Sequence[Scene] | SourceScenes, **options: Any) -> StoreReader:
    """Build a store of these scenes and open it."""
    build(plan_of(scenes, **options), out, Threads(2))
    return StoreReader.open(out)


def interrupt(plan: Plan, out: Path | str, shards: int, **options: Any) -> None:
    """Build some shards and leave, as Ctrl-C does."""
    left = shards + 1  # this stage is reported at its start, too

    def report(progress: Progress) -> None:
        nonlocal left
        left -= progress.stage == "build"
        if not left:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(plan, out, Threads(1), report=report, **options)


def tree_digest(folder: Path) -> dict[str, str]:
    """Return relative path -> digest of every file below a folder, and the folders themselves."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        )
        for path in sorted(folder.rglob("*"))
    }
