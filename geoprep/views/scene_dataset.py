"""A level or a scene of a store as one xarray Dataset, whose tiles are read when they are used."""

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
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import read_image, read_label, split_names
from geoprep.store.schema import FILL_VALUES
from geoprep.store.tiles import TileReader
from geoprep.views.footprints import columns_of
from geoprep.views.geotiff import exportable_grid

SPATIAL_REF: Final = "spatial_ref"
"""Name of the variable in which rioxarray and GDAL look for CRS and transform."""


def open_tiles(store: StoreReader, level: int) -> xr.Dataset:
    """Return all tiles of a level; a tile is read when it is used."""
    meta = store.meta
    variables = {}
    for array in meta.array_names:
        tiles = _TileArray(store, level, array)
        variables[array] = _lazy(("tile", "y", "x", "band")[: len(tiles.shape)], tiles)
    columns, factor = columns_of(store, "tile"), meta.tile // level
    transforms = store.tiles.transform
    a, b, c, d, e, f = transforms.T
    coordinates = {
        "tile": columns["tile"],
        "band": list(meta.bands),
        **{name: ("tile", columns[name]) for name in ("scene", "split", "row", "col", "crs")},
        "transform": (("tile", "coefficient"), transforms * [factor, factor, 1, factor, factor, 1]),
    }
    if not (b.any() or d.any()):  # rotated pixels have no x per column
        centres = (np.arange(level) + 0.5) * factor
        coordinates["x"] = ("tile", "x"), c[:, None] + a[:, None] * centres
        coordinates["y"] = ("tile", "y"), f[:, None] + e[:, None] * centres
    gsd = [round(metres * factor, 6) for metres in meta.gsd_m]
    return xr.Dataset(variables, coordinates, {"level": level, "gsd_m": gsd})


def open_scene(store: StoreReader, scene: int, level: int) -> xr.Dataset:
    """Return a scene's arrays; pixels are read when they are used."""
    meta, arrays = store.meta, list(store.meta.array_names)
    if store.scenes.status[scene] == "unlabelled":
        arrays.remove(meta.label_array)
    grid = exportable_grid(store, scene, level, arrays)
    variables = {}
    for array in arrays:
        dims = ("band", "y", "x") if array == "image" else ("y", "x")
        variables[array] = _lazy(dims, _SceneArray(store, scene, level, array, grid))
        variables[array].attrs["_FillValue"] = FILL_VALUES[array]
        variables[array].encoding["grid_mapping"] = SPATIAL_REF
    name, split = str(store.scenes.id[scene]), split_names(store, scene)
    coordinates = {"band": np.array(meta.bands, object), **_georeference(grid)}
    return xr.Dataset(variables, coordinates, {"scene": name, "split": split, "level": level})


def _lazy(dims: tuple[str, ...], array: BackendArray) -> xr.Variable:
    lazy: Any = indexing.LazilyIndexedArray(array)
    return xr.Variable(
        dims,
        indexing.MemoryCachedArray(indexing.CopyOnWriteArray(lazy)),  # type: ignore[no-untyped-call]
    )


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


def _as_slices(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index with whole numbers as slices of one position."""
    return tuple(slice(k, k + 1) if isinstance(k, int | np.integer) else k for k in key)


class _TileArray(BackendArray):
    """The images (tile, y, x, band) or the labels (tile, y, x) of a level, read tile by tile."""

    def __init__(self, store: StoreReader, level: int, array: str) -> None:
        self._tiles = TileReader(store, level, array)
        self.shape = (len(store.tiles), *self._tiles.layout.tile_shape)
        self.dtype = np.dtype(np.uint8)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:  # noqa: ANN401 - as xarray's
        outer = indexing.IndexingSupport.OUTER_1VECTOR
        return indexing.explicit_indexing_adapter(key, self.shape, outer, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[np.uint8]:
        """Return the pixels at whole numbers, slices and at most one array of positions."""
        spans = _as_slices(key)
        tiles = np.arange(self.shape[0])[spans[0]].tolist()
        pixels = np.empty(
            (len(tiles), *np.broadcast_to(0, self.shape[1:])[spans[1:]].shape), np.uint8
        )
        for out, tile in zip(pixels, tiles, strict=True):
            out[...] = self._tiles.read(tile)[spans[1:]]
        return pixels[tuple(0 if isinstance(k, int | np.integer) else slice(None) for k in key)]


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
        spans = _as_slices(key[-2:])
        windows = [range(*span.indices(n)) for span, n in zip(spans, self.shape[-2:], strict=True)]
        pixels = self._window(*windows)
        if pixels.ndim == 3:
            pixels = np.moveaxis(pixels, 2, 0)
        within = [
            slice(None, None, index.step) if isinstance(index, slice) else 0 for index in key[-2:]
        ]
        return pixels[(*key[:-2], *within)]
