"""The commands of cities: `cities`, `download` and `synth`."""

from __future__ import annotations

from typing import Any

import click

import geoprep
from geoprep.api.cities import DownloadOptions, SynthOptions
from geoprep.cli.records import Json, Quiet, RecordCommand
from geoprep.texts import counted, printable

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


def _synth(given: dict[str, Any]) -> None:
    progress = not given.pop("quiet", False)
    folder = geoprep.synthesize(**given, progress=progress)
    click.echo(printable(f"{counted(SynthOptions(**given).scenes, 'scene')} in {folder}"))


synth = RecordCommand(
    "synth",
    (SynthOptions, Quiet),
    """Make a synthetic city in SpaceNet layout: georeferenced scenes with road labels.

    The same seed gives the same files. Existing scenes of the same city are kept.
    """,
    action=_synth,
    short_help="Make a synthetic, labelled city in SpaceNet layout.",
)


def _cities(given: dict[str, Any]) -> None:
    from geoprep.cli.progress import print_cities

    print_cities("as_json" in given)


cities = RecordCommand(
    *("cities", (Json,), "List the SpaceNet cities, their products and archives."),
    action=_cities,
)
