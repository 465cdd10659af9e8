"""Functions that turn rasters of roads into road networks: of files, datasets and arrays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from geoprep.api.networks import RoadNetwork
from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.roads import Kind
    from geoprep.storage import StrPath

_TITLE = "vectorizing"


def vectorize(
    source: Any,  # noqa: ANN401 - paths, datasets or arrays
    *,
    out: StrPath | None = None,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size: float | None = None,
    transform: Any = None,  # noqa: ANN401 - affine
    crs: Any = None,  # noqa: ANN401 - anything that rasterio understands
    threshold: float | None = None,
    high_threshold: float | None = None,
    spur_m: float = 10.0,
    min_length_m: float = 12.0,
    min_confidence: float = 0.0,
    smoothing_m: float | None = None,
    path_m: float = 60.0,
    close_gaps: bool = True,
    motorway_mph: float = 60.0,
    workers: int | None = None,
    progress: bool = True,
) -> RoadNetwork:
    """Return the road network of predictions, masks or probabilities.

    Parameters
    ----------
    source
        A file or folder, or several; an open rasterio dataset; an ``xarray.DataArray`` with a CRS
        (of rioxarray), or with ``crs`` and ``transform`` given here; or an array (y, x) or
        (band, y, x) with ``crs`` and ``transform``, or with ``pixel_size``.
    out
        File to write as well; see `RoadNetwork.to_file`.
    kind
        ``probability``, ``speed`` or ``mask``. None: as the raster says, or by its values.
    band
        Band of roads, from 1. None: as the raster says.
    pixel_size
        Pixel size in metres of rasters that are not georeferenced.
    transform, crs
        Affine (pixel to CRS) and CRS of an array.
    threshold
        Minimum probability of road pixels. None: 0.3, or what makes a prediction's own threshold
        (its tag ``ROAD_THRESHOLD``) the high threshold: 0.3 for 0.5.
    high_threshold
        Probability that every connected component must reach at some pixel. None: the odds of the
        threshold times 7/3, such as 0.5 for 0.3.
    spur_m
        Minimum length in metres of a dead end at a junction. Shorter ones are removed, except at
        the border of the rasters.
    min_length_m
        Minimum total length in metres of a connected component. Shorter ones are removed.
    min_confidence
        Minimum mean probability along an edge. Edges below are removed; 0 keeps all.
    smoothing_m
        Standard deviation in metres of the Gaussian that smooths lines; 0: none. None: by the
        pixel size.
    path_m
        Maximum length in metres of paths through probabilities along which dead ends are joined to
        other roads; 0: none. Masks and speeds have none.
    close_gaps
        Whether interrupted roads are joined.
    motorway_mph
        Speed in mph above which a road has no level crossings: slower roads cross it on a bridge.
    workers
        Number of worker threads. None: one per core.
    progress
        Whether to show a progress bar.

    Raises
    ------
    UsageError
        Options do not fit each other or the rasters.
    SourceError, ImageError
        A raster cannot be found or read.
    """
    from geoprep.api.progress import counting_bar
    from geoprep.roads import Tracing, check_target
    from geoprep.roads import vectorize as trace_rasters

    if out is not None:
        check_target(Path(out))
        if Path(out).suffix.lower() == ".csv":
            raise UsageError(f"{out}: a table has no network. Use `write_road_table`")
    with _rasters(source, transform, crs) as paths:
        options = Tracing(
            threshold=threshold,
            high_threshold=high_threshold,
            spur_m=spur_m,
            min_length_m=min_length_m,
            min_confidence=min_confidence,
            smoothing_m=smoothing_m,
            path_m=path_m,
            motorway_mph=motorway_mph,
            close_gaps=close_gaps,
        )
        with counting_bar(_TITLE, quiet=not progress) as advance:
            graph = trace_rasters(
                paths,
                options,
                kind=kind,
                band=band,
                pixel_size_m=pixel_size,
                workers=workers,
                advance=advance,
            )
    network = RoadNetwork(graph)
    if out is not None:
        network.to_file(out)
    return network


def write_road_table(
    source: StrPath | Sequence[StrPath],
    out: StrPath,
    *,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size: float | None = None,
    workers: int | None = None,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - numbers and a switch
) -> dict[str, int]:
    """Write the roads of every raster as SpaceNet's table (.csv), in pixels of its image.

    Parameters
    ----------
    source
        A file or folder, or several.
    out
        Table to write, NAME.csv.
    kind, band, pixel_size, workers, progress, **options
        As of `vectorize`.

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
    from geoprep.api.progress import counting_bar
    from geoprep.roads import Tracing, check_target, vectorize_each, write_csv

    table = Path(out)
    check_target(table)
    if table.suffix.lower() != ".csv":
        raise UsageError(f"{out}: the name of a table ends in .csv")
    with _rasters(source) as paths, counting_bar(_TITLE, quiet=not progress) as advance:
        roads = vectorize_each(
            paths,
            Tracing(**options),
            kind=kind,
            band=band,
            pixel_size_m=pixel_size,
            workers=workers,
            advance=advance,
        )
        return {"images": len(paths), "edges": write_csv(roads, table)}


