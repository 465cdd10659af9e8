"""The commands of ``geoprep`` that need no module of their own.

Heavy imports happen inside the commands, so that ``geoprep --help`` loads neither GDAL nor numba.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

import geoprep
from geoprep.api.cities import DownloadOptions, SynthOptions
from geoprep.api.comparing import CompareArguments, CompareFiles
from geoprep.api.store_functions import (
    CheckOptions,
    ExportOptions,
    ExportTarget,
    InfoOptions,
    PreviewArgument,
    PreviewOptions,
    StoreArgument,
)
from geoprep.cli.build_zarr import build_zarr
from geoprep.cli.entry_points import CommandGroup
from geoprep.cli.help import figures_table
from geoprep.cli.records import Json, Quiet, RecordCommand
from geoprep.cli.roads import polygonize, vectorize
from geoprep.cli.score import score
from geoprep.errors import UsageError
from geoprep.roads.options import CompareOptions
from geoprep.texts import counted, printable

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


DOWNLOAD_HELP = """Download a SpaceNet city from the public bucket; no account is needed.

Copies single files of one product and their road labels: at most 7 GB for Moscow's PS-RGB, where
the archive has 35 GiB. Can be stopped and run again: existing files are checked and kept. Set
AWS_ENDPOINT_URL to use a mirror of the bucket.
"""


def _download(given: dict[str, Any]) -> None:
    """Download a city, or list what would be downloaded."""
    quiet, chosen = given.pop("quiet", False), DownloadOptions(**given)
    done = geoprep.download(**given, progress=not quiet)
    if chosen.dry_run:
        for address, path, size in done.files:
            click.echo(printable(f"{size:>14,}  {address} -> {path}"))
        left = f"{done.missing_nbytes / 1e9:.3f} GB to download"
        click.echo(f"{counted(len(done.files), 'object')}, {done.nbytes / 1e9:.3f} GB, {left}")
        return
    total = f"{done.nbytes / 1e9:.3f} GB in {chosen.out}"
    click.echo(f"{counted(done.downloaded, 'file')} downloaded, {done.kept} already there: {total}")
    click.echo(f"next: geoprep build-zarr --city {chosen.city} --source {chosen.out}")


download = RecordCommand(
    *("download", (DownloadOptions, Quiet), DOWNLOAD_HELP),
    action=_download,
    short_help="Download a SpaceNet city from the public bucket.",
)


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

for command in (download, build_zarr, vectorize, polygonize, score, compare):
    cli.add_command(command)


def _synth(given: dict[str, Any]) -> None:
    progress = not given.pop("quiet", False)
    folder = geoprep.synthesize(**given, progress=progress)
    click.echo(printable(f"{counted(SynthOptions(**given).scenes, 'scene')} in {folder}"))


cli.add_command(
    RecordCommand(
        "synth",
        (SynthOptions, Quiet),
        """Make a synthetic city in SpaceNet layout: georeferenced scenes with road labels.

        The same seed gives the same files. Existing scenes of the same city are kept.
        """,
        action=_synth,
        short_help="Make a synthetic, labelled city in SpaceNet layout.",
    )
)


def _cities(given: dict[str, Any]) -> None:
    from geoprep.cli.progress import print_cities

    print_cities("as_json" in given)


cli.add_command(
    RecordCommand(
        *("cities", (Json,), "List the SpaceNet cities, their products and archives."),
        action=_cities,
    )
)


def _info(given: dict[str, Any]) -> None:
    from geoprep.cli.progress import print_info

    as_json = given.pop("as_json", False)
    facts = geoprep.store_info(**given)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        print_info(facts)


cli.add_command(
    RecordCommand(
        "info",
        (StoreArgument, InfoOptions, Json),
        "Print the contents of a store, and the memory that its tiles and a loader take.",
        action=_info,
    )
)


def _verify(given: dict[str, Any]) -> int:
    from geoprep.cli.progress import print_verification

    quiet, as_json = given.pop("quiet", False), given.pop("as_json", False)
    result = geoprep.check_store(**given, progress=not (quiet or as_json))
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        print_verification(result)
    return 1 if result.problems else 0


cli.add_command(
    RecordCommand(
        "verify",
        (StoreArgument, CheckOptions, Quiet, Json),
        """Check every file and chunk of a store against checksums and hashes.

        Exit status: 0 the store is intact; 1 it is damaged (the output names arrays and shards).
        """,
        action=_verify,
        short_help="Check every chunk of a store against its checksums.",
    )
)


def _preview(given: dict[str, Any]) -> None:
    progress = not given.pop("quiet", False)
    click.echo(printable(f"wrote {geoprep.preview(**given, progress=progress)}"))


cli.add_command(
    RecordCommand(
        "preview",
        (PreviewArgument, PreviewOptions, Quiet),
        """Draw scenes of a store, roads or polygons; or write an HTML page of a store.

        For a store, the picture shows images, labels and overlays. --out NAME.html writes a page of
        all scenes with filters, a map and histograms, which needs no network connection. For a road
        network (.gpkg, .geojson, .parquet, .graphml, .osm), the picture shows its edges coloured by
        speed, over the --over image if given. Polygons (.gpkg, .geojson, .parquet) are coloured
        by their field class, as of `geoprep polygonize`, or else by layer.
        """,
        action=_preview,
        short_help="Draw scenes, roads or polygons, or write an HTML page.",
    )
)


def _export(given: dict[str, Any]) -> None:
    store, out, names = given.pop("store"), given.pop("out"), given.pop("scenes", ())
    by, quiet = given.pop("by", None), given.pop("quiet", False)
    if bool(names or given.get("split")) == (by is not None):
        raise UsageError(
            "give one of --scene NAME (or all), --split and --footprints scene; `geoprep "
            "export-model` exports a model"
        )
    if by is not None:
        overwrite = given.get("overwrite", False)
        written = [geoprep.export_footprints(store, out, by=by, overwrite=overwrite)]
    else:
        written = geoprep.export_scenes(store, names, out, **given)
    for path in () if quiet else written:
        click.echo(printable(f"wrote {path}"))


cli.add_command(
    RecordCommand(
        "export",
        (StoreArgument, ExportTarget, ExportOptions, Quiet),
        """Export scenes as GeoTIFF, image and label, or the footprints of all.

        The files are Cloud Optimised GeoTIFFs. Scenes of any size need the memory of a few rows of
        tiles. `geoprep export-model` exports a model.
        """,
        action=_export,
        short_help="Export scenes as GeoTIFF, or footprints.",
    )
)
