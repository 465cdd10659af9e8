"""Infer speeds in mph from road attributes as label files spell them.

There are three schemas; `detect_schema` recognises them by the property names of a whole file:

``sn3``
    SpaceNet 3: ``road_type`` 1..7, ``lane_numbe`` or ``lane_number``, ``paved`` (1 paved,
    2 unpaved, 3 unknown). Bridges (``bridge_typ``, ``bridge_type``, ``bridge``) change no speed.
``sn5``
    SpaceNet 5: ``highway``, ``lanes``, ``surface``. Only the exact text ``paved`` counts as paved,
    as in the tools that made the published labels; anything else, null included, is unpaved.
``osm``
    OpenStreetMap tags: the type from ``highway``, from ``fclass`` (Geofabrik's extracts), or from
    ``type`` where ``class`` is ``highway``; ``lanes`` and ``surface`` where they can be read, else
    2 lanes and paved. Left out are lines without a ``highway`` (rivers, railways), lines whose
    ``fclass`` is not a road of Geofabrik's, and tunnels (``tunnel`` = ``yes`` or ``T``), which
    imagery does not show. Segments of Overture Maps have the type in ``class`` where ``subtype`` is
    ``road``.

A tag may have several values (`tag_values`). The road type that is fastest for cars counts, and the
mean of lanes and speeds.

Defaults: road type 6 (unclassified), 2 lanes (counts outside 1..12 are clamped), and the surface
as above; paved for ``sn3``. Each use of a default is counted in a note such as
``"highway unknown: foo"``: *missing* means absent, null or blank; *unknown* means not readable;
*out of range* means clamped.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from geoprep.errors import LabelError
from geoprep.labels.label_options import SpeedRule
from geoprep.speed import MAX_MPH, MPH_PER_UNIT, ROAD_TYPES, table_mph

Attributes = Mapping[str, object]
KnownSchema = Literal["sn3", "sn5", "osm"]

DEFAULT_ROAD_TYPE: Final = 6
DEFAULT_LANES: Final = 2
MAX_LANES: Final = 12

HIGHWAY_TYPES: Final = {
    highway: road_type
    for road_type, highways in {
        1: ("motorway", "motorway_link", "trunk", "trunk_link"),
        2: ("primary", "primary_link", "bus_guideway"),
        3: ("secondary", "secondary_link"),
        4: ("tertiary", "tertiary_link"),
        5: ("residential", "living_street"),
        6: ("unclassified", "service", "road"),
        7: ("cart_track", "track"),
    }.items()
    for highway in highways
}
"""OpenStreetMap ``highway`` value -> SpaceNet road type, as in CRESI's ``road_speed.py``."""

_CRESI_DROPS: Final = frozenset(
    {"stopline", "footway", "bridleway", "step", "steps", "path", "pedestrian", "escape"}
    | {"cycleway", "raceway", "bus", "services", "escalator", "sidewalk"}
)
# Roads that do not exist (yet), or are indoors: an addition to the reference, which stops at them.
_NOT_BUILT: Final = frozenset(
    {"proposed", "planned", "construction", "abandoned", "razed"}
    | {"corridor", "elevator", "platform", "via_ferrata"}
)
# Geofabrik's classes that OpenStreetMap lacks ("OpenStreetMap Data in Layered GIS Format", 2022).
FCLASS_HIGHWAYS: Final = {f"track_grade{grade}": "track" for grade in range(1, 6)}
_FCLASS_UNKNOWN: Final = "unknown"
NOT_DRIVEABLE: Final = _CRESI_DROPS | _NOT_BUILT
"""``highway`` values that are not roads for cars: such lines are left out."""
OTHER_WAYS: Final = _CRESI_DROPS | {"runway", "taxiway"}
"""Values of ``highway`` and ``aeroway`` that imagery shows as it shows roads."""

# https://wiki.openstreetmap.org/wiki/Key:surface, its two main groups.
UNPAVED_SURFACES: Final = frozenset(
    {"unpaved", "compacted", "fine_gravel", "gravel", "pebblestone", "rock", "shells", "ground"}
    | {"dirt", "earth", "clay", "mud", "sand", "grass", "woodchips", "snow", "ice", "salt"}
)
PAVED_SURFACES: Final = frozenset(
    {"paved", "asphalt", "chipseal", "concrete", "paving_stones", "sett", "unhewn_cobblestone"}
    | {"cobblestone", "bricks", "brick", "grass_paver", "metal", "metal_grid", "wood", "rubber"}
)

