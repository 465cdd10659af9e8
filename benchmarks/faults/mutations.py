"""Functions that damage files: bytes of any file, tags of a TIFF, structure of a GeoJSON."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any, Final

Mutation = Callable[[bytes, random.Random], bytes]

EXTREMES: Final = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)
ODD_NUMBERS: Final[tuple[Any, ...]] = (
    *(1e308, -1e308, 1e-320, 180.0000001, 400),
    *("37.6", None, True, [], {}),
)
DEEP: Final = (100, 5_000, 200_000)


def flip_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return data with one to sixteen random bytes changed."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 16)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    """Return data cut at a random position."""
    return data[: rng.randrange(len(data))]


def lengthen(data: bytes, rng: random.Random) -> bytes:
    """Return data with random bytes inserted, so that all later offsets are wrong."""
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 4096)) + data[at:]


def blank(data: bytes, rng: random.Random) -> bytes:
    """Return data with a range set to zeros, like a lost disk sector."""
    at = rng.randrange(len(data))
    length = min(rng.randint(1, 2048), len(data) - at)
    return data[:at] + bytes(length) + data[at + length :]


def _entries(data: bytes) -> list[int]:
    """Return the offsets of the entries of a classic TIFF's first directory."""
    order = "<" if data[:2] == b"II" else ">"
    at = struct.unpack_from(f"{order}I", data, 4)[0]
    count = struct.unpack_from(f"{order}H", data, at)[0]
    return [at + 2 + 12 * i for i in range(count)]


def tag_value(data: bytes, rng: random.Random) -> bytes:
    """Return a TIFF with another type, length or value of one to three tags."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.choice(_entries(data))
        offset, form = rng.choice([(2, "<H"), (4, "<I"), (8, "<I"), (8, "<H")])
        value = rng.choice([*EXTREMES, rng.randrange(1 << 16), rng.randrange(1 << 32)])
        most = 0xFFFF if form == "<H" else 2**32 - 1
        struct.pack_into(form, changed, at + offset, value & most)
    return bytes(changed)


def header(data: bytes, rng: random.Random) -> bytes:
    """Return a TIFF with changed bytes in the header and the directory."""
    changed = bytearray(data)
    places = [*range(8), *range(_entries(data)[0] - 2, _entries(data)[-1] + 16)]
    for _ in range(rng.randint(1, 4)):
        place = rng.choice(places)
        if place < len(changed):
            changed[place] = rng.choice([*EXTREMES[:4], rng.randrange(256)]) & 0xFF
    return bytes(changed)


def _document(change: Callable[[Any, random.Random], Any]) -> Mutation:
    def mutate(data: bytes, rng: random.Random) -> bytes:
        return json.dumps(change(json.loads(data), rng)).encode()

    return mutate


def _geometry(document: Any, rng: random.Random) -> Any:  # noqa: ANN401 - any JSON
    for feature in rng.sample(document["features"], min(3, len(document["features"]))):
        feature["geometry"] = rng.choice(_geometries(feature["geometry"], rng))
    return document


def _geometries(was: Any, rng: random.Random) -> list[Any]:  # noqa: ANN401 - any JSON
    points = was["coordinates"] if was else [[0, 0]]
    odd = [list(point) for point in points]
    odd[rng.randrange(len(odd))][rng.randrange(2)] = rng.choice(ODD_NUMBERS)
    nested: Any = {"type": "GeometryCollection", "geometries": [was]}
    for _ in range(rng.choice((1, 40))):
        nested = {"type": "GeometryCollection", "geometries": [nested]}
    lines = [odd, points[:1], [], points[:1] * 500, points * 2000, [points]]
    lines.append([[*p, 1, 2, 3] for p in points])
    others = {"MultiLineString": points, "Polygon": [points], "Point": points[0]}
    others[rng.choice(["", "Curve", "7"])] = points
    return [
        *(None, {}, [], "LineString", nested, {"type": rng.choice([7, None])}),
        *({"type": "LineString", "coordinates": one} for one in lines),
        *({"type": kind, "coordinates": one} for kind, one in others.items()),
    ]


def _properties(document: Any, rng: random.Random) -> Any:  # noqa: ANN401 - any JSON
    odd = ["", "-1", "1e400", "NaN", 10**30, -5, [1], {"a": 1}, None, True, "\ud800", "x" * 100_000]
    for feature in document["features"]:
        properties = feature["properties"]
        if rng.random() < 0.1:
            feature["properties"] = rng.choice([None, [], "none", 7])
        elif properties:
            properties[rng.choice(list(properties))] = rng.choice(odd)
    return document


def _frame(document: Any, rng: random.Random) -> Any:  # noqa: ANN401 - any JSON
    crs = {"type": "name", "properties": {"name": rng.choice(["EPSG:0", "x", "EPSG:32637", 5])}}
    features: list[Any] = [None, {}, [document], [None, 7, *document["features"]]]
    features.append(document["features"] * 40)
    return rng.choice(
        [
            *({**document, "features": one} for one in features),
            *({**document, **one} for one in ({"type": "Feature"}, {"crs": crs}, {"bbox": [1, 2]})),
            *([document], document["features"], 7),
        ]
    )


def deep(data: bytes, rng: random.Random) -> bytes:
    """Return JSON nested too deeply for recursive parsers."""
    depth, (begin, end) = rng.choice(DEEP), rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    nest = begin * depth + b"0" + end * depth * rng.randint(0, 1)
    place = rng.choice([b'"coordinates":', b'"properties":', b'"features":'])
    head, found, tail = data.partition(place)
    return nest if not found else head + found + nest + tail


_ANY: Final[dict[str, Mutation]] = {
    "bytes changed": flip_bytes,
    "cut": cut,
    "bytes inserted": lengthen,
    "zeros": blank,
}
MUTATIONS: Final[dict[str, dict[str, Mutation]]] = {
    "image": {**_ANY, "a tag changed": tag_value, "header changed": header},
    "label": {
        **_ANY,
        "odd geometry": _document(_geometry),
        "odd properties": _document(_properties),
        "odd root object": _document(_frame),
        "deep nesting": deep,
    },
}
"""Kind of file -> description -> function that damages its bytes."""
