"""Select the roads of a label file and find their speeds and widths."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from geoprep.errors import LabelError, UsageError
from geoprep.labels.attributes import (
    INFER,
    Properties,
    RoadSpeed,
    detect_schema,
    finite_number,
    is_null,
)
from geoprep.labels.class_rule import ClassRule
from geoprep.speed import MAX_MPH, MPH_PER_UNIT

Schema = Literal["auto", "sn3", "sn5", "osm"]
SpeedFrom = Literal["attributes", "field", "auto"]
SpeedUnit = Literal["mph", "kmh", "mps"]
Areas = Literal["auto", "road", "ignore"]

SPEED_FIELDS: Final = {
    "inferred_speed_mph": "mph",
    "inferred_speed_mps": "mps",
    "speed_mph": "mph",
    "speed_m/s": "mps",
}
"""The speed fields of SpaceNet label files and their units, in order of preference."""

_SPEED_TEXT: Final = re.compile(r"([0-9]*\.?[0-9]+)\s*(mph|kmh|km/h|kph|mps|m/s)")
_UNIT_SPELLINGS: Final = {"km/h": "kmh", "kph": "kmh", "m/s": "mps"}
_SAME_SPEED_DIGITS: Final = 6
_WIDTH_TEXT: Final = re.compile(r"([0-9]*\.?[0-9]+)\s*(?:m|metres|meters)")

MOST_WIDTH_M: Final = 200.0
"""The widest motorways have some 26 lanes, 160 m; larger values are errors or in other units."""


@dataclass(frozen=True, slots=True)
class SpeedRule:
    """Rule for the roads of a label file, their speeds and their widths.

    Attributes
    ----------
    schema
        Spelling of road attributes (:mod:`geoprep.labels.attributes`).
    speed_from
        ``attributes``: infer speeds. ``field``: read a speed field; a value that is missing, not
        readable or outside 0..253 mph falls back to the attributes and is counted. ``auto``:
        ``field`` in files with a speed field, else ``attributes``.
    speed_field
        Field to read; it implies ``field``. None: the fields of SpaceNet (`SPEED_FIELDS`), whose
        names give their units.
    speed_unit
        Unit of `speed_field`. A value may have its own unit, as OpenStreetMap's ``maxspeed`` does
        ("30 mph").
    width_field
        Field of the full width of a road in metres; None: none.
    layer
        Layer of the file; None: the layer that holds roads.
    where
        SQL condition that selects features, such as ``highway IS NOT NULL``; None: all.
    areas
        Polygons. ``auto``: roads in a file with road attributes or selected by `where`, refused
        otherwise. ``road``: all are roads. ``ignore``: all are left out.
    classes
        Classes of the features, which then have no speeds; None for roads.

    Raises
    ------
    UsageError
        If an option has an unknown value.
    """

    schema: Schema = "auto"
    speed_from: SpeedFrom = "attributes"
    speed_field: str | None = None
    speed_unit: SpeedUnit = "mph"
    width_field: str | None = None
    layer: str | None = None
    where: str | None = None
    areas: Areas = "auto"
    classes: ClassRule | None = None

    def __post_init__(self) -> None:
        for option, value, known in (
            ("schema", self.schema, get_args(Schema)),
            ("speed_from", self.speed_from, get_args(SpeedFrom)),
            ("speed_unit", self.speed_unit, get_args(SpeedUnit)),
            ("areas", self.areas, get_args(Areas)),
        ):
            if value not in known:
                raise UsageError(f"`{option}` {value!r} is unknown: use one of {', '.join(known)}")

    @property
    def selects(self) -> bool:
        """Whether features are selected by layer or by SQL."""
        return self.layer is not None or self.where is not None

    @property
    def fields(self) -> Mapping[str, str]:
        """The speed fields to read and their units; empty if speeds are inferred."""
        if self.speed_field is not None:
            return {self.speed_field: self.speed_unit}
        return {} if self.speed_from == "attributes" else SPEED_FIELDS

    @property
    def needs_field(self) -> bool:
        """Whether a file must have a speed field."""
        return self.speed_field is not None or self.speed_from == "field"


def road_speeds(properties: Sequence[Properties], rule: SpeedRule, name: str) -> list[RoadSpeed]:
    """Return the speed of every road of one file.

    Parameters
    ----------
    properties
        One mapping per feature, values as the file has them (text, numbers, null, anything).
    name
        What messages call the file.

    Raises
    ------
    LabelError
        If no feature has the speed field, or the field that identifies roads.
    """
    if not properties:
        return []
    names: frozenset[str] = frozenset().union(*properties)
    require_speed_field(names, rule, name)
    _require_road_field(names, rule, name)
    infer = INFER[detect_schema(names) if rule.schema == "auto" else rule.schema]
    fields = rule.fields
    if names.isdisjoint(fields):
        return [infer(road) for road in properties]
    speeds = []
    for road in properties:
        mph, problem = _from_fields(road, fields)
        if problem:
            mph, notes = infer(road)
            speeds.append(RoadSpeed(mph, (problem, *notes)))
        else:
            speeds.append(RoadSpeed(mph, ()))
    return speeds


def road_widths(
    properties: Sequence[Properties], rule: SpeedRule, name: str
) -> tuple[list[float], list[str]]:
    """Return the full width of every road of one file in metres, and a note on each.

    Where the field holds no width: NaN and the reason. Without a width field: NaN and "".

    Raises
    ------
    LabelError
        If no feature has the width field.
    """
    field = rule.width_field
    if field is None or not properties:
        return [math.nan] * len(properties), [""] * len(properties)
    names: frozenset[str] = frozenset().union(*properties)
    if field not in names:
        raise LabelError(
            f"{name}: no width field {field}; its fields: "
            f"{', '.join(sorted(names)) or 'none'}. Name one of them as `width_field`, or leave it "
            "out: `buffer` then applies to all roads"
        )
    found = [_to_metres(road.get(field)) for road in properties]
    return [width for width, _ in found], [problem for _, problem in found]


def _to_metres(value: object) -> tuple[float, str]:
    if is_null(value):
        return math.nan, "width missing"
    if isinstance(value, str) and (match := _WIDTH_TEXT.fullmatch(value.strip().lower())):
        value = match[1]
    width = finite_number(value)
    if width is None:
        return math.nan, "width unknown"
    return (width, "") if 0 < width <= MOST_WIDTH_M else (math.nan, "width out of range")


def require_speed_field(names: Collection[str], rule: SpeedRule, name: str) -> None:
    """Refuse a file without any of the wanted speed fields.

    Raises
    ------
    LabelError
        The message lists the fields of the file.
    """
    wanted = rule.fields
    if rule.needs_field and not any(field in names for field in wanted):
        there = ", ".join(sorted(names)) or "none"
        raise LabelError(
            f"{name}: no speed field {' or '.join(wanted)}; its fields: {there}. Name one of them "
            "as `speed_field`, or set `speed_from` to attributes"
        )


def _require_road_field(names: Collection[str], rule: SpeedRule, name: str) -> None:
    """Refuse a file without OpenStreetMap's road tags if that schema is required."""
    if rule.schema == "osm" and not {"highway", "fclass", "class"} & set(names):
        raise LabelError(
            f"{name}: no field highway, fclass or class, which identify roads in the `schema` "
            f"osm; its fields: {', '.join(sorted(names)) or 'none'}. Set `schema` to auto"
        )


def _from_fields(road: Properties, fields: Mapping[str, str]) -> tuple[float, str]:
    """Return (mph, "") from the first field that is not null, or (NaN, reason)."""
    for field, unit in fields.items():
        if not is_null(road.get(field)):
            return _to_mph(road[field], unit)
    return math.nan, "speed field missing"


def _to_mph(value: object, unit: str) -> tuple[float, str]:
    if isinstance(value, str) and (match := _SPEED_TEXT.fullmatch(value.strip().lower())):
        value, spelled = match.groups()
        unit = _UNIT_SPELLINGS.get(spelled, spelled)
    number = finite_number(value)
    if number is None:
        return math.nan, "speed field unknown"
    # Rounded, so that a speed is the same in both units: 10.0584 m/s is 22.5 mph.
    mph = round(number * MPH_PER_UNIT[unit], _SAME_SPEED_DIGITS)
    return (mph, "") if 0 < mph <= MAX_MPH else (math.nan, "speed field out of range")
