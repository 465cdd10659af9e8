"""The command `geoprep score`."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

import geoprep
from geoprep.api.road_functions import ScoreClasses, ScoreFiles, ScoreImages
from geoprep.cli.help import figures_table, name_options
from geoprep.cli.records import Json, Quiet, RecordCommand
from geoprep.errors import UsageError
from geoprep.labels.label_options import ClassOptions, MaskOptions, RoadOptions
from geoprep.roads.options import LABEL_OPTIONS, ScoreOptions
from geoprep.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd


SCORE_HELP = """Score a road network (APLS, APLS_time, TOPO) or a map of classes (IoU, F1).

The ground truth and the proposal are each a file of one scene, a folder with one file per scene, or
a SpaceNet table (.csv). Files are labels, road networks (with speeds of their own) such as `geoprep
vectorize` writes, or adjacency dictionaries of City-Scale, SpaceNet graphs and Global-Scale as
JSON. Scenes are matched by name, such as AOI_7_Moscow_chip12. A proposal in one file for several
scenes is a city: each scene is scored on its part.

  geoprep score --truth labels/ --proposal city.gpkg --images chips/
  geoprep score --truth labels/ --proposal city.gpkg --images moscow.zarr
  geoprep score --truth labels/ --proposal submission.csv --images chips/ --json
  geoprep score --truth truth.csv --proposal mine.csv --pixel-size 0.3      tables in pixels
  geoprep score --truth masks/ --proposal maps/ --classes classes.yaml      rasters of classes
