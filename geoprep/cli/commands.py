"""The ``geoprep`` command: parses and prints, decides nothing.

Heavy imports happen inside the commands, so that ``geoprep --help`` loads neither GDAL nor numba.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from geoprep import __version__
from geoprep.cli.build_zarr import build_zarr
from geoprep.cli.download import download
from geoprep.cli.graphs import route, score
from geoprep.cli.help import JSON, POSITIVE, QUIET, WORKERS, GroupedCommand, OutputPath
from geoprep.cli.roads import preview_network, vectorize
from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.views import By, Coding, What

NETWORKS = (".gpkg", ".geojson", ".graphml", ".parquet", ".csv")
STORE = click.argument("store", metavar="STORE")


HELP = """Satellite imagery and road labels to uint8 Zarr stores, offline and once.

\b
geoprep synth --city moscow --scenes 24 --out data/     make a labelled city to try things on
geoprep build-zarr --city moscow --source data/         imagery and roads -> moscow.zarr
geoprep info moscow.zarr                                what is in it
geoprep preview moscow.zarr --out sheet.png             look at it
geoprep vectorize maps/ --out city.gpkg                 maps of roads -> a network to route on
geoprep score --truth labels/ --proposal city.gpkg      how good it is: APLS, TOPO
"""


@click.group(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="geoprep")
def cli() -> None:
    """Hold all commands."""


cli.add_command(download)
cli.add_command(build_zarr)
cli.add_command(vectorize)
cli.add_command(score)
cli.add_command(route)


@cli.command(cls=GroupedCommand, short_help="Make a synthetic, labelled city in SpaceNet layout.")
@click.option("--city", required=True, help="Which city; `geoprep cities` lists them.")
@click.option("--scenes", default=24, show_default=True, type=click.IntRange(1))
@click.option("--out", default="data", show_default=True, type=OutputPath(file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Another seed, another city.")
@click.option(
    "--product",
    "products",
    multiple=True,
    default=("PS-RGB",),
    show_default=True,
    type=click.Choice(["PS-RGB", "PS-MS", "PAN"], case_sensitive=False),
    help="PS-RGB (3 bands, uint8), PS-MS (8 bands, 11 bits in uint16) or PAN; repeatable.",
)
@click.option(
    "--size", default=1300, show_default=True, type=click.IntRange(64, 4096), help="Pixels."
)
@WORKERS
@QUIET
def synth(
    city: str,
    scenes: int,
    out: Path,
    seed: int,
    products: tuple[str, ...],
    size: int,
    workers: int | None,
    quiet: bool,
) -> None:
    """Make a synthetic city in SpaceNet layout: georeferenced chips, labelled roads.

    The same seed gives the same bytes. Chips that are there already are kept.
    """
    from geoprep.cli.progress import counting_bar
    from geoprep.executors import usable_cores
    from geoprep.sources import get_city
    from geoprep.synth import synthesise

    with counting_bar("synthesising", quiet) as advance:
        folder = synthesise(
            out,
            get_city(city),
            scenes=scenes,
            seed=seed,
            products=products,
            size=size,
            workers=workers or usable_cores(),
            on_scene=advance,
        )
    click.echo(f"{scenes} scenes in {folder}")


@cli.command(cls=GroupedCommand)
@JSON
def cities(as_json: bool) -> None:
    """List the cities, their products and where their archives are."""
    from geoprep.cli.progress import print_cities

    print_cities(as_json)


@cli.command(cls=GroupedCommand)
@STORE
@click.option("--scenes", is_flag=True, help="List every scene.")
@JSON
def info(store: str, scenes: bool, as_json: bool) -> None:
    """Say what is in a store, and what it will take in memory."""
    from geoprep.store import Store
    from geoprep.views import info as describe
    from geoprep.views import print_info

    opened = Store.open(store)
    if as_json:
        click.echo(json.dumps(describe(opened, scenes=scenes), indent=2))
    else:
        print_info(opened, scenes=scenes)


@cli.command(cls=GroupedCommand, short_help="Read every chunk against checksums and statistics.")
@STORE
@WORKERS
@QUIET
@JSON
def verify(store: str, workers: int | None, quiet: bool, as_json: bool) -> int:
    """Read every chunk of a store against its checksums, hashes and statistics.

    Exit status: 0 all is well, 1 something is damaged (the array and the shard are named).
    """
    from geoprep.cli.progress import counting_bar
    from geoprep.executors import usable_cores
    from geoprep.verify import print_report
    from geoprep.verify import verify as check

    with counting_bar("verifying shards", quiet or as_json) as advance:
        result = check(store, workers=workers or usable_cores(), report=advance)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        print_report(result)
    return 1 if result.problems else 0


@cli.command(
    cls=GroupedCommand, short_help="Draw a store's scenes, or a road network; or write a page."
)
@click.argument("source", metavar="STORE|NETWORK")
@click.option("--out", default="preview.png", show_default=True, type=OutputPath())
@click.option("--scene", "scenes", multiple=True, help="Show this one; repeatable.")
@click.option("--count", default=6, show_default=True, type=click.IntRange(1), help="Scenes.")
@click.option(
    "--level", type=click.IntRange(1), help="Resolution to read; default: as fine as needed."
)
@click.option("--over", type=click.Path(path_type=Path), help="Image below the roads of a NETWORK.")
@click.option(
    "--pixel-size",
    type=POSITIVE,
    help="Metres that its pixels are wide, where the roads have no place on the ground.",
)
@QUIET
def preview(
    source: str,
    out: Path,
    scenes: tuple[str, ...],
    count: int,
    level: int | None,
    over: Path | None,
    pixel_size: float | None,
    quiet: bool,
) -> None:
    """Make a picture to look at, or a page to look through.

    Of a store: images, speed masks, overlays; with --out NAME.html a page of all scenes, with
    filters, a map and histograms, that any browser opens without a network. Of a road network
    (.gpkg, .geojson, .graphml, .parquet): its edges coloured by speed, over an image where one is
    given. Of a SpaceNet table (.csv): the roads of the image that it is drawn over.
    """
    if source.endswith(NETWORKS):
        if scenes or level is not None:
            raise UsageError("--scene and --level go with a store, not with a road network")
        preview_network(Path(source), out, over, pixel_size)
        return
    if over is not None:
        raise UsageError(f"--over {over} goes with a road network ({', '.join(NETWORKS)})")
    if out.suffix.lower() in (".html", ".htm"):
        if scenes:
            raise UsageError("--scene goes with a picture: a page shows every scene")
        preview_page(source, out, level, quiet)
        return
    from geoprep.store import Store
    from geoprep.views import preview as make_sheet

    written = make_sheet(
        Store.open(source), out, scenes=list(scenes) or None, count=count, level=level
    )
    click.echo(f"wrote {written}")


def preview_page(source: str, out: Path, level: int | None, quiet: bool) -> None:
    """Write the page of a store, with a bar."""
    from geoprep.cli.progress import counting_bar
    from geoprep.store import Store
    from geoprep.views import make_page

    with counting_bar("drawing scenes", quiet) as advance:
        written = make_page(Store.open(source), out, level=level, report=advance)
    click.echo(f"wrote {written}")


@cli.command(
    cls=GroupedCommand, short_help="Write scenes back to GeoTIFF, or the footprints of all."
)
@STORE
@click.option(
    "--scene",
    "--scenes",
    "scenes",
    multiple=True,
    metavar="NAME[,NAME]|all",
    help="Scene id, or the end of it: chip12; repeatable.",
)
@click.option(
    "--footprints",
    type=click.Choice(["scene", "tile"]),
    help="Export the outlines of all scenes, or of all tiles, instead (.geojson or .gpkg).",
)
@click.option(
    "--out", required=True, type=OutputPath(), help="NAME.tif, or a folder for several scenes."
)
@click.option("--level", type=click.IntRange(1), help="Resolution; default: the finest.")
@click.option(
    "--what",
    default="both",
    show_default=True,
    type=click.Choice(["both", "image", "speed"]),
)
@click.option(
    "--coding",
    default="mph",
    show_default=True,
    type=click.Choice(["mph", "continuous", "binned"]),
    help="Values of the speed mask: mph, or CRESI's two codings.",
)
def export(
    store: str,
    scenes: tuple[str, ...],
    footprints: By | None,
    out: Path,
    level: int | None,
    what: What,
    coding: Coding,
) -> None:
    """Write scenes back to GeoTIFF, image and mask, georeferenced; or the store's footprints.

    Files are tiled, compressed and have overviews (cloud optimised), and are as large as they may:
    memory is that of some rows of tiles. Scenes without a place on the ground have none there
    either, and may also be written as NAME.png.
    """
    from geoprep.store import Store
    from geoprep.views import export_footprints, export_scenes

    names = [name.strip() for text in scenes for name in text.split(",")]
    if bool(names) == (footprints is not None):
        raise UsageError("say what to export: --scene NAME (or all), or --footprints scene")
    opened = Store.open(store)
    if footprints is not None:
        written = [export_footprints(opened, out, by=footprints)]
    else:
        written = export_scenes(opened, names, out, level=level, what=what, coding=coding)
    for path in written:
        click.echo(f"wrote {path}")
