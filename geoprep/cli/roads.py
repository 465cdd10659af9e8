"""The command `vectorize`: rasters of roads to a road network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import geoprep
from geoprep.api.road_functions import PolygonFile, PolygonOptions
from geoprep.api.vectorizing import VectorizeFile, VectorizeWork
from geoprep.cli.records import Json, Quiet, RecordCommand
from geoprep.options import argument
from geoprep.roads.options import RasterOptions, Tracing
from geoprep.texts import counted, printable


@dataclass(frozen=True, kw_only=True)
class Rasters:
    """Input: rasters of roads."""

    rasters: tuple[Path, ...] = argument("Predictions, masks, or folders of them.", "RASTERS")


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Input: rasters of classes."""

    maps: tuple[Path, ...] = argument("Predictions of classes, or folders of them.", "MAPS")


HELP = """Turn predictions or masks of roads into a road network.

RASTERS are predictions of geoprep predict, masks or probabilities of roads, or folders of them.
Several rasters give one network, connected across their borders. The network has nodes, edges with
their lines, speeds and travel times. GeoJSON is in longitude and latitude; GeoPackage and
GeoParquet are in metres of a UTM zone.

  geoprep vectorize predictions/ --out city.gpkg                 QGIS opens it coloured by speed
  geoprep vectorize predictions/chip12.tif --out roads.geojson   longitude and latitude
  geoprep vectorize mask.png --pixel-size 1 --out roads.gpkg     in metres, without a CRS
  geoprep vectorize predictions/ --out roads.csv                 SpaceNet's table, image by image
"""


def _vectorize(given: dict[str, Any]) -> None:
    """Trace rasters, join their networks, and write the result."""
    as_json, quiet = given.pop("as_json", False), given.pop("quiet", False)
    rasters, out = given.pop("rasters"), given.pop("out")
    given["progress"] = not (quiet or as_json)
    if out.suffix.lower() == ".csv":
        summary: dict[str, Any] = geoprep.write_road_table(rasters, out, **given)
    else:
        network = geoprep.vectorize(rasters, out=out, **given)
        summary = {
            "edges": len(network),
            "nodes": len(network.graph.nodes),
            "km": round(network.length_km, 3),
        }
    if as_json:
        click.echo(json.dumps({"out": str(out), **summary}, indent=2))
    else:
        counts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in summary.items())
        click.echo(printable(f"wrote {out}: {counts}"))


vectorize = RecordCommand(
    "vectorize",
    (Rasters, VectorizeFile, RasterOptions, Tracing, VectorizeWork, Quiet, Json),
    HELP,
    action=_vectorize,
    common=(
        *("out", "overwrite", "kind", "band", "pixel_size", "threshold", "spur_m", "close_gaps"),
        "as_json",
    ),
    short_help="Turn predictions or masks into a road network.",
)

POLYGONIZE_HELP = """Turn predictions of classes into polygons.

MAPS are predictions of geoprep predict with a model of classes, labels of geoprep export, or
folders of them. Areas are dissolved across their borders. Neighbours keep touching when they are
simplified. Each polygon has its class, its area and its mean confidence (of predictions with
--confidence).

  geoprep polygonize maps/ --out areas.gpkg
  geoprep polygonize maps/ --out areas.gpkg --simplify 2 --min-area 20
  geoprep polygonize maps/ --out buildings.gpkg --square           walls at right angles
"""


def _polygonize(given: dict[str, Any]) -> None:
    """Write the polygons of classes."""
    as_json, out = given.pop("as_json", False), given["out"]
    progress = not (given.pop("quiet", False) or as_json)
    frame = geoprep.polygonize(given.pop("maps"), **given, progress=progress)
    areas = frame.groupby("class", sort=False)["area_m2"].agg(["count", "sum"])
    rows = {name: (int(count), float(area)) for name, count, area in areas.itertuples()}
    if as_json:
        found = {name: {"polygons": n, "area_m2": area} for name, (n, area) in rows.items()}
        click.echo(json.dumps({"out": str(out), "classes": found, **frame.attrs}, indent=2))
        return
    counts = ", ".join(f"{name} {n:,} ({area:,.0f} m2)" for name, (n, area) in rows.items())
    click.echo(printable(f"wrote {out}: {counts or 'no polygons'}"))
    if left_out := frame.attrs["left_out"]:
        least = frame.attrs["min_area_m2"]
        small = "10 pixels" if least is None else f"{least:,g} m2"
        click.echo(
            f"left out {counted(left_out, 'polygon')} below {small}; --min-area 0 keeps them"
        )


polygonize = RecordCommand(
    *("polygonize", (Maps, PolygonFile, PolygonOptions, Quiet, Json), POLYGONIZE_HELP),
    action=_polygonize,
    short_help="Turn predictions of classes into polygons.",
)
