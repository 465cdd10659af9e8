"""The scenes and tiles of a store as tables with outlines, and their export for a GIS."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import shapely

from geoprep.crs import to_lonlat
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.storage import replaced
from geoprep.store import (
    SPLIT_NAMES,
    StoreReader,
    scene_grid,
    scene_roads,
    split_names,
    tiles_of,
    valid_share,
)

By = Literal["scene", "tile"]
SUFFIXES = (".geojson", ".json", ".gpkg")
FIELDS: dict[By, tuple[str, ...]] = {
    "scene": ("scene", "split", "status", "reason", "road_fraction", "valid_fraction", "tiles"),
    "tile": (
        *("scene", "split", "status", "reason", "tile", "row", "col"),
        *("road_fraction", "valid_fraction"),
    ),
}
DECIMALS = 9
"""Decimal places of a degree: a resolution of 0.1 mm."""


def scene_columns(store: StoreReader) -> dict[str, Any]:
    """Return one value per scene: id, splits, status, reason, number of tiles, shares and CRS."""
    table = store.scenes
    scenes = range(len(table))
    return {
        "scene": table.id.astype(str).tolist(),
        "split": [split_names(store, scene) for scene in scenes],
        "status": table.status.astype(str).tolist(),
        "reason": table.reason.astype(str).tolist(),
        "tiles": np.bincount(store.tiles.scene, minlength=len(table)).astype(np.int64),
        "road_fraction": scene_roads(store),
        "valid_fraction": [valid_share(store, scene) for scene in scenes],
        "crs": table.crs.astype(str).tolist(),
    }


def tile_columns(store: StoreReader) -> dict[str, Any]:
    """Return one value per tile: its scene, offset, split and shares, and its scene's columns."""
    tiles, table = store.tiles, store.scenes
    return {
        "scene": table.id[tiles.scene].astype(str).tolist(),
        "row": tiles.row.astype(np.int64),
        "col": tiles.col.astype(np.int64),
        "split": np.array(SPLIT_NAMES, object)[tiles.split],
        "status": table.status[tiles.scene].astype(str).tolist(),
        "reason": table.reason[tiles.scene].astype(str).tolist(),
        "tile": np.arange(len(tiles)),
        "road_fraction": tiles.road_fraction,
        "valid_fraction": tiles.valid_fraction,
        "crs": table.crs[tiles.scene].astype(str).tolist(),
    }


def grids_of(store: StoreReader, by: By) -> list[Grid | None]:
    """Return the grid of every scene or, without padding, of every tile."""
    scenes = [scene_grid(store, scene) for scene in range(len(store.scenes))]
    if by == "scene":
        return scenes
    tiles, side = store.tiles, store.meta.tile
    found: list[Grid | None] = []
    for scene, grid in enumerate(scenes):
        for i in range(*tiles_of(tiles, scene).indices(len(tiles))):
            row, col = int(tiles.row[i]), int(tiles.col[i])
            found.append(
                grid
                and grid.window(row, col, min(side, grid.height - row), min(side, grid.width - col))
            )
    return found


def outline(grid: Grid | None) -> shapely.Polygon | None:
    """Return a grid's outline in its CRS, counterclockwise; None if it is not georeferenced."""
    if grid is None or not grid.georeferenced:
        return None
    corners = [(0, 0), (0, grid.height), (grid.width, grid.height), (grid.width, 0)]
    polygon = shapely.Polygon([grid.transform * corner for corner in corners])
    return shapely.geometry.polygon.orient(polygon)


def lonlat_outline(grid: Grid | None) -> shapely.Polygon | None:
    """Return a grid's outline in longitude and latitude; None if not georeferenced."""
    polygon = outline(grid)
    if grid is None or polygon is None:
        return None
    lon, lat = to_lonlat(grid.crs).transform(*shapely.get_coordinates(polygon).T)
    if not np.isfinite([lon, lat]).all():
        return None
    lon = np.unwrap(lon, period=360)  # across the 180th meridian
    return shapely.Polygon(np.column_stack([lon, lat]))


def export_footprints(store: StoreReader, out: str | Path, *, by: By = "scene") -> Path:
    """Write one polygon per scene or tile, in longitude and latitude, with its properties.

    A scene without a readable, georeferenced image has no geometry.
    """
    out = Path(out)
    grids = grids_of(store, by)
    if not any(grid is not None and grid.georeferenced for grid in grids):
        raise UsageError(
            f"{store.location}: none of its scenes is georeferenced, so they have no footprints. "
            "`geoprep info --scenes` lists them"
        )
    if out.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{out}: footprints are written as NAME.geojson or NAME.gpkg")
    columns = scene_columns(store) if by == "scene" else tile_columns(store)
    for name in ("road_fraction", "valid_fraction"):
        columns[name] = np.round(np.asarray(columns[name], np.float64), 6)
    polygons = [lonlat_outline(grid) for grid in grids]
    with replaced(out) as partial:
        _write(partial, polygons, {name: columns[name] for name in FIELDS[by]}, f"{by}s")
    return out


def _write(
    path: Path, polygons: list[shapely.Polygon | None], columns: dict[str, Any], layer: str
) -> None:
    import pyogrio

    values = [np.asarray(column) for column in columns.values()]
    geojson = path.suffix.lower() != ".gpkg"
    # RFC 7946: longitude and latitude, counterclockwise, cut at the 180th meridian.
    options = {"RFC7946": "YES", "COORDINATE_PRECISION": str(DECIMALS)} if geojson else {}
    pyogrio.raw.write(
        path,
        geometry=shapely.to_wkb(np.array(polygons, object)),
        field_data=[one.astype(object) if one.dtype.kind == "U" else one for one in values],
        fields=list(columns),
        geometry_type="Polygon",
        crs="EPSG:4326",
        layer=layer,
        driver="GeoJSON" if geojson else "GPKG",
        layer_options=options,
    )
