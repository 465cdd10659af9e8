"""Functions that turn rasters of roads into road networks: of files, datasets and arrays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from geoprep.errors import UsageError
from geoprep.options import (
    made,
    option,
    options_of,
    overwrite_option,
    with_options,
    workers_option,
)
from geoprep.outputs import check_outputs, require_suffix
from geoprep.roads.options import RasterOptions, Tracing

if TYPE_CHECKING:
    from geoprep.api.networks import RoadNetwork
    from geoprep.storage.local_files import StrPath

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class VectorizeFile:
    """Output: the network."""

    out: Path | None = option(
        None,
        "File to write; format by suffix: .gpkg, .geojson, .parquet, or .csv, which "
        "write_road_table writes in Python.",
        "FILE",
        required=True,
    )
    overwrite: bool = overwrite_option()


@dataclass(frozen=True, kw_only=True)
class VectorizeWork:
    """Run: how rasters are traced."""

    workers: int | None = workers_option()


@with_options(
    (
        *options_of(VectorizeFile),
        *options_of(VectorizeWork),
        *options_of(RasterOptions),
        *options_of(Tracing),
    )
)
def vectorize(
    source: Any,  # noqa: ANN401 - paths, datasets or arrays
    *,
    transform: Any = None,  # noqa: ANN401 - affine
    crs: Any = None,  # noqa: ANN401 - anything that rasterio understands
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - fields of the records above
) -> RoadNetwork:
    """Return the road network of predictions, masks or probabilities.

    Parameters
    ----------
    source
        A file or folder, or several; an open rasterio dataset; an ``xarray.DataArray`` with a CRS
        as rioxarray writes it, or ``crs`` given here, and with coordinates of pixel centres, which
        are evenly spaced in any order, or ``transform``; or an array (y, x) or (band, y, x) with
        ``crs`` and ``transform``, or with ``pixel_size``.
    transform, crs
        Affine (pixel to CRS) and CRS of an array. They replace those that a DataArray states.
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
    from geoprep.roads.formats.files import write_network
    from geoprep.roads.names import NETWORK_SUFFIXES
    from geoprep.roads.tracing.vectorization import vectorize as trace_rasters

    file = made(VectorizeFile, options)
    if file.out is not None:
        require_suffix(file.out, *NETWORK_SUFFIXES)
        if file.out.suffix.lower() == ".geojson" and options.get("pixel_size"):
            raise UsageError(f"{file.out}: `pixel_size` gives no CRS, as GeoJSON has. Write .gpkg")
    rasters = _Rasters(source, file, progress, options, transform, crs)
    with rasters.given_to(trace_rasters) as graph:
        network = RoadNetwork(graph)
    if file.out is not None:
        write_network(network.graph, file.out)
    return network


@with_options(
    (
        *options_of(VectorizeFile, "overwrite"),
        *options_of(VectorizeWork),
        *options_of(RasterOptions),
        *options_of(Tracing),
    )
)
def write_road_table(
    source: StrPath | Sequence[StrPath],
    out: StrPath,
    *,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - fields of the records above
) -> dict[str, int]:
    """Write the roads of every raster as SpaceNet's table (.csv), in pixels of its image.

    Parameters
    ----------
    source
        A file or folder, or several.
    out
        Table to write, NAME.csv.
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
    from geoprep.roads.formats.spacenet_csv import write_csv
    from geoprep.roads.tracing.vectorization import vectorize_each

    table = Path(out)
    require_suffix(table, ".csv")
    options["out"] = table
    rasters = _Rasters(source, made(VectorizeFile, options), progress, options)
    with rasters.given_to(vectorize_each) as roads:
        return write_csv(roads, table)


@dataclass(frozen=True, slots=True)
class _Rasters:
    """Rasters to trace, and how: the arguments of `vectorize`."""

    source: Any
    file: VectorizeFile  # what they are traced for
    progress: bool
    options: dict[str, Any]
    transform: Any = None
    crs: Any = None

    @contextmanager
    def given_to(self, function: Callable[..., R]) -> Iterator[R]:
        """Yield what a function makes of the rasters, which exist as long as the context."""
        from geoprep.executors.progress import counting_bar
        from geoprep.roads.tracing.vectorization import rasters_in

        reading, tracing = (made(kind, dict(self.options)) for kind in (RasterOptions, Tracing))
        workers = made(VectorizeWork, self.options).workers
        with tempfile.TemporaryDirectory() as folder:
            found = _paths_of(self.source, Path(folder), self.transform, self.crs)
            paths = [path for one in found for path in rasters_in(one)]
            if not paths:
                raise UsageError("source", "is empty: give at least one raster")
            if self.file.out is not None:
                check_outputs(self.file.out, inputs=paths, overwrite=self.file.overwrite)
            with counting_bar("vectorizing", quiet=not self.progress) as advance:
                yield function(paths, tracing, reading, workers=workers, advance=advance)


def _paths_of(source: Any, folder: Path, transform: Any, crs: Any) -> list[Path]:  # noqa: ANN401
    """Return the rasters of a source as files; arrays and datasets are written to a folder."""
    import numpy as np

    from geoprep.api.arrays import write_array, write_data_array

    if isinstance(source, str | os.PathLike):
        return [Path(source)]
    path = folder / "source.tif"
    if hasattr(source, "read") and hasattr(source, "profile"):  # a rasterio dataset
        from rasterio.shutil import copy

        copy(source, path, driver="GTiff")
    elif hasattr(source, "data_vars"):
        raise UsageError("source", f"is a Dataset: choose one of {', '.join(source.data_vars)}")
    elif hasattr(source, "dims") and hasattr(source, "values"):  # an xarray.DataArray
        write_data_array(path, source, transform, crs)
    elif isinstance(source, np.ndarray):
        write_array(path, source, transform, crs)
    elif isinstance(source, Iterable):
        return [Path(one) for one in source]
    else:
        raise UsageError(
            "source", f"is a {type(source).__name__}: give paths, a dataset or an array"
        )
    return [path]