ROAD_FIELDS: Final = frozenset(
    {"road_type", "lane_numbe", "lane_number", "highway", "fclass", "lanes"}
    | {"inferred_speed_mph", "inferred_speed_mps", "speed_mph"}
)
"""Attributes of roads alone: files of buildings or land cover have ``type``, ``surface`` etc."""

PROPERTY_NAMES: Final = ROAD_FIELDS | {
    *("paved", "class", "type", "surface", "tunnel", "OBJECTID", "osm_id"),
    *("subtype", "road_surface", "bridge", "layer", "maxspeed", "aeroway"),
}
"""All property names that this module uses: what a reader of big files has to read."""

_SPEED_TEXT: Final = re.compile(r"([0-9]*\.?[0-9]+)\s*(mph|kmh|km/h|kph|mps|m/s|knots?|kn|kts)")
_UNIT_SPELLINGS: Final = {"km/h": "kmh", "kph": "kmh", "m/s": "mps"} | dict.fromkeys(
    ("knot", "kn", "kts"), "knots"
)
_LISTED: Final = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s,;'\"\[\]{}:]+)")
_MOST_SHOWN: Final = 40
_SAME_SPEED_DIGITS: Final = 6
_INFERRED: Final = "speed field inferred: maxspeed disagrees"

_NULL_TEXTS: Final = frozenset({"", "none", "null", "nan", "n/a"})


class RoadSpeed(NamedTuple):
    """The speed of one road in mph (NaN: not driveable, left out) and notes on its defaults."""

    mph: float
    notes: tuple[str, ...]


def detect_schema(names: Collection[str]) -> KnownSchema:
    """Return the schema of a file from the names of all its properties.

    An inferred speed decides nothing: OSMnx and road networks add one to OpenStreetMap's tags. A
    file without any known name is read as ``sn3``, whose default (20 mph) is the reference's.
    """
    if "road_type" in names:
        return "sn3"
    if "highway" in names:
        return "sn5" if "OBJECTID" in names and "osm_id" in names else "osm"
    by_class = "class" in names and not {"type", "subtype"}.isdisjoint(names)
    return "osm" if "fclass" in names or by_class else "sn3"


def names_roads(names: Collection[str]) -> bool:
    """Return whether property names are those of a file of roads."""
    return not ROAD_FIELDS.isdisjoint(names) or {"class", "type"} <= set(names)


def tags_road(tags: Attributes) -> bool:
    """Return whether OpenStreetMap's or Geofabrik's tags of one feature make it a road or path."""
    if not is_null(tags.get("highway")):
        return True
    if _fclass(tags.get("fclass")) is not None:
        return plain_text(tags.get("fclass")) != _FCLASS_UNKNOWN
    return plain_text(tags.get("class")) == "highway" or plain_text(tags.get("subtype")) == "road"


def _infer_sn3(road: Attributes) -> RoadSpeed:
    notes: list[str] = []
    road_type = _code(road.get("road_type"), "road_type", ROAD_TYPES, DEFAULT_ROAD_TYPE, notes)
    lanes = road.get("lane_numbe")
    lanes = _lanes(road.get("lane_number") if is_null(lanes) else lanes, "lane_number", notes)
    paved = _code(road.get("paved"), "paved", (1, 2), 1, notes) == 1
    return RoadSpeed(table_mph(road_type, lanes, paved), tuple(notes))


def _infer_sn5(road: Attributes) -> RoadSpeed:
    notes: list[str] = []
    road_type = _highway(road.get("highway"), notes)
    if road_type is None:
        return RoadSpeed(math.nan, tuple(notes))
    lanes = _lanes(road.get("lanes"), "lanes", notes)
    surface = road.get("surface")
    if is_null(surface):
        notes.append("surface missing")
    elif surface != "paved" and plain_text(surface) not in UNPAVED_SURFACES:
        notes.append(_missing_or_unknown("surface", surface))
    return RoadSpeed(table_mph(road_type, lanes, surface == "paved"), tuple(notes))


