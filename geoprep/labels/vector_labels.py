"""Read a label file of roads or classes: lines and areas with a label byte each, and notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.errors import LabelError
from geoprep.labels.attributes import (
    PROPERTY_NAMES,
    Attributes,
    RoadSpeed,
    is_null,
    names_roads,
    road_kind,
    road_speeds,
    tags_road,
)
from geoprep.labels.classes import REFUSE, Classes, as_colour, as_number, canonical, refused_values
from geoprep.labels.label_options import SPEED_FIELDS, SpeedRule
from geoprep.labels.vector_checks import NOT_FINITE, OUT_OF_RANGE, bad_lines, crs_command
from geoprep.labels.vector_files import LOST, POINT, Features, Layer, VectorFile
from geoprep.labels.vector_names import OSM_LINES, OSM_SUFFIXES
from geoprep.speed import UNKNOWN_SPEED, to_byte
from geoprep.texts import counted, suggestion

LEFT_OUT: Final = -1
NOT_LOCATED: Final = frozenset((OUT_OF_RANGE, NOT_FINITE, LOST))
"""Notes of features that are left out, although they are lines or areas."""
_AREA: Final = 2
"""Dimensions of a polygon, as shapely counts them."""
_TAGS: Final = ("highway", "fclass", "class", "type", "subtype")
_KINDS: Final = (
    *("fclass", "class", "subclass", "type", "subtype", "kind", "category", "building", "landuse"),
    *("natural", "leisure", "amenity", "highway", "railway", "waterway", "man_made", "shop"),
    *("tourism", "water", "historic", "military", "power", "barrier", "craft", "office", "place"),
)
"""Fields that tell kinds of features apart: tags of OpenStreetMap, and those of its extracts."""
WIDEN: Final = "Points need their radius in metres as `buffer`"
_LEVELS: Final = ("bridge", "layer")
_UNTYPED: Final = ("road_type missing", "road_type unknown", "highway missing", "highway unknown")
"""Beginnings of notes of a road whose type is not known, so that its speed is a default."""


@dataclass(frozen=True, slots=True)
class LabelShapes:
    """Roads (or classes) of a label as lines and areas, with a label byte each."""

    # 2-D LineStrings, Polygons and Points; multi-part features are split
    lines: NDArray[np.object_]
    value: NDArray[np.uint8]  # 254 for areas of unknown speed; the number of a class; 255 nodata
    crs: str  # x is easting or longitude
    notes: dict[str, int]  # why features were left out or got defaults -> number of features
    name: str = ""  # of the file, for messages


@dataclass(frozen=True, slots=True)
class LabelTable:
    """Everything read from one label file, including features that are left out."""

    lines: NDArray[np.object_]  # (lines,), as in `LabelShapes`
    feature: NDArray[np.intp]  # (lines,), the feature that a line is part of
    value: NDArray[np.int16]  # (features,) label bytes; `LEFT_OUT`, as where cars may not drive
    mph: NDArray[np.float64]  # (features,) of roads; NaN where unknown or left out, and of classes
    notes: tuple[tuple[str, ...], ...]  # per feature: why it was left out, defaults that it got
    crs: str
    name: str  # of the file, for messages
    file_notes: tuple[str, ...] = ()
    ignored_speed_fields: tuple[str, ...] = ()  # which the file has and the rule does not read
    # (features,) of roads: the name of the type, and levels as text; None where unknown
    tags: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)

    def roads(self) -> LabelShapes:
        """Return all roads, with the notes of all features and of the file."""
        return self._of(np.arange(len(self.lines)), _count([*self.notes, self.file_notes]))

    def roads_at(self, chosen: NDArray[np.intp]) -> LabelShapes:
        """Return the roads among lines of ascending index, with the notes of their features."""
        features = np.unique(self.feature[chosen])
        return self._of(chosen, _count([self.notes[i] for i in features]))

    def _of(self, chosen: NDArray[np.intp], notes: dict[str, int]) -> LabelShapes:
        chosen = chosen[self.value[self.feature[chosen]] != LEFT_OUT]
        value = self.value[self.feature[chosen]].astype(np.uint8)
        return LabelShapes(self.lines[chosen], value, self.crs, notes, self.name)

    def lineless(self) -> dict[str, int]:
        """Return the notes of the features that have no line or area, counted."""
        without = np.setdiff1d(np.arange(len(self.notes)), self.feature)
        return _count([self.notes[i] for i in without])

    def unusable(self, crs: str = "") -> str:
        """Return why no feature can be used, and what to do; ``crs`` is the image's."""
        causes = self.lineless()
        listed = ", ".join(f"{cause}: {count:,}" for cause, count in causes.items())
        which = f"none of its {counted(len(self.notes), 'feature')}"
        if LOST in causes:
            return (
                f"{which} has coordinates ({listed}). Download it with the nodes of its ways; a "
                "query of Overpass needs (._;>;); before out"
            )
        if OUT_OF_RANGE in causes:
            such = f", such as {crs}, that of the image" if crs.startswith("EPSG:") else ""
            return (
                f"{which} has coordinates in degrees, as its CRS {self.crs[:40]} states ({listed})."
                f" State the right CRS{such}: {crs_command(self.name)}"
            )
        widen = f"{WIDEN}. Or give" if POINT in causes else "Give"
        return f"{which} is a line or area ({listed}). {widen} a file of lines or areas"


