"""Prepare OpenStreetMap data for GDAL, which reads deleted objects and drops what lacks nodes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, ParseError, SubElement, iterparse, tostring

from geoprep.errors import LabelError

LOST: Final = "OpenStreetMap object without coordinates"
SHORTENED: Final = "OpenStreetMap way that lacks nodes, shortened"
AREA: Final = "OpenStreetMap area of a road, left out: `layer` multipolygons reads it"
PBF_DATA: Final = b"OSMData"
"""Type of the blocks with objects, in a ``.pbf`` file."""


def prepare_osm(source: Path | bytes, name: str) -> tuple[Path | bytes, dict[str, str]]:
    """Return OpenStreetMap XML as GDAL reads it right, and `LOST`, `SHORTENED` or `AREA` by object.

    Objects are named by their id, ways as it is and relations with ``r`` before it. The document is
    rewritten where it needs one of these:

    1. Deleted objects are left out: ``action="delete"`` of editors, ``visible="false"`` of history.
    2. Coordinates that stand in ways (Overpass: ``out geom``) become nodes.
    3. A closed way with ``highway`` is a line unless it has ``area=yes``: GDAL takes it for an area
       if it has certain other tags.

    Raises LabelError if it is not XML.
    """
    nodes, ways, problems = set[str](), set[str](), dict[str, str]()
    # Of every way with tags: number of points with coordinates, and the nodes of the others.
    tagged: dict[str, tuple[int, list[str]]] = {}
    relations: dict[str, list[str]] = {}
    rewritten = False
    for element in _objects(source, name):
        key, tags = element.get("id", ""), _tags(element)
        if _is_deleted(element):
            rewritten = True
        elif element.tag == "node":
            nodes.add(key)
        elif element.tag == "way":
            points = element.findall("nd")
            others = [point.get("ref", "") for point in points if not point.get("lat")]
            placed = len(points) - len(others)
            rewritten |= placed > 0 or _is_taken_for_area(element, tags)
            ways.add(key)
            if tags:
                tagged[key] = placed, others
            if "highway" in tags and tags.get("area") == "yes" and _is_closed(element):
                problems[key] = AREA
        elif element.tag == "relation" and tags.get("type") == "multipolygon":
            relations[f"r{key}"] = [member.get("ref", "") for member in element.findall("member")]
    for key, (placed, others) in tagged.items():
        missing = sum(node not in nodes for node in others)
        if placed + len(others) - missing < 2:
            problems[key] = LOST
        elif missing:
            problems[key] = SHORTENED
    problems |= {key: LOST for key, members in relations.items() if ways.isdisjoint(members)}
    return (_rewritten(source, name, nodes) if rewritten else source), problems


def _objects(source: Path | bytes, name: str) -> Iterator[Element]:
    """Yield the objects of a document, which are cleared afterwards."""
    depth = 0
    try:
        stream = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        with stream:
            for event, element in iterparse(stream, ("start", "end")):
                depth += 1 if event == "start" else -1
                if event == "end" and depth == 1:
                    yield element
                    element.clear()
    except (ParseError, OSError) as error:
        raise LabelError(
            f"{name}: not readable as a vector file ({error}); download it again"
        ) from error


def _tags(element: Element) -> dict[str, str]:
    return {tag.get("k", ""): tag.get("v", "") for tag in element.findall("tag")}


def _is_deleted(element: Element) -> bool:
    return element.get("action") == "delete" or element.get("visible") == "false"


def _is_taken_for_area(way: Element, tags: dict[str, str]) -> bool:
    """Return whether GDAL would take a road that is closed for an area."""
    is_road = "highway" in tags and "area" not in tags and _is_closed(way)
    return is_road and not _area_keys().isdisjoint(tags)


def _is_closed(way: Element) -> bool:
    points = [point.get("ref") for point in way.findall("nd")]
    return len(points) > 1 and points[0] == points[-1]


def _area_keys() -> set[str]:
    """Return the keys that make a closed way an area, ``highway`` aside."""
    text = Path(__file__).with_name("osm.ini").read_text()
    pairs = re.findall(r"(?m)^closed_ways_are_polygons=(.*)$", text)[0].split(",")
    return {pair.partition("=")[0] for pair in pairs} - {"highway"}


def _rewritten(source: Path | bytes, name: str, nodes: set[str]) -> bytes:
    out = io.BytesIO()
    out.write(b'<osm version="0.6">')
    for element in _objects(source, name):
        if _is_deleted(element):
            continue
        for point in element.findall("nd"):
            ref = point.get("ref", "")
            if (lat := point.get("lat")) and ref not in nodes:
                nodes.add(ref)
                place = {"id": ref, "lat": lat, "lon": point.get("lon", "")}
                out.write(tostring(Element("node", place)))
        if element.tag == "way" and _is_taken_for_area(element, _tags(element)):
            SubElement(element, "tag", k="area", v="no")
        out.write(tostring(element))
    out.write(b"</osm>")
    return out.getvalue()
