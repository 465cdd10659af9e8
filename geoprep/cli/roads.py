"""The commands about roads: maps and masks to networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geoprep.cli.help import JSON, POSITIVE, QUIET, WORKERS, GroupedCommand, grouped_option
from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.roads import Kind, RoadNetwork

HELP = """Turn maps or masks of roads into a network: nodes, lines, speeds, travel times.

RASTERS are maps of training.predict, masks, or probabilities of roads; or folders of them.
Several become one network, connected across their borders.

\b
geoprep vectorize maps/ --out city.gpkg                 QGIS opens it coloured by speed
geoprep vectorize maps/chip12.tif --out roads.geojson   longitude and latitude
geoprep vectorize mask.png --pixel-size 1 --out roads.graphml    for networkx
geoprep vectorize maps/ --out roads.csv                 SpaceNet's table, image by image
"""
_INPUT, _ROADS, _REPAIR = "What the rasters are", "What is a road", "What is mended"


@click.command(cls=GroupedCommand, help=HELP, short_help="Turn maps or masks into a road network.")
@click.argument("rasters", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False))
@grouped_option(
    _INPUT,
    "--kind",
    type=click.Choice(["probability", "speed", "mask"]),
    help="Default: as the file says, or as its values look.",
)
@grouped_option(_INPUT, "--band", type=click.IntRange(1), help="Band of roads; default: as above.")
@grouped_option(
    _INPUT,
    "--pixel-size",
    type=POSITIVE,
    help="Metres that a pixel is wide, for rasters without a place on the ground.",
)
@grouped_option(
    _ROADS,
    "--threshold",
    default=0.3,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Least probability of a road's pixels.",
)
@grouped_option(
    _ROADS,
    "--certain",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="What every connected part must reach somewhere.",
)
@grouped_option(
    _ROADS,
    "--min-spur",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Metres: shorter dead ends go, but for those at the border.",
)
@grouped_option(
    _ROADS,
    "--min-length",
    default=12.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Metres: connected parts that are shorter in all go.",
)
@grouped_option(
    _ROADS,
    "--motorway-mph",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0),
    help="What crosses a faster road does so on a bridge, without a junction.",
)
@grouped_option(_REPAIR, "--no-repair", is_flag=True, help="Close no gaps.")
@WORKERS
@QUIET
@JSON
def vectorize(
    rasters: tuple[Path, ...],
    out: Path,
    kind: Kind | None,
    band: int | None,
    pixel_size: float | None,
    threshold: float,
    certain: float,
    min_spur: float,
    min_length: float,
    motorway_mph: float,
    no_repair: bool,
    workers: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Trace rasters, join them, write the network."""
    from geoprep.cli.progress import counting_bar
    from geoprep.roads import (
        Tracing,
        blank_rasters,
        check_target,
        rasters_in,
        vectorize,
        vectorize_apart,
        write_csv,
        write_network,
    )

    check_target(out)
    paths = [path for given in rasters for path in rasters_in(given)]
    options = Tracing(
        threshold=threshold,
        certain=certain,
        spur_m=min_spur,
        min_length_m=min_length,
        motorway_mph=motorway_mph,
        repair=not no_repair,
    )
    given: dict[str, Any] = {"kind": kind, "band": band, "pixel_size_m": pixel_size}
    with counting_bar("vectorizing", quiet or as_json) as advance:
        if out.suffix.lower() == ".csv":
            written = write_csv(
                vectorize_apart(paths, options, **given, workers=workers, advance=advance), out
            )
            facts: dict[str, Any] = {"images": len(paths), "edges": written}
        else:
            network = vectorize(paths, options, **given, workers=workers, advance=advance)
            write_network(network, out)
            facts = _facts(network)
    if not facts["edges"]:
        for path in blank_rasters(paths, **given):
            click.echo(f"warning: {path}: holds no data at all, so no roads", err=True)
    if as_json:
        click.echo(json.dumps({"out": str(out), **facts}, indent=2))
    else:
        told = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in facts.items())
        click.echo(f"wrote {out}: {told}")


def _facts(network: RoadNetwork) -> dict[str, Any]:
    return {
        "edges": len(network.ends),
        "nodes": len(network.nodes),
        "km": round(float(network.length_m.sum()) / 1000, 3),
    }


def preview_network(network: Path, out: Path, over: Path | None, pixel_size: float | None) -> None:
    """Draw the roads of a network's file, or of an image's part of a SpaceNet table."""
    from geoprep.roads import read_network
    from geoprep.views import preview_network as draw

    if over is not None and not over.exists():
        raise UsageError(f"--over {over}: no such file")
    if network.suffix.lower() == ".csv":
        roads, size = _roads_of_image(network, over, pixel_size)
        written = draw(roads, out, over=over, pixel_size_m=size)
    else:
        written = draw(read_network(network), out, over=over, pixel_size_m=pixel_size)
    click.echo(f"wrote {written}")


def _roads_of_image(
    table: Path, over: Path | None, pixel_size: float | None
) -> tuple[RoadNetwork, tuple[float, float]]:
    """Return the roads of one image of a table, in its plane, and the size of its pixels."""
    from geoprep.roads import pixel_size_of, read_csv, scene_key

    if over is None:
        raise UsageError(f"{table}: holds pixels of images: name the image with --over IMAGE")
    size = pixel_size_of(over, pixel_size)
    networks = read_csv(table, pixel_size_m=size)
    if scene_key(over.name) not in networks:
        some = ", ".join(list(networks)[:3])
        raise UsageError(f"{table}: has no roads of {scene_key(over.name)}; it has {some}")
    return networks[scene_key(over.name)], size
