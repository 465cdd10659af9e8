"""``geoprep build-zarr``: its options, progress bars and exit status."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import geoprep
from geoprep.building.options import BuildOptions
from geoprep.cli.help import (
    JSON,
    QUIET,
    RUN,
    GroupedCommand,
    OutputPath,
    name_options,
    options_from,
    options_of,
)
from geoprep.errors import GeoprepError, GeoprepWarning, UsageError
from geoprep.texts import printable

if TYPE_CHECKING:
    from geoprep.building.request import BuildObserver
    from geoprep.building.summary import DryRun


@click.command(
    "build-zarr",
    cls=GroupedCommand,
    common=(
        *("city", "source", "images", "labels", "pixel_size", "tile", "levels", "gsd", "rescale"),
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
@options_from(
    *(geoprep.build_zarr, "city", "source", "product", "images", "asset", "labels", "label_name"),
    section="Source",
    city={"multiple": True},
    source={"type": str},
    images={"multiple": True},
    asset={"multiple": True, "metavar": "NAME"},
    labels={"type": str},
    label_name={"metavar": "NAME"},
)
@options_of(BuildOptions)
@options_from(
    *(geoprep.build_zarr, "out", "overwrite", "drop_source"),
    section="Store",
    out={"type": OutputPath(bucket=True)},
)
@options_from(
    *(geoprep.build_zarr, "workers", "scheduler", "dry_run"),
    section=RUN,
    scheduler={"metavar": "ADDRESS"},
)
@QUIET
@JSON
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
    as_json = given["as_json"]
    notes: list[str] = []
    observer = _observer(given["quiet"] or as_json, notes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GeoprepWarning)  # the summary lists them
            result = geoprep.build_zarr(**_keywords(context, given), progress=observer)
    except GeoprepError as error:  # there is no complete store: status 2
        raise UsageError(str(error)) from error
    return _print(result, notes, as_json=as_json)


def _keywords(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of `geoprep.build_zarr`; options of a build only if typed."""

    def typed(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    of_build = {one.name for one in fields(BuildOptions)}
    left_out = {"as_json", "quiet", *(name for name in of_build if not typed(name))}
    return {name: value for name, value in given.items() if name not in left_out}


def _observer(quiet: bool, notes: list[str]) -> BuildObserver:
    """Return progress bars that collect the notes, which are printed with the result."""
    from geoprep.building.request import BuildObserver

    class Bars(BuildObserver):
        def note(self, line: str) -> None:
            notes.append(line)

    return Bars(bars=not quiet)


def _print(result: geoprep.Store | DryRun, notes: list[str], *, as_json: bool) -> int:
    """Print the result of a build or of a dry run; return the exit status."""
    from geoprep.cli.progress import print_dry_run, print_summary

    if not isinstance(result, geoprep.Store):
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
        click.echo(f"note: {name_options(printable(note))}", err=True)
