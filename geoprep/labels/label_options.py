"""Options of labels by their kind: vectors of roads, rasters of roads, and classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from geoprep.choice import check_choices, choice
from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.labels.classes import Classes
    from geoprep.labels.raster_rules import ClassRaster

Schema = Literal["auto", "sn3", "sn5", "osm"]
SpeedFrom = Literal["attributes", "field", "auto"]
SpeedUnit = Literal["mph", "kmh", "mps"]
LabelSpeeds = Literal["mph", "kmh", "bins"]
Areas = Literal["auto", "road", "ignore"]

MOST_BUFFER_M: Final = 100.0

_VECTORS: Final = "Vector labels"
_CLASSES: Final = "Classes"
_RASTERS: Final = "Raster labels"
"""Headings of the help text."""

SPEED_FIELDS: Final = {
    "inferred_speed_mph": "mph",
    "inferred_speed_mps": "mps",
    "speed_mph": "mph",
    "speed_m/s": "mps",
}
"""The speed fields of SpaceNet label files and their units, in order of preference."""


@dataclass(frozen=True, kw_only=True)
class RoadOptions:
    """Options of vector labels: which features are roads, their speeds and widths."""

    speed_from: SpeedFrom = choice(
        "attributes",
        _VECTORS,
        "Source of speeds: attributes computes them from road type, lanes and surface; field "
        "reads `speed_field`; auto reads a speed field where the file has one.",
    )
    speed_field: str | None = choice(
        None,
        _VECTORS,
        "Attribute that holds the speed, in `speed_unit`.",
        metavar="NAME",
    )
    speed_unit: SpeedUnit = choice("mph", _VECTORS, "Unit of `speed_field`.")
    schema: Schema = choice(
        "auto",
        _VECTORS,
        "Names of the road attributes: SpaceNet 3, SpaceNet 5 or OpenStreetMap.",
    )
    buffer: float = choice(
        2.0,
        _VECTORS,
        "Half the width of the roads in metres: lines are widened by it on either side.",
        metavar="METRES",
    )
    width_field: str | None = choice(
        None,
        _VECTORS,
        "Attribute that holds the full road width in metres. Lines without a value get `buffer`.",
        metavar="NAME",
    )
    layer: str | None = choice(
        None,
        _VECTORS,
        "Layer of the label file.  [default: the one with road attributes]",
        metavar="NAME",
        sparse=True,
    )
    where: str | None = choice(
        None,
        _VECTORS,
        "SQL condition that selects the features that are roads, such as \"class = 'road'\".",
        metavar="SQL",
        sparse=True,
    )
    areas: Areas = choice(
        "auto",
        _VECTORS,
        "Polygons in labels; auto: roads if the file has road attributes or `where` selects "
        "them, refused otherwise; road: all are roads; ignore: all are left out.",
        sparse=True,
    )

    def __post_init__(self) -> None:
        check_choices(self, RoadOptions)
        if self.speed_unit != "mph" and self.speed_field is None:
            raise UsageError("`speed_unit` is the unit of `speed_field`: give the field too")
        if not 0 < self.buffer <= MOST_BUFFER_M:
            raise UsageError(
                f"`buffer` {self.buffer:g}: expected metres above 0 and at most {MOST_BUFFER_M:g}"
            )


@dataclass(frozen=True, kw_only=True)
class SpeedRule(RoadOptions):
    """The rule of one vector file: speeds of its features or, with ``classes``, their classes."""

    classes: Classes | None = None

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


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """Options of labels that are classes."""

    classes: str | None = choice(
        None,
        _CLASSES,
        "Labels are classes, not roads: a YAML file with name, value (or colour) and display "
        "colour of each class in order, or text such as "
        "'road=#6EC1E4,building=60,16,152,water=3'. The first may be background.",
        metavar="FILE|TEXT",
        sparse=True,
    )
    class_field: str | None = choice(
        None,
        _CLASSES,
        "Attribute of vector labels that holds the values of `classes`.  [default: the name of "
        "the layer]",
        metavar="NAME",
        sparse=True,
    )
    other: str = choice(
        "refuse",
        _CLASSES,
        "Values that no class has: refuse fails their scenes, nodata leaves them unlabelled, "
        "and the name of a class adds them to it.",
        metavar="refuse|nodata|NAME",
        sparse=True,
    )
    tolerance: int = choice(
        0,
        _CLASSES,
        "Largest difference per band at which a value or colour is still that of a class, such "
        "as 8 for JPEG.",
        metavar="N",
        sparse=True,
    )

    def __post_init__(self) -> None:
        if self.classes is None:
            for name in ("class_field", "other", "tolerance"):
                if getattr(self, name) != getattr(ClassOptions, name):
                    raise UsageError(f"`{name}` needs `classes`")
            return
        from geoprep.labels.classes import classes_text, parse_classes

        # One spelling of every way to write the same classes, which workers elsewhere can read.
        object.__setattr__(self, "classes", classes_text(parse_classes(self.classes)))

    def make_rule(self, nodata: str | None) -> ClassRaster | None:
        """Return how labels are read as classes, with values without a label; None for roads."""
        if self.classes is None:
            if nodata is not None:
                raise UsageError("`label_nodata` needs `classes`")
            return None
        from geoprep.labels.raster_rules import make_class_rule

        return make_class_rule(
            self.classes,
            other=self.other,
            tolerance=self.tolerance,
            nodata=nodata,
            field=self.class_field,
        )


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """Options of raster labels of roads: the meaning of their values."""

    label_values: str | None = choice(
        None,
        _RASTERS,
        "Values that are road, such as 255, '>127' or 1,2,5, or a colour (#ff0000 or 255,0,0). "
        "Other values are background.",
        metavar="VALUES",
    )
    label_speeds: LabelSpeeds | None = choice(
        None,
        _RASTERS,
        "Meaning of the values: speeds in mph or km/h, or CRESI's ten-mph bins (1 to 7, 36 to "
        "252, or one band per bin). 0 is background.",
    )
    label_nodata: str | None = choice(
        None,
        _RASTERS,
        "Values that are unlabelled (nodata), written like `label_values`.  [default: the "
        "nodata tag, unless it is 0]",
        metavar="VALUES",
    )

    def __post_init__(self) -> None:
        if self.label_values is not None and self.label_speeds is not None:
            raise UsageError(
                "`label_values` is for rasters without speeds, `label_speeds` for those with "
                "speeds: use one of them"
            )
