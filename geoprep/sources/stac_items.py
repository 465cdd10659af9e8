"""Reads STAC items as images: an asset of each, or several as bands, and when it was taken.

Items are a GeoJSON FeatureCollection, single items, the answer of a STAC API, or stac-geoparquet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from geoprep.errors import SourceError
from geoprep.imagery.description import Stated
from geoprep.sources.archives import INSIDE
from geoprep.sources.label_matching import IMAGE_SUFFIXES, NamedImage
from geoprep.storage.addresses import is_remote, is_web, joined
from geoprep.storage.local_files import require_pyarrow
from geoprep.storage.versions import read_bytes

_PARQUET: Final = (".parquet", ".geoparquet")
_SUFFIXES: Final = (".json", ".geojson", *_PARQUET)
_ENDPOINT: Final = re.compile(r"/(search|items(/[^/.]+)?)/?$")
"""Paths at which a STAC API answers with items."""
_OFFSET_APPLIED: Final = ("earthsearch:boa_offset_applied", "sentinel:boa_offset_applied")
"""Properties of Sentinel-2 that say that values have their offset already, whatever bands state."""
_TIMES: Final = ("datetime", "start_datetime", "end_datetime")
SWAPPED: Final = "Are `images` and `labels` swapped?"
_NO_DATA: Final = {"thumbnail", "overview", "metadata"}
"""Roles of assets that are not imagery, whatever their media type is."""


def is_items(pattern: str) -> bool:
    """Return whether a path or address names STAC items, by its suffix or as a search of an API."""
    path = pattern.partition("?")[0] if is_web(pattern) else pattern
    named = path.lower().endswith(_SUFFIXES) or (is_web(pattern) and _ENDPOINT.search(path))
    return bool(named) and INSIDE not in pattern


class Items(NamedTuple):
    """The images of STAC items, and the statements of the items about them, by id."""

    images: list[NamedImage]
    times: dict[str, str]
    stated: dict[str, Stated]
    notes: list[str]  # for the user


def read_items(addresses: Sequence[str], asset: str | None) -> Items:
    """Return the images of all items in some files.

    ``asset`` is the name of an asset, or of several with commas between them, whose address is
    `joined`; None means the only raster of an item. Raises SourceError for files that are not
    items, for items without the asset, and for equal ids.
    """
    images, times, notes = dict[str, NamedImage](), dict[str, str](), list[str]()
    stated = dict[str, Stated]()
    for address in addresses:
        data = read_bytes(address)
        shown = address.partition("?")[0] if is_web(address) else address  # without a signature
        try:
            items, is_page = _items_of(data, shown)
            for item in items:
                image, chosen = _image(item, shown, asset)
                if image.id in images:
                    raise SourceError(f"{shown}: a second item {image.id}. Leave one of them out")
                images[image.id] = image
                stated[image.id] = _stated(chosen, item["properties"])
                if time := _time(item["properties"]):
                    times[image.id] = time
        except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, OSError) as error:
            raise SourceError(
                f"{shown}: cannot be read as STAC items ({type(error).__name__}: {error}). Give "
                "a FeatureCollection, an item or stac-geoparquet; download a damaged file again"
            ) from error
        if is_page:
            notes.append(
                f"{shown}: the first {len(items):,} items of a longer result. Request more by "
                "its `limit`, or save all pages in one file"
            )
    return Items([*images.values()], times, stated, notes)


def _bands(asset: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what an asset states of each of its bands, as STAC 1.1 or extensions of 1.0 do."""
    lists = (asset.get(key) or [] for key in ("eo:bands", "raster:bands", "bands"))
    rows = [*zip_longest(*lists, fillvalue={})] or [()]
    return [
        {
            re.sub("^(eo|raster):", "", key): value
            for stated in (asset, *row)
            for key, value in stated.items()
            if value is not None
        }
        for row in rows
    ]


def _stated(assets: dict[str, dict[str, Any]], properties: dict[str, Any]) -> Stated:
    """Return what an item states of the image that its assets, by name, are."""
    stacked = len(assets) > 1
    bands = [(key, band) for key, asset in assets.items() for band in _bands(asset)]
    nodata = {band.get("nodata") for _, band in bands}
    value = nodata.pop() if len(nodata) == 1 else None
    applied = any(properties.get(key) for key in _OFFSET_APPLIED)
    units = [
        (float(band.get("scale", 1)), 0.0 if applied else float(band.get("offset", 0)))
        for _, band in bands
    ]
    names = [
        (key if stacked else "", band.get("name", ""), band.get("common_name", ""))
        for key, band in bands
    ]
    called = [tuple(filter(None, own)) or (f"band {i}",) for i, own in enumerate(names, start=1)]
    return Stated(tuple(called), None if value is None else float(value), tuple(units))


