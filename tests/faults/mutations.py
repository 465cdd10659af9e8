"""Functions that damage files: bytes of any file, tags of a TIFF, structure of a GeoJSON."""

import json
import struct

EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)
ODD_NUMBERS = (1e308, -1e308, 1e-320, 180.0000001, 400, "37.6", None, True, [], {})
ODD_TEXTS = ("", "-1", "1e400", "NaN", "\ud800", "x" * 10**5)
ODD_VALUES = (*ODD_TEXTS, 10**30, -5, [1], {"a": 1}, None, True)


def flip_bytes(data, rng):
    changed = bytearray(data)
    for _ in range(rng.randint(1, 16)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def lengthen(data, rng):
    """Insert bytes, so that all later offsets are wrong."""
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 4096)) + data[at:]


def blank(data, rng):
    """Set a range to zeros, as a lost sector of a disk does."""
    at = rng.randrange(len(data))
    length = min(rng.randint(1, 2048), len(data) - at)
    return data[:at] + bytes(length) + data[at + length :]


def _entries(data):
    """Return the offsets of the entries of a classic TIFF's first directory."""
    order = "<" if data[:2] == b"II" else ">"
    at = struct.unpack_from(f"{order}I", data, 4)[0]
    count = struct.unpack_from(f"{order}H", data, at)[0]
    return [at + 2 + 12 * i for i in range(count)]


def tag_value(data, rng):
    """Change type, length or value of one to three tags."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.choice(_entries(data))
        offset, form = rng.choice([(2, "<H"), (4, "<I"), (8, "<I"), (8, "<H")])
        value = rng.choice([*EXTREMES, rng.randrange(1 << 16), rng.randrange(1 << 32)])
        most = 0xFFFF if form == "<H" else 2**32 - 1
        struct.pack_into(form, changed, at + offset, value & most)
    return bytes(changed)


def header(data, rng):
    """Change bytes of the header and of the directory."""
    changed = bytearray(data)
    places = [*range(8), *range(_entries(data)[0] - 2, _entries(data)[-1] + 16)]
    for _ in range(rng.randint(1, 4)):
        place = rng.choice(places)
        if place < len(changed):
            changed[place] = rng.choice([*EXTREMES[:4], rng.randrange(256)]) & 0xFF
    return bytes(changed)


def of_document(change):
    def mutate(data, rng):
        return json.dumps(change(json.loads(data), rng)).encode()

    return mutate


def geometry(document, rng):
    for feature in rng.sample(document["features"], min(3, len(document["features"]))):
        feature["geometry"] = rng.choice(_geometries(feature["geometry"], rng))
    return document


def _geometries(was, rng):
    points = was["coordinates"] if was else [[0, 0]]
    odd = [list(point) for point in points]
    odd[rng.randrange(len(odd))][rng.randrange(2)] = rng.choice(ODD_NUMBERS)
    nested = {"type": "GeometryCollection", "geometries": [was]}
    for _ in range(rng.choice((1, 40))):
        nested = {"type": "GeometryCollection", "geometries": [nested]}
    lines = [odd, points[:1], [], points[:1] * 500, points * 2000, [points]]
    lines.append([[*point, 1, 2, 3] for point in points])
    others = {"MultiLineString": points, "Polygon": [points], "Point": points[0], "Curve": points}
    return [
        *(None, {}, [], "LineString", nested, {"type": rng.choice([7, None])}),
        *({"type": "LineString", "coordinates": one} for one in lines),
        *({"type": kind, "coordinates": one} for kind, one in others.items()),
    ]


def properties(document, rng):
    for feature in document["features"]:
        values = feature["properties"]
        if rng.random() < 0.1:
            feature["properties"] = rng.choice([None, [], "none", 7])
        elif values:
            values[rng.choice(list(values))] = rng.choice(ODD_VALUES)
    return document


def root(document, rng):
    features = document["features"]
    crs = {"type": "name", "properties": {"name": rng.choice(["EPSG:0", "x", "EPSG:32637", 5])}}
    odd = [None, {}, [document], [None, 7, *features], features * 40]
    changes = ({"type": "Feature"}, {"crs": crs}, {"bbox": [1, 2]})
    return rng.choice(
        [
            *({**document, "features": one} for one in odd),
            *({**document, **one} for one in changes),
            *([document], features, 7),
        ]
    )


def deep(data, rng):
    """Nest JSON too deeply for recursive parsers."""
    depth = rng.choice((100, 5_000, 200_000))
    begin, end = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    nest = begin * depth + b"0" + end * depth * rng.randint(0, 1)
    place = rng.choice([b'"coordinates":', b'"properties":', b'"features":'])
    head, found, tail = data.partition(place)
    return head + found + nest + tail if found else nest


OF_BYTES = (flip_bytes, cut, lengthen, blank)
MUTATIONS = {
    "image": (*OF_BYTES, tag_value, header),
    "label": (*OF_BYTES, deep, *map(of_document, (geometry, properties, root))),
}
