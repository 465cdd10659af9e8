"""One large image with one road file: as tiles or as strips, with its streets or without."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from benchmarks.builds import MIB, Memory, build_command
from benchmarks.common import Result, interleave, ratios

LAYOUTS = {"uint8 tiles": ("uint8", True), "uint16 strips": ("uint16", False)}
"""Name to dtype, and whether the image is tiled."""

LABELS_COST = 1.3
"""Most that a build with labels may take of one without."""

MEMORY_MIB = 1024.0
_PIXELS_PER_STREET = 20_000
_BLOCK = 512
_PLACE = Affine(2.7e-6, 0, -115.17, 0, -2.7e-6, 36.24)


def measure_mosaics(
    result: Result,
    work: Path,
    *,
    side: int,
    workers: int,
    repeats: int,
    promised: bool,
    announce: Callable[[str], None],
) -> None:
    """Build a mosaic of every layout by the command, in turns with and without its labels."""
    for layout, (dtype, tiled) in LAYOUTS.items():
        announce(f"drawing a mosaic: {layout}")
        image = draw_mosaic(work / layout.replace(" ", "_"), side, dtype, tiled=tiled)
        labels = ["--labels", str(image.with_suffix(".geojson"))]
        cases: dict[str, Callable[[], Memory]] = {
            name: partial(
                build_command,
                ["--images", str(image), *given],
                work / "out.zarr",
                workers=workers,
                chips=1,
            )
            for name, given in (("plain", []), ("labelled", labels))
        }
        runs = interleave(cases, repeats, partial(_say, announce, layout))
        _record(result, f"mosaic {layout}", side, runs, promised=promised)
        image.unlink()


def _say(announce: Callable[[str], None], layout: str, text: str) -> None:
    announce(f"{layout}, {text}")


def _record(
    result: Result, kind: str, side: int, runs: dict[str, list[Memory]], *, promised: bool
) -> None:
    seconds = {name: [run.seconds for run in found] for name, found in runs.items()}
    for name, found in runs.items():
        result.add(f"{kind}.{name}.seconds", "s", seconds[name])
        result.add(f"{kind}.{name}.rate", "Mpx/s", [side * side / 1e6 / s for s in seconds[name]])
        most = MEMORY_MIB if promised else None
        result.add(f"{kind}.{name}.pss", "MiB", [run.pss / MIB for run in found], at_most=most)
    result.add(
        f"{kind}.labels_cost",
        "",
        ratios(seconds["labelled"], seconds["plain"]),
        at_most=LABELS_COST if promised else None,
        note=f"{side} x {side} with {_streets(side)} streets over the same without",
    )


def _streets(side: int) -> int:
    return side * side // _PIXELS_PER_STREET


def draw_mosaic(folder: Path, side: int, dtype: str, *, tiled: bool, seed: int = 0) -> Path:
    """Write a square image, compressed by LZW, and its streets beside it; return the image.

    Parameters
    ----------
    folder
        Made for them.
    side
        Pixels.
    dtype
        ``uint8``, or ``uint16`` of 11 bits.
    tiled
        In blocks of 512 x 512, else in strips as GDAL makes them.
    seed
        Of noise and streets.
    """
    import rasterio
    from rasterio.windows import Window

    folder.mkdir(parents=True, exist_ok=True)
    image = folder / "mosaic.tif"
    blocks = {"tiled": True, "blockxsize": _BLOCK, "blockysize": _BLOCK} if tiled else {}
    profile = {"width": side, "height": side, "count": 3, "dtype": dtype, "interleave": "pixel"}
    place = {"crs": "EPSG:4326", "transform": _PLACE, "compress": "lzw"}
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.06, (_BLOCK, side, 3)).astype(np.float32)
    with rasterio.open(image, "w", driver="GTiff", **profile, **place, **blocks) as file:
        for row in range(0, side, _BLOCK):
            rows = min(_BLOCK, side - row)
            y, x = np.mgrid[row : row + rows, :side].astype(np.float32)
            ground = 0.5 + 0.2 * np.sin(y / 97) + 0.2 * np.cos(x / 131)
            top = 255 if dtype == "uint8" else 2047
            values = np.round((ground[..., None] + np.roll(noise, row // 7, 1)[:rows]) * 64) / 64
            pixels = np.clip(values * top, 1, top).astype(dtype)
            file.write(pixels.transpose(2, 0, 1), window=Window(0, row, side, rows))
    features = [_feature(i, line) for i, line in enumerate(_lines(rng, side))]
    document = {"type": "FeatureCollection", "features": features}
    image.with_suffix(".geojson").write_text(json.dumps(document))
    return image


def _lines(rng: np.random.Generator, side: int) -> Sequence[NDArray[np.float64]]:
    """Return streets of some hundred pixels along two directions, as columns and rows."""
    lines = []
    for _ in range(_streets(side)):
        turns = rng.choice([0.2, 0.2 + np.pi / 2]) + rng.normal(0, 0.1, rng.integers(2, 8)).cumsum()
        steps = 60 * rng.uniform(0.5, 1.5, len(turns))
        walk = np.column_stack([steps * np.cos(turns), steps * np.sin(turns)])
        lines.append(rng.uniform(0, side, 2) + walk.cumsum(axis=0))
    return lines


def _feature(number: int, line: NDArray[np.float64]) -> dict[str, object]:
    kind = {"road_type": str(1 + number % 7), "lane_numbe": str(1 + number % 4), "paved": "1"}
    points = [list(_PLACE * (float(x), float(y))) for x, y in line]
    geometry = {"type": "LineString", "coordinates": points}
    return {"type": "Feature", "properties": kind, "geometry": geometry}
