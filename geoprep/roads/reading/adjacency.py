"""Road graphs as adjacency dictionaries: City-Scale, SpaceNet graphs, Global-Scale, Sat2Graph.

A file holds ``{(row, column): [(row, column), ...]}`` in pixels, as JSON or as a pickle. Python's
unpickler runs code that a file names, so pickles are interpreted here: only the opcodes of numbers,
points, lists and dictionaries are known. The globals that NumPy scalars need are an exact list of
(module, name) pairs, and none of them is imported.
"""

from __future__ import annotations

import json
import os
import pickletools
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import shapely

from geoprep.errors import SourceError
from geoprep.roads.network import RoadGraph
from geoprep.roads.reading.line_network import network_from_lines

PICKLE_SUFFIXES: Final = (".p", ".pkl", ".pickle")
MOST_BYTES: Final = 256 << 20
MOST_NEIGHBOURS: Final = 10_000_000

_Point = tuple[float, float]
_GLOBALS: Final = {
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("numpy._core.multiarray", "scalar"): "scalar",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    ("collections", "defaultdict"): "defaultdict",
    ("__builtin__", "list"): "list",
    ("builtins", "list"): "list",
}
_PLAIN: Final = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"}
    | {"BINBYTES", "SHORT_BINBYTES"}
)
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NUMBERS: Final = re.compile(r"\(?\s*([^,()\s]+)\s*,\s*([^,()\s]+)\s*\)?")


