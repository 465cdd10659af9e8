"""A store as a STAC collection and its items, in the layout of stac-geoparquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from geoprep.errors import UsageError
from geoprep.specifications import PROJECTION_SCHEMA, STAC_GEOPARQUET_VERSION, STAC_VERSION
from geoprep.storage.addresses import is_local
from geoprep.storage.local_files import require_pyarrow
from geoprep.storage.output_files import outputs, replaced, require_suffix
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import tiles_of
from geoprep.views.footprints import By, footprints, grids_of

if TYPE_CHECKING:
    import pandas as pd

_PARQUET: Final = "application/vnd.apache.parquet"
_ZARR: Final = "application/vnd.zarr; version=3"
_KEPT: Final = ("split", "status", "reason")


def export_stac(store: StoreReader, out: Path, by: By, datetime: str | None) -> list[Path]:
    """Write items to NAME.parquet, which contains the collection, and the collection to NAME.json.

    Scenes that are not georeferenced are left out: readers of this layout need all bounds.
    """
    require_suffix(out, ".parquet")
    described = out.with_suffix(".json")
    outputs(out, described)
    table = footprints(store, by)
    require_pyarrow()
    import geopandas as gpd
    import pyarrow.parquet

    items = _items(store, by, table, out.stem) | _times(store, table["scene"], datetime)
    frame = gpd.GeoDataFrame(items, geometry=table.geometry)
    frame = frame[frame.geometry.notna()]
    ends = frame["start_datetime"].min(), frame["end_datetime"].max()
    interval = [None if time != time else time.isoformat() for time in ends]
    box = frame.total_bounds.round(9).tolist()
    extent = {"spatial": {"bbox": [box]}, "temporal": {"interval": [interval]}}
    collection = _collection(store, out, extent)
    embedded = {"version": STAC_GEOPARQUET_VERSION, "collections": {out.stem: collection}}
    with replaced(out) as partial:
        frame.to_parquet(partial, schema_version="1.1.0", write_covering_bbox=True, index=False)
        written = pyarrow.parquet.read_table(partial)
        metadata = {**written.schema.metadata, b"stac-geoparquet": json.dumps(embedded).encode()}
        pyarrow.parquet.write_table(written.replace_schema_metadata(metadata), partial)
    with replaced(described) as partial:
        partial.write_text(json.dumps(collection, indent=2) + "\n", encoding="utf-8")
    return [out, described]


def parsed_times(texts: Sequence[str]) -> pd.DatetimeIndex:
    """Return times in UTC of texts as STAC writes them; NaT for others."""
    import pandas as pd

    return pd.to_datetime(list(texts), utc=True, format="ISO8601", errors="coerce")


def _times(store: StoreReader, scenes: Sequence[str], given: str | None) -> dict[str, Any]:
    """Return the times of all items: as given, else as kept in a store that is made of items."""
    kept = {} if given else store.meta.build.get("datetimes", {})
    known = [kept.get(scene, "") for scene in scenes]
    texts = {
        "datetime": ["" if "/" in text else text for text in known],
        "start_datetime": [(given or text).partition("/")[0] for text in known],
        "end_datetime": [(given or text).rpartition("/")[2] for text in known],
    }
    times = {name: parsed_times(some).as_unit("us") for name, some in texts.items()}
    if given and any(times[name].isna().any() for name in ("start_datetime", "end_datetime")):
        raise UsageError(f"`datetime` {given}: give 2019-05-01 or START/END")
    return times


def _items(store: StoreReader, by: By, table: pd.DataFrame, name: str) -> dict[str, Any]:
    """Return the fields of the items of a table, one value per item."""
    count, grids = len(table), grids_of(store, by)
    ids, rows = table["scene"], [tiles_of(store.tiles, scene) for scene in range(count)]
    if by == "tile":
        rows = [slice(tile, tile + 1) for tile in range(count)]
        ids = ids + "_" + table["row"].astype(str) + "_" + table["col"].astype(str)
    kept = (*_KEPT, store.meta.share_column, "valid_fraction")
    links = [{"rel": "collection", "href": f"./{name}.json", "type": "application/json"}]
    items = {
        "type": "Feature",
        "stac_version": STAC_VERSION,
        "stac_extensions": [[PROJECTION_SCHEMA]] * count,
        "id": ids,
        "collection": name,
        "links": [links] * count,
        "assets": [_assets(store)] * count,
        "gsd": max(store.meta.gsd_m),
        "proj:code": [crs if crs.startswith("EPSG:") else None for crs in table["crs"]],
        "proj:wkt2": [None if crs.startswith("EPSG:") else crs or None for crs in table["crs"]],
        "proj:shape": [grid and [grid.height, grid.width] for grid in grids],
        "proj:transform": [grid and list(grid.transform)[:6] for grid in grids],
        "geoprep:tiles": [[row.start, row.stop] for row in rows],
        **{f"geoprep:{column}": table[column] for column in kept},
    }
    if store.meta.has_classes:
        pixels = [store.class_pixels[row].sum(axis=0) for row in rows]
        shares = [(counts / max(counts.sum(), 1)).tolist() for counts in pixels]
        named = [dict(zip(store.classes.names, counts, strict=True)) for counts in shares]
        items["geoprep:class_fractions"] = named
    return items


def _address(store: StoreReader) -> str:
    return str(Path(store.location).resolve()) if is_local(store.location) else store.location


def _assets(store: StoreReader) -> dict[str, Any]:
    """Return the arrays of the finest level."""
    bands, (image, label) = [{"name": band} for band in store.meta.bands], store.meta.array_names
    where = f"{_address(store)}/{store.meta.levels[0]}"
    return {
        image: {"href": f"{where}/{image}", "type": _ZARR, "roles": ["data"], "bands": bands},
        label: {"href": f"{where}/{label}", "type": _ZARR, "roles": ["labels"]},
    }


def _collection(store: StoreReader, out: Path, extent: dict[str, Any]) -> dict[str, Any]:
    """Return the collection of the items of a file."""
    items = {"href": f"./{out.name}", "type": _PARQUET, "roles": ["collection-mirror"]}
    return {
        "type": "Collection",
        "stac_version": STAC_VERSION,
        "id": out.stem,
        "description": f"Images and labels of {', '.join(store.meta.cities)}, made by geoprep",
        "license": "other",
        "extent": extent,
        "links": [{"rel": "store", "href": _address(store), "type": _ZARR}],
        "assets": {"items": items},
    }
