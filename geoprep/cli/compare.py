"""The command `geoprep compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

import geoprep
from geoprep.api.comparing import CompareArguments, CompareFiles
from geoprep.cli.help import figures_table
from geoprep.cli.records import Json, RecordCommand
from geoprep.roads.options import CompareOptions
from geoprep.texts import printable

COMPARE_HELP = """Find traced roads that a map lacks, and roads of the map that no trace confirms.

MAP is OpenStreetMap data, a label file or a road network; PROPOSAL is a road network such as
`geoprep vectorize` writes. Parts of roads are compared, by distance and heading. The GeoPackage has
the layers missing, unconfirmed and matched, which QGIS opens with colours. The missing roads are
written beside it as GeoJSON, for review in JOSM. The map stays as it is.

  geoprep compare map.osm.pbf city.gpkg --out changes.gpkg
  geoprep compare map.gpkg city.gpkg --images chips/ --apply-offset --out changes.gpkg
"""


def _compare(given: dict[str, Any]) -> None:
    """Compare, write the layers, and print kilometres by type of road."""
    as_json = given.pop("as_json", False)
    changes = geoprep.compare(**given)
    table, offset = changes.summary, asdict(changes.offset)
    if as_json:
        kinds = json.loads(table.round(3).to_json(orient="index"))
        plain = {name: None if value != value else value for name, value in offset.items()}
        click.echo(json.dumps({"out": str(given["out"]), "km": kinds, "offset": plain}, indent=2))
        return
    from geoprep.executors.terminal import Terminal

    shown = figures_table("km", *table.columns)
    for kind, *figures in table.itertuples():
        shown.add_row(kind, *(f"{km:.2f}" for km in figures))
    Terminal().print(shown)
    if offset["spread"] == offset["spread"]:
        applied = "applied" if given.get("apply_offset") else "--apply-offset removes it"
        click.echo(
            f"the map lies {offset['east']:+.1f} m east and {offset['north']:+.1f} m north of the "
            f"proposal, with a spread of {offset['spread']:.1f} m ({applied})"
        )
    else:
        click.echo("too few roads in both to tell the offset of the map")
    click.echo(printable(f"wrote {given['out']}"))


compare = RecordCommand(
    *("compare", (CompareArguments, CompareFiles, CompareOptions, Json), COMPARE_HELP),
    action=_compare,
    short_help="Find the roads that a map lacks, or has too many.",
)
