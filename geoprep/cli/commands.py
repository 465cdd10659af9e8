"""The command ``geoprep``, and where its commands are.

Modules of commands are imported when they run, and what is heavy inside the commands.
"""

from __future__ import annotations

import click

import geoprep
from geoprep.cli.entry_points import CommandGroup

MODULES = {
    **dict.fromkeys(("cities", "download", "synth"), "geoprep.cli.cities"),
    **dict.fromkeys(("info", "verify", "preview", "export"), "geoprep.cli.stores"),
    **dict.fromkeys(("vectorize", "polygonize"), "geoprep.cli.roads"),
    "build-zarr": "geoprep.cli.build_zarr",
    "compare": "geoprep.cli.compare",
    "score": "geoprep.cli.score",
}
"""Command -> module that has it."""

HELP = """Build uint8 Zarr stores, train models, and make road networks or polygons of classes.

\b
geoprep synth --city moscow --scenes 24 --out data/     make a synthetic labelled city
geoprep build-zarr --city moscow --source data/         build moscow.zarr from imagery and roads
geoprep build-zarr --images 'chips/*.tif' --labels houses.gpkg --classes house --out houses.zarr
geoprep info moscow.zarr                                print its contents
geoprep preview moscow.zarr --out sheet.png             draw some scenes
geoprep fit moscow.zarr                                 train a model
geoprep predict runs/moscow images/ --out predictions/  find roads or classes
geoprep vectorize predictions/ --out city.gpkg          make a routable road network
geoprep polygonize predictions/ --out houses.gpkg       make polygons of classes
geoprep score --truth labels/ --proposal city.gpkg      score it with APLS and TOPO
geoprep compare map.osm city.gpkg --out changes.gpkg    find the roads that a map lacks
"""


def _print_version(context: click.Context, option: click.Parameter, given: bool) -> None:
    if not given:
        return
    if context.meta["verbose"]:
        from geoprep.cli.versions import version_text

        click.echo(version_text())
    else:
        click.echo(f"geoprep, version {geoprep.__version__}")
    context.exit()


@click.group(
    "geoprep",
    cls=CommandGroup,
    modules=MODULES,
    help=HELP,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.option(
    "--verbose",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, option, given: context.meta.update(verbose=given),
    help="With --version: also libraries, processor and accelerators, for a report.",
)
def cli() -> None:
    """Run one of the commands."""
