"""``geoprep download``: from the public bucket to a folder that a build reads."""

from __future__ import annotations

from pathlib import Path

import click

from geoprep.cli.help import QUIET, GroupedCommand, OutputPath, filled


@click.command(cls=GroupedCommand, short_help="Bring a SpaceNet city from the public bucket.")
@click.option("--city", required=True, callback=filled, help="`geoprep cities` lists them.")
@click.option("--product", default="PS-RGB", show_default=True, callback=filled)
@click.option("--dest", default="data", show_default=True, type=OutputPath(file_okay=False))
@click.option("--scenes", type=click.IntRange(1), help="Only so many, labelled ones first.")
@click.option("--archives", is_flag=True, help="The tarballs instead, all products in them.")
@click.option("--dry-run", is_flag=True, help="List objects and bytes; fetch nothing.")
@QUIET
def download(
    city: str,
    product: str,
    dest: Path,
    scenes: int | None,
    archives: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Bring a SpaceNet city from the public bucket; no account is needed.

    Single files of one product and their road labels: for Moscow's PS-RGB at most 7 GB, where the
    archive has 35 GiB. Can be stopped and run again: what has come is checked and kept. For a
    mirror of the bucket set AWS_ENDPOINT_URL.
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
        raise UsageError("--scenes are single files: leave out --archives")
    known = get_city(city)
    files = list_archives(known, dest) if archives else list_files(known, product, dest, scenes)
    total = sum(one.remote.size for one in files)
    if dry_run:
        for one in files:
            click.echo(f"{one.remote.size:>14,}  {one.remote.address} -> {one.path}")
        coming = bytes_to_download(files)
        left = f"of which {coming / 1e9:.3f} GB are to come"
        click.echo(f"{len(files)} objects, {total / 1e9:.3f} GB, {left}")
        check_free_space(files, dest)
        return
    with counting_bar("downloading, MB", quiet, per=10**6) as report:
        done = download_files(files, dest, report)
    size = f"{done.nbytes / 1e9:.3f} GB in {dest}"
    click.echo(f"{done.fetched} files fetched, {done.kept} were there: {size}")
    click.echo(f"next: geoprep build-zarr --city {known.name} --source {dest}")
