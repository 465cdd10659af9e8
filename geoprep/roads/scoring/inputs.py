"""Which truth and which proposal belong to one scene, from files and folders of many kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from geoprep.crs import LONLAT
from geoprep.errors import ImageError, SourceError, UsageError
from geoprep.grid import Grid
from geoprep.roads.formats import SUFFIXES, read_network
from geoprep.roads.ground import in_crs
from geoprep.roads.network import RoadNetwork
from geoprep.roads.reading import read_csv, read_labels, scene_key
from geoprep.roads.scoring.clipping import area_of_grid, area_of_roads, clipped
from geoprep.sources import natural_key

_ROADS: Final = (".geojson", ".json", ".gpkg", ".graphml", ".parquet", ".shp", ".fgb", ".csv")
_HEAD_BYTES: Final = 1 << 16  # room for a first feature with a long line
_IMAGES: Final = (".tif", ".tiff", ".png", ".jp2", ".vrt", ".img")


@dataclass(frozen=True, slots=True)
class Pair:
    """The truth and the proposal of one scene, in one plane of metres.

    Attributes
    ----------
    scene
        Scene key, or the name of the truth's file.
    truth, proposal
        The networks; the proposal may be empty.
    note
        What a person should know, such as that there was no proposal.
    """

    scene: str
    truth: RoadNetwork
    proposal: RoadNetwork
    note: str


def scenes_of(
    truth: Path,
    proposal: Path,
    *,
    images: Path | None = None,
    pixel_size_m: float | None = None,
    as_published: bool = False,
) -> list[Pair]:
    """Return the scenes of the truth, each with its part of the proposal.

    Either side is a file of one scene, a folder of one file per scene, or a SpaceNet table (CSV).
    Scenes meet by what their names have in common (`scene_key`); two single files are one scene,
    whatever their names. A proposal is cut at the border of the scene's image, where there is one.
    A proposal of one file for a folder or a table of scenes is a city: without images, each scene
    gets what lies within the box (of degrees) about the roads of its truth, so that false roads
    farther out are not seen.

    Parameters
    ----------
    images
        Folder of the scenes' images: the place of tables, and the borders of scenes.
    pixel_size_m
        Metres to a pixel, for tables without images.
    as_published
        Read labels as the reference program of APLS does (`read_labels`).

    Raises
    ------
    SourceError, LabelError
        A file cannot be read.
    UsageError
        There is nothing to compare, or the two lie in different worlds.
    """
    grids = {} if images is None else _grids(images)
    reader = _Reader(grids, pixel_size_m, as_published)
    truths, proposals = reader.scenes(truth), reader.scenes(proposal)
    if not truths:
        raise UsageError(f"{truth}: no scenes in it")
    truths = {name: truths[name] for name in sorted(truths, key=natural_key)}
    if _is_one(proposal):
        whole, city = next(iter(proposals.values())), not _is_one(truth)
        return [_pair(name, network, whole, grids, city=city) for name, network in truths.items()]
    if not set(truths) & set(proposals):
        raise UsageError(
            f"no scene of {truth} is in {proposal}: there is {_some(truths)} here, "
            f"{_some(proposals)} there; name files of one scene alike"
        )
    return [
        _pair(name, network, proposals.get(name), grids, city=False)
        for name, network in truths.items()
    ]


def _is_one(path: Path) -> bool:
    """Return whether a path is a file of one network; a table names its scenes."""
    return not path.is_dir() and path.suffix.lower() != ".csv"


def _some(scenes: Mapping[str, object]) -> str:
    names = sorted(scenes)
    return ", ".join(names[:2]) + (" ..." if len(names) > 2 else "") or "nothing"


def _pair(
    scene: str,
    truth: RoadNetwork,
    proposal: RoadNetwork | None,
    grids: Mapping[str, Grid],
    *,
    city: bool,
) -> Pair:
    """Bring a proposal to the plane and to the area of the truth."""
    if proposal is None:
        return Pair(scene, truth, empty_network(truth.crs), "no proposal")
    if city and not len(truth.ends):
        return Pair(scene, truth, empty_network(truth.crs), "")
    if not len(truth.ends) or not len(proposal.ends):
        return Pair(scene, truth, proposal, "")
    if (truth.crs is None) != (proposal.crs is None):
        raise UsageError(
            f"{scene}: one of truth and proposal lies in pixels, the other on the ground; give "
            "--images, the folder of the scenes' images, or vectorize georeferenced maps"
        )
    # Cut in the proposal's own CRS: a city is not moved once for every scene.
    if scene in grids and proposal.crs is not None:
        proposal = clipped(proposal, area_of_grid(grids[scene], proposal.crs))
    elif city:
        proposal = clipped(proposal, area_of_roads(truth, LONLAT, proposal.crs))
    if truth.crs is not None:
        proposal = in_crs(proposal, truth.crs)
    return Pair(scene, truth, proposal, "")


def empty_network(crs: str | None) -> RoadNetwork:
    """Return a network without roads."""
    return RoadNetwork(
        np.empty((0, 2)), np.empty((0, 2), np.int64), np.empty(0, object), np.empty(0), crs
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    grids: Mapping[str, Grid]
    pixel_size_m: float | None
    as_published: bool

    def scenes(self, path: Path) -> dict[str, RoadNetwork]:
        """Return the networks of a file or folder by scene."""
        if path.is_dir():
            return dict(self._in_folder(path))
        if not path.exists():
            raise SourceError(f"{path}: no such file or folder")
        return self._networks(path)

    def _networks(self, path: Path) -> dict[str, RoadNetwork]:
        if path.suffix.lower() == ".csv":
            return read_csv(path, grids=self.grids, pixel_size_m=self.pixel_size_m)
        return {scene_key(path.name): self._file(path)}

    def _in_folder(self, folder: Path) -> Iterator[tuple[str, RoadNetwork]]:
        seen: dict[str, Path] = {}
        for path in sorted(p for p in folder.iterdir() if p.suffix.lower() in _ROADS):
            for key, network in self._networks(path).items():
                if key in seen:
                    raise UsageError(f"{path} and {seen[key]} are both of scene {key}: remove one")
                seen[key] = path
                yield key, network
        if not seen:
            raise SourceError(f"{folder}: no road files in it ({', '.join(_ROADS)})")

    def _file(self, path: Path) -> RoadNetwork:
        """Read a network as this package writes it, or any file of lines."""
        if _is_ours(path):
            return read_network(path)
        return read_labels(path, as_published=self.as_published)


def _is_ours(path: Path) -> bool:
    """Return whether a file is a network that this package wrote, whole or broken."""
    suffix = path.suffix.lower()
    if suffix == ".gpkg":
        from pyogrio import list_layers
        from pyogrio.errors import DataSourceError

        try:
            layers = {name for name, _ in list_layers(path)}
        except DataSourceError:
            return False  # what is wrong with it is for the reader of labels to say
        return layers >= {"edges", "nodes"}
    if suffix == ".geojson":
        with path.open("rb") as file:
            return b'"from_node"' in file.read(_HEAD_BYTES)
    return suffix in SUFFIXES


def _grids(folder: Path) -> dict[str, Grid]:
    """Return where the images of a folder lie, by scene key."""
    import rasterio

    from geoprep.imagery import grid_of

    if not folder.is_dir():
        raise SourceError(f"--images {folder}: no such folder")
    grids = {}
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in _IMAGES):
        try:
            with rasterio.open(path) as image:
                grids[scene_key(path.name)] = grid_of(image)
        except (ImageError, rasterio.errors.RasterioIOError):
            continue  # one that is not asked for does no harm; one that is will be missed
    if not grids:
        raise SourceError(f"--images {folder}: no image with a place on the ground in it")
    return grids
