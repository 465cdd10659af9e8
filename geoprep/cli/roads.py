"""The command `vectorize` (rasters of roads to a road network), and previews of networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geoprep.cli.help import (
    JSON,
    POSITIVE,
    QUIET,
    WORKERS,
    GroupedCommand,
    grouped_option,
    name_options,
)
from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.roads import Kind, RoadGraph

HELP = """Turn predictions or masks of roads into a road network.

RASTERS are predictions of training.predict, masks or probabilities of roads, or folders of them.
Several rasters give one network, connected across their borders. The network has nodes, edges with
their lines, speeds and travel times. GeoJSON is in longitude and latitude; GeoPackage, GraphML and
GeoParquet are in metres of a UTM zone.

\b
geoprep vectorize predictions/ --out city.gpkg                 QGIS opens it coloured by speed
geoprep vectorize predictions/chip12.tif --out roads.geojson   longitude and latitude
geoprep vectorize mask.png --pixel-size 1 --out roads.graphml  for networkx
geoprep vectorize predictions/ --out roads.csv                 SpaceNet's table, image by image
"""
_OUTPUT, _INPUT = "Output", "Input"
_ROADS, _GAPS, _SPEEDS = "Roads", "Gaps", "Bridges"


@click.command(
    cls=GroupedCommand, help=HELP, short_help="Turn predictions or masks into a road network."
)
@click.argument("rasters", nargs=-1, required=True, type=click.Path(path_type=Path))
@grouped_option(
    _OUTPUT,
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write; its suffix sets the format: .gpkg, .geojson, .graphml, .parquet or .csv.",
)
@grouped_option(
    _INPUT,
    "--kind",
    type=click.Choice(["probability", "speed", "mask"]),
    help="Meaning of pixel values: probability of a road, speed in mph (0 background, 255 nodata), "
    "or mask (road where not 0). Default: detected from tags and values.",
)
@grouped_option(
    _INPUT,
    "--band",
    type=click.IntRange(1),
    help="Band of roads, counted from 1. Default: detected from tags and band names.",
)
@grouped_option(
    _INPUT,
    "--pixel-size",
    "pixel_size_m",
    type=POSITIVE,
    help="Pixel width in metres of rasters that are not georeferenced. Default: none.",
)
@grouped_option(
    _ROADS,
    "--threshold",
    default=0.3,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Minimum probability of road pixels, up to 1.",
)
@grouped_option(
    _ROADS,
    "--high-threshold",
    deprecated_names=("--certain",),
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Probability, up to 1, that every connected component must reach at some pixel.",
)
@grouped_option(
    _ROADS,
    "--min-spur",
    "spur_m",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Minimum length of a dead end at a junction in metres. Shorter ones are removed, except "
    "at the border of the rasters.",
)
@grouped_option(
    _ROADS,
    "--min-length",
    "min_length_m",
    default=12.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Minimum total length of a connected component in metres. Shorter ones are removed.",
)
@grouped_option(
    _ROADS,
    "--smoothing",
    "smoothing_m",
    type=click.FloatRange(0),
    help="Standard deviation in metres of the Gaussian that smooths lines; 0 for none. Default: 2 "
    "pixels where pixels are larger than 0.75 m, at least 2 m for probabilities.",
)
@grouped_option(
    _GAPS,
    "--no-gap-closing",
    deprecated_names=("--no-repair",),
    is_flag=True,
    help="Leave interrupted roads as they are. Default: gaps of up to 7 m are closed, longer ones "
    "where roads point at each other.",
)
@grouped_option(
    _SPEEDS,
    "--motorway-mph",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Speed in mph above which a road has no level crossings: slower roads cross it on a "
    "bridge.",
)
@WORKERS
@QUIET
@JSON
def vectorize(
    rasters: tuple[Path, ...],
    out: Path,
    kind: Kind | None,
    band: int | None,
    pixel_size_m: float | None,
    threshold: float,
    high_threshold: float,
    spur_m: float,
    min_length_m: float,
    smoothing_m: float | None,
    motorway_mph: float,
    no_gap_closing: bool,
    workers: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Trace rasters, join their networks, and write the result."""
    from geoprep.cli.progress import counting_bar
    from geoprep.roads import (
        Tracing,
        check_target,
        rasters_in,
        vectorize,
        vectorize_each,
        write_csv,
        write_network,
    )

    check_target(out)
    paths = [path for given in rasters for path in rasters_in(given)]
    options = Tracing(
        threshold=threshold,
        high_threshold=high_threshold,
        spur_m=spur_m,
        min_length_m=min_length_m,
        smoothing_m=smoothing_m,
        motorway_mph=motorway_mph,
        close_gaps=not no_gap_closing,
    )
    with counting_bar("vectorizing", quiet or as_json) as advance:
        given: dict[str, Any] = {"kind": kind, "band": band, "pixel_size_m": pixel_size_m}
        given |= {"workers": workers, "advance": advance, "warn": _warn}
        if out.suffix.lower() == ".csv":
            written = write_csv(vectorize_each(paths, options, **given), out)
            summary: dict[str, Any] = {"images": len(paths), "edges": written}
        else:
            network = vectorize(paths, options, **given)
            write_network(network, out)
            summary = _summary(network)
    if as_json:
        click.echo(json.dumps({"out": str(out), **summary}, indent=2))
    else:
        counts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in summary.items())
        click.echo(f"wrote {out}: {counts}")


def _warn(message: str) -> None:
    click.echo(f"warning: {name_options(message)}", err=True)


def _summary(network: RoadGraph) -> dict[str, Any]:
    """Return the counts and the length of a network."""
    return {
        "edges": len(network.ends),
        "nodes": len(network.nodes),
        "km": round(float(network.length_m.sum()) / 1000, 3),
    }


def preview_network(network: Path, out: Path, over: Path | None, pixel_size: float | None) -> None:
    """Draw the roads of a network file, or those of one image of a SpaceNet table."""
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
) -> tuple[RoadGraph, tuple[float, float]]:
    """Return the roads of one image of a table, and its pixel size in metres (x, y)."""
    from geoprep.roads import pixel_size_of, read_csv, scene_key

    if over is None:
        raise UsageError(
            f"{table}: its coordinates are pixels of images. Name the image with --over IMAGE."
        )
    size = pixel_size_of(over, pixel_size)
    networks = read_csv(table, pixel_size_m=size)
    if scene_key(over.name) not in networks:
        some = ", ".join(list(networks)[:3])
        raise UsageError(f"{table}: has no image {scene_key(over.name)}; it has {some}")
    return networks[scene_key(over.name)], size
