"""Functions that turn rasters of roads into road networks: of files, datasets and arrays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from geoprep.errors import UsageError
from geoprep.options import options_of, taken, with_options
from geoprep.quiet import no_georeference_warning
from geoprep.roads import RasterOptions, Tracing

if TYPE_CHECKING:
    import numpy as np

    from geoprep.api.networks import RoadNetwork
    from geoprep.storage import StrPath

R = TypeVar("R")


@with_options((*options_of(RasterOptions), *options_of(Tracing)))
def vectorize(
    source: Any,  # noqa: ANN401 - paths, datasets or arrays
    *,
    out: StrPath | None = None,
    transform: Any = None,  # noqa: ANN401 - affine
    crs: Any = None,  # noqa: ANN401 - anything that rasterio understands
    workers: int | None = None,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - fields of `RasterOptions` and `Tracing`
) -> RoadNetwork:
    """Return the road network of predictions, masks or probabilities.

    Parameters
    ----------
    source
        A file or folder, or several; an open rasterio dataset; an ``xarray.DataArray`` with a CRS
        (of rioxarray), or with ``crs`` and ``transform`` given here; or an array (y, x) or
        (band, y, x) with ``crs`` and ``transform``, or with ``pixel_size``.
    out
        File to write; format by suffix: .gpkg, .geojson, .graphml, .parquet, .osm or .csv.
    transform, crs
        Affine (pixel to CRS) and CRS of an array.
    workers
        Number of worker threads. Default: one per core.
    progress
        Whether to show a progress bar.
    **options

    Raises
    ------
    UsageError
        Options do not fit each other or the rasters.
    SourceError, ImageError
        A raster cannot be found or read.
    """
    from geoprep.api.networks import RoadNetwork
    from geoprep.roads import NETWORK_SUFFIXES, TABLE_SUFFIX, vectorize_each, write_csv
    from geoprep.roads import vectorize as trace_rasters
    from geoprep.storage import require_suffix

    if out is not None:
        require_suffix(Path(out), *NETWORK_SUFFIXES, TABLE_SUFFIX)
    traced = partial(_traced, source, out, transform, crs, workers, progress, options)
    with traced(trace_rasters) as graph:
        network = RoadNetwork(graph)
    if out is not None and Path(out).suffix.lower() != ".csv":
        network.to_file(out)
    elif out is not None:
        with traced(vectorize_each) as roads:
            write_csv(roads, Path(out))
    return network


@with_options((*options_of(RasterOptions), *options_of(Tracing)))
def write_road_table(
    source: StrPath | Sequence[StrPath],
    out: StrPath,
    *,
    workers: int | None = None,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - fields of `RasterOptions` and `Tracing`
) -> dict[str, int]:
    """Write the roads of every raster as SpaceNet's table (.csv), in pixels of its image.

    Parameters
    ----------
    source
        A file or folder, or several.
    out
        Table to write, NAME.csv.
    workers
        Number of worker threads. None: one per core.
    progress
        Whether to show a progress bar.
    **options

    Returns
    -------
    dict
        Number of ``images`` and of ``edges``.

    Raises
    ------
    UsageError
        Options do not fit the rasters, or two rasters are of the same image.
    SourceError, ImageError
        A raster cannot be found or read.
    """
    from geoprep.roads import vectorize_each, write_csv
    from geoprep.storage import require_suffix

    table = Path(out)
    require_suffix(table, ".csv")
    with _traced(source, table, None, None, workers, progress, options, vectorize_each) as roads:
        return write_csv(roads, table)


@contextmanager
def _traced(
    source: Any,  # noqa: ANN401 - as of `vectorize`
    out: StrPath | None,
    transform: Any,  # noqa: ANN401 - as above
    crs: Any,  # noqa: ANN401 - as above
    workers: int | None,
    progress: bool,
    given: dict[str, Any],
    function: Callable[..., R],
) -> Iterator[R]:
    """Yield what a function makes of rasters, which exist as long as the context.

    ``out`` is the file that it is for.
    """
    from geoprep.executors import counting_bar
    from geoprep.roads import rasters_in
    from geoprep.storage import outputs

    reading, tracing = taken(dict(given), RasterOptions), taken(dict(given), Tracing)
    with tempfile.TemporaryDirectory() as folder:
        found = _paths_of(source, Path(folder), transform, crs)
        paths = [path for one in found for path in rasters_in(one)]
        if not paths:
            raise UsageError("`source` is empty: give at least one raster")
        if out is not None:
            outputs(Path(out), inputs=paths)
        with counting_bar("vectorizing", quiet=not progress) as advance:
            yield function(paths, tracing, reading, workers=workers, advance=advance)


def stated_thresholds(source: StrPath) -> tuple[Path, float, float] | None:
    """Return the first raster and the two thresholds that it states; None if it states none.

    Raises
    ------
    SourceError, ImageError
        The raster cannot be found or read.
    """
    from geoprep.roads import rasters_in, stated_threshold

    first = rasters_in(Path(source))[0]
    stated = stated_threshold(first)
    return None if stated is None else (first, *Tracing().thresholds(stated))


def _paths_of(source: Any, folder: Path, transform: Any, crs: Any) -> list[Path]:  # noqa: ANN401
    """Return the rasters of a source as files; arrays and datasets are written to a folder."""
    import numpy as np

    if isinstance(source, str | os.PathLike):
        return [Path(source)]
    path = folder / "source.tif"
    if hasattr(source, "read") and hasattr(source, "profile"):  # a rasterio dataset
        from rasterio.shutil import copy

        copy(source, path, driver="GTiff")
    elif hasattr(source, "dims") and hasattr(source, "values"):  # an xarray.DataArray
        if transform is None and crs is None:
            transform, crs = _georeference(source)
        # rioxarray and xarray keep these in attributes, or apart once they are decoded.
        kept = {**source.encoding, **source.attrs}
        nodata = kept.get("_FillValue", kept.get("nodata"))
        _write(path, np.asarray(source.values), transform, crs, nodata, kept.get("units"))
    elif isinstance(source, np.ndarray):
        _write(path, source, transform, crs)
    elif isinstance(source, Iterable):
        return [Path(one) for one in source]
    else:
        raise UsageError(
            f"`source` is a {type(source).__name__}: give paths, a dataset or an array"
        )
    return [path]


def _georeference(array: Any) -> tuple[Any, Any]:  # noqa: ANN401 - xarray's, affine
    """Return transform and CRS of a DataArray: of rioxarray, or as it writes them into files."""
    if hasattr(array, "rio"):
        found = array.rio.crs
        return (None, None) if found is None else (array.rio.transform(), found)
    written = array.coords["spatial_ref"].attrs if "spatial_ref" in array.coords else {}
    if not {"crs_wkt", "GeoTransform"} <= set(written):
        return None, None
    from affine import Affine

    return Affine.from_gdal(*map(float, written["GeoTransform"].split())), written["crs_wkt"]


def _write(
    path: Path,
    values: np.ndarray[Any, Any],
    transform: Any,  # noqa: ANN401 - affine
    crs: Any,  # noqa: ANN401 - anything that rasterio understands
    nodata: float | None = None,
    unit: str | None = None,
) -> None:
    """Write an array (y, x) or (band, y, x) as a GeoTIFF."""
    import rasterio

    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3:
        raise UsageError(f"`source` has {values.ndim} axes: give an array (y, x) or (band, y, x)")
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
        if unit:
            file.units = [unit] * bands
