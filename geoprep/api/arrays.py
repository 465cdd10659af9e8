"""Arrays of NumPy and xarray as the GeoTIFFs that tracing reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyproj
import rasterio
from affine import Affine
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.quiet import no_georeference_warning

_AXES: Final = {
    "x": ("x", "longitude", "lon", "easting"),
    "y": ("y", "latitude", "lat", "northing"),
}
_MOST_OFF: Final = 0.05
"""Pixels by which a coordinate may differ from its place in a regular grid, as of float32."""
_WHOLE: Final = 1e-3
"""Decoded integers differ from whole numbers by less."""


def write_array(
    path: Path,
    values: NDArray[Any],
    transform: Any,  # noqa: ANN401 - affine
    crs: Any,  # noqa: ANN401 - anything that rasterio understands
    nodata: float | None = None,
) -> None:
    """Write an array (y, x) or (band, y, x) as a GeoTIFF."""
    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3:
        raise UsageError("source", f"has {values.ndim} axes: give an array (y, x) or (band, y, x)")
    if (transform is None) != (crs is None):
        raise UsageError("give both `transform` and `crs` of an array, or `pixel_size` alone")
    kinds = {"b": "uint8", "f": "float32"}
    values = values.astype(kinds.get(values.dtype.kind, values.dtype), copy=False)
    bands, height, width = values.shape
    with no_georeference_warning(), rasterio.open(
        path, "w", driver="GTiff", count=bands, height=height, width=width,
        dtype=values.dtype, transform=transform, crs=crs, nodata=nodata,
    ) as file:  # fmt: skip
        file.write(values)


def write_data_array(path: Path, array: Any, transform: Any, crs: Any) -> None:  # noqa: ANN401 - xarray's, affine
    """Write an xarray.DataArray as the GeoTIFF that it would be as a file.

    rioxarray keeps names, units, scales and tags of a file in attributes, and in the encoding the
    scales that it has applied to the values.
    """
    array, transform, crs = _placed(array, transform, crs)
    array = array.squeeze([dim for dim in array.dims[:-2] if array.sizes[dim] == 1])
    values, stated, applied = np.asarray(array.values), array.attrs, array.encoding
    count = len(values) if values.ndim == 3 else 1
    numbers = np.atleast_1d(
        array.coords["band"] if "band" in array.coords else np.arange(count) + 1
    )

    def per_band(kept: Mapping[Any, Any], default: Any, *names: str) -> list[Any]:  # noqa: ANN401
        given = next((kept[name] for name in names if name in kept), default)
        if not isinstance(given, list | tuple | np.ndarray):
            return [given] * count
        if len(given) != count:  # values of all bands of the file; only some bands were selected
            given = (
                [given[n - 1] for n in numbers] if numbers.dtype.kind in "iu" else [default] * count
            )
        return list(given)

    scales = per_band(stated, 1.0, "scales", "scale_factor")
    nodata = {**applied, **stated}.get("_FillValue", stated.get("nodata"))
    dtype = np.dtype(applied.get("rasterio_dtype", applied.get("dtype", values.dtype)))
    if values.dtype.kind == "f" and dtype.kind in "iu":  # integers that were decoded
        units = per_band(applied, 1.0, "scales", "scale_factor")
        offsets = per_band(applied, 0.0, "offsets", "add_offset")
        bands = values.astype(np.float64).reshape(count, *values.shape[-2:])
        raw = np.stack([(b - o) / u for b, o, u in zip(bands, offsets, units, strict=True)])
        raw[np.isnan(raw)] = np.nan if nodata is None else nodata
        if (np.abs(raw - np.rint(raw)) < _WHOLE).all():
            values, scales = np.rint(raw).astype(dtype), np.multiply(scales, units).tolist()
    write_array(path, values, transform, crs, nodata)
    with no_georeference_warning(), rasterio.open(path, "r+") as file:
        file.scales = scales
        file.units = per_band(stated, "", "units")
        file.descriptions = names = per_band(stated, "", "long_name")
        tags = ["ROAD_THRESHOLD", "CLASS_NAMES"]
        tags += ["CLASSES"] * (names == list(stated.get("long_name", ())))  # numbers of all bands
        file.update_tags(**{tag: stated[tag] for tag in tags if tag in stated})


def _placed(array: Any, transform: Any, crs: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - xarray's, affine
    """Return a DataArray with its axes as (..., y, x), and its transform and CRS.

    1. The CRS is that of the coordinate that CF calls grid mapping, as rioxarray writes it.
    2. The transform follows from the coordinates, those of a rotated grid (xc, yc) too: they move
       with the pixels. The attribute ``GeoTransform`` counts where there are none.
    3. North is up and east is right, as in files.
    """
    x, y = (_axis(array, letter) for letter in "xy")
    if x is not None and y is not None:
        array = array.transpose(..., y, x)
    stated = {**array.encoding, **array.attrs}
    name = stated.get("grid_mapping", "spatial_ref")
    mapping = array.coords[name].attrs if name in array.coords else {}
    if crs is None and mapping.keys() & {"crs_wkt", "spatial_ref", "grid_mapping_name"}:
        crs = pyproj.CRS.from_cf(mapping).to_wkt()  # 1
    if transform is not None or crs is None:
        return array, transform, crs
    places = next((pair for pair in ((x, y), ("xc", "yc")) if {*pair} <= {*array.coords}), None)
    if places is not None:  # 2
        for axis, place, ascends in ((x, places[0], True), (y, places[1], False)):
            first, last = (array.coords[place].isel({axis: i}).values for i in (0, -1))
            if (last - first).mean() * (1 if ascends else -1) < 0:  # 3
                array = array.isel({axis: slice(None, None, -1)})
        band = array.isel(dict.fromkeys(array.dims[:-2], 0))
        xs, ys = (array.coords[place].broadcast_like(band).transpose(y, x) for place in places)
        transform = _transform_of(xs.values, ys.values)
    elif "GeoTransform" in mapping:
        transform = Affine.from_gdal(*map(float, mapping["GeoTransform"].split()))
    return array, transform, crs


def _axis(array: Any, letter: str) -> Any:  # noqa: ANN401 - xarray's; names are of any type
    """Return the name of the axis of columns (x) or of rows (y); None if none is named so."""
    for dim in array.dims:
        stated = array.coords[dim].attrs.get("axis") if dim in array.coords else None
        if stated == letter.upper() or str(dim).lower() in _AXES[letter]:
            return dim
    return None


def _transform_of(xs: NDArray[Any], ys: NDArray[Any]) -> Affine:
    """Return the transform of pixels by the coordinates of their centres, (y, x) each."""
    height, width = xs.shape
    cols, rows = np.broadcast_arrays(np.arange(width), np.arange(height)[:, None])
    if min(height, width) > 1:
        (a, b), (d, e) = (
            ((c[0, -1] - c[0, 0]) / (width - 1), (c[-1, 0] - c[0, 0]) / (height - 1))
            for c in (xs, ys)
        )
        centred, off = Affine(a, b, xs[0, 0], d, e, ys[0, 0]), 0.0
        grid = Grid(height, width, centred, "")
        for edge in (np.s_[[0, -1]], np.s_[:, [0, -1]]):
            with np.errstate(divide="ignore", invalid="ignore"):
                pixels = grid.to_pixels(np.stack([xs[edge], ys[edge]], -1))
            off = np.maximum(off, np.abs(pixels - np.stack([cols[edge], rows[edge]], -1)).max())
        if off < _MOST_OFF:
            return centred * Affine.translation(-0.5, -0.5)
    raise UsageError(
        f"the coordinates of `source` are not evenly spaced over {width} x {height} pixels: "
        "interpolate it onto a regular grid, or give its `transform` and `crs`"
    )