def read_label_table(
    source: Path | bytes | VectorFile, rule: SpeedRule, name: str = ""
) -> LabelTable:
    """Return all roads, or all classes, of one vector file, or of its contents.

    ``name`` is for messages, and tells the format of contents; the path if omitted.
    """
    file = source
    if not isinstance(file, VectorFile):
        file = VectorFile.open(file, name, where=rule.where, points=rule.buffer is not None)
    if rule.classes is None:
        layer, file_notes = _road_layer(file, rule)
        layers = [layer]
        wanted = {*PROPERTY_NAMES, *SPEED_FIELDS, *rule.fields}
    else:
        layers, file_notes = _class_layers(file, rule, rule.classes)
        wanted = {rule.classes.field or "", *_TAGS}
    return _table(file.read(layers, wanted), rule, file_notes)


# The layers of a file


def _road_layer(file: VectorFile, rule: SpeedRule) -> tuple[Layer, tuple[str, ...]]:
    """Return the layer that holds the roads, and a note if others are not read.

    1. The named layer; of OpenStreetMap data `OSM_LINES`.
    2. The only layer of lines; in a file without lines, the only one of areas.
    3. The only one of these with road attributes.
    """
    # 1.
    named = rule.layer or (OSM_LINES if file.name.lower().endswith(OSM_SUFFIXES) else None)
    if named is not None:
        return file.layer(named), ()
    layers = _usable_layers(file)
    # 2.
    lines = [layer for layer in layers if layer.has_lines]
    candidates = lines or layers
    # 3.
    if len(candidates) > 1:
        candidates = [layer for layer in candidates if _holds_roads(file, layer, rule)]
    if len(candidates) != 1:
        which = "more than one layer has" if candidates else "no layer has"
        offer = "" if lines else "For a class give `classes`, such as building. "
        raise LabelError(
            f"{file.name}: {which} road attributes (road_type, highway, fclass, ...); layers: "
            f"{file.present}. {offer}Name the layer of roads as `layer`"
        )
    others = [layer for layer in layers if layer is not candidates[0]]
    others.sort(key=lambda layer: layer not in lines)
    note = f"layer {candidates[0]} read as roads, layers not read: {', '.join(map(str, others))}"
    return candidates[0], (note,) if others else ()


def _usable_layers(file: VectorFile) -> list[Layer]:
    """Return the layers of lines and areas; those of points if there are no others."""
    layers = [layer for layer in file.layers.values() if not layer.is_points]
    if found := layers or [*file.layers.values()]:
        return found
    widen = f"{WIDEN}. Or give" if "Point" in file.present else "Give"
    raise LabelError(
        f"{file.name}: no layer of lines or areas; layers: {file.present}. {widen} a file of these"
    )


def _holds_roads(file: VectorFile, layer: Layer, rule: SpeedRule) -> bool:
    """Return whether a layer has road attributes.

    Geofabrik's railways and rivers have the same fields as its roads, so the values of tags are
    read.
    """
    if any(field in layer.fields for field in rule.fields):
        return True
    tags = [field for field in _TAGS if field in layer.fields]
    if not tags:
        return names_roads(layer.fields)
    return any(tags_road(dict(zip(tags, row, strict=True))) for row in file.sample(layer, tags))


def _class_layers(
    file: VectorFile, rule: SpeedRule, classes: Classes
) -> tuple[list[Layer], tuple[str, ...]]:
    """Return the layers that hold classes: those named, else those with the field, else all.

    Of a single class it is the layer with its name, if there is one; and a note if several values
    of a field with its name are not read.
    """
    names = [name.strip() for name in (rule.layer or "").split(",") if name.strip()]
    layers = [file.layer(name) for name in names]
    if not names and classes.field is not None:
        layers = [layer for layer in file.layers.values() if classes.field in layer.fields]
    layers = layers or _usable_layers(file)
    if not classes.is_all:
        return layers, ()
    name = classes.names[1]
    own = [layer for layer in file.layers.values() if layer.name == name and not names]
    if not own and not names and len(layers) > 1:
        raise LabelError(
            f"{file.name}: none of its layers is called {name}; layers: {file.present}. Name those "
            "of the class as `layer`"
        )
    layers = own or layers
    return layers, () if rule.where else _kinds(file, layers[0], name)