def _infer_osm(road: Attributes) -> RoadSpeed:
    notes: list[str] = []
    if any(plain_text(value) in ("yes", "t") for value in tag_values(road.get("tunnel"))):
        return RoadSpeed(math.nan, ("tunnel",))
    is_road, highway = _tagged(road)
    if not is_road:
        return RoadSpeed(math.nan, ("not driveable",))
    road_type = _highway(highway, notes)
    if road_type is None:
        return RoadSpeed(math.nan, tuple(notes))
    lanes = _lanes(road.get("lanes"), "lanes", notes)
    surface = road.get("surface")
    paved = _osm_paved(road.get("road_surface") if is_null(surface) else surface, notes)
    return RoadSpeed(table_mph(road_type, lanes, paved), tuple(notes))


def _tagged(road: Attributes) -> tuple[bool, object]:
    """Return whether OpenStreetMap's, Geofabrik's or Overture's tags are a road's, and its type."""
    for highway in (road.get("highway"), _fclass(road.get("fclass"))):
        if not is_null(highway):
            return True, highway
    if plain_text(road.get("subtype")) == "road":
        return True, road.get("class")
    return plain_text(road.get("class")) == "highway", road.get("type")


def road_kind(road: Attributes) -> str | None:
    """Return the name of the type of a road of any schema, or of another way; None: not known."""
    code = finite_number(road.get("road_type"))
    if code is None:
        texts = [plain_text(value) for value in tag_values(_tagged(road)[1])]
        code = min((HIGHWAY_TYPES[text] for text in texts if text in HIGHWAY_TYPES), default=0)
        if not code:
            texts.append(plain_text(road.get("aeroway")))
            return next((text for text in texts if text in OTHER_WAYS), None)
    return ROAD_TYPES.get(int(code))


_INFER: Final[Mapping[KnownSchema, Callable[[Attributes], RoadSpeed]]] = {
    "sn3": _infer_sn3,
    "sn5": _infer_sn5,
    "osm": _infer_osm,
}
"""Schema -> the function that infers one road's speed from its properties."""


def road_speeds(
    roads: Sequence[Attributes], fields: Collection[str], rule: SpeedRule, name: str
) -> list[RoadSpeed]:
    """Return the speed of every road of a file: its attributes that the rule reads.

    1. The first of the rule's speed fields that is not null, if it holds a speed.
    2. Else the speed that follows from the other attributes, by the schema of the file.

    ``fields`` are those of the file, ``name`` is for messages.
    """
    if not roads:
        return []
    present = ", ".join(sorted(fields)) or "none"
    has_speeds = any(field in fields for field in rule.fields)
    if rule.needs_field and not has_speeds:
        raise LabelError(
            f"{name}: no speed field {' or '.join(rule.fields)}; its fields: {present}. Name one "
            "of them as `speed_field`, or set `speed_from` to attributes"
        )
    if rule.schema == "osm" and not {"highway", "fclass", "class"} & set(fields):
        raise LabelError(
            f"{name}: no field highway, fclass or class, which identify roads in the `schema` "
            f"osm; its fields: {present}. Set `schema` to auto"
        )
    infer = _INFER[detect_schema(fields) if rule.schema == "auto" else rule.schema]
    if not has_speeds:
        return [infer(road) for road in roads]
    speeds = []
    for road in roads:
        mph, problem = _from_fields(road, rule.fields)
        if rule.speed_field is None and not _may_drive(road.get("highway")):  # osmnx: all have one
            speeds.append(RoadSpeed(math.nan, ("not driveable",)))
        elif problem:
            mph, notes = infer(road)
            speeds.append(RoadSpeed(mph, (problem, *notes)))
        else:
            differs = abs(_to_mph(road.get("maxspeed"), "kmh")[0] - mph) > 0.1  # not for NaN
            speeds.append(RoadSpeed(mph, (_INFERRED,) if differs else ()))
    return speeds


def _from_fields(road: Attributes, fields: Mapping[str, str]) -> tuple[float, str]:
    """Return (mph, "") from the first field that is not null, or (NaN, reason)."""
    for field, unit in fields.items():
        if not is_null(road.get(field)):
            return _to_mph(road[field], unit)
    return math.nan, "speed field missing"


