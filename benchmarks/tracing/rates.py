"""How fast maps become networks, and in how much memory."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rasterio
from affine import Affine
from rasterio.windows import Window

from benchmarks.child import ask
from benchmarks.machine import resident
from geoprep.roads.centrelines import RoadRaster
from geoprep.roads.centrelines.pixels import ArrayPixels
from geoprep.roads.tracing import vectorize

_BLOCK = 512


def write_map(path: Path, maps: Sequence[RoadRaster], side: int, gsd_m: float, seed: int) -> None:
    """Write a map as ``training.predict`` does, of chips laid side by side by chance.

    Parameters
    ----------
    side
        Pixels.
    gsd_m
        Metres that a pixel is wide.
    """
    rng = np.random.default_rng(seed)
    bands = [one.pixels.bands for one in maps if isinstance(one.pixels, ArrayPixels)]
    count, high, wide = bands[0].shape
    profile = {"width": side, "height": side, "count": count, "dtype": "uint8", "nodata": 255}
    profile |= {"tiled": True, "blockxsize": _BLOCK, "blockysize": _BLOCK, "compress": "deflate"}
    profile |= {"crs": "EPSG:32637", "transform": Affine(gsd_m, 0, 4e5, 0, -gsd_m, 6.2e6)}
    with rasterio.open(path, "w", driver="GTiff", interleave="band", **profile) as file:
        file.descriptions = [*(f"road, bin {i}" for i, _ in maps[0].classes), "road"]
        file.update_tags(CLASSES=json.dumps([{"band": i, "mph": m} for i, m in maps[0].classes]))
        for top in range(0, side, high):
            for left in range(0, side, wide):
                size = min(high, side - top), min(wide, side - left)
                chosen = bands[rng.integers(len(bands))][:, : size[0], : size[1]]
                file.write(chosen, window=Window(left, top, size[1], size[0]))


def vectorizing_seconds(path: Path) -> float:
    """Return the processor time that one map takes, reading it included."""
    before = time.process_time()
    vectorize([path], workers=1)
    return time.process_time() - before


def peak_gib(path: Path) -> float:
    """Return the peak resident memory of a process of its own that vectorizes a map."""
    return float(ask("benchmarks.tracing.rates:peak", {"path": str(path)})["peak"]) / 2**30


def peak(path: str) -> dict[str, int]:
    """Vectorize a map in this process; return the peak of its memory in bytes."""
    vectorize([Path(path)], workers=1)
    return {"peak": resident()}
