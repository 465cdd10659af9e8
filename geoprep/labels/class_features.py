"""Assign classes to the features of vector labels, by a field or by their layer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from geoprep.errors import LabelError
from geoprep.labels.attributes import Properties, RoadSpeed, is_null
from geoprep.labels.class_rule import REFUSE, UNLABELLED, ClassRule, as_colour, canonical

LAYER_KEY: Final = "geoprep:layer"
"""Property that holds the name of a feature's layer; no field of a file has this name."""
_MOST_SHOWN: Final = 6


def feature_classes(
    properties: Sequence[Properties], drawn: Sequence[bool], rule: ClassRule, name: str
) -> list[RoadSpeed]:
    """Return 1 plus the number of the class of every feature, 0 for nodata, and remarks.

    Parameters
    ----------
    properties
        One mapping per feature.
    drawn
        Whether each has a line or an area; the others get NaN.
    name
        What messages call the file.

    Raises
    ------
    LabelError
        The field is missing, or a feature has a value that no class has.
    """
    if not properties:
        return []
    _require_field(frozenset[str]().union(*properties), rule, name)
    listed = _listed(rule)
    texts = [_value(one, rule, name) for one in properties]
    unlisted = Counter(t for t, one in zip(texts, drawn, strict=True) if one and t not in listed)
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
    for text, one in zip(texts, drawn, strict=True):
        if not one:
            found.append(RoadSpeed(math.nan, ()))
        elif text in listed:
            found.append(RoadSpeed(float(listed[text] + 1), ()))
        else:
            found.append(RoadSpeed(rest, (f"label value {text} read as {what}",)))
    return found


def _value(properties: Properties, rule: ClassRule, name: str) -> str:
    if rule.field is None:
        return str(properties.get(LAYER_KEY, PurePosixPath(name).stem))
    value = properties.get(rule.field)
    return "null" if is_null(value) else canonical(value)


def _listed(rule: ClassRule) -> Mapping[str, int]:
    """Return the number of the class of every value; a class without values has its name."""
    found: dict[str, int] = {}
    for number, (name, values) in enumerate(zip(rule.names, rule.values, strict=True)):
        colours_only = all(as_colour([value]) is not None for value in values)
        for text in (*values, *([name] if colours_only else [])):
            found.setdefault(text, number)
    return found


def _require_field(names: frozenset[str], rule: ClassRule, name: str) -> None:
    if rule.field is not None and rule.field not in names:
        there = ", ".join(sorted(names - {LAYER_KEY})) or "none"
        raise LabelError(
            f"{name}: no field {rule.field}; its fields: {there}. Name one of them as `class_field`"
        )
