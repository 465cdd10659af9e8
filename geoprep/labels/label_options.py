"""Options of labels by their kind: vectors of roads, rasters of roads, and classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from geoprep.errors import UsageError
from geoprep.options import check_options, option

if TYPE_CHECKING:
    from geoprep.labels.classes import Classes
    from geoprep.labels.raster_rules import ClassRaster

Schema = Literal["auto", "sn3", "sn5", "osm"]
SpeedFrom = Literal["attributes", "field", "auto"]
SpeedUnit = Literal["mph", "kmh", "mps"]
LabelSpeeds = Literal["mph", "kmh", "bins"]

DEFAULT_BUFFER_M: Final = 2.0
MOST_BUFFER_M: Final = 100.0

# Options by the heading of the help text that they stand under.
_vectors = partial(option, section="Vector labels")
_classes = partial(option, section="Classes", sparse=True)
_rasters = partial(option, section="Raster labels")

SPEED_FIELDS: Final = {
    "inferred_speed_mph": "mph",
    "inferred_speed_mps": "mps",
    "speed_mph": "mph",
    "speed_m/s": "mps",
    "speed_kph": "kmh",
    "maxspeed": "kmh",
}
"""The speed fields of SpaceNet, osmnx and OpenStreetMap and their units, in order of preference."""


@dataclass(frozen=True, kw_only=True)
class RoadOptions:
    """Options of vector labels: which features are roads, their speeds and widths."""

    speed_from: SpeedFrom = _vectors(
        "attributes",
        "Source of speeds: attributes computes them from road type, lanes and surface; field "
        "reads `speed_field`; auto reads a speed field where the file has one.",
    )
    speed_field: str | None = _vectors(
        None, "Attribute that holds the speed, in `speed_unit`.", "NAME"
    )
    speed_unit: SpeedUnit = _vectors("mph", "Unit of `speed_field`.")
    schema: Schema = _vectors(
        "auto", "Names of the road attributes: SpaceNet 3, SpaceNet 5 or OpenStreetMap."
    )
    buffer: float | None = _vectors(
        None,
        "Half the width of lines in metres, which are widened by it on either side, and the radius "
        "of points, which are refused without it.  [default: 2 for lines]",
        "METRES",
        above=0,
        most=MOST_BUFFER_M,
    )
    layer: str | None = _vectors(
        None,
        "Layer of the label file.  [default: the layer with road attributes]",
        "NAME",
        sparse=True,
    )
    where: str | None = _vectors(
        None,
        "SQL condition that selects the features that are roads, such as \"class = 'road'\", in "
        "SQLite's dialect for all formats: = is case-sensitive, LIKE is not.",
        "SQL",
        sparse=True,
    )

    @property
    def half_width(self) -> float:
        """Metres on either side of lines."""
        return DEFAULT_BUFFER_M if self.buffer is None else self.buffer

    def __post_init__(self) -> None:
        check_options(self, RoadOptions)
        if self.speed_unit != "mph" and self.speed_field is None:
            raise UsageError("speed_unit", "is the unit of `speed_field`: give the field too")


@dataclass(frozen=True, kw_only=True)
class SpeedRule(RoadOptions):
    """The rule of one vector file: speeds of its features or, with ``classes``, their classes."""

    classes: Classes | None = None
    lines_only: bool = False  # areas are left out, whatever they are

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

    classes: str | None = _classes(
        None,
        "Labels are classes, not roads: building (all polygons are that class), auto (all "
        "categories of a COCO file), text such as "
        "'road=#6EC1E4,building=60,16,152,water=3', or a YAML file with name, value (or colour) "
        "and display colour of each class in order. The first may be background; beside a single "
        "class, everything else is.",
        "FILE|TEXT",
    )
    class_field: str | None = _classes(
        None,
        "Attribute of vector labels that holds the values of `classes`.  [default: the name of "
        "the layer]",
        "NAME",
    )
    other: str = _classes(
        "refuse",
        "Values that no class has: refuse fails their scenes, nodata leaves them unlabelled, "
        "and the name of a class adds them to it.",
        "refuse|nodata|NAME",
    )
    tolerance: int = _classes(
        0,
        "Largest difference per band between a value or colour and that of its class, such "
        "as 8 for JPEG.",
        "N",
        least=0,
    )

    def __post_init__(self) -> None:
        if self.classes is None:
            for name in ("class_field", "other", "tolerance"):
                if getattr(self, name) != getattr(ClassOptions, name):
                    raise UsageError(name, "needs `classes`")
            return
        from geoprep.labels.classes import classes_text, parse_classes

        # One spelling of every way to write the same classes, which workers elsewhere can read.
        object.__setattr__(self, "classes", classes_text(parse_classes(self.classes)))

    def make_rule(self, nodata: str | None) -> ClassRaster | None:
        """Return how labels are read as classes, with values without a label; None for roads."""
        if self.classes is None:
            if nodata is not None:
                raise UsageError("label_nodata", "needs `classes`")
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

    label_values: str | None = _rasters(
        None,
        "Values that are road, such as 255, '>127' or 1,2,5, or a colour (#ff0000 or 255,0,0). "
        "Other values are background.",
        "VALUES",
    )
    label_speeds: LabelSpeeds | None = _rasters(
        None,
        "Meaning of the values: speeds in mph or km/h, or CRESI's ten-mph bins (1 to 7, 36 to "
        "252, or one band per bin). 0 is background.",
    )
    label_nodata: str | None = _rasters(
        None,
        "Values that are unlabelled (nodata), written like `label_values`; none: no pixel, and "
        "nodata tag and transparency are background.  [default: the nodata tag, unless a class has "
        "its value, or it is 0 in a mask of roads]",
        "VALUES|none",
    )

    def __post_init__(self) -> None:
        if self.label_values is not None and self.label_speeds is not None:
            raise UsageError(
                "label_values",
                "is for rasters without speeds, `label_speeds` for those with "
                "speeds: use one of them",
            )
