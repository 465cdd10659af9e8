"""``geoprep download``: copies a SpaceNet city from the public bucket to a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import geoprep
from geoprep.cli.help import QUIET, GroupedCommand, OutputPath, options_from
from geoprep.texts import counted, printable


@click.command(cls=GroupedCommand, short_help="Download a SpaceNet city from the public bucket.")
@options_from(geoprep.download, "city", "product", "scenes", "archives", section="Source")
@options_from(geoprep.download, "out", section="Output", out={"type": OutputPath(file_okay=False)})
@options_from(geoprep.download, "dry_run", section="Run")
@QUIET
def download(city: str, out: Path, dry_run: bool, quiet: bool, **given: Any) -> None:  # noqa: ANN401 - options by name
    """Download a SpaceNet city from the public bucket; no account is needed.

    Copies single files of one product and their road labels: at most 7 GB for Moscow's PS-RGB,
    where the archive has 35 GiB. Can be stopped and run again: existing files are checked and
    kept. Set AWS_ENDPOINT_URL to use a mirror of the bucket.
    """
    done = geoprep.download(city, out=out, dry_run=dry_run, progress=not quiet, **given)
    if dry_run:
        for address, path, size in done.files:
            click.echo(printable(f"{size:>14,}  {address} -> {path}"))
        left = f"{done.missing_nbytes / 1e9:.3f} GB to download"
        click.echo(f"{counted(len(done.files), 'object')}, {done.nbytes / 1e9:.3f} GB, {left}")
        return
    total = f"{done.nbytes / 1e9:.3f} GB in {out}"
    click.echo(f"{counted(done.downloaded, 'file')} downloaded, {done.kept} already there: {total}")
    click.echo(f"next: geoprep build-zarr --city {city} --source {out}")
