"""Roads of one chip as GeoJSON features, in the schemas of SpaceNet 5 and SpaceNet 3."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import shapely
from shapely.geometry.base import BaseGeometry

from geoprep.labels import HIGHWAY_TYPES
from geoprep.speed import MPS_PER_MPH
from geoprep.synth.city.frame import Frame
from geoprep.synth.city.kinds import Road
from geoprep.synth.city.plan import Plan

CRS84: Final = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
_FIRST_OSM_ID: Final = 21_000_000
_ONE_WAY: Final = ("motorway", "motorway_link")


class Labels:
    """Cuts the road network of a city into chips."""

    def __init__(self, plan: Plan) -> None:
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
    """Return a line or several as GeoJSON; None where a road only touches the chip."""
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


def _properties(plan: Plan, k: int) -> dict[str, Any]:
    road = plan.roads[k]
    own = _sn3(road, k) if plan.city.mission == "SN3" else _sn5(road, k)
    whole = shapely.LineString(plan.frame.to_degrees(shapely.get_coordinates(road.line)))
    # The clipping tool of SpaceNet leaves these four in every file, constant but for the length.
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
