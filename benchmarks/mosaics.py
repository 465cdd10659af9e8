"""Build times of one large image, with and without a road file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from benchmarks.builds import MIB, build_command
from benchmarks.common import Result, announce, ratios

LABELS_COST = 1.3
"""Upper bound of the build time with labels over that without."""

MEMORY_MIB = 1024.0
_PIXELS_PER_STREET = 20_000
_BLOCK = 512
_PLACE = Affine(2.7e-6, 0, -115.17, 0, -2.7e-6, 36.24)


def measure_mosaics(result: Result, work: Path) -> None:
    """Record seconds and memory of ``build-zarr`` on a mosaic, with and without labels."""
    of, side = result.settings, result.settings["mosaic"]
    announce("drawing a mosaic")
    image = draw_mosaic(work / "mosaic", side)
    labels = ["--labels", str(image.with_suffix(".geojson"))]
    cases = {
        f"mosaic {name}": partial(
            build_command, ["--images", str(image), *given], work / "out.zarr", of["workers"]
        )
        for name, given in (("plain", []), ("labelled", labels))
    }
    found = result.turns(cases, min(of["repeats"], 3))
    seconds = {name: [one[0] for one in runs] for name, runs in found.items()}
    for name, runs in found.items():
        at = name.replace(" ", ".")
        result.add(f"{at}.seconds", "s", seconds[name])
        result.add(f"{at}.rate", "Mpx/s", [side * side / 1e6 / s for s in seconds[name]])
        result.add(f"{at}.pss", "MiB", [pss / MIB for _, pss in runs], at_most=MEMORY_MIB)
    if len(seconds) == len(cases):
        over = ratios(seconds["mosaic labelled"], seconds["mosaic plain"])
        note = f"time with {_streets(side)} streets over time without labels"
        result.add("mosaic.labels_cost", "", over, at_most=LABELS_COST, note=note)
    image.unlink()


def _streets(side: int) -> int:
    return side * side // _PIXELS_PER_STREET


def draw_mosaic(folder: Path, side: int, seed: int = 0) -> Path:
    """Write a square uint8 image, tiled and LZW-compressed, and a GeoJSON file of its streets.

    Parameters
    ----------
    folder
        Folder, created for them.
    side
        Side in pixels.
    seed
        Random seed of noise and streets.
    """
    import rasterio
    from rasterio.windows import Window

    folder.mkdir(parents=True, exist_ok=True)
    image = folder / "mosaic.tif"
    blocks = {"tiled": True, "blockxsize": _BLOCK, "blockysize": _BLOCK, "interleave": "pixel"}
    profile = {"width": side, "height": side, "count": 3, "dtype": "uint8", "compress": "lzw"}
    place = {"crs": "EPSG:4326", "transform": _PLACE}
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.06, (_BLOCK, side, 3)).astype(np.float32)
    with rasterio.open(image, "w", driver="GTiff", **profile, **place, **blocks) as file:
        for row in range(0, side, _BLOCK):
            rows = min(_BLOCK, side - row)
            y, x = np.mgrid[row : row + rows, :side].astype(np.float32)
            ground = 0.5 + 0.2 * np.sin(y / 97) + 0.2 * np.cos(x / 131)
            values = np.round((ground[..., None] + np.roll(noise, row // 7, 1)[:rows]) * 64) / 64
            pixels = np.clip(values * 255, 1, 255).astype(np.uint8)
            file.write(pixels.transpose(2, 0, 1), window=Window(0, row, side, rows))
    features = [_street(rng, side, number) for number in range(_streets(side))]
    document = {"type": "FeatureCollection", "features": features}
    image.with_suffix(".geojson").write_text(json.dumps(document))
    return image


def _street(rng: np.random.Generator, side: int, number: int) -> dict[str, object]:
    """Return a street of some hundred pixels along one of two directions."""
    turns = rng.choice([0.2, 0.2 + np.pi / 2]) + rng.normal(0, 0.1, rng.integers(2, 8)).cumsum()
    steps = 60 * rng.uniform(0.5, 1.5, len(turns))
    walk = np.column_stack([steps * np.cos(turns), steps * np.sin(turns)])
    line: NDArray[np.float64] = rng.uniform(0, side, 2) + walk.cumsum(axis=0)
    kind = {"road_type": str(1 + number % 7), "lane_numbe": str(1 + number % 4), "paved": "1"}
    points = [list(_PLACE * (float(x), float(y))) for x, y in line]
    geometry = {"type": "LineString", "coordinates": points}
    return {"type": "Feature", "properties": kind, "geometry": geometry}