def _kinds(file: VectorFile, layer: Layer, name: str) -> tuple[str, ...]:
    """Return a note if fields tell kinds of features apart, and all features are one class."""
    fields = [field for field in layer.fields if field.lower() in {*_KINDS, name.lower()}]
    rows = file.sample(layer, fields) if fields else set()
    values = {
        field: {"" if is_null(value) else str(value) for value in column}
        for field, column in zip(fields, zip(*rows, strict=True), strict=False)
    }
    several = {field: sorted({*texts} - {""}) for field, texts in values.items() if len(texts) > 1}
    if not several:
        return ()
    own = next((field for field in several if field.lower() == name.lower()), None)
    field = own or next(iter(several))
    condition = f'"{own}" IS NOT NULL' if own else f"\"{field}\" = '{several[field][0]}'"
    listed = "; ".join(f"{key} ({', '.join(some[:3])})" for key, some in several.items())
    return (
        f"all features are the class {name}, whatever their fields tell: {listed[:300]}. Select "
        f"some by `where`, such as '{condition}'; for classes by values give a field as "
        "`class_field`",
    )


# Features to label bytes


def _table(features: Features, rule: SpeedRule, file_notes: tuple[str, ...]) -> LabelTable:
    """Return the table of a file: unusable lines removed, label bytes found."""
    problems = list(features.notes)
    usable = np.ones(len(features.shapes), dtype=bool)
    for index, problem in bad_lines(features.shapes, features.crs).items():
        usable[index] = False
        problems[features.feature[index]] = problem
    points = shapely.get_dimensions(features.shapes) == 0
    if rule.classes is None and not points.all():  # nodes of roads
        for index in features.feature[points & usable]:
            problems[index] = POINT
        usable &= ~points
    lines, feature = features.shapes[usable], features.feature[usable]
    said = [""] * len(problems)
    if rule.classes is not None:
        lines, said = _filled(lines, feature, features.attributes, 2 * rule.half_width)
    has_line = np.zeros(len(problems), dtype=bool)
    has_line[feature] = True
    is_area = np.zeros(len(problems), dtype=bool)
    is_area[feature[shapely.get_dimensions(lines) == _AREA]] = True
    tags: dict[str, NDArray[np.object_]] = {}
    if rule.classes is not None:
        value, remarks = _class_values(features, has_line, rule.classes)
        mph = np.full(len(problems), math.nan)
    else:
        speeds = road_speeds(features.attributes, features.fields, rule, features.name)
        value, mph, remarks = _road_values(features, speeds, is_area, rule)
        tags["highway"] = np.array([road_kind(road) for road in features.attributes], object)
        for name in features.fields.intersection(_LEVELS):
            tags[name] = np.array([road.get(name) for road in features.attributes], object)
    notes = []
    for i, problem in enumerate(problems):
        of_feature = [problem, *(remarks[i] if has_line[i] else ())]
        if value[i] != LEFT_OUT:
            of_feature.append(said[i])
        notes.append(tuple(filter(None, of_feature)))
    reads_speeds = bool(rule.fields) or rule.classes is not None
    given = [
        key
        for key in SPEED_FIELDS
        if not reads_speeds and any(not is_null(road.get(key)) for road in features.attributes)
    ]
    return LabelTable(
        lines,
        feature,
        value,
        mph,
        tuple(notes),
        features.crs,
        features.name,
        (*file_notes, *features.file_notes),
        tuple(given),
        tags,
    )


def _filled(
    lines: NDArray[np.object_],
    feature: NDArray[np.intp],
    attributes: Sequence[Attributes],
    width: float,
) -> tuple[NDArray[np.object_], list[str]]:
    """Return shapes of classes, closed lines but roads as areas, and a note per feature."""
    road = np.array([tags_road(row) for row in attributes], bool)[feature]
    dimensions = shapely.get_dimensions(lines)
    rings = shapely.is_ring(lines) & (dimensions == 1) & ~road
    xy, index = shapely.get_coordinates(lines[rings], return_index=True)
    filled = lines.copy()
    filled[rings] = shapely.polygons(shapely.linearrings(xy, indices=index))
    notes = [""] * len(attributes)
    for i, ring, kind in zip(feature.tolist(), rings.tolist(), dimensions.tolist(), strict=True):
        if ring:
            notes[i] = "closed line read as an area"
        elif kind < _AREA and not notes[i]:
            notes[i] = f"{'line' if kind else 'point'} drawn {width:g} m wide"
    return filled, notes


