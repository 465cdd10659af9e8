"""STAC items of images, as Earth Search (v1, collection sentinel-2-l2a) writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

API = "https://earth-search.aws.element84.com/v1"
_COG = "image/tiff; application=geotiff; profile=cloud-optimized"
_BANDS = {"red": "B04", "green": "B03", "scl": "SCL"}


def sentinel_item(name: str, folder: str, *, own: str | None = None) -> dict[str, Any]:
    """Return an item whose assets lie in a folder, by address or relative to its self link."""
    assets: dict[str, Any] = {
        band: {"href": f"{folder}/{file}.tif", "type": _COG, "roles": ["data", "reflectance"]}
        for band, file in _BANDS.items()
    }
    others = {
        "visual": (f"{folder}/TCI.tif", _COG, "visual"),
        "visual-jp2": (f"s3://sentinel-s2-l2a/{name}/TCI.jp2", "image/jp2", "visual"),
        "thumbnail": (f"{folder}/thumbnail.jpg", "image/jpeg", "thumbnail"),
        "granule_metadata": (f"{folder}/metadata.xml", "application/xml", "metadata"),
    }
    for asset, (href, media_type, role) in others.items():
        assets[asset] = {"href": href, "type": media_type, "roles": [role]}
    collection = f"{API}/collections/sentinel-2-l2a"
    here = own or f"{collection}/items/{name}"
    corners = [[37, 55], [38, 55], [38, 56], [37, 56], [37, 55]]
    times = {"created": "2024-05-02T01:02:03.000Z", "datetime": "2024-05-01T08:26:11.123000Z"}
    return {
        **{"type": "Feature", "stac_version": "1.0.0", "id": name, "assets": assets},
        "properties": {**times, "platform": "sentinel-2b", "proj:epsg": 32637},
        "geometry": {"type": "Polygon", "coordinates": [corners]},
        "bbox": [37, 55, 38, 56],
        "links": [
            {"rel": "self", "type": "application/geo+json", "href": here},
            {"rel": "collection", "type": "application/json", "href": collection},
        ],
        "stac_extensions": ["https://stac-extensions.github.io/projection/v1.1.0/schema.json"],
        "collection": "sentinel-2-l2a",
    }


def collection_of(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the answer of a search."""
    matched = {"matched": len(items), "returned": len(items), "limit": 10}
    return {"type": "FeatureCollection", "stac_version": "1.0.0", "context": matched} | {
        "features": [*items],
        "links": [{"rel": "root", "href": API}],
        **more,
    }


def write_json(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
