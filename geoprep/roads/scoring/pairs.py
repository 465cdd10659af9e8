"""Ground truth and proposal of every scene, from files, folders and tables; clipped to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.crs import reproject_area
from geoprep.errors import ImageError, SourceError, UsageError
from geoprep.grid import Grid
from geoprep.labels.label_options import SpeedRule
from geoprep.roads.formats.adjacency import json_content, read_adjacency
from geoprep.roads.formats.files import read_if_network
from geoprep.roads.formats.label_files import read_labels
from geoprep.roads.formats.lines import joined
from geoprep.roads.formats.spacenet_csv import read_csv
from geoprep.roads.graph import renumbered, subnetwork
from geoprep.roads.names import (
    RASTER_SUFFIXES,
    ROAD_SUFFIXES,
    TABLE_SUFFIX,
    scene_key,
)
from geoprep.roads.network import RoadGraph, check_network, empty_network, in_crs
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
    # Area that both are clipped to. ``image``: footprint of the scene's image. ``ground
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
) -> list[ScenePair]:
    """Return the scenes of the ground truth, each with its part of the proposal.

    1. Either side is a network or a file of one scene, a folder with one file per scene, or a
       SpaceNet table (CSV).
    2. Scenes are matched by the shared part of their names (`scene_key`); two single files are
       one scene, whatever their names.
    3. Both are clipped to the footprint of the scene's image, where one is given.
    4. A proposal in one file for several scenes is a city: without an image, each scene gets the
       part within the bounding box of its ground truth, so that false roads outside that box do
       not count.
    """
    borders: Mapping[str, Grid] = {} if images is None else image_borders(images)
    grids = {} if images is not None and _is_store(images) else borders
    reader = _SceneReader(grids, pixel_size_m, rule or SpeedRule())
    truths, proposals = reader.scenes(truth), reader.scenes(proposal)
    if not truths:
        raise UsageError(f"{truth}: contains no scenes")
    truths = {name: truths[name] for name in sorted(truths, key=natural_key)}
    if images is not None:
        borders = _borders_of_scenes(images, borders, _name(truth), truths)
    one_file = not _is_table_or_folder(proposal)
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
    images: Path, borders: Mapping[str, Grid], truth: str, scenes: Mapping[str, _SceneRoads]
) -> Mapping[str, Grid]:
    """Return the grids of scenes by name; one image and one scene belong together."""
    if len(scenes) == len(borders) == 1:
        borders = dict(zip(scenes, borders.values(), strict=True))
    elif not set(scenes) & set(borders):
        raise UsageError(
            f"no image of {images} is of a scene of {truth}. The first contains {_some(borders)}, "
            f"the second {_some(scenes)}. Give images the names of their scenes."
        )
    for name in set(scenes) & set(borders):
        roads, grid = scenes[name].network, borders[name]
        if roads.crs and grid.crs and len(roads.lines):
            inside = shapely.intersects(grid.outline_in(roads.crs), roads.lines)
            if not inside.any():
                raise UsageError(
                    f"{truth}: no road of scene {name} lies in its image of {images}. Give the "
                    "image of this scene, or check the CRS of both."
                )
    return borders


def _name(side: Path | RoadGraph) -> str:
    return "the network" if isinstance(side, RoadGraph) else str(side)


def _is_table_or_folder(path: Path | RoadGraph) -> bool:
    """Return whether a path may name several scenes."""
    return isinstance(path, Path) and (path.is_dir() or path.suffix.lower() == TABLE_SUFFIX)


def _some(scenes: Mapping[str, object]) -> str:
    names = sorted(scenes)
    return ", ".join(names[:2]) + (" ..." if len(names) > 2 else "") or "no scenes"


@dataclass(frozen=True, slots=True)
class _SceneRoads:
    """The roads of one scene, or of a city, with notes about their file."""

    network: RoadGraph
    notes: tuple[str, ...] = ()


def _pair(
    scene: str,
    truth_roads: _SceneRoads,
    proposal_roads: _SceneRoads | None,
    grid: Grid | None,
    *,
    city: bool,
) -> ScenePair:
    """Return a pair with the proposal in the CRS of the ground truth, both clipped to the image."""
    truth, notes = truth_roads.network, truth_roads.notes
    image = grid if grid is not None and grid.crs and truth.crs is not None else None
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


@dataclass(frozen=True, slots=True)
class _SceneReader:
    """Reads the networks of scenes from any kind of file or folder."""

    grids: Mapping[str, Grid]
    pixel_size_m: float | None
    rule: SpeedRule

    def scenes(self, path: Path | RoadGraph) -> dict[str, _SceneRoads]:
        """Return the networks of a file or folder by scene key."""
        if isinstance(path, RoadGraph):
            scenes = {"truth": _SceneRoads(path)}
        elif path.is_dir():
            scenes = dict(self._in_folder(path))
        elif path.exists():
            scenes = self._in_file(path)
        else:
            raise SourceError(f"{path}: no such file or folder; check the path")
        for scene, roads in scenes.items():
            several = f", scene {scene}" if len(scenes) > 1 else ""
            check_network(roads.network, _name(path) + several)
        return {
            scene: replace(roads, network=joined(roads.network)) for scene, roads in scenes.items()
        }

    def _in_file(self, path: Path) -> dict[str, _SceneRoads]:
        if path.suffix.lower() == TABLE_SUFFIX:
            tables = read_csv(path, grids=self.grids, pixel_size_m=self.pixel_size_m)
            return {key: _SceneRoads(network) for key, network in tables.items()}
        return {scene_key(path.name): self._one_scene(path)}

    def _in_folder(self, folder: Path) -> Iterator[tuple[str, _SceneRoads]]:
        seen: dict[str, Path] = {}
        for path in sorted(p for p in folder.iterdir() if p.suffix.lower() in ROAD_SUFFIXES):
            if json_content(path) == "other":
                continue  # of another program
            for key, roads in self._in_file(path).items():
                if key in seen:
                    raise UsageError(f"{path} and {seen[key]} are both of scene {key}. Remove one.")
                seen[key] = path
                yield key, roads
        if not seen:
            raise SourceError(f"{folder}: contains no road files ({', '.join(ROAD_SUFFIXES)})")

    def _one_scene(self, path: Path) -> _SceneRoads:
        """Return a road network with its own speeds, or labels with speeds by the rule."""
        if path.suffix.lower() in (".p", ".pkl", ".pickle"):
            raise SourceError(
                f"{path}: a pickle may run code when it is read. If you trust its source, convert "
                "the graph to JSON, as docs/how-to/road-networks.md shows."
            )
        if json_content(path) == "adjacency":
            return _SceneRoads(read_adjacency(path, self.pixel_size_m or 1.0))
        network = read_if_network(path, self.rule.layer)
        if network is not None:
            return _SceneRoads(network)
        return _SceneRoads(*read_labels(path, self.rule))


def _is_store(path: Path) -> bool:
    return (path / "zarr.json").is_file()


def image_borders(images: Path) -> dict[str, Grid]:
    """Return the georeferenced grids of an image, a folder of images, or a store by scene key."""
    if _is_store(images):
        from geoprep.store.reader import StoreReader
        from geoprep.store.scenes import scene_grid

        store = StoreReader.open(images)
        grids = {name: scene_grid(store, i) for i, name in enumerate(store.scenes.id.tolist())}
        borders = {scene_key(name): grid for name, grid in grids.items() if grid and grid.crs}
    elif not images.exists():
        raise SourceError(f"{images}: no such folder or image; check the path")
    else:
        from geoprep.imagery.headers import describe

        borders = {}
        for path in sorted(images.rglob("*")) if images.is_dir() else [images]:
            if path.suffix.lower() in RASTER_SUFFIXES:
                with suppress(ImageError):  # an image of no scene does no harm
                    borders[scene_key(path.name)] = describe(str(path)).placed()
    if not borders:
        raise SourceError(
            f"{images}: contains nothing georeferenced. Choose other `images`, or leave it out."
        )
    return borders


def clipped(network: RoadGraph, area: shapely.Polygon) -> RoadGraph:
    """Return the roads within an area.

    A road that leaves the area ends in a new node on its border; one that returns is two edges.
    """
    shapely.prepare(area)
    touching = subnetwork(network, shapely.intersects(area, network.lines))
    return _cut(touching, area, ~shapely.contains_properly(area, touching.lines))


def _cut(network: RoadGraph, area: shapely.Polygon, crosses: NDArray[np.bool_]) -> RoadGraph:
    """Return a network with the edges where ``crosses``, bool (edge,), is set cut at the border."""
    nodes, ends = list(network.nodes), list(network.ends[~crosses])
    lines, source = list(network.lines[~crosses]), np.flatnonzero(~crosses).tolist()
    for edge in np.flatnonzero(crosses).tolist():
        line = network.lines[edge]
        for begin, end in _inside(line, area):
            part = substring(line, begin, end)
            pair = network.ends[edge].copy()
            for side, at, limit in ((0, begin, 0.0), (1, end, line.length)):
                if at != limit:
                    pair[side] = len(nodes)
                    nodes.append(np.array(part.coords[-side][:2]))
            ends.append(pair)
            lines.append(part)
            source.append(edge)
    used, pairs = renumbered(np.array(ends, np.int64).reshape(-1, 2))
    xy = np.array(nodes, np.float64).reshape(-1, 2)[used]
    return network.parts(xy, pairs, np.array(lines, object), source)


def _inside(line: shapely.LineString, area: shapely.Polygon) -> list[tuple[float, float]]:
    """Return begin and end of every stretch of a line within an area, in metres along it."""
    meets = shapely.intersection(line, area.boundary)
    at = shapely.line_locate_point(line, shapely.points(shapely.get_coordinates(meets)))
    stops = np.unique(np.concatenate([[0.0], at, [line.length]]))
    middles = shapely.line_interpolate_point(line, (stops[:-1] + stops[1:]) / 2)
    stretches: list[tuple[float, float]] = []
    for begin, end, inside in zip(
        stops[:-1].tolist(), stops[1:].tolist(), shapely.intersects(area, middles), strict=True
    ):
        if not inside or end == begin:
            continue
        if stretches and stretches[-1][1] == begin:  # the line only touches the border
            begin = stretches.pop()[0]
        stretches.append((begin, end))
    return stretches


def area_of_roads(truth: RoadGraph, crs: str | None) -> shapely.Polygon:
    """Return the bounding box of the roads of a scene, in its plane, in another CRS."""
    box = shapely.box(*shapely.total_bounds(truth.lines))
    if truth.crs is None or crs is None:
        return box
    return reproject_area(box, truth.crs, crs)
