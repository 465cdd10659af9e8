"""Export the outlines of a store's scenes or tiles as polygons for a GIS."""

from __future__ import annotations

from collections.abc import Iterator
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
DECIMALS = 9
"""Decimal places of a degree: a resolution of 0.1 mm."""


def export_footprints(store: StoreReader, out: str | Path, *, by: By = "scene") -> Path:
    """Write one polygon per scene or tile, in longitude and latitude, with its properties.

    Properties are ``scene``, ``split``, ``status``, ``reason``, ``road_fraction`` (of the labelled
    pixels) and ``valid_fraction``; tiles also have ``tile`` (their row in the store), ``row`` and
    ``col``. A scene without a readable, georeferenced image has no geometry.

    Parameters
    ----------
    out
        ``.geojson`` or ``.gpkg`` file, written atomically.
    by
        ``scene``: one polygon per scene; ``tile``: one per tile.

    Raises
    ------
    UsageError
        Another suffix, a folder that does not exist, or no scene is georeferenced.
    """
    out = Path(out)
    grids = [scene_grid(store, scene) for scene in range(len(store.scenes))]
    if all(grid is None or not grid.georeferenced for grid in grids):
        raise UsageError(
            f"{store.location}: none of its scenes is georeferenced, so they have no footprints. "
            "`geoprep info --scenes` lists them"
        )
    if out.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{out}: footprints are written as NAME.geojson or NAME.gpkg")
    features = list(_scenes(store) if by == "scene" else _tiles(store))
    with replaced(out) as partial:
        _write(partial, features, f"{by}s")
    return out


_Feature = tuple[shapely.Polygon | None, dict[str, Any]]


def _scenes(store: StoreReader) -> Iterator[_Feature]:
    roads = scene_roads(store)
    for index in range(len(store.scenes)):
        rows = tiles_of(store.tiles, index)
        properties = {
            **_common(store, index),
            "road_fraction": _number(roads[index]),
            "valid_fraction": _number(valid_share(store, index)),
            "tiles": rows.stop - rows.start,
        }
        yield outline(scene_grid(store, index)), properties


def _tiles(store: StoreReader) -> Iterator[_Feature]:
    tiles, side = store.tiles, store.meta.tile
    for index in range(len(store.scenes)):
        grid = scene_grid(store, index)
        for i in range(*tiles_of(tiles, index).indices(len(tiles))):
            row, col = int(tiles.row[i]), int(tiles.col[i])
            polygon = None
            if grid is not None:  # without padding
                height, width = min(side, grid.height - row), min(side, grid.width - col)
                polygon = outline(grid.window(row, col, height, width))
            properties = {
                **_common(store, index),
                "split": SPLIT_NAMES[tiles.split[i]],
                "tile": i,
                "row": row,
                "col": col,
                "road_fraction": _number(tiles.road_fraction[i]),
                "valid_fraction": _number(tiles.valid_fraction[i]),
            }
            yield polygon, properties


def _common(store: StoreReader, index: int) -> dict[str, Any]:
    scenes = store.scenes
    return {
        "scene": str(scenes.id[index]),
        "split": split_names(store, index),
        "status": str(scenes.status[index]),
        "reason": str(scenes.reason[index]),
    }


def _number(value: Any) -> float:  # noqa: ANN401 - any NumPy scalar
    return round(float(value), 6)


def outline(grid: Grid | None) -> shapely.Polygon | None:
    """Return a grid's outline in longitude and latitude; None if it is not georeferenced."""
    if grid is None or not grid.georeferenced:
        return None
    corners = [(0, 0), (0, grid.height), (grid.width, grid.height), (grid.width, 0)]
    xs, ys = zip(*(grid.transform * corner for corner in corners), strict=True)
    lon, lat = to_lonlat(grid.crs).transform(xs, ys)
    if not np.isfinite([lon, lat]).all():
        return None
    lon = np.unwrap(lon, period=360)  # across the 180th meridian
    return shapely.geometry.polygon.orient(shapely.Polygon(list(zip(lon, lat, strict=True))))


def _write(path: Path, features: list[_Feature], layer: str) -> None:
    import pyogrio

    names = list(features[0][1])
    columns = [np.array([properties[name] for _, properties in features]) for name in names]
    geojson = path.suffix.lower() != ".gpkg"
    # RFC 7946: longitude and latitude, counterclockwise, cut at the 180th meridian.
    options = {"RFC7946": "YES", "COORDINATE_PRECISION": str(DECIMALS)} if geojson else {}
    pyogrio.raw.write(
        path,
        geometry=shapely.to_wkb(np.array([polygon for polygon, _ in features], object)),
        field_data=[c.astype(object) if c.dtype.kind == "U" else c for c in columns],
        fields=names,
        geometry_type="Polygon",
        crs="EPSG:4326",
        layer=layer,
        driver="GeoJSON" if geojson else "GPKG",
        layer_options=options,
    )
