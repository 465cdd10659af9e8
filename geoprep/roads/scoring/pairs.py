"""Ground truth and proposal of every scene, from files, folders and tables; clipped to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import shapely

from geoprep.crs import reproject_area
from geoprep.errors import UsageError
from geoprep.labels.label_options import SpeedRule
from geoprep.roads.footprints import Footprint, image_borders, is_store
from geoprep.roads.graph import clipped
from geoprep.roads.names import TABLE_SUFFIX
from geoprep.roads.network import RoadGraph, empty_network, in_crs
from geoprep.roads.scoring.scene_roads import SceneReader, SceneRoads, name_of
from geoprep.sources.label_matching import named_like
from geoprep.sources.scene import natural_key

Border = Literal["image", "ground truth", "none"]
_MOST_OUTSIDE_KM: Final = 0.05
"""Length of roads that reach over the border of an image, as those of labels cut there do."""


@dataclass(frozen=True, slots=True)
class ScenePair:
    """Ground truth and proposal of one scene, in the same CRS."""

    scene: str  # scene key, or the stem of the ground truth's file
    truth: RoadGraph  # the networks; the proposal may be empty
    proposal: RoadGraph
    # Area that both are clipped to. ``image``: valid pixels of the scene's image. ``ground
    # truth``: bounding box of its roads, so that false roads outside it do not count. ``none``: not
    # clipped
    border: Border
    notes: tuple[str, ...]  # remarks for the user, such as ``no proposal``


def pair_scenes(
    truth: Path | RoadGraph,
    proposal: Path | RoadGraph,
    *,
    images: Path | None = None,
    pixel_size_m: float | None = None,
    rule: SpeedRule | None = None,
    only: Collection[str] | None = None,
) -> list[ScenePair]:
    """Return the scenes of the ground truth, each with its part of the proposal.

    1. Either side is a network or a file of one scene, a folder with one file per scene, or a
       SpaceNet table (CSV).
    2. Scenes are matched by the shared part of their names (`scene_key`), or if no two names share
       it, as a build matches labels and images; two single files are one scene, whatever their
       names.
    3. Both are clipped to the footprint of the scene's image, where one is given.
    4. A proposal in one file for several scenes is a city: without an image, each scene gets the
       part within the bounding box of its ground truth, so that false roads outside that box do
       not count.

    ``only`` are the keys of the scenes that count; None: all.
    """
    borders = {} if images is None else image_borders(images)
    is_grid = images is not None and not is_store(images)
    grids = {name: border.grid for name, border in borders.items() if is_grid}
    reader = SceneReader(grids, pixel_size_m, rule or SpeedRule())
    truths, proposals = reader.scenes(truth), reader.scenes(proposal)
    if not truths:
        raise UsageError(f"{truth}: contains no scenes")
    one_file = not _is_table_or_folder(proposal)
    names = {*borders} or ({*truths} if one_file else {*proposals})
    truths = named_like(truths, names)
    proposals = proposals if one_file else named_like(proposals, names)
    kept = [name for name in truths if only is None or name in only]
    if not kept:
        raise UsageError(f"{truth}: contains no scene of the split, only {_some(truths)}")
    truths = {name: truths[name] for name in sorted(kept, key=natural_key)}
    if images is not None:
        borders = _borders_of_scenes(images, borders, name_of(truth), truths)
    if one_file:
        proposals = dict.fromkeys(truths, next(iter(proposals.values())))
    elif not set(truths) & set(proposals):
        raise UsageError(
            f"no scene of {truth} is in {proposal}. The first contains {_some(truths)}, the second "
            f"{_some(proposals)}. Give files of one scene the same name."
        )
    city = one_file and _is_table_or_folder(truth)
    return [
        _pair(name, truth_of, proposals.get(name), borders.get(name), city=city)
        for name, truth_of in truths.items()
    ]


def _borders_of_scenes(
    images: Path, borders: dict[str, Footprint], truth: str, scenes: Mapping[str, SceneRoads]
) -> dict[str, Footprint]:
    """Return the footprints of scenes by name; one image and one scene belong together."""
    if len(scenes) == len(borders) == 1:
        borders = dict(zip(scenes, borders.values(), strict=True))
    elif not set(scenes) & set(borders):
        raise UsageError(
            f"no image of {images} is of a scene of {truth}. The first contains {_some(borders)}, "
            f"the second {_some(scenes)}. Give images the names of their scenes."
        )
    for name in set(scenes) & set(borders):
        roads, border = scenes[name].network, borders[name]
        if roads.crs and border.grid.crs and len(roads.lines):
            inside = shapely.intersects(border.outline_in(roads.crs), roads.lines)
            if not inside.any():
                raise UsageError(
                    f"{truth}: no road of scene {name} lies in its image of {images}. Give the "
                    "image of this scene, or check the CRS of both."
                )
    return borders


def _is_table_or_folder(path: Path | RoadGraph) -> bool:
    """Return whether a path may name several scenes."""
    return isinstance(path, Path) and (path.is_dir() or path.suffix.lower() == TABLE_SUFFIX)


def _some(scenes: Mapping[str, object]) -> str:
    names = sorted(scenes)
    return ", ".join(names[:2]) + (" ..." if len(names) > 2 else "") or "no scenes"


def _pair(
    scene: str,
    truth_roads: SceneRoads,
    proposal_roads: SceneRoads | None,
    footprint: Footprint | None,
    *,
    city: bool,
) -> ScenePair:
    """Return a pair with the proposal in the CRS of the ground truth, both clipped to the image."""
    truth, notes = truth_roads.network, truth_roads.notes
    image = footprint if footprint and footprint.grid.crs and truth.crs is not None else None
    if image is not None and len(truth.ends):
        inside = clipped(truth, image.outline_in(str(truth.crs)))
        outside_km = (truth.length_m.sum() - inside.length_m.sum()) / 1000
        if outside_km >= _MOST_OUTSIDE_KM:
            notes = (*notes, f"ground truth clipped to the image: {outside_km:.1f} km are outside")
        truth = inside
    if proposal_roads is None:
        return ScenePair(scene, truth, empty_network(truth.crs), "none", (*notes, "no proposal"))
    proposal = proposal_roads.network
    notes = tuple(dict.fromkeys((*notes, *proposal_roads.notes)))
    if city and not len(truth.ends):
        return ScenePair(scene, truth, empty_network(truth.crs), "none", notes)
    if not len(truth.ends) or not len(proposal.ends):
        return ScenePair(scene, truth, proposal, "none", notes)
    if (truth.crs is None) != (proposal.crs is None):
        raise UsageError(
            f"{scene}: one of ground truth and proposal is in pixels, the other is georeferenced. "
            "Give `images`, the folder of the scenes' images, or vectorize georeferenced "
            "predictions."
        )
    border: Border = "none"
    # Clip in the CRS of the proposal, so that a city is not reprojected once per scene.
    if image is not None and proposal.crs is not None:
        proposal, border = clipped(proposal, image.outline_in(proposal.crs)), "image"
    elif city:
        proposal = clipped(proposal, area_of_roads(truth, proposal.crs))
        border = "ground truth"
    if truth.crs is not None:
        proposal = in_crs(proposal, truth.crs)
    return ScenePair(scene, truth, proposal, border, notes)


def area_of_roads(truth: RoadGraph, crs: str | None) -> shapely.Polygon:
    """Return the bounding box of the roads of a scene, in its plane, in another CRS."""
    box = shapely.box(*shapely.total_bounds(truth.lines))
    if truth.crs is None or crs is None:
        return box
    return reproject_area(box, truth.crs, crs)
