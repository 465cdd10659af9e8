"""Files of a synthetic city: images, road labels in SpaceNet's schemas, and a manifest.

Every file is written completely or not at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import rasterio
import shapely
import yaml
from affine import Affine
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.labels.attributes import HIGHWAY_TYPES
from geoprep.sources.city_scenes import refuse_real
from geoprep.sources.scene import MANIFEST
from geoprep.speed import MPS_PER_MPH
from geoprep.storage.local_files import make_folder
from geoprep.storage.output_files import replaced
from geoprep.synth.city import CityPlan
from geoprep.synth.image import CLASS_COLOURS
from geoprep.synth.streets import MOTORWAY, RAMP, Road

VERSION: Final = 2
"""Version of the drawing: a new one draws another city from the same seed."""
CRS84: Final = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
_FIRST_OSM_ID: Final = 21_000_000


def write_image(
    path: Path, pixels: NDArray[np.generic], georeference: Affine, nodata: int | None = None
) -> None:
    """Write pixels (band, y, x) like SpaceNet's chips: LZW, pixel-interleaved, no nodata tag."""
    bands, height, width = pixels.shape
    profile = {
        **{"driver": "GTiff", "crs": "EPSG:4326", "transform": georeference, "nodata": nodata},
        **{"count": bands, "height": height, "width": width, "dtype": pixels.dtype.name},
        **{"compress": "lzw", "predictor": 2, "interleave": "pixel", "blockysize": 25},
        "photometric": "rgb" if bands == 3 else "minisblack",
    }
    with replaced(path) as partial, rasterio.MemoryFile() as memory:
        with memory.open(**profile) as file:
            file.write(pixels)
        partial.write_bytes(memory.getbuffer())


def write_classes(path: Path) -> None:
    """Write the classes of rasters for the parameter `classes` of a build."""
    classes = [
        {"name": name, "value": value, "color": colour}
        for value, (name, colour) in enumerate(CLASS_COLOURS.items())
    ]
    with replaced(path) as partial:
        partial.write_text(yaml.safe_dump(classes, sort_keys=False), encoding="utf-8")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON."""
    with replaced(path) as partial:
        partial.write_text(json.dumps(document), encoding="utf-8")


def claim_folder(folder: Path, plan: CityPlan) -> None:
    """Mark a folder as that of a synthetic city."""
    manifest = folder / MANIFEST
    wanted = {
        **{"made by": "geoprep synth", "version": VERSION, "aoi": plan.city.aoi},
        **{"seed": plan.seed, "scenes": plan.frame.scenes, "size": plan.frame.size},
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


def road_labels(plan: CityPlan, index: int) -> dict[str, Any]:
    """Return the FeatureCollection of one chip; coordinates in degrees, x before y."""
    features = []
    clipped = shapely.intersection([road.line for road in plan.roads], plan.frame.box(index))
    for k in np.flatnonzero(shapely.length(clipped) > 0).tolist():
        road, to_degrees = plan.roads[k], plan.frame.to_degrees
        # A road may touch the chip in a point as well.
        parts = [part for part in shapely.get_parts(clipped[k]) if part.length > 0]
        lines = parts[0] if len(parts) == 1 else shapely.MultiLineString(parts)
        properties = _sn3(road, k) if plan.city.mission == "SN3" else _sn5(road, k)
        # SpaceNet's clipping tool writes these four into every file; only the length varies.
        properties |= {"origarea": 0, "origlen": shapely.transform(road.line, to_degrees).length}
        properties |= {"partialDec": 1, "truncated": 0}
        geometry = shapely.geometry.mapping(shapely.transform(lines, to_degrees))
        features.append({"type": "Feature", "properties": properties, "geometry": geometry})
    return {"type": "FeatureCollection", "crs": CRS84, "features": features}


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
    return {
        "bridge_typ": "1" if road.bridge else "2",
        "heading": "0",
        "lane_numbe": str(road.kind.lanes),
        "lane_number": str(road.kind.lanes),
        "one_way_ty": "1" if road.kind in (MOTORWAY, RAMP) else "2",
        "paved": "1" if road.kind.paved else "2",
        "road_id": str(k + 1),
        "road_type": str(HIGHWAY_TYPES[road.kind.highway]),
    }