def _road_values(
    features: Features, speeds: Sequence[RoadSpeed], is_area: NDArray[np.bool_], rule: SpeedRule
) -> tuple[NDArray[np.int16], NDArray[np.float64], list[tuple[str, ...]]]:
    """Return the label byte, the speed in mph and notes of every feature.

    1. Roads that cars may not drive on are left out.
    2. Areas are left out by the rule, or refused if nothing shows that they are roads.
    3. Areas without a known type of road are roads of unknown speed.
    """
    names, name = features.fields, features.name
    described = rule.needs_field or names_roads(names)
    if is_area.any() and not (described or rule.lines_only or rule.where):
        raise LabelError(
            f"{name}: {counted(int(is_area.sum()), 'area')} without road attributes (road_type, "
            "highway, fclass, ...). For a class give `classes`, such as building, or several with "
            "`class_field`; for roads `where`, an SQL condition that selects them, such as '1 = 1'"
        )
    mph = np.array([speed.mph for speed in speeds], dtype=np.float64)
    remarks = [speed.notes for speed in speeds]
    ignored = is_area & rule.lines_only
    mph[ignored] = math.nan
    untyped = [any(note.startswith(_UNTYPED) for note in notes) for notes in remarks]
    typed = ~np.array(untyped, dtype=bool) & described
    unknown = is_area & np.isfinite(mph) & ~typed
    for indexes, note in ((ignored, "area ignored"), (unknown, "area of unknown speed")):
        for i in np.flatnonzero(indexes):
            remarks[i] = (note,)
    value = np.full(len(mph), LEFT_OUT, np.int16)
    value[np.isfinite(mph)] = to_byte(mph[np.isfinite(mph)])
    value[unknown], mph[unknown] = UNKNOWN_SPEED, math.nan
    return value, mph, remarks


def _class_values(
    features: Features, has_line: NDArray[np.bool_], rule: Classes
) -> tuple[NDArray[np.int16], list[tuple[str, ...]]]:
    """Return the number of the class of every feature, 255 for nodata, and remarks."""
    name, fields = features.name, ", ".join(sorted(features.fields)) or "none"
    if not features.attributes:
        return np.empty(0, np.int16), []
    if rule.field is None:
        layers = [rule.names[1]] * len(features.layers) if rule.is_all else features.layers
        values: list[str | float] = [*layers]
    elif rule.field in features.fields:
        values = [_plain(attributes.get(rule.field)) for attributes in features.attributes]
    else:
        raise LabelError(
            f"{name}: no field {rule.field}; its fields: {fields}. Name one as `class_field`"
            f"{suggestion(rule.field, features.fields)}"
        )
    listed = _listed(rule, any(isinstance(value, int | float) for value in values))
    unlisted = Counter(
        canonical(value)
        for value, drawn in zip(values, has_line.tolist(), strict=True)
        if drawn and value not in listed
    )
    if unlisted and rule.other == REFUSE:
        where = f"field {rule.field} has values" if rule.field else "its layers have names"
        hint = "".join(f" ({note})" for note in features.file_notes)
        if rule.field is None:
            hint += f". For the values of a field name it as `class_field`; its fields: {fields}"
        absent = [text for text in rule.names if text not in values]
        questions = ((text, suggestion(text, unlisted)) for text in absent)
        hint += next((f". Class {text}{near}" for text, near in questions if near), "")
        raise LabelError(f"{name}: {where} {refused_values(unlisted, 'feature')}{hint}")
    rest, what = rule.rest
    numbers = np.array([listed.get(value, rest) for value in values], np.int16)
    remarks: list[tuple[str, ...]] = [
        () if value in listed else (f"label value {canonical(value)} read as {what}",)
        for value in values
    ]
    numbers[~has_line] = LEFT_OUT
    return numbers, remarks


def _plain(value: object) -> str | float:
    """Return the value of a field: a number stays a number, text stays text."""
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_null(value):
        return value
    return "null" if is_null(value) else canonical(str(value))


def _listed(rule: Classes, numbers: bool) -> Mapping[str | float, int]:
    """Return the number of the class of every value; a class without values has its name.

    With ``numbers``, the values that are written as numbers are those of a field of numbers too.
    """
    listed: dict[str | float, int] = {}
    for number, (name, values) in enumerate(zip(rule.names, rule.values, strict=True)):
        colours_only = all(as_colour([value]) is not None for value in values)
        for text in (*values, *([name] if colours_only else [])):
            listed.setdefault(text, number)
            parsed = as_number(text) if numbers else None
            if parsed is not None and listed.setdefault(parsed, number) != number:
                raise LabelError(
                    f"classes {rule.names[listed[parsed]]} and {name} both have the number {text}. "
                    f"Give each value of field {rule.field} to one class in `classes`"
                )
    return listed


def _count(notes: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Return note -> number of features, sorted by note."""
    return dict(sorted(Counter(note for each in notes for note in each).items()))
