"""A reference pipeline that builds the same store with common libraries, one chip at a time.

It follows the CRESI tools (``create_8bit_images.py``, ``speed_masks.py``) with current libraries:
rasterio reads, NumPy computes percentiles and rescales, scikit-image makes the second level,
geopandas projects, buffers and dissolves the roads, rasterio burns them, zarr-python writes. It
does less than a build: no validity mask, statistics, checksums, shards, or flush to disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import rasterio
import zarr
from affine import Affine
from numpy.typing import NDArray
from rasterio.features import rasterize
from skimage.transform import resize
from zarr.codecs import BloscCodec

from geoprep.sources.scene import Scene

BUFFER_M = 2.0
SPEED_FIELD = "inferred_speed_mph"
SN3_MPH = {1: (55, 65), 2: (45, 55), 3: (35, 45), 4: (30, 35)}
SN3_MPH |= {5: (25, 30), 6: (20, 20), 7: (20, 20)}
"""SpaceNet 3 road type to mph on up to two lanes and on more lanes (CRESI: road_speed.py)."""

UNPAVED = 2, 0.75
TILES_PER_SIDE = 2
ZARR_PYTHON = "zarr.core.codec_pipeline.BatchedCodecPipeline"

Pixels = NDArray[np.uint8]


def build_reference(scenes: Sequence[Scene], out: Path) -> None:
    """Build a store of two levels with the arrays image and speed.

    Parameters
    ----------
    scenes
        Chips of one size, with 3 bands or 3 and alpha.
    out
        Folder of the store.
    """
    with zarr.config.set({"codec_pipeline.path": ZARR_PYTHON}):
        root, arrays = zarr.open_group(out, mode="w"), dict[str, zarr.Array[Any]]()
        for number, scene in enumerate(scenes):
            for level, pair in enumerate(prepare_chip(scene)):
                for name, pixels in zip(("image", "speed"), pair, strict=True):
                    path, tiles = f"{level}/{name}", _tiles(pixels)
                    if number == 0:
                        arrays[path] = _create(root, path, tiles, len(scenes))
                    for k, tile in enumerate(tiles):
                        arrays[path][number * len(tiles) + k] = tile


def prepare_chip(scene: Scene) -> list[tuple[Pixels, Pixels]]:
    """Return (image, speed) of both levels: uint8 (y, x, band) and uint8 (y, x)."""
    with rasterio.open(scene.image) as dataset:
        source, transform = dataset.read()[:3], dataset.transform
    image = np.stack([_stretched(band) for band in source], axis=-1)
    half = _halved(image)
    shapes = _road_shapes(scene.label)
    speed = _burned(shapes, transform, image.shape[:2])
    # Burned again, not resized: a mean of two speeds is neither.
    half_speed = _burned(shapes, transform * Affine.scale(2), half.shape[:2])
    return [(image, speed), (half, half_speed)]


def _stretched(band: NDArray[Any]) -> Pixels:
    """Return a band as uint8, scaled by percentiles 2 and 98 of values above 0."""
    present = band[band > 0]
    low, high = np.percentile(present, (2, 98)) if present.size else (1.0, 2.0)
    low = max(1.0, low)
    scaled = np.floor((band.astype(np.float64) - low) * 255 / (high - low) + 0.5)
    return np.clip(scaled, 0, 255).astype(np.uint8)


def _halved(image: Pixels) -> Pixels:
    """Return the image at half its size, bilinear: at one half, the mean of four pixels."""
    shape = image.shape[0] // 2, image.shape[1] // 2
    # anti_aliasing=True, the default, would double the time and blur the image.
    smaller: NDArray[np.float64] = resize(  # type: ignore[no-untyped-call] # it has no types
        image, shape, order=1, preserve_range=True, anti_aliasing=False
    )
    return np.floor(smaller + 0.5).astype(np.uint8)


def _road_shapes(label: str | None) -> list[tuple[Any, int]]:
    """Return one (polygon, mph) pair per speed, in ascending order."""
    if label is None:
        return []
    roads = geopandas.read_file(label)
    if roads.empty:
        return []
    buffered = roads.to_crs(roads.estimate_utm_crs())
    buffered["geometry"] = buffered.buffer(BUFFER_M, quad_segs=1)
    buffered["mph"] = _mph(roads)
    united = buffered[["geometry", "mph"]].dissolve(by="mph").to_crs(roads.crs)
    speeds = np.floor(united.index.to_numpy(float) + 0.5).astype(int)
    return list(zip(united.geometry, speeds.tolist(), strict=True))


def _mph(roads: Any) -> NDArray[np.float64]:  # noqa: ANN401 - a frame of an untyped library
    """Return the speed of every road in mph, from the label or from SpaceNet 3's table."""
    if SPEED_FIELD in roads.columns:
        return np.asarray(roads[SPEED_FIELD], np.float64)
    kinds, lanes = roads["road_type"].astype(int), roads["lane_number"].astype(int)
    mph = np.array([SN3_MPH[kind][count > 2] for kind, count in zip(kinds, lanes, strict=True)])
    code, factor = UNPAVED
    return np.where(roads["paved"].astype(int) == code, factor * mph, mph)


def _burned(shapes: list[tuple[Any, int]], transform: Affine, shape: tuple[int, ...]) -> Pixels:
    if not shapes:
        return np.zeros(shape, np.uint8)
    burned: Pixels = rasterize(shapes, shape, transform=transform, dtype="uint8")
    return burned


def _tiles(pixels: Pixels) -> list[Pixels]:
    """Return the four quarters of a chip, row by row."""
    rows = np.split(pixels, TILES_PER_SIDE, axis=0)
    return [tile for row in rows for tile in np.split(row, TILES_PER_SIDE, axis=1)]


def _create(root: zarr.Group, path: str, tiles: list[Pixels], chips: int) -> zarr.Array[Any]:
    shape = tiles[0].shape
    return root.create_array(
        path,
        shape=(chips * len(tiles), *shape),
        chunks=(1, *shape),
        dtype="uint8",
        compressors=BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=1),
    )
