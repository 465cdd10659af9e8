"""Where images have pixels: the borders within which roads are scored and compared."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from geoprep.errors import ImageError, SourceError
from geoprep.grid import Grid
from geoprep.roads.names import RASTER_SUFFIXES, scene_key


def is_store(path: Path) -> bool:
    """Return whether a path is a store rather than an image or a folder of images."""
    return (path / "zarr.json").is_file()


def image_borders(images: Path) -> dict[str, Grid]:
    """Return the georeferenced grids of an image, a folder of images, or a store by scene key."""
    if is_store(images):
        from geoprep.store.reader import StoreReader
        from geoprep.store.scenes import scene_grid

        store = StoreReader.open(images)
        grids = {name: scene_grid(store, i) for i, name in enumerate(store.scenes.id.tolist())}
        borders = {scene_key(name): grid for name, grid in grids.items() if grid and grid.crs}
    elif not images.exists():
        raise SourceError(f"{images}: no such folder or image; check the path")
    else:
        from geoprep.imagery.headers import describe

        borders = {}
        for path in sorted(images.rglob("*")) if images.is_dir() else [images]:
            if path.suffix.lower() in RASTER_SUFFIXES:
                with suppress(ImageError):  # an image of no scene does no harm
                    borders[scene_key(path.name)] = describe(str(path)).placed()
    if not borders:
        raise SourceError(
            f"{images}: contains nothing georeferenced. Choose other `images`, or leave it out."
        )
    return borders
