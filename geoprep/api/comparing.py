"""Compare a map with traced roads: roads that it lacks, and roads that no trace confirms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geoprep.errors import UsageError
from geoprep.options import (
    argument,
    made,
    option,
    options_of,
    overwrite_option,
    with_options,
)
from geoprep.outputs import check_outputs
from geoprep.roads.options import CompareOptions

if TYPE_CHECKING:
    from geoprep.api.networks import RoadNetwork
    from geoprep.roads.comparison.changes import RoadChanges
    from geoprep.roads.network import RoadGraph
    from geoprep.storage.local_files import StrPath


@dataclass(frozen=True, kw_only=True)
class CompareArguments:
    """Files: the two networks."""

    roads: Path = argument("The map: OpenStreetMap data, labels or a road network.", "MAP")
    proposal: Path = argument("The road network that `vectorize` traced.", "PROPOSAL")


@dataclass(frozen=True, kw_only=True)
class CompareFiles:
    """Files: what is written, and the area."""

    out: Path | None = option(
        *(
            None,
            "GeoPackage to write; the missing roads are written beside it as .geojson.",
            "FILE",
        ),
        required=True,
    )
    overwrite: bool = overwrite_option()
    images: Path | None = option(
        None,
        "Image, folder of images, or store: where it has pixels is compared. Default: the bounding "
        "box of the proposal and what is near it.",
        "PATH",
    )


@with_options(options_of(CompareArguments) + options_of(CompareFiles) + options_of(CompareOptions))
def compare(
    roads: StrPath | RoadNetwork,
    proposal: StrPath | RoadNetwork,
    **options: Any,  # noqa: ANN401 - fields of `CompareFiles` and `CompareOptions`
) -> RoadChanges:
    """Return traced roads that a map lacks, and roads of the map that no trace confirms.

    Parameters
    ----------
    **options

    Raises
    ------
    SourceError
        A file cannot be read.
    UsageError
        Only one of the two is georeferenced, or ``out`` cannot be written.

    Examples
    --------
    >>> import geopandas, shapely
    >>> from geoprep import RoadNetwork
    >>> lines = [[(5e5, 6e6), (500400, 6e6)], [(500200, 6e6), (500200, 6000300)]]
    >>> frame = geopandas.GeoDataFrame(geometry=[*map(shapely.LineString, lines)], crs="EPSG:32637")
    >>> roads, proposal = (RoadNetwork.from_geopandas(frame[:count]) for count in (1, 2))
    >>> compare(roads, proposal)
    <geoprep.RoadChanges 0.3 km missing of 0.4 km>
    """
    import shapely

    from geoprep.roads.comparison.changes import changes_files, compare_networks
    from geoprep.roads.footprints import image_borders

    files = made(CompareFiles, options)
    if files.out is not None:
        inputs = (roads, proposal, files.images)
        check_outputs(*changes_files(files.out), inputs=inputs, overwrite=files.overwrite)
    graph, other = _map(roads)
    proposed, _ = _map(proposal)
    if (graph.crs is None) != (proposed.crs is None):
        raise UsageError("only one of map and proposal is georeferenced: give both in a CRS")
    area = None
    if files.images is not None and proposed.crs is not None:
        borders = image_borders(files.images).values()
        area = shapely.union_all([border.outline_in(proposed.crs) for border in borders])
    changes = compare_networks(graph, other, proposed, area, made(CompareOptions, options))
    if files.out is not None:
        changes.to_file(files.out, overwrite=files.overwrite)
    return changes


def _map(given: StrPath | RoadNetwork) -> tuple[RoadGraph, RoadGraph]:
    """Return the roads of a map, and its other ways."""
    from geoprep.api.networks import RoadNetwork
    from geoprep.roads.formats.files import read_map
    from geoprep.roads.network import empty_network

    if isinstance(given, RoadNetwork):
        return given.graph, empty_network(given.graph.crs)
    return read_map(given)
