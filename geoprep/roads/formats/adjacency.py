"""Road graphs as adjacency dictionaries in JSON: City-Scale, SpaceNet graphs, Global-Scale.

They are published as pickles, which run code when they are read: docs/how-to/road-networks.md
converts one.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from geoprep.errors import SourceError
from geoprep.roads.formats.lines import network_of_labels
from geoprep.roads.network import Plane, RoadGraph, segments

MOST_BYTES: Final = 256 << 20

_Point = tuple[float, float]
_NUMBERS: Final = re.compile(r"\(?\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)?")
_ERRORS: Final = (ValueError, TypeError, LookupError, OverflowError, RecursionError)


def read_adjacency(path: str | os.PathLike[str], pixel_size_m: float = 1.0) -> RoadGraph:
    """Return the road network of an adjacency dictionary, in a plane of metres.

    It is ``{"nodes": [[row, column], ...], "edges": [[i, j], ...]}`` or ``{"row,column": [[row,
    column], ...], ...}``, in pixels.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SourceError(f"{path}: is larger than {MOST_BYTES >> 20} MiB, no road graph is")
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        directed = _edges_of_json(json.loads(data))
        # Each of the two directions of an edge once.
        pairs = sorted({min(pair, pair[::-1]) for pair in directed if pair[0] != pair[1]})
        pixels = np.array(pairs, np.float64).reshape(-1, 2, 2)[:, :, ::-1]
    except _ERRORS as error:
        raise SourceError(
            f"{path}: not an adjacency dictionary of a road graph: {error}"
        ) from error
    if not np.isfinite(pixels).all():
        raise SourceError(f"{path}: has coordinates that are not finite")
    lines = segments(Plane((pixel_size_m, pixel_size_m)).to_metres(pixels))
    return network_of_labels(lines, np.full(len(lines), np.nan), None, min_path=0)


def json_content(path: Path) -> Literal["adjacency", "other", "unknown"]:
    """Return what a ``.json`` file holds; unknown for GeoJSON, large and damaged files."""
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return "unknown"
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return "unknown"  # the reader of labels reports what is wrong with the file
    if not isinstance(document, dict):
        return "other"
    if "type" in document:
        return "unknown"
    listed = {"nodes", "edges"} <= document.keys()
    return "adjacency" if listed or all(map(_NUMBERS.fullmatch, document)) else "other"


def _edges_of_json(document: Any) -> set[tuple[_Point, _Point]]:  # noqa: ANN401 - any JSON
    """Return the edges of a graph, in one direction or in both."""
    if not isinstance(document, dict):
        raise TypeError("not a JSON object")
    if {"nodes", "edges"} <= document.keys():
        nodes = [_point(node) for node in document["nodes"]]
        edges = [(int(start), int(stop)) for start, stop in document["edges"]]
        if any(min(edge) < 0 for edge in edges):
            raise ValueError("an edge names a node below 0")
        return {(nodes[start], nodes[stop]) for start, stop in edges}
    pairs: set[tuple[_Point, _Point]] = set()
    for key, neighbours in document.items():
        match = _NUMBERS.fullmatch(key.strip())
        if match is None:
            raise ValueError(f"key {key[:40]!r} is not row,column")
        node = float(match[1]), float(match[2])
        pairs.update((node, _point(neighbour)) for neighbour in neighbours)
    return pairs


def _point(value: Any) -> _Point:  # noqa: ANN401 - anything that a file may hold
    """Return row and column; refuse anything else."""
    row, column = value
    return float(row), float(column)
