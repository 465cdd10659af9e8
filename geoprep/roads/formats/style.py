"""The style that QGIS applies to a GeoPackage: edges by speed, polygons by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import quoteattr

from geoprep.palette import SPEED_COLOURS, bin_label
from geoprep.speed import BIN_WIDTH_MPH

if TYPE_CHECKING:
    import pandas as pd

_UNKNOWN_COLOUR: Final = (120, 120, 120)
_NO_LIMIT_MPH: Final = 10_000


def style_row(layer: str) -> pd.DataFrame:
    """Return the row of QGIS's table of layer styles that colours a layer by speed."""
    return _row(layer, "speed", _qml())


def plain_style_row(layer: str, colour: tuple[int, int, int]) -> pd.DataFrame:
    """Return the row of QGIS's table of layer styles that gives a layer one colour."""
    symbol = _SYMBOL.format(number=0, colour=",".join(map(str, (*colour, 255))))
    rule = _RULE.format(number=0, filter="''", label=quoteattr(layer))
    return _row(layer, layer, _STYLE.format(rules=rule, symbols=symbol))


def class_style_row(layer: str, colours: Mapping[str, str]) -> pd.DataFrame:
    """Return the row of layer styles that colours polygons by class, ``#RRGGBB`` by name."""
    rules = symbols = ""
    for number, (name, colour) in enumerate(colours.items()):
        condition = "\"class\" = '{}'".format(name.replace("'", "''"))
        rules += _RULE.format(number=number, filter=quoteattr(condition), label=quoteattr(name))
        rgb = ",".join(map(str, (*bytes.fromhex(colour[1:]), 255)))
        symbols += _FILL.format(number=number, colour=rgb)
    return _row(layer, "class", _STYLE.format(rules=rules, symbols=symbols), "Polygons")


def _row(layer: str, name: str, qml: str, what: str = "Roads") -> pd.DataFrame:
    import pandas as pd

    row = {
        "f_table_catalog": "",
        "f_table_schema": "",
        "f_table_name": layer,
        "f_geometry_column": "geom",
        "styleName": name,
        "styleQML": qml,
        "styleSLD": "",
        "useAsDefault": True,
        "description": f"{what} by {name}",
        "owner": "",
        "ui": "",
    }
    return pd.DataFrame([row])


_SYMBOL: Final = (
    "<symbol name='{number}' type='line' alpha='1' clip_to_extent='1'>"
    "<layer class='SimpleLine' enabled='1' pass='0' locked='0'><Option type='Map'>"
    "<Option name='line_color' value='{colour}' type='QString'/>"
    "<Option name='line_width' value='0.66' type='QString'/>"
    "<Option name='line_width_unit' value='MM' type='QString'/>"
    "<Option name='capstyle' value='round' type='QString'/>"
    "<Option name='joinstyle' value='round' type='QString'/>"
    "</Option></layer></symbol>"
)
_FILL: Final = (
    "<symbol name='{number}' type='fill' alpha='0.6' clip_to_extent='1'>"
    "<layer class='SimpleFill' enabled='1' pass='0' locked='0'><Option type='Map'>"
    "<Option name='color' value='{colour}' type='QString'/>"
    "<Option name='outline_color' value='{colour}' type='QString'/>"
    "<Option name='style' value='solid' type='QString'/>"
    "</Option></layer></symbol>"
)
_RULE: Final = "<rule key='speed{number}' filter={filter} label={label} symbol='{number}'/>"
_STYLE: Final = (
    "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>"
    "<qgis version='3.22' styleCategories='Symbology'>"
    "<renderer-v2 type='RuleRenderer' symbollevels='0' enableorderby='0' forceraster='0'>"
    "<rules key='speeds'>{rules}</rules><symbols>{symbols}</symbols></renderer-v2></qgis>"
)


def _qml() -> str:
    """Return the QGIS style: one colour per 10 mph, grey for unknown speeds."""
    last = len(SPEED_COLOURS)
    bins = [
        (
            f"speed_mph > {(number - 1) * BIN_WIDTH_MPH} AND "
            f"speed_mph <= {number * BIN_WIDTH_MPH if number < last else _NO_LIMIT_MPH}",
            f"{bin_label(number)} mph",
            colour,
        )
        for number, colour in enumerate(SPEED_COLOURS, 1)
    ]
    unknown = ("speed_mph IS NULL", "unknown", _UNKNOWN_COLOUR)
    rules = symbols = ""
    for number, (condition, label, colour) in enumerate([*bins, unknown]):
        rules += _RULE.format(number=number, filter=quoteattr(condition), label=quoteattr(label))
        symbols += _SYMBOL.format(number=number, colour=",".join(map(str, (*colour, 255))))
    return _STYLE.format(rules=rules, symbols=symbols)
