"""``geoprep build-zarr``: its options, progress bars and exit status."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from geoprep.build import BuildOptions
from geoprep.cli.help import (
    QUIET,
    WORKERS,
    GroupedCommand,
    OutputPath,
    filled,
    grouped_option,
    name_options,
    options_of,
)
from geoprep.errors import GeoprepError, GeoprepWarning, UsageError

if TYPE_CHECKING:
    from geoprep.api import Store
    from geoprep.build import BuildObserver, DryRun


@click.command(
    "build-zarr",
    cls=GroupedCommand,
    common=(
        *("cities", "source", "images", "labels", "pixel_size", "tile", "levels", "gsd", "rescale"),
        *("label_values", "classes", "val", "test", "out", "overwrite", "workers", "dry_run"),
    ),
    epilog="""
\b
Tiles of a 1300 x 1300 pixel image:
  (default)                 4 tiles of 650 pixels, and the same ground at 325
  --tile 512                9 tiles of 512 pixels; the last row and column overlap others
  --resize 512              1 tile of 512 pixels, and of 256
  --gsd 0.6 --levels 1      resampled to pixels of 0.6 m, then cut into tiles
\b
Exit status:
  0  all scenes were built
  1  the store is complete, but some scenes failed, or all were skipped; the summary says why
  2  there is no complete store: invalid options, unusable inputs, or an existing store
""",
)
@grouped_option(
    "Source", "--city", "cities", multiple=True, callback=filled, help="SpaceNet city; repeatable."
)
@grouped_option(
    "Source",
    "--source",
    callback=filled,
    help="Folder, .tar, .tar.gz or s3:// address of --city.  [default: $GEOPREP_DATA, ./data, .]",
)
@grouped_option(
    "Source",
    "--product",
    callback=filled,
    help="Imagery product of --city.  [default: PS-RGB]",
)
@grouped_option(
    "Source",
    "--images",
    multiple=True,
    callback=filled,
    help="Images instead of --city; repeatable: a quoted pattern, a folder, or an archive (.tar, "
    ".tar.gz, .zip), whose members 'A.zip!/train/*_sat.jpg' selects; or STAC items (.json, "
    ".parquet, a search); local, s3://, gs:// or https://.",
)
@grouped_option(
    "Source",
    "--asset",
    multiple=True,
    callback=filled,
    metavar="NAME",
    help="Asset of the STAC items of --images, such as visual; several (red,green,blue) are "
    "stacked as bands.  [default: their only raster]",
)
@grouped_option(
    "Source",
    "--labels",
    callback=filled,
    help="Labels of --images: one road file for all of them, or a folder or quoted pattern of one "
    "vector file or raster per image.  [default: no labels]",
)
@options_of(BuildOptions)
@grouped_option(
    "Store",
    "--out",
    type=OutputPath(bucket=True),
    help="Folder of the store, or s3://BUCKET/NAME.zarr.  [default: CITY.zarr]",
)
@grouped_option(
    "Store",
    "--overwrite",
    is_flag=True,
    help="Replace a store that is complete or was built differently. It stays until the new one is "
    "complete, so the disk needs space for both; in a bucket it cannot be read meanwhile.",
)
@grouped_option(
    "Store",
    "--drop-source",
    is_flag=True,
    help="Delete downloaded and unpacked inputs (NAME.zarr.source) after the build.",
)
@WORKERS
@grouped_option(
    "Run",
    "--scheduler",
    callback=filled,
    metavar="ADDRESS",
    help="Dask scheduler whose workers build the store, such as tcp://HOST:8786.",
)
@grouped_option(
    "Run",
    "--dry-run",
    is_flag=True,
    help="Build, download and unpack nothing; print the number of tiles, their size, and scenes "
    "that would fail, by the headers of the images.",
)
@grouped_option("Run", "--json", "as_json", is_flag=True, help="Print one JSON document instead.")
@QUIET
@click.pass_context
def build_zarr(context: click.Context, /, **given: Any) -> int:  # noqa: ANN401 - options by name
    """Build a Zarr store of 8-bit tiles from images and labels of roads or classes.

    \b
      geoprep build-zarr --city moscow
      geoprep build-zarr --images 'scenes/*.tif' --labels roads.gpkg --out mine.zarr
      geoprep build-zarr --images 'set.zip!/*_sat.jpg' --labels 'set.zip!/*_mask.png' \\
          --label-values 255 --pixel-size 0.5 --out set.zarr
      geoprep build-zarr --images 'tiles/*.jpg' --labels masks --classes classes.yaml \\
          --pixel-size 0.5 --out cover.zarr
      geoprep build-zarr --images dem.tif --rescale 100,900 --nodata -9999 --out dem.zarr
      geoprep build-zarr --images mosaic.tif --labels roads.gpkg --split-by block \\
          --block-km 0.5 --out mosaic.zarr

    An interrupted build is resumed by the same command, with the same result to the last byte.
    docs/how-to/data-sets.md lists the options for common data sets.
    """  # noqa: D301 - click's own mark, which keeps lines as they are
    from geoprep.api import build_zarr as build

    as_json = given["as_json"]
    notes: list[str] = []
    observer = _observer(given["quiet"] or as_json, notes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GeoprepWarning)  # the summary lists them
            result = build(**_keywords(context, given), progress=observer)
    except GeoprepError as error:  # there is no complete store: status 2
        raise UsageError(str(error)) from error
    return _print(result, notes, as_json=as_json)


def _keywords(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of `geoprep.build_zarr`; options of a build only if typed."""

    def typed(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    of_build = {one.name for one in fields(BuildOptions)}
    left_out = {"cities", "as_json", "quiet", *(name for name in of_build if not typed(name))}
    keywords = {name: value for name, value in given.items() if name not in left_out}
    return keywords | {"city": given["cities"]}


def _observer(quiet: bool, notes: list[str]) -> BuildObserver:
    """Return progress bars that collect the notes, which are printed with the result."""
    from geoprep.build import BuildObserver

    class Bars(BuildObserver):
        def note(self, line: str) -> None:
            notes.append(line)

    return Bars(bars=not quiet)


def _print(result: Store | DryRun, notes: list[str], *, as_json: bool) -> int:
    """Print the result of a build or of a dry run; return the exit status."""
    from geoprep.api import Store
    from geoprep.cli.progress import print_dry_run, print_summary

    if not isinstance(result, Store):
        if as_json:
            _print_json(result.to_json(), notes)
        else:
            print_dry_run(result, notes)
        return 1 if result.failures else 0
    summary = result.summary
    assert summary is not None  # of a store that has just been built
    if as_json:
        _print_json(asdict(summary), notes)
    else:
        print_summary(summary, notes)
    built = summary.statuses.get("ok", 0) + summary.statuses.get("unlabelled", 0)
    return 1 if summary.statuses.get("failed") or not built else 0


def _print_json(document: dict[str, Any], notes: list[str]) -> None:
    click.echo(json.dumps(document, indent=2))
    for note in notes:
        click.echo(f"note: {name_options(note)}", err=True)
