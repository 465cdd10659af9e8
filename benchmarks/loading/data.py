"""The measured tiles: a store, arrays in memory, and files for other loaders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

import geoprep
from loaders import RamTiles, StreamTiles

CITY = "moscow"
SEED = 7


@dataclass(frozen=True)
class LoadingSizes:
    """Sizes of the benchmark.

    Attributes
    ----------
    scenes, scene_side
        Number of synthetic scenes, and their side in pixels: two tiles by two.
    batch_size
        Tiles or crops per batch.
    crop
        Side of a crop in pixels.
    epoch
        Smallest number of samples per epoch.
    """

    scenes: int = 128
    scene_side: int = 1024
    batch_size: int = 32
    crop: int = 256
    epoch: int = 4096

    @property
    def tile(self) -> int:
        """Side of a tile of the synthetic store."""
        return self.scene_side // 2


QUICK = LoadingSizes(scenes=16, batch_size=16, epoch=64)
QUICK_TILES = 64
"""Tiles of a store that the quick run takes."""


def synthetic_store(work: Path, sizes: LoadingSizes, workers: int | None = None) -> Path:
    """Create a city and build its store; return the store.

    Parameters
    ----------
    work
        Folder for both.
    sizes
        Number and size of scenes.
    workers
        Number of threads; None for one per core.
    """
    from benchmarks.common import announce  # loaders are timed with the import of this module

    announce("creating a city")
    how: dict[str, Any] = {"seed": SEED, "workers": workers, "progress": False}
    scenes, size = sizes.scenes, sizes.scene_side
    city = geoprep.synthesize(CITY, scenes=scenes, size=size, out=work / "city", **how)
    return build_city_store(city, work / f"{CITY}.zarr", workers, tile=sizes.tile)


def build_city_store(source: Path, store: Path, workers: int | None = None, **options: Any) -> Path:  # noqa: ANN401
    """Build the store of a city with the given build options; return its path.

    Raises
    ------
    RuntimeError
        A scene is not in the store.
    """
    given = {"source": source, "out": store, "workers": workers, **options}
    built = geoprep.build_zarr(CITY, dry_run=False, progress=False, **given)
    if built.summary is None or set(built.summary.statuses) != {"ok"}:
        raise RuntimeError(f"{store}: {built.summary}")
    return store


def random_tiles(tiles: int, side: int, bands: int) -> RamTiles:
    """Return tiles of random bytes, whose values do not affect the speed of loading."""
    random = np.random.default_rng(SEED)
    image = random.integers(0, 256, (tiles, side, side, bands), np.uint8)
    speed = random.integers(0, 80, (tiles, side, side), np.uint8)
    return RamTiles.from_arrays(image, speed)


def some_tiles(store: Path, most: int) -> RamTiles:
    """Return at most so many tiles of a store, evenly spaced, without loading the others."""
    stream = StreamTiles.open(store, "all")
    chosen = np.unique(np.linspace(0, len(stream) - 1, min(most, len(stream))).astype(int))
    pixels = [stream.pixels(int(tile)) for tile in chosen]
    image, label = (np.stack(part) for part in zip(*pixels, strict=True))
    return RamTiles.from_arrays(image, label)


def load_tiles(source: str | Path) -> RamTiles:
    """Return the tiles of a store, or of the arrays in a folder of `write_files`."""
    folder = Path(source)
    if not (folder / "image.npy").exists():
        return RamTiles.load(str(source), split="all", progress=False)
    image, speed = (np.load(folder / f"{kind}.npy", mmap_mode="r") for kind in ("image", "speed"))
    return RamTiles.from_arrays(image, speed)


def write_files(tiles: RamTiles, folder: Path, *, tiffs: bool = True) -> None:
    """Write tiles as arrays and as GeoTIFFs, for loaders that cannot read a store.

    Parameters
    ----------
    tiles
        Tiles in memory.
    tiffs
        Whether to write the GeoTIFFs too.
    folder
        Folder to write to: ``image.npy``, ``speed.npy``,
        ``tiff/image/00000.tif``, ``tiff/speed/00000.tif``, ...
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("image", "speed"):
        np.save(folder / f"{kind}.npy", getattr(tiles, kind))
        if not tiffs:
            continue
        (folder / "tiff" / kind).mkdir(parents=True)
        for tile, pixels in enumerate(getattr(tiles, kind)):
            _write_tiff(folder / f"tiff/{kind}/{tile:05d}.tif", tiles, tile, pixels)


def _write_tiff(path: Path, tiles: RamTiles, tile: int, pixels: NDArray[np.uint8]) -> None:
    """Write one file the way SpaceNet does: LZW, pixel-interleaved."""
    pixels = np.atleast_3d(pixels)
    height, width, bands = pixels.shape
    shape = {"height": height, "width": width, "count": bands, "dtype": "uint8"}
    place = {"crs": tiles.crs(tile), "transform": rasterio.Affine(*tiles.affine(tile))}
    how = {"driver": "GTiff", "compress": "lzw", "interleave": "pixel"}
    with rasterio.open(path, "w", **shape, **place, **how) as file:
        file.write(pixels.transpose(2, 0, 1))
