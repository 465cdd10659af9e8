"""Where images have pixels: the borders within which roads are scored and compared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import reproject_area
from geoprep.errors import ImageError, SourceError
from geoprep.grid import Grid
from geoprep.roads.names import RASTER_SUFFIXES, scene_key

if TYPE_CHECKING:
    from geoprep.store.reader import StoreReader

Cells = NDArray[np.bool_]

_MOST_CELLS: Final = 1024
"""Cells along the longer side of an image, each valid if the pixel in its middle is."""
_SPECK_CELLS: Final = 2
"""Ground without pixels that is up to twice as many cells wide is no border."""


@dataclass(frozen=True)
class Footprint:
    """The ground of an image that has pixels."""

    grid: Grid
    read_valid: Callable[[], Cells | None]  # returns valid cells (y, x) of the grid; None: all

    def outline_in(self, crs: str) -> shapely.Geometry:
        """Return it in a CRS; empty if no pixel is valid."""
        if self._valid_area is None:
            return self.grid.outline_in(crs)
        return reproject_area(self._valid_area, self.grid.crs, crs)

    @cached_property
    def _valid_area(self) -> shapely.Geometry | None:
        valid = self.read_valid()
        if valid is None or valid.all():
            return None
        from rasterio.features import shapes  # here: most images need neither
        from scipy.ndimage import binary_closing

        around = np.pad(valid, 2 * _SPECK_CELLS, mode="edge")
        closed = binary_closing(around, np.ones((3, 3)), iterations=_SPECK_CELLS)
        inner = slice(2 * _SPECK_CELLS, -2 * _SPECK_CELLS)
        cells = closed[inner, inner].astype(np.uint8)
        found = [shapely.geometry.shape(shape) for shape, _ in shapes(cells, cells == 1)]
        # A road along a staircase of cells would be cut at every step.
        area = shapely.simplify(shapely.union_all(found), 1.0)
        return shapely.transform(area, self.grid.resized(*cells.shape).to_xy)


def _valid_of_image(path: str) -> Cells | None:
    from geoprep.imagery.values import open_values

    with open_values(path) as image:
        raster, bands = image.raster, image.raster.default_bands
        if not raster.states_nodata and np.dtype(raster.dtype_of(bands)).kind in "iu":
            return None
        step = max(1.0, max(raster.grid.shape) / _MOST_CELLS)
        shape = tuple(max(1, round(side / step)) for side in raster.grid.shape)
        valid = image.imagery(shape, bands).valid
        return None if valid is None else valid != 0


def _valid_of_scene(store: StoreReader, scene: int) -> Cells | None:
    from geoprep.store.scenes import read_image, valid_share

    if valid_share(store, scene) == 1:
        return None
    return np.asarray((read_image(store, scene, min(store.meta.levels)) != 0).any(axis=-1))


def is_store(path: Path) -> bool:
    """Return whether a path is a store rather than an image or a folder of images."""
    return (path / "zarr.json").is_file()


def image_borders(images: Path) -> dict[str, Footprint]:
    """Return the footprints of an image, a folder of images, or a store by scene key."""
    if is_store(images):
        from geoprep.store.reader import StoreReader
        from geoprep.store.scenes import scene_grid

        store = StoreReader.open(images)
        borders = {
            scene_key(name): Footprint(grid, partial(_valid_of_scene, store, i))
            for i, name in enumerate(store.scenes.id.tolist())
            if (grid := scene_grid(store, i)) and grid.crs
        }
    elif not images.exists():
        raise SourceError(f"{images}: no such folder or image; check the path")
    else:
        from geoprep.imagery.headers import describe

        borders = {}
        for path in sorted(images.rglob("*")) if images.is_dir() else [images]:
            if path.suffix.lower() in RASTER_SUFFIXES:
                with suppress(ImageError):  # an image of no scene does no harm
                    grid = describe(str(path)).placed()
                    borders[scene_key(path.name)] = Footprint(
                        grid, partial(_valid_of_image, str(path))
                    )
    if not borders:
        raise SourceError(
            f"{images}: contains nothing georeferenced. Choose other `images`, or leave it out."
        )
    return borders
