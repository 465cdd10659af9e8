"""A scene of a store as one xarray Dataset, assembled from its tiles when it is read."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import pyproj
import xarray as xr
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from geoprep.grid import Grid
from geoprep.store import FILL_VALUES, StoreReader, level_step, read_image, read_label, split_names
from geoprep.views.geotiff import exportable_grid

SPATIAL_REF: Final = "spatial_ref"
"""Name of the variable in which rioxarray and GDAL look for CRS and transform."""


def open_scene(store: StoreReader, scene: int, level: int, chunks: Any = None) -> xr.Dataset:  # noqa: ANN401 - xarray's
    """Return a scene's arrays, of which only pixels that are used are read.

    ``chunks`` are those of dask arrays; ``{}``: as large as tiles without overlap, None: no dask.
    """
    meta, arrays = store.meta, list(store.meta.array_names)
    if store.scenes.status[scene] == "unlabelled":
        arrays.remove(meta.label_array)
    grid = exportable_grid(store, scene, level, arrays)
    variables = {}
    for array in arrays:
        dims = ("band", "y", "x") if array == "image" else ("y", "x")
        lazy: Any = indexing.LazilyIndexedArray(_SceneArray(store, scene, level, array, grid))
        cached = indexing.MemoryCachedArray(  # type: ignore[no-untyped-call] # xarray's
            indexing.CopyOnWriteArray(lazy)
        )
        attributes, encoding = {"_FillValue": FILL_VALUES[array]}, {"grid_mapping": SPATIAL_REF}
        variables[array] = xr.Variable(dims, cached, attributes, encoding)
    name, split = str(store.scenes.id[scene]), split_names(store, scene)
    coordinates = {"band": np.array(meta.bands, object), **_georeference(grid)}
    dataset = xr.Dataset(variables, coordinates, {"scene": name, "split": split, "level": level})
    if chunks is None:
        return dataset
    return dataset.chunk(chunks or dict.fromkeys("yx", level_step(store, level)))


def _georeference(grid: Grid) -> dict[str, Any]:
    """Return CRS and transform as rioxarray writes them, and the centres of pixels along x and y.

    The centres only of georeferenced pixels that are not rotated.
    """
    a, b, c, d, e, f = tuple(grid.transform)[:6]
    place: dict[str, Any] = {"GeoTransform": f"{c} {a} {b} {f} {d} {e}"}
    coordinates: dict[str, Any] = {SPATIAL_REF: ((), 0, place)}
    if grid.georeferenced:
        crs = pyproj.CRS.from_user_input(grid.crs)
        place |= crs.to_cf()
        if not (b or d):  # rotated pixels have no x per column
            axes = {axis.get("axis"): axis for axis in crs.cs_to_cf()}
            x, y = grid.centres()
            coordinates |= {"x": ("x", x, axes.get("X")), "y": ("y", y, axes.get("Y"))}
    return coordinates


class _SceneArray(BackendArray):
    """The image (band, y, x) or the label (y, x) of a scene, read by windows."""

    def __init__(self, store: StoreReader, scene: int, level: int, array: str, grid: Grid) -> None:
        bands = (len(store.meta.bands),) if array == "image" else ()
        self.shape = (*bands, grid.height, grid.width)
        self.dtype = np.dtype(np.uint8)
        self._window = partial(read_image if bands else read_label, store, scene, level)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:  # noqa: ANN401 - as xarray's
        basic = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, basic, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> NDArray[np.uint8]:
        """Return the pixels at whole numbers and slices with steps of at least 1."""
        spans = [
            index if isinstance(index, slice) else slice(index, index + 1) for index in key[-2:]
        ]
        windows = [range(*span.indices(n)) for span, n in zip(spans, self.shape[-2:], strict=True)]
        pixels = self._window(*windows)
        if pixels.ndim == 3:
            pixels = np.moveaxis(pixels, 2, 0)
        within = [
            slice(None, None, index.step) if isinstance(index, slice) else 0 for index in key[-2:]
        ]
        return pixels[(*key[:-2], *within)]
