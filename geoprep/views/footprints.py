"""The scenes and tiles of a store as tables with outlines, and their export for a GIS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import reproject, unwrapped
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.outputs import check_outputs, require_suffix
from geoprep.storage.output_files import replaced
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import scene_grid, scene_roads, split_names, valid_share
from geoprep.store.schema import SPLIT_NAMES

if TYPE_CHECKING:
    import geopandas as gpd

By = Literal["scene", "tile"]
LONLAT: Final = "EPSG:4326"
DECIMALS = 9
"""Decimal places of a degree: a resolution of 0.1 mm."""


def columns_of(store: StoreReader, by: By) -> dict[str, Any]:
    """Return one value per scene, or per tile; texts are those of its scene."""
    tiles, table = store.tiles, store.scenes
    if by == "scene":
        scenes = range(len(table))
        return {
            "scene": table.id.astype(str).tolist(),
            "split": [split_names(store, scene) for scene in scenes],
            "status": table.status.astype(str).tolist(),
            "reason": table.reason.astype(str).tolist(),
            "tiles": np.bincount(tiles.scene, minlength=len(table)).astype(np.int64),
            store.meta.share_column: scene_roads(store),
            "valid_fraction": [valid_share(store, scene) for scene in scenes],
            "crs": table.crs.astype(str).tolist(),
        }
    return {
        "scene": table.id[tiles.scene].astype(str).tolist(),
        "row": tiles.row.astype(np.int64),
        "col": tiles.col.astype(np.int64),
        "split": np.array(SPLIT_NAMES, object)[tiles.split],
        "status": table.status[tiles.scene].astype(str).tolist(),
        "reason": table.reason[tiles.scene].astype(str).tolist(),
        "tile": np.arange(len(tiles)),
        store.meta.share_column: tiles.road_fraction,
        "valid_fraction": tiles.valid_fraction,
        "crs": table.crs[tiles.scene].astype(str).tolist(),
    }


def outlines(store: StoreReader, by: By, crs: str | None = None) -> tuple[NDArray[np.object_], str]:
    """Return the outline of every scene or, without padding, of every tile, and their CRS.

    It is None if not georeferenced. The CRS is that of all scenes, else EPSG:4326; if that is
    given, outlines across the 180th meridian continue beyond it.
    """
    grids = _grids(store, by)
    of_row = np.array([grid.crs if grid else "" for grid in grids], object)
    shapes = np.array([grid.outline() if grid and grid.crs else None for grid in grids], object)
    crses = sorted(set(of_row) - {""})
    common = crs or (crses[0] if len(crses) == 1 else LONLAT)
    for own_crs in crses:
        shapes[of_row == own_crs] = reproject(shapes[of_row == own_crs], own_crs, common)
    if crs == LONLAT:
        shapes[of_row != ""] = [_continuous(shape) for shape in shapes[of_row != ""]]
    return shapes, common


def _grids(store: StoreReader, by: By) -> list[Grid | None]:
    """Return the grid of every scene or, without padding, of every tile."""
    scenes = [scene_grid(store, scene) for scene in range(len(store.scenes))]
    if by == "scene":
        return scenes
    tiles, side = store.tiles, store.meta.tile
    return [
        (grid := scenes[scene])
        and grid.window(row, col, min(side, grid.height - row), min(side, grid.width - col))
        for scene, row, col in np.stack([tiles.scene, tiles.row, tiles.col], axis=1).tolist()
    ]


def _continuous(shape: shapely.Polygon) -> shapely.Polygon | None:
    """Return an outline that does not jump at the 180th meridian; None if it is not finite."""
    lonlat = shapely.get_coordinates(shape)
    return shapely.Polygon(unwrapped(lonlat)) if np.isfinite(lonlat).all() else None


def table_of(store: StoreReader, by: By, crs: str | None = None) -> gpd.GeoDataFrame:
    """Return one row per scene, or per tile, with its `outlines`."""
    import geopandas as gpd

    shapes, crs = outlines(store, by, crs)
    return gpd.GeoDataFrame(columns_of(store, by), geometry=gpd.GeoSeries(shapes, crs=crs))


def export_footprints(
    store: StoreReader, out: Path, *, by: By = "scene", overwrite: bool = False
) -> Path:
    """Write one polygon per scene or tile, in longitude and latitude, with its properties.

    A scene without a readable, georeferenced image has no geometry.
    """
    frame = table_of(store, by, LONLAT).drop(columns="crs")
    if frame.geometry.isna().all():
        raise UsageError(
            f"{store.location}: none of its scenes is georeferenced, so they have no footprints. "
            "`geoprep info --scenes` lists them"
        )
    require_suffix(out, ".geojson", ".json", ".gpkg")
    check_outputs(out, inputs=[store.location], overwrite=overwrite)
    shares = [store.meta.share_column, "valid_fraction"]
    frame[shares] = frame[shares].astype(np.float64).round(6)
    written: dict[str, Any] = {"driver": "GPKG"}
    if out.suffix.lower() != ".gpkg":
        # RFC 7946: longitude and latitude, counterclockwise, cut at the 180th meridian.
        rules = {"RFC7946": "YES", "COORDINATE_PRECISION": str(DECIMALS)}
        written = {"driver": "GeoJSON", "layer_options": rules}
    with replaced(out) as partial:
        frame.to_file(partial, layer=f"{by}s", geometry_type="Polygon", engine="pyogrio", **written)
    return out
