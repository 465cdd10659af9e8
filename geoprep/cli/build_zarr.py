"""``geoprep build-zarr``: its options, and who does what they ask for."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
from click.core import ParameterSource

from geoprep.cli.help import (
    QUIET,
    WORKERS,
    GroupedCommand,
    OutputPath,
    filled,
    grouped_option,
    options_of,
)
from geoprep.errors import GeoprepError, UsageError
from geoprep.plan import BuildOptions

if TYPE_CHECKING:
    from geoprep.building import Summary
    from geoprep.executors import Executor
    from geoprep.sources import Found


Sources: TypeAlias = "tuple[list[Found], list[str], str | Path]"
"""What the sources hold, the names of the cities, and where the store goes."""
_OF_MASKS: Final = ("label_values", "label_speeds")
_OF_VECTORS: Final = (
    *("buffer", "width_field", "layer", "where", "areas"),
    *("speed_from", "speed_field", "speed_unit", "schema"),
)


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
Other imagery than SpaceNet's:
  --images 'scenes/*.tif' --labels roads.gpkg        one file of roads for all scenes
  --images 'set.zip!/train/*_sat.jpg' --labels 'set.zip!/train/*_mask.png' --label-values 255
           --pixel-size 0.5                          pictures without a place on the ground
  --images dem.tif --rescale 100,900 --nodata -9999  any real dtype, between two values
  --images mosaic.tif --labels roads.gpkg --split-by block --block-km 0.5
                                                     one image, its tiles divided
  --dry-run                                          what any of it would make and take
\b
Exit status: 0 all went well; 1 some scenes failed (the store is complete with the rest, and
says why); 2 there is no complete store: the command cannot be carried out as written, or
something is in its way.
""",
)
@grouped_option(
    "Source", "--city", "cities", multiple=True, callback=filled, help="SpaceNet city; repeatable."
)
@grouped_option(
    "Source",
    "--source",
    callback=filled,
    help="Folder, .tar, .tar.gz or s3:// address of a city; default: $GEOPREP_DATA, ./data, .",
)
@grouped_option(
    "Source",
    "--product",
    default="PS-RGB",
    show_default=True,
    callback=filled,
    help="Imagery product of a city.",
)
@grouped_option(
    "Source",
    "--images",
    multiple=True,
    callback=filled,
    help="Any imagery instead of a city: quoted glob, folder, or an archive (.tar, .tar.gz, .zip), "
    "of which 'A.zip!/train/*_sat.jpg' means some; also on s3://, https://, gs://; repeatable.",
)
@grouped_option(
    "Source",
    "--labels",
    callback=filled,
    help="Its roads: one .gpkg, .geojson or .shp for all scenes, or a folder or a quoted glob of "
    "one per scene; or masks (--label-values).",
)
@options_of(BuildOptions)
@grouped_option(
    "Store",
    "--out",
    type=OutputPath(bucket=True),
    help="Folder or s3://BUCKET/NAME.zarr; default: CITY.zarr",
)
@grouped_option("Store", "--overwrite", is_flag=True, help="Build again, whatever store is there.")
@WORKERS
@grouped_option(
    "Run",
    "--scheduler",
    callback=filled,
    metavar="ADDRESS",
    help="Dask scheduler whose workers do the work, such as tcp://HOST:8786.",
)
@grouped_option(
    "Run",
    "--dry-run",
    is_flag=True,
    help="Build nothing: say how many tiles and bytes it would make, how long by this machine's "
    "rate on one scene, and which scenes would fail.",
)
@grouped_option("Run", "--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@QUIET
@click.pass_context
def build_zarr(context: click.Context, /, **given: Any) -> int:  # noqa: ANN401 - options by name
    """Turn imagery and road labels into one uint8 Zarr store.

    Can be stopped at any moment and run again: finished work is kept, and the result is the same to
    the last byte.

    \b
      geoprep build-zarr --city moscow
      geoprep build-zarr --images 'scenes/*.tif' --labels roads.gpkg --out mine.zarr

    Which options a data set wants is in docs/recipes.md; more examples are below.
    """  # noqa: D301 - click's own mark, which keeps lines as they are
    _refuse_contradictions(context, given)
    quiet = given["quiet"] or given["as_json"]
    try:
        if given["dry_run"]:
            return _rehearse(given, quiet)
        summary, notes = _build(given, quiet)
    except GeoprepError as error:  # no complete store, whatever is to blame: status 2
        raise UsageError(str(error)) from error
    if given["as_json"]:
        click.echo(json.dumps(asdict(summary), indent=2))
        for note in notes:
            click.echo(f"note: {note}", err=True)
    else:
        from geoprep.cli.progress import print_summary

        print_summary(summary, notes)
    return 1 if summary.statuses.get("failed") else 0


def _rehearse(given: dict[str, Any], quiet: bool) -> int:
    """Print what the build would make and take; return the exit status that it may expect."""
    from geoprep.building import rehearse
    from geoprep.cli.progress import print_rehearsal
    from geoprep.executors import Threads
    from geoprep.plan import make_plan

    options = BuildOptions(**{one.name: given[one.name] for one in fields(BuildOptions)})
    found, names, out = _sources(given, quiet)
    executor = Threads(given["workers"])
    plan = make_plan(found, names, options, executor, read_inputs=False)
    result = rehearse(plan, out, executor.workers)
    if given["as_json"]:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        notes = [*(note for one in found for note in one.notes), *plan.notes]
        print_rehearsal(result, notes)
    return 1 if result.failures else 0


def _build(given: dict[str, Any], quiet: bool) -> tuple[Summary, list[str]]:
    """Build the store; return what was done, and lines that a person should see."""
    options = BuildOptions(**{one.name: given[one.name] for one in fields(BuildOptions)})
    sources = _checked_sources(given, quiet)
    with ExitStack() as stack:
        executor = _executor(given["workers"], given["scheduler"], stack)
        return _built(given, sources, options, executor, quiet)


def _built(
    given: dict[str, Any], sources: Sources, options: BuildOptions, executor: Executor, quiet: bool
) -> tuple[Summary, list[str]]:
    from geoprep.building import build
    from geoprep.cli.progress import build_bar, counting_bar
    from geoprep.plan import make_plan

    found, names, out = sources
    if given["scheduler"] is None:
        found = _fetched(found, out, quiet)
    else:  # workers read for themselves, and are in other folders
        found = [one.absolute() for one in found]
    with counting_bar("reading inputs once, scenes", quiet) as report:
        plan = make_plan(found, names, options, executor, report)
    with build_bar(quiet) as show:
        summary = build(plan, out, executor, overwrite=given["overwrite"], report=show)
    return summary, [*(note for one in found for note in one.notes), *plan.notes]


def _executor(workers: int | None, scheduler: str | None, stack: ExitStack) -> Executor:
    """Return who runs the tasks; a cluster is left with the stack."""
    from geoprep.executors import Dask, Threads

    if scheduler is None:
        return Threads(workers)
    executor = Dask.connect(scheduler)
    stack.callback(executor.close)
    click.echo(f"{executor.workers} threads of {scheduler}; {executor.dashboard}", err=True)
    return executor


def _refuse_contradictions(context: click.Context, given: dict[str, Any]) -> None:
    """Refuse options that would have no effect beside the others.

    Raises
    ------
    UsageError
        Naming both.
    """

    def typed(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    images = bool(given["images"])
    if bool(given["cities"]) == images:
        raise UsageError("say what to build from: --city NAME, or --images 'GLOB' [--labels FILE]")
    for name in ("source", "product"):
        if images and typed(name):
            raise UsageError(f"--{name} is of a --city; --images says itself where the images are")
    if given["scheduler"] and given["workers"]:
        raise UsageError("--workers are threads of this machine: leave it out with a --scheduler")
    if given["labels"] and not images:
        raise UsageError("--labels goes with --images; a city's labels are found by their names")
    if images and given["out"] is None:
        raise UsageError("--images needs --out: there is no city to name the store after")
    if given["speed_field"] and typed("speed_from") and given["speed_from"] == "attributes":
        raise UsageError("--speed-field reads speeds that are there: leave out --speed-from")
    if typed("speed_unit") and not given["speed_field"]:
        raise UsageError("--speed-unit is that of a --speed-field: name the field")
    for name in ("split_by", "val", "test", "split_seed"):
        if given["split_file"] and typed(name):
            text = name.replace("_", "-")
            raise UsageError(f"--split-file says itself what is split how: leave out --{text}")
    if typed("block_km") and given["split_by"] != "block":
        raise UsageError("--block-km goes with --split-by block")
    for name in _OF_VECTORS:
        if typed(name) and (mask := _mask_option(given)):
            text = name.replace("_", "-")
            raise UsageError(
                f"--{text} is of roads drawn as lines; {mask} says that labels are "
                f"masks: leave out one of them"
            )


def _mask_option(given: dict[str, Any]) -> str:
    """Return the option that says that labels are masks, or nothing."""
    return next((f"--{name.replace('_', '-')}" for name in _OF_MASKS if given[name]), "")


def _checked_sources(given: dict[str, Any], quiet: bool) -> Sources:
    """Return the sources, and ask for the bucket: what fails at once comes before what takes long.

    A source that is not here is named before any server is asked; a bucket that refuses us before
    an archive is unpacked or anything is downloaded.
    """
    from geoprep.storage import check_reachable

    named = [one for one in (given["source"], *given["images"], given["labels"]) if one]
    if given["out"] is not None and any(map(_takes_long, named)):
        check_reachable(given["out"])
    sources = _sources(given, quiet)
    check_reachable(sources[2])
    return sources


def _takes_long(source: str) -> bool:
    """Return whether a source is on a server, or an archive."""
    from geoprep.sources import INSIDE, SUFFIXES

    place = source.partition(INSIDE)[0]
    return "://" in place or (place.lower().endswith(SUFFIXES) and Path(place).is_file())


def _sources(given: dict[str, Any], quiet: bool) -> Sources:
    """Return what the sources hold, the names of the cities, and where the store goes."""
    if given["images"]:
        from geoprep.sources import images_and_labels

        masks = bool(given["label_values"] or given["label_speeds"])
        images, labels = _brought(given, quiet)
        own = images_and_labels(images, labels, masks=masks)
        return [own], ["custom"], given["out"]
    from geoprep.cli.progress import counting_bar
    from geoprep.sources import find_scenes, get_city

    cities = list(dict.fromkeys(get_city(name) for name in given["cities"]))
    with counting_bar("extracting, MB", quiet, per=10**6) as report:
        found = [
            find_scenes(city, given["source"], given["product"], report=report) for city in cities
        ]
    names = [city.name for city in cities]
    return found, names, given["out"] or Path("-".join(names) + ".zarr")


def _brought(given: dict[str, Any], quiet: bool) -> tuple[list[str], str | None]:
    """Unpack archives and download what cannot be read in place; say where it stays."""
    from geoprep.cli.progress import counting_bar
    from geoprep.sources import copies_folder, local_pattern

    into, said = copies_folder(given["out"]), set[str]()

    def local(pattern: str) -> str:
        with counting_bar("unpacking, MB", quiet, per=10**6) as report:
            found, note = local_pattern(pattern, into, report)
        if note and note not in said:
            click.echo(note, err=True)
            said.add(note)
        return found

    images = [local(pattern) for pattern in given["images"]]
    return images, given["labels"] and local(given["labels"])


def _fetched(found: list[Found], out: str | Path, quiet: bool) -> list[Found]:
    """Download remote images and labels."""
    from geoprep.cli.progress import counting_bar
    from geoprep.sources import copies_folder, download_scenes, remote_scenes

    if not any(remote_scenes(one) for one in found):
        return found
    into = copies_folder(out)
    with counting_bar("downloading scenes", quiet) as report:
        local = [download_scenes(one, into, report) for one in found]
    click.echo(f"downloaded to {into}: delete it when you no longer need it", err=True)
    return local
