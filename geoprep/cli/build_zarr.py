"""``geoprep build-zarr``: its options, progress bars and exit status."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import geoprep
from geoprep.building.options import BuildOptions, InputOptions, TargetOptions, WorkOptions
from geoprep.cli.help import name_options
from geoprep.cli.records import Json, Quiet, RecordCommand
from geoprep.errors import GeoprepError, GeoprepWarning, UsageError
from geoprep.texts import printable

if TYPE_CHECKING:
    from geoprep.building.request import BuildObserver
    from geoprep.building.summary import DryRun


HELP = """Build a Zarr store of 8-bit tiles from images and labels of roads or classes.

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
"""
CLOSING = """
Tiles of a 1300 x 1300 pixel image:
  (default)                 4 tiles of 650 pixels, and the same ground at 325
  --tile 512                9 tiles of 512 pixels; the last row and column overlap others
  --resize 512              1 tile of 512 pixels, and of 256
  --gsd 0.6 --levels 1      resampled to pixels of 0.6 m, then cut into tiles

Exit status:
  0  all scenes were built
  1  the store is complete, but some scenes failed, or all were skipped; the summary says why
  2  there is no complete store: invalid options, unusable inputs, or an existing store
"""


def _build(given: dict[str, Any]) -> int:
    """Build a store, print its summary, and return the exit status."""
    as_json, quiet = given.pop("as_json", False), given.pop("quiet", False)
    notes: list[str] = []
    observer = _observer(quiet or as_json, notes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GeoprepWarning)  # the summary lists them
            result = geoprep.build_zarr(**given, progress=observer)
    except GeoprepError as error:  # there is no complete store: status 2
        raise UsageError(str(error)) from error
    return _print(result, notes, as_json=as_json, quiet=quiet)


def _observer(quiet: bool, notes: list[str]) -> BuildObserver:
    """Return progress bars that collect the notes, which are printed with the result."""
    from geoprep.building.request import BuildObserver

    class Bars(BuildObserver):
        def note(self, line: str) -> None:
            notes.append(line)

    return Bars(bars=not quiet)


def _print(result: geoprep.Store | DryRun, notes: list[str], *, as_json: bool, quiet: bool) -> int:
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
        print_summary(summary, notes, quiet=quiet)
    built = summary.statuses.get("ok", 0) + summary.statuses.get("unlabelled", 0)
    return 1 if summary.statuses.get("failed") or not built else 0


def _print_json(document: dict[str, Any], notes: list[str]) -> None:
    click.echo(json.dumps(document, indent=2))
    for note in notes:
        click.echo(f"note: {name_options(printable(note))}", err=True)


build_zarr = RecordCommand(
    "build-zarr",
    (InputOptions, BuildOptions, TargetOptions, WorkOptions, Quiet, Json),
    HELP,
    CLOSING,
    action=_build,
    common=(
        *("city", "source", "images", "labels", "pixel_size", "tile", "levels", "gsd", "rescale"),
        *("label_values", "classes", "val", "test", "out", "overwrite", "workers", "dry_run"),
    ),
)
