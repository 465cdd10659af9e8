"""Compare a map with roads found in imagery: what the map lacks, and what nothing confirms."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from geoprep.errors import UsageError
from geoprep.options import options_of, taken, with_options
from geoprep.roads import CompareOptions

if TYPE_CHECKING:
    import geopandas as gpd
    import pandas as pd

    from geoprep.api.networks import RoadNetwork
    from geoprep.roads import Changes, RoadGraph
    from geoprep.storage import StrPath


class RoadChanges:
    """What a proposal would change in a map of roads.

    Attributes
    ----------
    missing, unconfirmed, matched
        GeoDataFrames: roads of the proposal that the map lacks, of the map that the proposal lacks,
        and of the map that it has.
    joins
        GeoDataFrame of the places where missing roads would join the map.
    offset
        ``east`` and ``north``: metres that the proposal must be moved by to lie on the map;
        ``spread``: robust standard deviation of what is left, NaN if there are too few roads.
    """

    missing: gpd.GeoDataFrame
    unconfirmed: gpd.GeoDataFrame
    matched: gpd.GeoDataFrame
    joins: gpd.GeoDataFrame

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.missing, self.unconfirmed = changes.missing, changes.unconfirmed
        self.matched, self.joins = changes.matched, changes.joins
        self.offset: dict[str, float] = asdict(changes.offset)

    @property
    def summary(self) -> pd.DataFrame:
        """Kilometres of roads by type: ``map``, ``matched``, ``unconfirmed`` and ``missing``."""
        return self._changes.summary()

    def to_file(self, path: StrPath) -> None:
        """Write a GeoPackage with styles, and the missing roads beside it as .osm for JOSM.

        Raises
        ------
        UsageError
            The suffix is not .gpkg, or the folder does not exist.
        """
        from geoprep.roads import write_changes
        from geoprep.storage import outputs, require_suffix

        require_suffix(Path(path), ".gpkg")
        outputs(Path(path))
        write_changes(self._changes, Path(path))

    def __repr__(self) -> str:
        row = self.summary.loc["all"]
        return f"<geoprep.RoadChanges {row['missing']:.1f} km missing of {row['map']:.1f} km>"


@with_options(options_of(CompareOptions))
def compare(
    roads: StrPath | RoadNetwork,
    proposal: StrPath | RoadNetwork,
    *,
    out: StrPath | None = None,
    images: StrPath | None = None,
    **options: Any,  # noqa: ANN401 - fields of `CompareOptions`
) -> RoadChanges:
    """Return the roads of imagery that a map lacks, and those of the map that nothing confirms.

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

    from geoprep.roads import compare_networks, image_borders

    paths = [Path(given) for given in (roads, proposal, images) if isinstance(given, str | Path)]
    graph, proposed = _graph(roads), _graph(proposal)
    if (graph.crs is None) != (proposed.crs is None):
        raise UsageError("only one of map and proposal is georeferenced: give both in a CRS")
    area = None
    if images is not None and proposed.crs is not None:
        grids = image_borders(Path(images)).values()
        outlines = [grid.outline_in(proposed.crs) for grid in grids]
        area = cast("shapely.Polygon", shapely.union_all(outlines))
    changes = RoadChanges(compare_networks(graph, proposed, area, taken(options, CompareOptions)))
    if out is not None:
        from geoprep.storage import outputs

        outputs(Path(out), inputs=paths)
        changes.to_file(out)
    return changes


def _graph(given: StrPath | RoadNetwork) -> RoadGraph:
    from geoprep.api.networks import RoadNetwork, read_network

    return given.graph if isinstance(given, RoadNetwork) else read_network(given).graph
