"""``geoprep download``: copies a SpaceNet city from the public bucket to a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from geoprep.cli.help import QUIET, GroupedCommand, OutputPath, filled, grouped_option


@click.command(cls=GroupedCommand, short_help="Download a SpaceNet city from the public bucket.")
@grouped_option(
    "Source", "--city", required=True, callback=filled, help="Name; `geoprep cities` lists them."
)
@grouped_option(
    "Source",
    "--product",
    default="PS-RGB",
    show_default=True,
    callback=filled,
    help="Imagery product: PS-RGB, PS-MS, MS or PAN.",
)
@grouped_option(
    "Source",
    "--scenes",
    type=click.IntRange(1),
    help="Number of scenes, labelled ones first; default: all.",
)
@grouped_option(
    "Source", "--archives", is_flag=True, help="Download the archives with all products instead."
)
@grouped_option(
    "Output",
    "--out",
    default="data",
    show_default=True,
    type=OutputPath(file_okay=False),
    help="Folder for the files, created where missing.",
)
@grouped_option("Run", "--dry-run", is_flag=True, help="List objects and bytes; download nothing.")
@QUIET
def download(city: str, out: Path, dry_run: bool, quiet: bool, **given: Any) -> None:  # noqa: ANN401 - options by name
    """Download a SpaceNet city from the public bucket; no account is needed.

    Copies single files of one product and their road labels: at most 7 GB for Moscow's PS-RGB,
    where the archive has 35 GiB. Can be stopped and run again: existing files are checked and
    kept. Set AWS_ENDPOINT_URL to use a mirror of the bucket.
    """
    from geoprep.api import download as download_city

    done = download_city(city, out=out, dry_run=dry_run, progress=not quiet, **given)
    if dry_run:
        for address, path, size in done.files:
            click.echo(f"{size:>14,}  {address} -> {path}")
        left = f"{done.missing_nbytes / 1e9:.3f} GB to download"
        click.echo(f"{len(done.files)} objects, {done.nbytes / 1e9:.3f} GB, {left}")
        return
    total = f"{done.nbytes / 1e9:.3f} GB in {out}"
    click.echo(f"{done.downloaded} files downloaded, {done.kept} already there: {total}")
    click.echo(f"next: geoprep build-zarr --city {city} --source {out}")
