"""The commands on road networks: how good one is, and the way through it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geoprep.cli.help import JSON, POSITIVE, QUIET, GroupedCommand, grouped_option
from geoprep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from geoprep.roads import SceneScore

SCORE_HELP = """Score a road network against the truth: APLS, APLS_time and TOPO.

TRUTH and PROPOSAL are each a file of one scene, a folder of one file per scene, or a SpaceNet table
(.csv); labels, or networks of `geoprep vectorize`. Scenes meet by their names, such as
AOI_7_Moscow_chip12. One proposal for many scenes is a city: every scene is scored on its part.

\b
geoprep score --truth labels/ --proposal city.gpkg --images chips/
geoprep score --truth labels/ --proposal submission.csv --images chips/ --json
geoprep score --truth truth.csv --proposal mine.csv --pixel-size 0.3      pixels, no ground
"""
_WHAT, _APLS, _TOPO, _RUN = "What is compared", "APLS", "TOPO", "Run"
_PATH = click.Path(path_type=Path)


@click.command(cls=GroupedCommand, help=SCORE_HELP, short_help="Score a road network (APLS, TOPO).")
@grouped_option(
    _WHAT, "--truth", required=True, type=_PATH, help="Labels or networks: file or folder."
)
@grouped_option(
    _WHAT, "--proposal", required=True, type=_PATH, help="What to score: file or folder."
)
@grouped_option(
    _WHAT, "--images", type=_PATH, help="Folder of the scenes' images: place and borders."
)
@grouped_option(
    _WHAT,
    "--pixel-size",
    type=POSITIVE,
    help="Metres that a pixel is wide, for tables without images.",
)
@grouped_option(
    _APLS,
    "--snap",
    default=4.0,
    show_default=True,
    type=POSITIVE,
    help="Metres that control points may lie apart; published figures used 4 or 5.",
)
@grouped_option(
    _APLS,
    "--midpoints",
    default=50.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Metres between control points along edges; 0: nodes only.",
)
@grouped_option(
    _APLS,
    "--published",
    is_flag=True,
    help="Read labels as the reference program does, its mistakes included.",
)
@grouped_option(
    _TOPO,
    "--topo-radius",
    default=150.0,
    show_default=True,
    type=POSITIVE,
    help="Metres to follow roads; 300 for scenes of 2 km.",
)
@grouped_option(
    _TOPO, "--topo-starts", type=click.IntRange(1), help="Starting points per scene; default: all."
)
@grouped_option(_TOPO, "--seed", default=0, show_default=True, help="Which ones are drawn.")
@grouped_option(
    _RUN, "--threads", type=click.IntRange(1), help="For cities; default: one per core."
)
@QUIET
@JSON
def score(**given: Any) -> None:  # noqa: ANN401 - click hands options over by name
    """Compare networks, scene by scene."""
    from geoprep.cli.progress import counting_bar
    from geoprep.roads import Settings, mean_scores, scenes_of, score_scenes

    pairs = scenes_of(
        given["truth"],
        given["proposal"],
        images=given["images"],
        pixel_size_m=given["pixel_size"],
        as_published=given["published"],
    )
    settings = Settings(
        snap_m=given["snap"],
        midpoints_m=given["midpoints"] or None,
        topo_radius_m=given["topo_radius"],
        topo_starts=given["topo_starts"],
        seed=given["seed"],
    )
    with counting_bar("scoring", given["quiet"] or given["as_json"]) as advance:
        scores = score_scenes(pairs, settings, threads=given["threads"], advance=advance)
    mean = mean_scores(scores)
    if given["as_json"]:
        document = {
            "mean": mean,
            "scenes_in_mean": _counted(scores),
            "scenes": [asdict(one) for one in scores],
            "settings": asdict(settings) | {"published": given["published"]},
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _print_scores(scores, mean)


def _counted(scores: Sequence[SceneScore]) -> dict[str, int]:
    """Return how many scenes the means are of: those with roads, and of these with speeds."""
    return {
        "apls": sum(one.apls is not None for one in scores),
        "apls_time": sum(one.apls_time is not None for one in scores),
    }


_COLUMNS = ("APLS", "found", "true", "time", "TOPO", "prec.", "recall")
_LEGEND = (
    "APLS: mean of found (ways of the truth that the proposal has) and true (the reverse); "
    "time: APLS of travel times. TOPO: mean of precision and recall. km: proposal, truth."
)


def _print_scores(scores: Sequence[SceneScore], mean: Mapping[str, float | None]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("scene", overflow="fold")
    for title in (*_COLUMNS, "km", ""):
        table.add_column(title, justify="right")
    for one in scores:
        km = (f"{one.proposal_km:.2f}", f"{one.truth_km:.2f}")
        table.add_row(one.scene, *map(_spelled, _figures(one)), *km)
    scored, timed = _counted(scores).values()
    table.add_row(f"mean of {scored}", *map(_spelled, mean.values()), style="bold")
    console = Console()
    console.print(table)
    for one in scores:
        if one.note:
            console.print(f"{one.scene}: {one.note}", highlight=False)
    if 0 < timed < scored:
        console.print(f"time: mean of the {timed} scenes whose speeds are known", highlight=False)
    console.print(_LEGEND, style="dim")


def _figures(one: SceneScore) -> tuple[float | None, ...]:
    apls, time, topo = one.apls, one.apls_time, one.topo
    ways = (apls.score, apls.truth_to_proposal, apls.proposal_to_truth) if apls else (None,) * 3
    sampled = (topo.f1, topo.precision, topo.recall) if topo else (None,) * 3
    return (*ways, time.score if time else None, *sampled)


def _spelled(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _place(_: click.Context, option: click.Parameter, text: str) -> tuple[float, float]:
    """Read LON,LAT."""
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option.opts[0]} {text}: write two numbers and a comma, LON,LAT, such as 37.61,55.75"
        ) from error
    return first, second


@click.command(
    cls=GroupedCommand, short_help="Find the way from one place to another on a road network."
)
@click.argument("network", type=_PATH)
@click.option("--from", "start", required=True, metavar="LON,LAT", callback=_place)
@click.option("--to", "goal", required=True, metavar="LON,LAT", callback=_place)
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--shortest", is_flag=True, help="The shortest way; default: the fastest.")
@click.option(
    "--within",
    default=100.0,
    show_default=True,
    type=POSITIVE,
    help="Metres that a place may lie from the nearest road.",
)
@JSON
def route(
    network: Path,
    start: tuple[float, float],
    goal: tuple[float, float],
    out: Path,
    shortest: bool,
    within: float,
    as_json: bool,
) -> None:
    """Find the fastest way and write it as GeoJSON.

    NETWORK is a file of `geoprep vectorize`. Places are longitude and latitude; x and y in metres
    where the network has no place on the ground. Every road is taken both ways.
    """
    from geoprep.roads import check_route, find_route, read_network, write_route

    by = "length" if shortest else "time"
    check_route(out)
    found = find_route(read_network(network), start, goal, by=by, within_m=within)  # type: ignore[arg-type]  # one of two literals
    write_route(found, out)
    seconds = found.travel_time_s
    known = seconds == seconds  # not NaN
    if as_json:
        facts = {
            "out": str(out),
            "length_m": round(found.length_m, 3),
            "travel_time_s": round(seconds, 3) if known else None,
            "off_road_m": [round(metres, 3) for metres in found.off_road_m],
        }
        click.echo(json.dumps(facts, indent=2))
        return
    time = f"{int(seconds // 60)} min {seconds % 60:.0f} s" if known else "time not known"
    click.echo(f"wrote {out}: {found.length_m / 1000:.3f} km, {time}")
