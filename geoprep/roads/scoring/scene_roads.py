"""The roads of scenes: of a network, a file, a folder with one file per scene, or a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from geoprep.errors import SourceError, UsageError
from geoprep.grid import Grid
from geoprep.labels.label_options import SpeedRule
from geoprep.roads.formats.adjacency import json_content, read_adjacency
from geoprep.roads.formats.files import read_if_network, read_labels
from geoprep.roads.formats.lines import joined
from geoprep.roads.formats.spacenet_csv import read_csv
from geoprep.roads.names import ROAD_SUFFIXES, TABLE_SUFFIX, scene_key
from geoprep.roads.network import RoadGraph, check_network


@dataclass(frozen=True, slots=True)
class SceneRoads:
    """The roads of one scene, or of a city, with notes about their file."""

    network: RoadGraph
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SceneReader:
    """Reads the networks of scenes from any kind of file or folder."""

    grids: Mapping[str, Grid]
    pixel_size_m: float | None
    rule: SpeedRule

    def scenes(self, path: Path | RoadGraph) -> dict[str, SceneRoads]:
        """Return the networks of a file or folder by scene key."""
        if isinstance(path, RoadGraph):
            scenes = {"truth": SceneRoads(path)}
        elif path.is_dir():
            scenes = dict(self._in_folder(path))
        elif path.exists():
            scenes = self._in_file(path)
        else:
            raise SourceError(f"{path}: no such file or folder; check the path")
        for scene, roads in scenes.items():
            several = f", scene {scene}" if len(scenes) > 1 else ""
            check_network(roads.network, name_of(path) + several)
        return {
            scene: replace(roads, network=joined(roads.network)) for scene, roads in scenes.items()
        }

    def _in_file(self, path: Path) -> dict[str, SceneRoads]:
        if path.suffix.lower() == TABLE_SUFFIX:
            tables = read_csv(path, grids=self.grids, pixel_size_m=self.pixel_size_m)
            return {key: SceneRoads(network) for key, network in tables.items()}
        return {scene_key(path.name): self._one_scene(path)}

    def _in_folder(self, folder: Path) -> Iterator[tuple[str, SceneRoads]]:
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

    def _one_scene(self, path: Path) -> SceneRoads:
        """Return a road network with its own speeds, or labels with speeds by the rule."""
        if path.suffix.lower() in (".p", ".pkl", ".pickle"):
            raise SourceError(
                f"{path}: a pickle may run code when it is read. If you trust its source, convert "
                "the graph to JSON, as docs/how-to/road-networks.md shows."
            )
        if json_content(path) == "adjacency":
            return SceneRoads(read_adjacency(path, self.pixel_size_m or 1.0))
        network = read_if_network(path, self.rule.layer)
        if network is not None:
            return SceneRoads(network)
        return SceneRoads(*read_labels(path, self.rule))


def name_of(side: Path | RoadGraph) -> str:
    """Return how messages name a side of a comparison."""
    return "the network" if isinstance(side, RoadGraph) else str(side)
