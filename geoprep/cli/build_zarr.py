"""``geoprep build-zarr``: its options, and who does what they ask for."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geoprep.cli.help import GroupedCommand, grouped_option, parse_bands, parse_tile
from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.plan.options import BuildOptions
    from geoprep.sources.scene import Found


@click.command(
    "build-zarr",
    cls=GroupedCommand,
    epilog="""
\b
How tiles come about: an image is resampled to the finest level (by --gsd or --resize, else it
stays as it is), cut into tiles (--tile, --overlap), and every further of the --levels halves them.
  1300 px chip                          4 tiles of 650, and the same ground at 325
  1300 px chip, --tile 512              9 tiles of 512, the last ones shifted inwards
  1300 px chip, --resize 512            1 tile of 512, and 256
  1300 px chip, --gsd 0.6 --levels 1    resampled to 0.6 m on the ground, then cut
\b
Exit status: 0 all went well; 1 some scenes failed (the store is complete with the rest, and
says why); 2 the command cannot be carried out as written.
""",
)
@grouped_option("Source", "--city", "cities", multiple=True, help="SpaceNet city; repeatable.")
@grouped_option(
    "Source",
    "--source",
    help="Folder, .tar, .tar.gz or s3:// address; default: $GEOPREP_DATA, ./data, .",
)
@grouped_option(
    "Source", "--product", default="PS-RGB", show_default=True, help="Imagery product of a city."
)
@grouped_option(
    "Source", "--images", multiple=True, help="Any imagery instead of a city: quoted glob."
)
@grouped_option(
    "Source",
    "--labels",
    help="Its roads: one .gpkg, .geojson or .shp for all, or a folder or glob of one a scene.",
)
@grouped_option("Source", "--bands", callback=parse_bands, help="For example 5,3,2; from 1.")
@grouped_option(
    "Roads",
    "--speed-from",
    default="attributes",
    show_default=True,
    type=click.Choice(["attributes", "field"]),
    help="Recompute from type, lanes and surface, or read the speed that is there.",
)
@grouped_option("Roads", "--speed-field", help="Name of the field that holds the speed.")
@grouped_option(
    "Roads",
    "--speed-unit",
    default="mph",
    show_default=True,
    type=click.Choice(["mph", "kmh", "mps"]),
    help="Unit of that field.",
)
@grouped_option(
    "Roads",
    "--schema",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "sn3", "sn5", "osm"]),
    help="How road attributes are spelled.",
)
@grouped_option(
    "Pixels",
    "--rescale",
    default="auto",
    show_default=True,
    metavar="scene|city|none|LO,HI",
    help="How values become bytes; auto leaves uint8 alone and stretches uint16 by scene.",
)
@grouped_option(
    "Pixels",
    "--max-nodata",
    default=0.9,
    show_default=True,
    help="Skip a scene with a larger share of nodata.",
)
@grouped_option(
    "Tiles", "--tile", metavar="auto|N", default="auto", show_default=True, callback=parse_tile,
    help="Side in pixels; auto: the side nearest 512 that wastes nothing.",
)  # fmt: skip
@grouped_option("Tiles", "--overlap", default=0, show_default=True, help="Pixels shared.")
@grouped_option(
    "Tiles", "--levels", default=2, show_default=True, help="Resolutions, each half the last."
)
@grouped_option(
    "Tiles", "--gsd", type=float, metavar="METRES", help="Resample to this on the ground."
)
@grouped_option("Tiles", "--resize", type=int, metavar="N", help="One N x N tile a scene.")
@grouped_option("Splits", "--val", default=0.2, show_default=True, help="Share of scenes.")
@grouped_option("Splits", "--test", default=0.0, show_default=True, help="Share of scenes.")
@grouped_option("Splits", "--split-seed", default=0, show_default=True, help="Of the hash.")
@grouped_option(
    "Splits",
    "--split-by",
    default="scene",
    show_default=True,
    type=click.Choice(["scene", "block"]),
    help="block keeps neighbouring scenes in one split.",
)
@grouped_option("Splits", "--block-km", default=2.0, show_default=True, help="Side of a block.")
@grouped_option("Store", "--out", type=click.Path(path_type=Path), help="Default: CITY.zarr")
@grouped_option("Store", "--overwrite", is_flag=True, help="Replace a store built otherwise.")
@grouped_option(
    "Store",
    "--codec",
    default="lz4",
    show_default=True,
    type=click.Choice(["lz4", "zstd"]),
    help="zstd: smaller and slower.",
)
@grouped_option("Store", "--shard-tiles", default=32, show_default=True, help="Tiles a file.")
@grouped_option("Run", "--workers", type=click.IntRange(1), help="Threads; default: one a core.")
@grouped_option("Run", "--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@grouped_option("Run", "--quiet", is_flag=True, help="No progress bar.")
def build_zarr(**given: Any) -> None:  # noqa: ANN401 - click hands options over by name
    """Turn imagery and road labels into one uint8 Zarr store.

    Can be stopped at any moment and run again: finished work is kept, and the result is the same to
    the last byte.
    """
    from geoprep.build.run import build
    from geoprep.cli.progress import build_bar, print_summary
    from geoprep.executors.threads import Threads
    from geoprep.plan.plan import make_plan

    options = _options(given)
    executor = Threads(given["workers"])
    found, names, out = _sources(given)
    found = _fetched(found, out, given["quiet"] or given["as_json"])
    plan = make_plan(found, names, options, executor)
    with build_bar(given["quiet"] or given["as_json"]) as report:
        summary = build(plan, out, executor, overwrite=given["overwrite"], report=report)
    if given["as_json"]:
        click.echo(json.dumps(asdict(summary), indent=2))
    else:
        print_summary(summary, [note for one in found for note in one.notes])
    sys.exit(1 if summary.statuses.get("failed") else 0)


def _sources(given: dict[str, Any]) -> tuple[list[Found], list[str], Path]:
    """Return what the sources hold, the names of the cities, and where the store goes."""
    from geoprep.cli.progress import archive_bar
    from geoprep.sources.cities import get_city
    from geoprep.sources.spacenet import find_scenes

    if bool(given["cities"]) == bool(given["images"]):
        raise UsageError("say what to build from: --city NAME, or --images 'GLOB' [--labels FILE]")
    if given["images"]:
        from geoprep.sources.patterns import images_and_labels

        if given["out"] is None:
            raise UsageError("--images needs --out: there is no city to name the store after")
        found = [images_and_labels(given["images"], given["labels"])]
        return found, ["custom"], given["out"]
    if given["labels"]:
        raise UsageError("--labels goes with --images; a city's labels are found by their names")
    cities = [get_city(name) for name in given["cities"]]
    found = []
    with archive_bar(given["quiet"] or given["as_json"]) as on_member:
        for city in cities:
            found.append(find_scenes(city, given["source"], given["product"], on_member=on_member))
    names = [city.name for city in cities]
    return found, names, given["out"] or Path("-".join(names) + ".zarr")


def _fetched(found: list[Found], out: Path, quiet: bool) -> list[Found]:
    """Bring what lies on a server to the disk, beside the store."""
    from geoprep.cli.progress import scene_bar
    from geoprep.sources.download import fetch, remote_scenes

    if not any(remote_scenes(one) for one in found):
        return found
    into = out.with_name(out.name + ".source")
    with scene_bar("downloading scenes", quiet) as advance:
        local = [fetch(one, into, advance) for one in found]
    click.echo(f"downloaded to {into}: delete it when you need it no more", err=True)
    return local


def _options(given: dict[str, Any]) -> BuildOptions:
    from dataclasses import fields

    from geoprep.plan.options import BuildOptions

    return BuildOptions(**{f.name: given[f.name] for f in fields(BuildOptions)})