def _to_mph(value: object, unit: str) -> tuple[float, str]:
    speeds = []
    for part in tag_values(value):
        number, unit_of_part = part, unit
        if isinstance(part, str) and (match := _SPEED_TEXT.fullmatch(part.strip().lower())):
            number, spelled = match.groups()
            unit_of_part = _UNIT_SPELLINGS.get(spelled, spelled)
        parsed = finite_number(number)
        if parsed is None:
            return math.nan, _missing_or_unknown("speed field", value)
        speeds.append(parsed * MPH_PER_UNIT[unit_of_part])
    # Rounded, so that a speed is the same in both units: 10.0584 m/s is 22.5 mph.
    mph = round(sum(speeds) / len(speeds), _SAME_SPEED_DIGITS)
    return (mph, "") if 0 < mph <= MAX_MPH else (math.nan, "speed field out of range")


def tag_values(value: object) -> list[object]:
    """Return the values of a tag: several of a list, of the text of one, and of ``a;b``.

    osmnx writes lists as text where it joins edges, JOSM writes ``a;b`` where it joins ways.

    Examples
    --------
    >>> tag_values("['primary', 'residential']"), tag_values("30; 50"), tag_values(2)
    (['primary', 'residential'], ['30', '50'], [2])
    """
    if isinstance(value, list | tuple | np.ndarray):
        return [*value] or [None]
    if isinstance(value, str) and (";" in value or value.strip().startswith("[")):
        separated = value.split(";") if ";" in value else map("".join, _LISTED.findall(value))
        return [text.strip() for text in separated if text.strip()] or [None]
    return [value]


def _may_drive(value: object) -> list[object]:  # the values that are roads for cars
    return [part for part in tag_values(value) if plain_text(part) not in NOT_DRIVEABLE]


def _highway(value: object, notes: list[str]) -> int | None:
    """Return the road type of a highway tag, or None if cars may not drive there."""
    values = _may_drive(value)
    if not values:
        notes.append("not driveable")
        return None
    unknown = [part for part in values if plain_text(part) not in HIGHWAY_TYPES]
    notes.extend(_missing_or_unknown("highway", part) for part in unknown)
    types = (HIGHWAY_TYPES.get(plain_text(part), DEFAULT_ROAD_TYPE) for part in values)
    return min(types)


def _fclass(value: object) -> str | None:
    """Return the highway value of a Geofabrik class, or None if it is not a road."""
    fclass = plain_text(value)
    highway = FCLASS_HIGHWAYS.get(fclass, fclass)
    return highway if highway in {*HIGHWAY_TYPES, *NOT_DRIVEABLE, _FCLASS_UNKNOWN} else None


def _osm_paved(value: object, notes: list[str]) -> bool:
    # "concrete:plates" is concrete
    surfaces = {plain_text(part).partition(":")[0] for part in tag_values(value)}
    if surfaces.isdisjoint(UNPAVED_SURFACES | PAVED_SURFACES):
        notes.append(_missing_or_unknown("surface", value))
    return not surfaces.isdisjoint(PAVED_SURFACES) or surfaces.isdisjoint(UNPAVED_SURFACES)


def _lanes(value: object, label: str, notes: list[str]) -> int:
    numbers = [number for part in tag_values(value) if (number := finite_number(part)) is not None]
    if not numbers:
        notes.append(_missing_or_unknown(label, value))
        return DEFAULT_LANES
    number = int(sum(numbers) / len(numbers))
    lanes = min(max(number, 1), MAX_LANES)
    if lanes != number:
        notes.append(f"{label} out of range")
    return lanes


def _code(value: object, label: str, known: Collection[int], default: int, notes: list[str]) -> int:
    number = finite_number(value)
    if number is not None and number in known:
        return int(number)
    notes.append(_missing_or_unknown(label, value))
    return default


def _missing_or_unknown(label: str, value: object) -> str:
    return f"{label} missing" if is_null(value) else f"{label} unknown: {str(value)[:_MOST_SHOWN]}"


def finite_number(value: object) -> float | None:
    """Return a number or a text of one as a finite float; None for anything else, bools too."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def plain_text(value: object) -> str:
    """Return a text in lower case without surrounding blanks; "" for anything else."""
    return value.strip().lower() if isinstance(value, str) else ""


def is_null(value: object) -> bool:
    """Return whether a value is null, NaN, blank, or a word that writers use for null."""
    if isinstance(value, str):
        return value.strip().lower() in _NULL_TEXTS
    return value is None or (isinstance(value, float) and math.isnan(value))
