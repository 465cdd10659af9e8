"""The commands of ``geoprep`` that need no module of their own.

Heavy imports happen inside the commands, so that ``geoprep --help`` loads neither GDAL nor numba.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

import geoprep
from geoprep.cli.build_zarr import build_zarr
from geoprep.cli.compare import compare
from geoprep.cli.download import download
from geoprep.cli.entry_points import CommandGroup
from geoprep.cli.help import JSON, QUIET, GroupedCommand, OutputPath, options_from
from geoprep.cli.roads import polygonize, vectorize
from geoprep.cli.score import score
from geoprep.errors import UsageError
from geoprep.texts import counted, printable

STORE = click.argument("store", metavar="STORE")


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


for command in (download, build_zarr, vectorize, polygonize, score, compare):
    cli.add_command(command)


@cli.command(cls=GroupedCommand, short_help="Make a synthetic, labelled city in SpaceNet layout.")
@options_from(
    *(geoprep.synthesize, "city", "scenes", "out", "seed", "product", "size", "labels", "workers"),
    out={"type": OutputPath(file_okay=False)},
    seed={"type": int},
    product={
        "multiple": True,
        "default": ("PS-RGB",),
        "type": click.Choice(["PS-RGB", "PS-MS", "PAN"], case_sensitive=False),
    },
    size={"type": click.IntRange(64, 4096)},
)
@QUIET
def synth(
    city: str,
    quiet: bool,
    **given: Any,  # noqa: ANN401 - options by name
) -> None:
    """Make a synthetic city in SpaceNet layout: georeferenced scenes with road labels.

    The same seed gives the same files. Existing scenes of the same city are kept.
    """
    folder = geoprep.synthesize(city, progress=not quiet, **given)
    click.echo(printable(f"{counted(given['scenes'], 'scene')} in {folder}"))


@cli.command(cls=GroupedCommand)
@JSON
def cities(as_json: bool) -> None:
    """List the SpaceNet cities, their products and archives."""
    from geoprep.cli.progress import print_cities

    print_cities(as_json)


@cli.command(cls=GroupedCommand)
@STORE
@options_from(geoprep.store_info, "scenes", "batch_size", "crop", "workers")
@JSON
def info(store: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - options by name
    """Print the contents of a store, and the memory that its tiles and a loader take."""
    from geoprep.cli.progress import print_info

    facts = geoprep.store_info(store, **given)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        print_info(facts)


@cli.command(cls=GroupedCommand, short_help="Check every chunk of a store against its checksums.")
@STORE
@options_from(geoprep.check_store, "workers")
@QUIET
@JSON
def verify(store: str, workers: int | None, quiet: bool, as_json: bool) -> int:
    """Check every file and chunk of a store against checksums and hashes.

    Exit status: 0 the store is intact; 1 it is damaged (the output names arrays and shards).
    """
    from geoprep.cli.progress import print_verification

    result = geoprep.check_store(store, workers=workers, progress=not (quiet or as_json))
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        print_verification(result)
    return 1 if result.problems else 0


@cli.command(
    cls=GroupedCommand, short_help="Draw scenes, roads or polygons, or write an HTML page."
)
@click.argument("source", metavar="STORE|FEATURES")
@options_from(
    *(geoprep.preview, "out", "scenes", "count", "level", "over", "pixel_size"),
    out={"type": OutputPath()},
    scenes={"flag": "--scene", "multiple": True},
)
@QUIET
def preview(
    source: str,
    quiet: bool,
    **given: Any,  # noqa: ANN401 - options by name
) -> None:
    """Draw scenes of a store, roads or polygons; or write an HTML page of a store.

    For a store, the picture shows images, labels and overlays. --out NAME.html writes a page of all
    scenes with filters, a map and histograms, which needs no network connection. For a road network
    (.gpkg, .geojson, .graphml, .parquet, .osm), the picture shows its edges coloured by speed, over
    the --over image if given. For a SpaceNet table (.csv), it shows the roads of the --over image.
    Polygons (.gpkg, .geojson, .parquet) are coloured by their field class, as of `geoprep
    polygonize`, or else by layer.
    """
    click.echo(printable(f"wrote {geoprep.preview(source, progress=not quiet, **given)}"))


@cli.command(cls=GroupedCommand, short_help="Export scenes as GeoTIFF, or footprints.")
@STORE
@click.option(
    "--scene",
    "--scenes",
    "scenes",
    multiple=True,
    metavar="NAME[,NAME]|all",
    help="Scene id, or its end such as chip12, or all; repeatable.",
)
@options_from(geoprep.export_footprints, "by", by={"flag": "--footprints", "default": None})
@click.option("--out", required=True, type=OutputPath(), help="File NAME.tif, or a folder.")
@options_from(geoprep.export_scenes, "level", "what", "coding")
def export(
    store: str,
    scenes: tuple[str, ...],
    by: Literal["scene", "tile"] | None,
    out: Path,
    **given: Any,  # noqa: ANN401 - options by name
) -> None:
    """Export scenes as GeoTIFF, image and label, or the footprints of all.

    The files are Cloud Optimised GeoTIFFs. Scenes of any size need the memory of a few rows of
    tiles. Scenes that are not georeferenced can also be written as NAME.png. With a
    checkpoint such as best.pt in place of the store it is `geoprep export-model`.
    """
    several = any("," in text for text in scenes)
    ids = (
        set(map(str, geoprep.open_store(store).reader.scenes.id)) if several else set()
    )  # with commas
    parts = ([text] if text in ids else text.split(",") for text in scenes)
    names = [name.strip() for one in parts for name in one]
    if bool(names) == (by is not None):
        raise UsageError("give one of --scene NAME (or all) and --footprints scene")
    if by is not None:
        written = [geoprep.export_footprints(store, out, by=by)]
    else:
        written = geoprep.export_scenes(store, names, out, **given)
    for path in written:
        click.echo(printable(f"wrote {path}"))
