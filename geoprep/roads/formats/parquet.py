"""Road networks as GeoParquet 1.1: one table of edges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyproj
import shapely

from geoprep.errors import SourceError, UsageError
from geoprep.roads.formats.edge_table import (
    are_network_fields,
    crs_name,
    edge_columns,
    network_of_table,
)
from geoprep.roads.network import RoadGraph

_VERSION: Final = "1.1.0"


def write_parquet(network: RoadGraph, path: Path) -> None:
    """Write the edges, with geometry as WKB in the CRS of the network.

    Raises
    ------
    UsageError
        pyarrow is not installed.
    """
    pa, pq = _arrow()
    columns = {name: pa.array(v, from_pandas=True) for name, v in edge_columns(network).items()}
    columns["geometry"] = pa.array(shapely.to_wkb(network.lines).tolist(), pa.binary())
    table = pa.table(columns).replace_schema_metadata({"geo": json.dumps(_geo(network))})
    pq.write_table(table, path, compression="zstd")


def _geo(network: RoadGraph) -> dict[str, Any]:
    """Return GeoParquet's description of the geometry column (a missing CRS means degrees)."""
    crs = None if network.crs is None else pyproj.CRS.from_user_input(network.crs).to_json_dict()
    column: dict[str, Any] = {"encoding": "WKB", "geometry_types": ["LineString"], "crs": crs}
    if len(network.lines):
        column["bbox"] = shapely.total_bounds(network.lines).tolist()
    return {"version": _VERSION, "primary_column": "geometry", "columns": {"geometry": column}}


def read_parquet(path: Path) -> RoadGraph:
    """Return the road network of a GeoParquet file.

    Raises
    ------
    UsageError
        pyarrow is not installed.
    SourceError
        The file is not GeoParquet, or not a road network.
    """
    pa, pq = _arrow()
    try:
        table = pq.read_table(path)
        geo = json.loads((table.schema.metadata or {})[b"geo"])
        column = geo["primary_column"]
        crs = crs_name(geo["columns"][column].get("crs", "OGC:CRS84"))
        wkb = np.array(table[column].to_pylist(), object)
        lines = np.asarray(shapely.force_2d(shapely.from_wkb(wkb)), object)
    except (pa.ArrowException, KeyError, ValueError, shapely.errors.ShapelyError) as error:
        raise SourceError(f"{path}: not readable as GeoParquet: {error}") from error
    columns = {
        name: table[name].to_numpy(zero_copy_only=False)
        for name in table.column_names
        if name != column
    }
    return network_of_table(path, columns, lines, crs)


def has_network_columns(path: Path) -> bool:
    """Return whether a Parquet file has the columns of a road network.

    Raises
    ------
    UsageError
        pyarrow is not installed.
    """
    pa, pq = _arrow()
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: not readable as GeoParquet: {error}") from error
    return are_network_fields(names)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "GeoParquet needs pyarrow: pip install 'geoprep[parquet]', or use a .gpkg file"
        ) from error
    return pyarrow, pyarrow.parquet