def stated_thresholds(source: StrPath) -> tuple[Path, float, float] | None:
    """Return the first raster and the two thresholds that it states; None if it states none.

    Raises
    ------
    SourceError, ImageError
        The raster cannot be found or read.
    """
    from geoprep.roads import Tracing, rasters_in, stated_threshold

    first = rasters_in(Path(source))[0]
    stated = stated_threshold(first)
    return None if stated is None else (first, *Tracing().thresholds(stated))


@contextmanager
def _rasters(source: Any, transform: Any = None, crs: Any = None) -> Iterator[list[Path]]:  # noqa: ANN401
    """Yield the rasters of a source as files, which exist as long as the context."""
    from geoprep.roads import rasters_in

    with tempfile.TemporaryDirectory() as folder:
        given = _paths_of(source, Path(folder), transform, crs)
        paths = [path for one in given for path in rasters_in(one)]
        if not paths:
            raise UsageError("`source` is empty: give at least one raster")
        yield paths


def _paths_of(source: Any, folder: Path, transform: Any, crs: Any) -> list[Path]:  # noqa: ANN401
    """Return the rasters of a source as files; arrays and datasets are written to a folder."""
    if isinstance(source, str | os.PathLike):
        return [Path(source)]
    if hasattr(source, "read") and hasattr(source, "profile"):  # a rasterio dataset
        transform, crs, values = source.transform, source.crs, source.read()
        return [_written(folder, values, transform, crs, source.descriptions, source.tags())]
    if hasattr(source, "dims") and hasattr(source, "values"):  # an xarray.DataArray
        if transform is None and crs is None:
            transform, crs = _georeference(source)
        return [_written(folder, np.asarray(source.values), transform, crs)]
    if isinstance(source, np.ndarray):
        return [_written(folder, source, transform, crs)]
    if isinstance(source, Iterable):
        return [Path(one) for one in source]
    raise UsageError(f"`source` is a {type(source).__name__}: give paths, a dataset or an array")


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


def _written(
    folder: Path,
    values: np.ndarray[Any, Any],
    transform: Any,  # noqa: ANN401
    crs: Any,  # noqa: ANN401
    names: Sequence[str | None] = (),
    tags: dict[str, str] | None = None,
) -> Path:
    """Write an array (y, x) or (band, y, x) as a GeoTIFF and return its path."""
    import warnings

    import rasterio
    from rasterio.errors import NotGeoreferencedWarning

    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3:
        raise UsageError(f"`source` has {values.ndim} axes: give an array (y, x) or (band, y, x)")
    if (transform is None) != (crs is None):
        raise UsageError("give both `transform` and `crs` of an array, or `pixel_size` alone")
    kinds = {"b": "uint8", "f": "float32"}
    values = values.astype(kinds.get(values.dtype.kind, values.dtype), copy=False)
    georeference = {"transform": transform, "crs": crs} if crs is not None else {}
    path = folder / "array.tif"
    bands, height, width = values.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(
            path, "w", driver="GTiff", count=bands, height=height, width=width,
            dtype=values.dtype, **georeference,
        ) as file:  # fmt: skip
            file.write(values)
            if any(names):
                file.descriptions = [name or "" for name in names]
            file.update_tags(**(tags or {}))
    return path
