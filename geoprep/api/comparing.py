"""Compare a map with traced roads: roads that it lacks, and roads that no trace confirms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from geoprep.errors import UsageError
from geoprep.options import options_of, taken, with_options
from geoprep.roads.options import CompareOptions

if TYPE_CHECKING:
    from geoprep.api.networks import RoadNetwork
    from geoprep.roads.comparison.changes import RoadChanges
    from geoprep.roads.network import RoadGraph
    from geoprep.storage.local_files import StrPath


@with_options(options_of(CompareOptions))
def compare(
    roads: StrPath | RoadNetwork,
    proposal: StrPath | RoadNetwork,
    *,
    out: StrPath | None = None,
    images: StrPath | None = None,
    **options: Any,  # noqa: ANN401 - fields of `CompareOptions`
) -> RoadChanges:
    """Return traced roads that a map lacks, and roads of the map that no trace confirms.

    Parameters
    ----------
    roads
        The map: OpenStreetMap data, labels or a road network.
    proposal
        The road network that `vectorize` traced.
    out
        GeoPackage to write; the missing roads are written beside it as .osm.
    images
        Image, folder of images, or store: the area that is compared. Default: the bounding box of
        the proposal and what is near it.
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

    from geoprep.roads.comparison.changes import compare_networks
    from geoprep.roads.scoring.pairs import image_borders
    from geoprep.storage.output_files import outputs, require_suffix

    if out is not None:
        require_suffix(Path(out), ".gpkg")
        read = (roads, proposal, images)
        outputs(Path(out), inputs=[Path(given) for given in read if isinstance(given, str | Path)])
    graph, proposed = _graph(roads), _graph(proposal)
    if (graph.crs is None) != (proposed.crs is None):
        raise UsageError("only one of map and proposal is georeferenced: give both in a CRS")
    area = None
    if images is not None and proposed.crs is not None:
        grids = image_borders(Path(images)).values()
        outlines = [grid.outline_in(proposed.crs) for grid in grids]
        area = cast("shapely.Polygon", shapely.union_all(outlines))
    changes = compare_networks(graph, proposed, area, taken(options, CompareOptions))
    if out is not None:
        changes.to_file(out)
    return changes


def _graph(given: StrPath | RoadNetwork) -> RoadGraph:
    from geoprep.api.networks import RoadNetwork, read_network

    return given.graph if isinstance(given, RoadNetwork) else read_network(given).graph
