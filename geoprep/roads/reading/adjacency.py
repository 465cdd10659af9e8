"""Road graphs as adjacency dictionaries: City-Scale, SpaceNet graphs, Global-Scale, Sat2Graph.

A file holds ``{(row, column): [(row, column), ...]}`` in pixels, as JSON or as a pickle.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np

from geoprep.errors import SourceError
from geoprep.roads.names import PICKLE_SUFFIXES
from geoprep.roads.network import Plane, RoadGraph, segments
from geoprep.roads.reading.line_network import network_from_lines

MOST_BYTES: Final = 256 << 20
MOST_NEIGHBOURS: Final = 10_000_000

_Point = tuple[float, float]
_Graph = Mapping[_Point, list[_Point]]
_NUMBERS: Final = re.compile(r"\(?\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)?")
_ERRORS: Final = (
    *(ValueError, TypeError, LookupError, OverflowError, RecursionError, AttributeError),
    *(EOFError, pickle.UnpicklingError),
)


def read_adjacency(path: str | os.PathLike[str], pixel_size_m: float = 1.0) -> RoadGraph:
    """Return the road network of an adjacency dictionary, in a plane of metres.

    JSON holds ``{"nodes": [[row, column], ...], "edges": [[i, j], ...]}`` or ``{"row,column":
    [[row, column], ...], ...}``.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SourceError(f"{path}: is larger than {MOST_BYTES >> 20} MiB, no road graph is")
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        is_pickle = path.suffix.lower() in PICKLE_SUFFIXES
        graph = _unpickled(data) if is_pickle else _graph_of_json(json.loads(data))
        pixels = np.array(list(_pairs(graph)), np.float64).reshape(-1, 2, 2)[:, :, ::-1]
    except _ERRORS as error:
        raise SourceError(
            f"{path}: not an adjacency dictionary of a road graph: {error}"
        ) from error
    if not np.isfinite(pixels).all():
        raise SourceError(f"{path}: has coordinates that are not finite")
    lines = segments(Plane((pixel_size_m, pixel_size_m)).to_metres(pixels))
    return network_from_lines(lines, np.full(len(lines), np.nan), None, min_path=0)


def is_adjacency(path: Path) -> bool:
    """Return whether a file is an adjacency dictionary: a pickle, or JSON of its form."""
    return path.suffix.lower() in PICKLE_SUFFIXES or json_content(path) == "adjacency"


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


def _pairs(graph: _Graph) -> Iterable[tuple[_Point, _Point]]:
    """Return the edges of a graph, each of its two directions once."""
    directed = {(one, two) for one, neighbours in graph.items() for two in neighbours}
    return sorted({min((one, two), (two, one)) for one, two in directed if one != two})


def _graph_of_json(document: Any) -> _Graph:  # noqa: ANN401 - any JSON
    if not isinstance(document, dict):
        raise TypeError("not a JSON object")
    graph: dict[_Point, list[_Point]] = {}
    if {"nodes", "edges"} <= document.keys():
        nodes = [_point(node) for node in document["nodes"]]
        edges = [(int(one), int(two)) for one, two in document["edges"]]
        if any(min(edge) < 0 for edge in edges):
            raise ValueError("an edge names a node below 0")
        for one, two in edges:
            graph.setdefault(nodes[one], []).append(nodes[two])
        return graph
    for key, neighbours in document.items():
        match = _NUMBERS.fullmatch(key.strip())
        if match is None:
            raise ValueError(f"key {key[:40]!r} is not row,column")
        graph[float(match[1]), float(match[2])] = [_point(one) for one in neighbours]
    return graph


def _point(value: Any) -> _Point:  # noqa: ANN401 - anything that a file may hold
    """Return row and column; refuse anything else."""
    row, column = value
    return float(row), float(column)


def _unpickled(data: bytes) -> _Graph:
    """Return the adjacency dictionary of a pickle."""
    graph = _Unpickler(io.BytesIO(data), encoding="latin-1").load()
    if not isinstance(graph, dict) or not all(isinstance(one, list) for one in graph.values()):
        raise TypeError("it is not a dictionary of lists")
    if sum(map(len, graph.values())) > MOST_NEIGHBOURS:  # many nodes may share one long list
        raise ValueError(f"more than {MOST_NEIGHBOURS} neighbours")
    return {_point(node): [_point(one) for one in others] for node, others in graph.items()}


class _ScalarType:
    """A NumPy type of numbers, by its code such as ``f8``; `numpy.dtype` would take any state."""

    def __init__(self, code: str, *_: object) -> None:
        if not re.fullmatch("f[248]|[iu][1248]", code):
            raise ValueError(f"{code[:20]!r} is not a type of numbers")
        self._type = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._type = self._type.newbyteorder(state[1])

    def number(self, data: bytes | str) -> float:
        """Return the number that some bytes are; Python 2 wrote them as text."""
        raw = data.encode("latin-1") if isinstance(data, str) else data
        (value,) = np.frombuffer(raw, self._type)
        return float(value)


def _flat(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Refuse nested tuples: hashing them deep down ends the process."""

    def checked(unpickler: Any) -> None:  # noqa: ANN401 - private parts of pickle have no types
        load(unpickler)
        if any(isinstance(member, tuple) for member in unpickler.stack[-1]):
            raise TypeError("it nests tuples")

    return checked


class _Unpickler(pickle._Unpickler):
    """Reads numbers, tuples, lists and dictionaries; calls nothing but what `find_class` returns.

    Functions are new ones every time: a pickle may set attributes of what it gets.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    for _code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
        dispatch[_code[0]] = _flat(dispatch[_code[0]])
    for _code in (pickle.BYTEARRAY8, pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX):
        del dispatch[_code[0]]

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - what a pickle calls
        """Return a function for what NumPy's numbers and default dictionaries name."""
        found = f"{module}.{name}"
        if found in ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"):
            return lambda kind, data: kind.number(data)
        if found == "numpy.dtype":
            return lambda *arguments: _ScalarType(*arguments)
        if found == "_codecs.encode":
            return lambda text, _: text.encode("latin-1")
        if found == "collections.defaultdict":
            return lambda *_: {}
        if found == "builtins.list":
            return list
        raise ValueError(f"it refers to {found[:60]}, which no road graph contains")
