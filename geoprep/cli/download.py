"""``geoprep download``: copies a SpaceNet city from the public bucket to a local folder."""

from __future__ import annotations

from pathlib import Path

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
    deprecated_names=("--dest",),
    help="Folder for the files, created where missing.",
)
@grouped_option("Run", "--dry-run", is_flag=True, help="List objects and bytes; download nothing.")
@QUIET
def download(
    city: str,
    product: str,
    out: Path,
    scenes: int | None,
    archives: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Download a SpaceNet city from the public bucket; no account is needed.

    Copies single files of one product and their road labels: at most 7 GB for Moscow's PS-RGB,
    where the archive has 35 GiB. Can be stopped and run again: existing files are checked and
    kept. Set AWS_ENDPOINT_URL to use a mirror of the bucket.
    """
    from geoprep.cli.progress import counting_bar
    from geoprep.errors import UsageError
    from geoprep.sources import (
        bytes_to_download,
        check_free_space,
        download_files,
        get_city,
        list_archives,
        list_files,
    )

    if archives and scenes is not None:
        raise UsageError("--scenes selects single files: leave out --archives")
    known = get_city(city)
    files = list_archives(known, out) if archives else list_files(known, product, out, scenes)
    total = sum(one.remote.size for one in files)
    if dry_run:
        for one in files:
            click.echo(f"{one.remote.size:>14,}  {one.remote.address} -> {one.path}")
        coming = bytes_to_download(files)
        left = f"{coming / 1e9:.3f} GB to download"
        click.echo(f"{len(files)} objects, {total / 1e9:.3f} GB, {left}")
        check_free_space(files, out)
        return
    with counting_bar("downloading, MB", quiet, per=10**6) as report:
        done = download_files(files, out, report)
    size = f"{done.nbytes / 1e9:.3f} GB in {out}"
    click.echo(f"{done.downloaded} files downloaded, {done.kept} already there: {size}")
    click.echo(f"next: geoprep build-zarr --city {known.name} --source {out}")