def read_adjacency(path: str | os.PathLike[str], pixel_size_m: float = 1.0) -> RoadGraph:
    """Return the road network of an adjacency dictionary, in a plane of metres.

    Parameters
    ----------
    path
        ``.p``, ``.pkl`` or ``.pickle``, or ``.json`` with ``{"nodes": [[row, column], ...],
        "edges": [[i, j], ...]}`` or ``{"row,column": [[row, column], ...], ...}``.
    pixel_size_m
        Pixel size in metres; 1 m in City-Scale, Global-Scale and SpaceNet graphs.

    Raises
    ------
    SourceError
        The file cannot be read, is too large, or holds anything but an adjacency dictionary.
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
        pairs = list(_pairs(_unpickled(data)) if is_pickle else _pairs_of_json(json.loads(data)))
        xy = np.array(pairs, np.float64).reshape(-1, 2, 2)[:, :, ::-1] * [1, -1] * pixel_size_m
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise SourceError(
            f"{path}: not an adjacency dictionary of a road graph: {error}"
        ) from error
    if not np.isfinite(xy).all():
        raise SourceError(f"{path}: has coordinates that are not finite")
    lines = np.empty(len(xy), object)
    lines[:] = shapely.linestrings(xy)
    return network_from_lines(lines, np.full(len(lines), np.nan), None, min_path=0)


def is_adjacency(path: Path) -> bool:
    """Return whether a file is an adjacency dictionary: a pickle, or JSON that is not GeoJSON."""
    suffix = path.suffix.lower()
    if suffix != ".json" or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return suffix in PICKLE_SUFFIXES
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False  # the reader of labels reports what is wrong with the file
    return isinstance(document, dict) and "type" not in document


def _pairs(graph: Mapping[_Point, list[_Point]]) -> Iterable[tuple[_Point, _Point]]:
    """Return the edges of a graph, each of its two directions once."""
    if sum(map(len, graph.values())) > MOST_NEIGHBOURS:  # many nodes may share one long list
        raise ValueError(f"more than {MOST_NEIGHBOURS} neighbours")
    directed = {(one, two) for one, neighbours in graph.items() for two in neighbours}
    return sorted({min((one, two), (two, one)) for one, two in directed if one != two})


def _pairs_of_json(document: Any) -> Iterable[tuple[_Point, _Point]]:  # noqa: ANN401 - any JSON
    if not isinstance(document, dict):
        raise TypeError("not a JSON object")
    if {"nodes", "edges"} <= document.keys():
        nodes = [_point(node) for node in document["nodes"]]
        edges = [(int(one), int(two)) for one, two in document["edges"]]
        if any(min(edge) < 0 for edge in edges):
            raise ValueError("an edge names a node below 0")
        graph: dict[_Point, list[_Point]] = {}
        for one, two in edges:
            graph.setdefault(nodes[one], []).append(nodes[two])
        return _pairs(graph)
    graph = {}
    for key, neighbours in document.items():
        match = _NUMBERS.fullmatch(key.strip())
        if match is None:
            raise ValueError(f"key {key[:40]!r} is not row,column")
        graph[float(match[1]), float(match[2])] = [_point(one) for one in neighbours]
    return _pairs(graph)


def _point(value: Any) -> _Point:  # noqa: ANN401 - anything that a file may hold
    """Return row and column; refuse anything else."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(map(_is_number, value)):
        raise TypeError("a node is not a pair of numbers")
    return float(value[0]), float(value[1])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Global:
    """A global of the exact list; it is not imported."""

    def __init__(self, module: object, name: object) -> None:
        key = (str(module), str(name))
        if key not in _GLOBALS:
            raise ValueError(f"it refers to {'.'.join(key)[:60]}, which no road graph contains")
        self.kind = _GLOBALS[key]

    def called(self, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - number, bytes or record
        """Return what a call of the global stands for."""
        if self.kind == "dtype":
            return _ScalarType(str(arguments[0]))
        if self.kind == "scalar":
            return arguments[0].number(arguments[1])
        if self.kind == "encode":
            return str(arguments[0]).encode("latin-1")
        if self.kind == "defaultdict":
            return {}
        raise ValueError(f"it calls {self.kind}")


class _ScalarType:
    """A NumPy type of numbers, by its code such as ``f8``."""

    def __init__(self, code: str) -> None:
        self._format = {
            "f4": "f", "f8": "d", "f2": "e", "i1": "b", "i2": "h", "i4": "i", "i8": "q",
            "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
        }[code]  # fmt: skip
        self._order = "<"

    def set_state(self, state: tuple[Any, ...]) -> None:
        """Set the byte order."""
        self._order = ">" if state[1] == ">" else "<"

    def number(self, data: bytes | str) -> float:
        """Return the number that some bytes are."""
        raw = data.encode("latin-1") if isinstance(data, str) else data
        (value,) = struct.unpack(self._order + self._format, raw)
        return float(value)


def _unpickled(data: bytes) -> dict[_Point, list[_Point]]:
    """Return the adjacency dictionary of a pickle.

    Raises
    ------
    ValueError, TypeError, LookupError
        The pickle is damaged or holds anything else.
    """
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "STOP":
            (graph,) = machine.stack
            if not isinstance(graph, dict):
                raise TypeError("it is not a dictionary")
            return graph
        machine.run(opcode.name, argument)
    raise ValueError("it ends early")


class _Machine:
    """Interprets the opcodes of pickles that hold an adjacency dictionary and nothing else."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:  # noqa: ANN401 - as pickletools gives it
        """Execute one opcode."""
        if name in ("PROTO", "FRAME"):
            return
        if name in _PLAIN:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            self.stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            self._marks.append(len(self.stack))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif name in _TUPLES:
            self.stack.append(_flat_tuple(self._popped(_TUPLES[name])))
        elif name in ("TUPLE", "LIST", "DICT"):
            self._collect(name, self._popped_to_mark())
        elif name in ("APPEND", "APPENDS"):
            members = self._popped(1) if name == "APPEND" else self._popped_to_mark()
            _extend(self.stack[-1], members)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._popped(2) if name == "SETITEM" else self._popped_to_mark()
            _update(self.stack[-1], items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            parts = argument.split(" ", 1) if name == "GLOBAL" else self._popped(2)
            self.stack.append(_Global(*parts))
        elif name == "REDUCE":
            function, arguments = self._popped(2)
            if not isinstance(function, _Global) or not isinstance(arguments, tuple):
                raise TypeError("it calls something that is not a number")
            self.stack.append(function.called(arguments))
        elif name == "BUILD":
            target, state = self._popped(2)
            if not isinstance(target, _ScalarType) or not isinstance(state, tuple):
                raise TypeError("it builds an object")
            target.set_state(state)
            self.stack.append(target)
        else:
            raise ValueError(f"it uses {name}, which no road graph needs")

    def _popped(self, count: int) -> list[Any]:
        if len(self.stack) - (self._marks[-1] if self._marks else 0) < count:
            raise ValueError("its stack is empty")
        kept = len(self.stack) - count
        taken = self.stack[kept:]
        del self.stack[kept:]
        return taken

    def _popped_to_mark(self) -> list[Any]:
        first = self._marks.pop()
        taken = self.stack[first:]
        del self.stack[first:]
        return taken

    def _collect(self, name: str, members: list[Any]) -> None:
        made: Any = _flat_tuple(members) if name == "TUPLE" else [] if name == "LIST" else {}
        if name == "LIST":
            _extend(made, members)
        elif name == "DICT":
            _update(made, members)
        self.stack.append(made)


def _flat_tuple(members: list[Any]) -> tuple[Any, ...]:
    """Return a tuple; nested ones are refused, as hashing them deep down ends the process."""
    if any(isinstance(member, tuple | list | dict) for member in members):
        raise TypeError("it nests tuples")
    return tuple(members)


def _extend(target: Any, members: list[Any]) -> None:  # noqa: ANN401 - checked here
    if not isinstance(target, list):
        raise TypeError("it appends to something that is not a list")
    target.extend(_point(member) for member in members)


def _update(target: Any, items: list[Any]) -> None:  # noqa: ANN401 - checked here
    if not isinstance(target, dict) or len(items) % 2:
        raise TypeError("it sets items of something that is not a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(value, list):
            raise TypeError("the neighbours of a node are not a list")
        target[_point(key)] = value
