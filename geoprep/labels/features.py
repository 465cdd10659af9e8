"""Find the speeds, widths and classes of the features of a label file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from geoprep.errors import LabelError
from geoprep.labels.attributes import (
    INFER,
    Properties,
    RoadSpeed,
    detect_schema,
    finite_number,
    is_null,
)
from geoprep.labels.class_rule import REFUSE, UNLABELLED, ClassRule, as_colour, as_number, canonical
from geoprep.labels.label_options import SpeedRule
from geoprep.speed import MAX_MPH, MPH_PER_UNIT

LAYER_KEY: Final = "geoprep:layer"
"""Property that holds the name of a feature's layer; no field of a file has this name."""
_MOST_SHOWN: Final = 6
_SPEED_TEXT: Final = re.compile(r"([0-9]*\.?[0-9]+)\s*(mph|kmh|km/h|kph|mps|m/s)")
_UNIT_SPELLINGS: Final = {"km/h": "kmh", "kph": "kmh", "m/s": "mps"}
_SAME_SPEED_DIGITS: Final = 6
_WIDTH_TEXT: Final = re.compile(r"([0-9]*\.?[0-9]+)\s*(?:m|metres|meters)")

MOST_WIDTH_M: Final = 200.0
"""The widest motorways have some 26 lanes, 160 m; larger values are errors or in other units."""


def road_speeds(
    properties: Sequence[Properties], names: Collection[str], rule: SpeedRule, name: str
) -> list[RoadSpeed]:
    """Return the speed of every road of a file with fields of these names, a mapping per feature.

    A mapping holds the fields that the rule reads.
    """
    if not properties:
        return []
    _require_speed_field(names, rule, name)
    _require_road_field(names, rule, name)
    infer = INFER[detect_schema(names) if rule.schema == "auto" else rule.schema]
    fields = rule.fields
    if not any(field in names for field in fields):
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
    properties: Sequence[Properties], names: Collection[str], rule: SpeedRule, name: str
) -> tuple[list[float], list[str]]:
    """Return the full width of every road in metres, NaN where unknown, and a note on each."""
    field = rule.width_field
    if field is None or not properties:
        return [math.nan] * len(properties), [""] * len(properties)
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


def _require_speed_field(names: Collection[str], rule: SpeedRule, name: str) -> None:
    """Refuse a file without any of the wanted speed fields."""
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


def feature_classes(
    properties: Sequence[Properties],
    names: Collection[str],
    drawn: Sequence[bool],
    rule: ClassRule,
    name: str,
) -> list[RoadSpeed]:
    """Return 1 plus the number of the class of every feature, 0 for nodata, and remarks.

    Features that are not ``drawn``, having no line or area, get NaN.
    """
    if not properties:
        return []
    if rule.field is not None and rule.field not in names:
        raise LabelError(
            f"{name}: no field {rule.field}; its fields: {', '.join(sorted(names)) or 'none'}. "
            "Name one of them as `class_field`"
        )
    values = [_value(one, rule, name) for one in properties]
    listed = _listed(rule, any(isinstance(value, int | float) for value in values))
    unlisted = Counter(
        canonical(v) for v, one in zip(values, drawn, strict=True) if one and v not in listed
    )
    if unlisted and rule.other == REFUSE:
        shown = ", ".join(f"{text} ({n:,})" for text, n in unlisted.most_common(_MOST_SHOWN))
        more = f" and {len(unlisted) - _MOST_SHOWN} more" if len(unlisted) > _MOST_SHOWN else ""
        where = f"field {rule.field} has" if rule.field else "its layers have"
        what = "values" if rule.field else "names"
        raise LabelError(
            f"{name}: {where} {what} that no class has: {shown}{more} (number of features). Add "
            "them to `classes`, or say by `other` that they are nodata, or which class they are"
        )
    is_class = rule.other in rule.names
    rest = float(rule.names.index(rule.other) + 1) if is_class else 0.0
    what = f"class {rule.other}" if is_class else UNLABELLED
    found = []
    for value, one in zip(values, drawn, strict=True):
        if not one:
            found.append(RoadSpeed(math.nan, ()))
        elif value in listed:
            found.append(RoadSpeed(float(listed[value] + 1), ()))
        else:
            found.append(RoadSpeed(rest, (f"label value {canonical(value)} read as {what}",)))
    return found


def _value(properties: Properties, rule: ClassRule, name: str) -> str | float:
    """Return the value of a feature: a number stays a number, text stays text."""
    if rule.field is None:
        return str(properties.get(LAYER_KEY, PurePosixPath(name).stem))
    value = properties.get(rule.field)
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_null(value):
        return value
    return "null" if is_null(value) else canonical(str(value))


def _listed(rule: ClassRule, numbers: bool) -> Mapping[str | float, int]:
    """Return the number of the class of every value; a class without values has its name.

    With ``numbers``, the values that are written as numbers are those of a field of numbers too.
    """
    found: dict[str | float, int] = {}
    for number, (name, values) in enumerate(zip(rule.names, rule.values, strict=True)):
        colours_only = all(as_colour([value]) is not None for value in values)
        for text in (*values, *([name] if colours_only else [])):
            found.setdefault(text, number)
            parsed = as_number(text) if numbers else None
            if parsed is not None and found.setdefault(parsed, number) != number:
                raise LabelError(
                    f"classes {rule.names[found[parsed]]} and {name} both have the number {text}. "
                    f"Give each value of field {rule.field} to one class in `classes`"
                )
    return found