def _items_of(data: bytes, address: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the items of a file, at least one, and whether the result has further pages."""
    if address.lower().endswith(_PARQUET):
        document: dict[str, Any] = {"type": "FeatureCollection", "features": _rows(data)}
    else:
        document = json.loads(data)
    kind = document["type"]
    if kind not in ("FeatureCollection", "Feature"):
        raise SourceError(f"{address} is a STAC {kind}. Give its items, with a pattern or one file")
    items = document["features"] if kind == "FeatureCollection" else [document]
    if not items:
        raise SourceError(f"{address} has no items. Check the search that it is the result of")
    if "geometry" in items[0] and "assets" not in items[0]:
        raise SourceError(f"{address} holds no STAC items, but vectors. {SWAPPED}")
    return items, any(link["rel"] == "next" for link in document.get("links") or [])


def _rows(data: bytes) -> list[dict[str, Any]]:
    """Return the rows of stac-geoparquet as items, which have times among their properties."""
    require_pyarrow()
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data)).read(
        ["id", "assets", "links", *_TIMES, *_OFFSET_APPLIED]
    )
    return [{**row, "properties": row} for row in table.to_pylist()]


def _image(
    item: dict[str, Any], document: str, asset: str | None
) -> tuple[NamedImage, dict[str, dict[str, Any]]]:
    """Return the image that an item is, and its assets by name."""
    name = re.sub(r"[/\\\x00-\x1f]", "_", item["id"]).encode("utf-8", "backslashreplace").decode()
    # absent ones of a table are None
    assets = {key: stated for key, stated in item["assets"].items() if stated}
    chosen = asset.split(",") if asset else [_only_raster(assets)]
    missing = [key for key in chosen if key not in assets]
    if missing:
        none = "not one raster asset, but several or none"
        problem = f"no asset {missing[0]}" if asset else none
        raise SourceError(
            f"{document}: item {name} has {problem}. Choose one with `asset`, or several to stack "
            f"as bands: {', '.join(assets)}"
        )
    own = [link["href"] for link in item.get("links") or [] if link["rel"] == "self"]
    base = next(filter(is_remote, own), document)
    stacked = {str(key): assets[key] for key in chosen}
    address = joined(asset_address(base, assets[key]["href"]) for key in chosen)
    return NamedImage(name, address), stacked


def _only_raster(assets: dict[str, Any]) -> str | None:
    """Return the only asset with pixels, or the only one with a role of data; None if unclear."""
    roles = {key: set(asset.get("roles") or ()) for key, asset in assets.items()}
    # By the media type, or where it is not given by the suffix.
    kinds = {key: asset.get("type") or asset["href"].lower() for key, asset in assets.items()}
    rasters = [
        key
        for key, kind in kinds.items()
        if (kind.startswith("image/") or kind.endswith(IMAGE_SUFFIXES))
        and not roles[key] & _NO_DATA
    ]
    data = [key for key in rasters if roles[key] & {"data", "visual"}]
    return next((some[0] for some in (rasters, data) if len(some) == 1), None)


def asset_address(base: str, href: str) -> str:
    """Return the address of an asset; a document on a server cannot name a local file.

    Raises ValueError for texts that are no address.
    """
    urlsplit(href)
    href.encode()
    if is_remote(href) and "\0" not in href:
        return href
    path = href if is_remote(base) else unquote(re.sub("^file://(localhost)?/", "/", href))
    if "\0" in base + path or re.match(r"/vsi|(?i:[a-z][a-z0-9+.-]*:)", path):
        where = f"{base} is on a server and" if is_remote(base) else base
        raise SourceError(
            f"{where} names the asset {href!r}, which is refused. Give the item http(s):// or "
            "s3:// addresses, or paths relative to it"
        )
    if not is_remote(base):
        return str((Path(base).parent / path).absolute())
    scheme, _, rest = base.partition("://")
    return f"{scheme}:{urljoin(f'//{rest}', path)}"


def _time(properties: dict[str, Any]) -> str:
    """Return when an image was taken, as START/END if that is known instead, or "" if neither."""
    instant, *both = (properties.get(key) for key in _TIMES)
    known = filter(None, [instant] if instant else both)
    return "/".join(time if isinstance(time, str) else time.isoformat() for time in known)
