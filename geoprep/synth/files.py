"""Files of a synthetic city: images, road labels in SpaceNet's schemas, and a manifest.

Every file is written completely or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import rasterio
import shapely
from affine import Affine
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.errors import UsageError
from geoprep.labels import HIGHWAY_TYPES
from geoprep.sources import MANIFEST, refuse_real
from geoprep.speed import MPS_PER_MPH
from geoprep.storage import make_folder, replaced
from geoprep.synth.city.frame import Frame
from geoprep.synth.city.kinds import Road
from geoprep.synth.city.plan import CityPlan

VERSION: Final = 1
"""Version of the drawing: a new one draws another city from the same seed."""
_STRIP_ROWS: Final = 25
CRS84: Final = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
_FIRST_OSM_ID: Final = 21_000_000
_ONE_WAY: Final = ("motorway", "motorway_link")


def scene_files(
    folder: Path, plan: CityPlan, index: int, products: tuple[str, ...]
) -> dict[str, Path]:
    """Return the path of each product of a chip, and of its label if the city has labels."""
    city, number = plan.city, plan.numbers[index]
    contents = [*products, *([city.label_folder] if city.labelled else [])]
    return {content: folder / content / city.file_name(content, number) for content in contents}


def write_image(
    path: Path, pixels: NDArray[np.generic], georeference: Affine, nodata: int | None = None
) -> None:
    """Write pixels (band, y, x) like SpaceNet's chips: LZW, pixel-interleaved, no nodata tag."""
    bands, height, width = pixels.shape
    profile = {
        "driver": "GTiff",
        "dtype": pixels.dtype.name,
        "count": bands,
        "height": height,
        "width": width,
        "crs": "EPSG:4326",
        "transform": georeference,
        "compress": "lzw",
        "predictor": 2,
        "interleave": "pixel",
        "tiled": False,
        "blockysize": _STRIP_ROWS,
        "photometric": "rgb" if bands == 3 else "minisblack",
        **({} if nodata is None else {"nodata": nodata}),
    }

    with replaced(path) as partial, rasterio.MemoryFile() as memory:
        with memory.open(**profile) as file:
            file.write(pixels)
        partial.write_bytes(memory.getbuffer())


def write_classes(path: Path, colours: Mapping[str, str]) -> None:
    """Write the classes of rasters for the parameter `classes` of a build."""
    lines = [
        f'- {{name: {name}, value: {value}, color: "{colour}"}}\n'
        for value, (name, colour) in enumerate(colours.items())
    ]
    with replaced(path) as partial:
        partial.write_text("".join(lines), encoding="utf-8")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON."""
    with replaced(path) as partial:
        partial.write_text(json.dumps(document), encoding="utf-8")


def claim_folder(folder: Path, plan: CityPlan) -> None:
    """Mark a folder as that of a synthetic city."""
    manifest = folder / MANIFEST
    wanted = {
        "made by": "geoprep synth",
        "version": VERSION,
        "aoi": plan.city.aoi,
        "seed": plan.seed,
        "scenes": plan.frame.scenes,
        "size": plan.frame.size,
    }
    if not manifest.exists():
        refuse_real(folder.parent, plan.city)
        make_folder(folder)
        write_json(manifest, wanted)
    elif manifest.read_text(encoding="utf-8", errors="replace") != json.dumps(wanted):
        raise UsageError(
            f"{folder} holds a synthetic city drawn with other parameters (see {manifest}): use "
            "the same parameters, choose another folder with `out`, or delete this one"
        )


class RoadLabels:
    """Road labels of each chip, cut from the road network of the city."""

    def __init__(self, plan: CityPlan) -> None:
        self._plan = plan
        self._tree = shapely.STRtree([road.line for road in plan.roads])

    def collection(self, index: int) -> dict[str, Any]:
        """Return the FeatureCollection of one chip; coordinates in degrees, x before y."""
        plan = self._plan
        box = shapely.box(*plan.frame.bounds(index))
        features = []
        for k in np.sort(self._tree.query(box, predicate="intersects")):
            geometry = _in_degrees(plan.roads[k].line.intersection(box), plan.frame)
            if geometry is not None:
                properties = _properties(plan, int(k))
                features.append({"type": "Feature", "properties": properties, "geometry": geometry})
        return {"type": "FeatureCollection", "crs": CRS84, "features": features}


def _in_degrees(clipped: BaseGeometry, frame: Frame) -> dict[str, Any] | None:
    """Return one or several lines as GeoJSON; None if a road only touches the chip."""
    lines = [
        frame.to_degrees(shapely.get_coordinates(part)).tolist()
        for part in shapely.get_parts(clipped)
        if part.geom_type == "LineString" and part.length > 0
    ]
    if not lines:
        return None
    if len(lines) == 1:
        return {"type": "LineString", "coordinates": lines[0]}
    return {"type": "MultiLineString", "coordinates": lines}


def _properties(plan: CityPlan, k: int) -> dict[str, Any]:
    road = plan.roads[k]
    own = _sn3(road, k) if plan.city.mission == "SN3" else _sn5(road, k)
    whole = shapely.LineString(plan.frame.to_degrees(shapely.get_coordinates(road.line)))
    # SpaceNet's clipping tool writes these four into every file; only the length varies.
    return own | {"origarea": 0, "origlen": whole.length, "partialDec": 1, "truncated": 0}


def _sn5(road: Road, k: int) -> dict[str, Any]:
    return {
        "OBJECTID": str(k + 1),
        "bridge": "yes" if road.bridge else None,
        "highway": road.kind.highway,
        "osm_id": float(_FIRST_OSM_ID + road.street),
        "surface": road.kind.surface,
        "lanes": str(road.kind.lanes),
        "inferred_speed_mph": road.kind.mph,
        "inferred_speed_mps": road.kind.mph * MPS_PER_MPH,
    }


def _sn3(road: Road, k: int) -> dict[str, Any]:
    """Return SpaceNet 3's keys: codes as strings, no speed (it is inferred from the codes)."""
    lanes = str(road.kind.lanes)
    return {
        "bridge_typ": "1" if road.bridge else "2",
        "heading": "0",
        "lane_numbe": lanes,
        "lane_number": lanes,
        "one_way_ty": "1" if road.kind.highway in _ONE_WAY else "2",
        "paved": "1" if road.kind.paved else "2",
        "road_id": str(k + 1),
        "road_type": str(HIGHWAY_TYPES[road.kind.highway]),
    }