"""


def _score(given: dict[str, Any]) -> None:
    """Score networks scene by scene."""
    as_json, quiet = given.pop("as_json", False), given.pop("quiet", False)
    if given.get("speed_field") and given.get("speed_from") == "attributes":
        raise UsageError("--speed-field contradicts --speed-from attributes: leave out one of them")
    frame = geoprep.score(**given, progress=not (quiet or as_json))
    if as_json:
        # JSON has no NaN: null instead.
        plain = json.loads(json.dumps(frame.attrs), parse_constant=lambda _: None)
        click.echo(json.dumps(plain, indent=2))
    elif "pooled" in frame.attrs:
        _print_classes(frame.attrs, quiet=quiet)
    else:
        _print_scores(frame, quiet=quiet)


def _cells(values: Iterable[float | None]) -> list[str]:
    return ["-" if value is None or math.isnan(value) else f"{value:.3f}" for value in values]


def _print_classes(found: Mapping[Any, Any], *, quiet: bool) -> None:
    """Print the scores of rasters of classes, those of each scene unless ``quiet``."""
    from geoprep.executors.terminal import Terminal

    titles = {"mean_iou": "mean IoU", "mean_f1": "F1", "boundary_f1": "boundary F1"}
    titles |= {f"iou_{name}": name for name in found["classes"]}
    partial = any(row["left_out"] for row in found["scenes"])
    scores = figures_table("scene", *titles.values(), *(["no truth"] if partial else []))
    for row in () if quiet else found["scenes"]:
        scene = f"{row['scene']} ({row['note']})" if row["note"] else row["scene"]
        share = [f"{row['left_out_share']:.0%}"] if partial else []
        scores.add_row(scene, *_cells(row[name] for name in titles), *share)
    scores.add_row("all pixels", *_cells(found["pooled"][name] for name in titles), style="bold")
    total = max(1, sum(map(sum, found["confusion"])))
    pixels = figures_table("ground truth \\ proposal", *found["classes"], "none")
    for name, counts in zip(found["classes"], found["confusion"], strict=True):
        pixels.add_row(name, *(f"{count / total:.2%}" if count else "" for count in counts))
    Terminal().print(scores, pixels)
    if found["left_out"]:
        share = found["left_out"] / (found["left_out"] + total)
        Terminal().print(
            f"left out: {found['left_out']:,} pixels ({share:.0%}) without a class in the ground "
            "truth: nodata, or values that are no class, as 255 without --classes",
            soft_wrap=True,
        )
    for scene in found["without_truth"]:
        Terminal().print(f"left out: scene {scene}, of which no pixel has a class", soft_wrap=True)


_COLUMNS = ("APLS", "recall", "prec.", "time", "TOPO", "prec.", "recall")
_LEGEND = (
    "APLS: harmonic mean of truth-to-proposal (recall: paths of the ground truth that the proposal "
    "has) and proposal-to-truth (prec.: the reverse); time: APLS of travel times. TOPO: harmonic "
    "mean of precision and recall. km: proposal, ground truth."
)
_FEW_SCENES = 3
_MOST_NAMED = 6
_ROADS = re.compile(r"([0-9,]+) roads?: (.+)")


def _print_scores(frame: pd.DataFrame, *, quiet: bool) -> None:
    """Print the scores, of which `_COLUMNS` are first; those of each scene unless ``quiet``."""
    from geoprep.executors.terminal import Terminal

    found, console = frame.attrs, Terminal()
    table = figures_table("scene", *_COLUMNS, "km", "")
    for scene, *figures, truth_km, proposal_km, _ in () if quiet else frame.itertuples():
        table.add_row(scene, *_cells(figures), f"{proposal_km:.2f}", f"{truth_km:.2f}")
    scored, timed = found["scenes_in_mean"].values()
    table.add_row(f"mean of {scored}", *_cells(found["mean"].values()), style="bold")
    console.print(table)
    lacking = [scene["scene"] for scene in found["scenes"] if scene["apls"] is None]
    if lacking:
        console.print(
            f"not in the mean: {', '.join(lacking[:_MOST_NAMED])}"
            f"{' ...' * (len(lacking) > _MOST_NAMED)}, of which neither side has roads",
            soft_wrap=True,
        )
    for line in _notes(found["scenes"]):
        console.print(name_options(line))
    if 0 < timed < scored:
        console.print(f"time: mean of {counted(timed, 'scene')} whose speeds are known")
    console.print(_LEGEND, style="dim")
    console.print(_settings(found["settings"]), style="dim")


def _settings(used: Mapping[str, Any]) -> str:
    """Return the settings of scores as one line."""
    spacing = used["control_point_spacing_m"]
    points = f"control points every {spacing:g} m" if spacing else "control points at nodes"
    return (
        f"APLS: {points}, snapped within {used['snap_m']:g} m; "
        f"TOPO: radius {used['topo_radius_m']:g} m, points every {used['topo_interval_m']:g} m, "
        f"matched within {used['topo_match_m']:g} m."
    )


def _notes(scores: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per scene with remarks; a remark on many scenes is one line in all.

    Counts of roads are added up.
    """
    remarks = {
        scene["scene"]: [part for part in scene["note"].split("; ") if part] for scene in scores
    }
    roads: Counter[str] = Counter()
    for scene, parts in remarks.items():
        for match in filter(None, map(_ROADS.fullmatch, parts)):
            roads[match[2]] += int(match[1].replace(",", ""))
        remarks[scene] = [part for part in parts if not _ROADS.fullmatch(part)]
    counts = Counter(part for parts in remarks.values() for part in parts)
    common = [part for part, count in counts.items() if count > _FEW_SCENES]
    rare = {
        scene: "; ".join(part for part in parts if part not in common)
        for scene, parts in remarks.items()
    }
    lines = [f"{scene}: {text}" for scene, text in rare.items() if text]
    lines += [f"{counts[part]} scenes: {part}" for part in common]
    lines += [f"{counted(count, 'road')}: {remark}" for remark, count in roads.most_common()]
    boxed = sum(scene["border"] == "ground truth" for scene in scores)
    if boxed:
        lines.append(
            f"{counted(boxed, 'scene')} scored within the bounding box of the ground truth: false "
            "roads outside it do not count. Give --images to count them."
        )
    return lines


score = RecordCommand(
    "score",
    (
        *(ScoreFiles, ScoreImages, ScoreOptions, (RoadOptions, "Labels", LABEL_OPTIONS)),
        (ScoreClasses, "Classes", ("classes",)),
        (ClassOptions, "Classes", ("other", "tolerance")),
        (MaskOptions, "Classes", ("label_nodata",)),
        *(ScoreClasses, Quiet, Json),
    ),
    SCORE_HELP,
    action=_score,
    common=("truth", "proposal", "images", "pixel_size", "speed_from", "as_json"),
    short_help="Score a road network (APLS, TOPO).",
)
