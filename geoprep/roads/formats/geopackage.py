"""Road networks written as GeoPackage: layers of edges and nodes, with a style for QGIS."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import quoteattr

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.palette import SPEED_COLOURS, bin_label
from geoprep.roads.formats.edge_table import edge_columns
from geoprep.roads.formats.vector_files import EDGES, NODES
from geoprep.roads.network import RoadGraph
from geoprep.roads.network import points as points_at
from geoprep.speed import BIN_WIDTH_MPH

_UNKNOWN_COLOUR: Final = (120, 120, 120)
_NO_LIMIT_MPH: Final = 10_000
_WIDTH_MM: Final = 0.66


def write_geopackage(network: RoadGraph, path: Path) -> None:
    """Write the layers ``edges`` and ``nodes``, and a style that colours edges by speed."""
    columns = edge_columns(network)
    _write_layer(path, EDGES, network.lines, columns, "LineString", network.crs)
    numbers = {"node": np.arange(len(network.nodes))}
    points = points_at(network.nodes) if len(network.nodes) else np.empty(0, object)
    _write_layer(path, NODES, points, numbers, "Point", network.crs)
    _write_layer(path, "layer_styles", None, _style_row(), None, None)


def _write_layer(
    path: Path,
    layer: str,
    geometry: NDArray[np.object_] | None,
    columns: dict[str, NDArray[Any]],
    geometry_type: str | None,
    crs: str | None,
) -> None:
    import pyogrio

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided")
        pyogrio.raw.write(
            path,
            geometry=None if geometry is None else shapely.to_wkb(geometry),
            field_data=list(columns.values()),
            fields=list(columns),
            geometry_type=geometry_type,
            crs=crs,
            layer=layer,
            driver="GPKG",
            append=path.exists(),
        )


def _style_row() -> dict[str, NDArray[Any]]:
    """Return the row of QGIS's table of layer styles."""
    row = {
        "f_table_catalog": "",
        "f_table_schema": "",
        "f_table_name": EDGES,
        "f_geometry_column": "geom",
        "styleName": "speed",
        "styleQML": _qml(),
        "styleSLD": "",
        "useAsDefault": True,
        "description": "Road speeds in mph",
        "owner": "",
        "ui": "",
    }
    return {
        name: np.array([value], np.bool_ if isinstance(value, bool) else object)
        for name, value in row.items()
    }


def _qml() -> str:
    """Return the QGIS style: one colour per 10 mph, grey for unknown speeds."""
    rules = ["<rules key='speeds'>"]
    symbols = ["<symbols>"]
    unknown = ("speed_mph IS NULL", "unknown", _UNKNOWN_COLOUR)
    for number, (condition, label, colour) in enumerate([*_speed_rules(), unknown]):
        rules.append(
            f"<rule key='speed{number}' filter={quoteattr(condition)} label={quoteattr(label)} "
            f"symbol='{number}'/>"
        )
        options = {
            "line_color": ",".join(map(str, (*colour, 255))),
            "line_width": str(_WIDTH_MM),
            "line_width_unit": "MM",
            "capstyle": "round",
            "joinstyle": "round",
        }
        pairs = "".join(
            f"<Option name='{name}' value='{value}' type='QString'/>"
            for name, value in options.items()
        )
        symbols.append(
            f"<symbol name='{number}' type='line' alpha='1' clip_to_extent='1'>"
            f"<layer class='SimpleLine' enabled='1' pass='0' locked='0'>"
            f"<Option type='Map'>{pairs}</Option></layer></symbol>"
        )
    return (
        "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>"
        "<qgis version='3.22' styleCategories='Symbology'>"
        "<renderer-v2 type='RuleRenderer' symbollevels='0' enableorderby='0' forceraster='0'>"
        f"{''.join(rules)}</rules>{''.join(symbols)}</symbols></renderer-v2></qgis>"
    )


def _speed_rules() -> list[tuple[str, str, tuple[int, int, int]]]:
    """Return condition, label and colour of every speed bin."""
    last = len(SPEED_COLOURS)
    return [
        (
            f"speed_mph > {(number - 1) * BIN_WIDTH_MPH} AND "
            f"speed_mph <= {number * BIN_WIDTH_MPH if number < last else _NO_LIMIT_MPH}",
            f"{bin_label(number)} mph",
            colour,
        )
        for number, colour in enumerate(SPEED_COLOURS, 1)
    ]
