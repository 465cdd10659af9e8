"""GeoParquet 1.1: one table of edges, for those who compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyproj
import shapely

from geoprep.errors import SourceError, UsageError
from geoprep.roads.formats.tables import crs_name, edge_columns, network_of
from geoprep.roads.network import RoadNetwork

_VERSION: Final = "1.1.0"


def write_parquet(network: RoadNetwork, path: Path) -> None:
    """Write the edges, geometry as WKB in the CRS of the network.

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


def _geo(network: RoadNetwork) -> dict[str, Any]:
    """Return what GeoParquet asks of its geometry column (a missing CRS would mean degrees)."""
    crs = None if network.crs is None else pyproj.CRS.from_user_input(network.crs).to_json_dict()
    column: dict[str, Any] = {"encoding": "WKB", "geometry_types": ["LineString"], "crs": crs}
    if len(network.lines):
        column["bbox"] = shapely.total_bounds(network.lines).tolist()
    return {"version": _VERSION, "primary_column": "geometry", "columns": {"geometry": column}}


def read_parquet(path: Path) -> RoadNetwork:
    """Read GeoParquet that `write_parquet` wrote.

    Raises
    ------
    UsageError
        pyarrow is not installed.
    SourceError
        It is no GeoParquet of edges.
    """
    pa, pq = _arrow()
    try:
        table = pq.read_table(path)
        geo = json.loads((table.schema.metadata or {})[b"geo"])
        column = geo["primary_column"]
        crs = crs_name(geo["columns"][column].get("crs", "OGC:CRS84"))
        lines = shapely.from_wkb(np.array(table[column].to_pylist(), object))
    except (pa.ArrowException, KeyError, ValueError, shapely.errors.ShapelyError) as error:
        raise SourceError(f"{path}: not readable as GeoParquet of edges: {error}") from error
    columns = {
        name: table[name].to_numpy(zero_copy_only=False)
        for name in table.column_names
        if name != column
    }
    return network_of(path, columns, lines, crs)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "GeoParquet needs pyarrow: pip install pyarrow, or write NAME.gpkg"
        ) from error
    return pyarrow, pyarrow.parquet
