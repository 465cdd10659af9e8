"""Roads that a map lacks, and roads of it that nothing confirms: layers, and files for editors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import shapely
from numpy.typing import NDArray
from shapely.affinity import translate

from geoprep.outputs import check_outputs, require_suffix
from geoprep.roads.comparison.matching import (
    MOST_OFFSET_M,
    Matches,
    Offset,
    Portions,
    matches,
    moved_by,
    offset_between,
    portions,
)
from geoprep.roads.formats.files import write_layer, write_network
from geoprep.roads.formats.lines import joined
from geoprep.roads.formats.style import plain_style_row
from geoprep.roads.formats.table import edge_frame
from geoprep.roads.graph import clipped, subnetwork, used
from geoprep.roads.network import RoadGraph, in_crs, points
from geoprep.roads.options import CompareOptions
from geoprep.storage.output_files import replaced

if TYPE_CHECKING:
    import geopandas as gpd

    from geoprep.storage.local_files import StrPath

Floats = NDArray[np.float64]

_JOIN_M: Final = 30.0
"""Distance up to which a missing road would join the map."""
_NODE_M: Final = 10.0
"""A node is joined if it is farther away than the road by at most this."""
_COLOURS: Final = {
    "matched": (120, 120, 120),
    "unconfirmed": (255, 127, 0),
    "missing": (227, 26, 28),
}
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class RoadChanges:
    """Changes of a map of roads by a proposal: layers as GeoDataFrames, and figures."""

    missing: gpd.GeoDataFrame  # roads of the proposal that the map lacks
    unconfirmed: gpd.GeoDataFrame  # roads of the map that the proposal lacks
    matched: gpd.GeoDataFrame  # roads of the map that the proposal has
    joins: gpd.GeoDataFrame  # places where missing roads would join the map
    offset: Offset  # by which the proposal must be moved to lie on the map
    network: RoadGraph  # the missing roads, connected

    @property
    def summary(self) -> pd.DataFrame:
        """Kilometres by type of road: ``map``, ``matched``, ``unconfirmed`` and ``missing``.

        The types are those of the map; of missing roads none is known.
        """
        layers = {"matched": self.matched, "unconfirmed": self.unconfirmed, "missing": self.missing}
        columns = {
            name: frame.groupby("highway")["length_m"].sum() / 1000
            for name, frame in layers.items()
        }
        table = pd.DataFrame(columns).fillna(0.0)
        table.insert(0, "map", table["matched"] + table["unconfirmed"])
        table = table.sort_values("map", ascending=False)
        table.loc["all"] = table.sum()
        return table.rename_axis("highway")

    def to_file(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write a GeoPackage with styles, and the missing roads beside it as GeoJSON for JOSM.

        Raises
        ------
        UsageError
            The suffix is not .gpkg, the folder does not exist, or a file exists and is not to be
            overwritten.
        """
        check_outputs(*changes_files(path), overwrite=overwrite)
        beside = Path(path).with_suffix(".geojson")
        with replaced(Path(path)) as partial:
            for layer in _COLOURS:
                write_layer(getattr(self, layer), partial, layer, "LineString")
            write_layer(self.joins, partial, "joins", "Point")
            styles = [plain_style_row(layer, colour) for layer, colour in _COLOURS.items()]
            write_layer(pd.concat(styles), partial, "layer_styles", None)
        if self.network.crs is not None:
            write_network(self.network, beside)

    def __repr__(self) -> str:
        row = self.summary.loc["all"]
        return f"<geoprep.RoadChanges {row['missing']:.1f} km missing of {row['map']:.1f} km>"


def changes_files(path: StrPath) -> list[Path]:
    """Return the files of changes: a GeoPackage, and roads beside it; UsageError: the suffix."""
    require_suffix(Path(path), ".gpkg")
    return [Path(path), Path(path).with_suffix(".geojson")]


def compare_networks(
    roads: RoadGraph,
    other: RoadGraph,
    proposal: RoadGraph,
    area: shapely.Geometry | None,
    options: CompareOptions,
) -> RoadChanges:
    """Return the changes that a proposal suggests for the roads of a map.

    Roads that the map lacks may be other ways of it, such as cycleways and runways. These are
    matched where they are, and never unconfirmed.

    Parameters
    ----------
    roads, other, proposal
        The networks, all georeferenced or all in one plane.
    area
        Area of the imagery in the CRS of the proposal. None: the bounding box of the proposal.
    """
    within, least = options.distance, options.min_length
    if area is None and len(proposal.lines):
        area = shapely.box(*shapely.total_bounds(proposal.lines)).buffer(within)
    area = shapely.Polygon() if area is None else area
    if proposal.crs is not None:
        roads = in_crs(roads, proposal.crs)
    # The map reaches a little farther, so that roads along the border have a partner.
    around = clipped(roads, shapely.buffer(area, within + MOST_OFFSET_M))
    proposal = joined(clipped(proposal, area))
    offset = offset_between(proposal, around)
    if options.apply_offset:
        proposal = moved_by(proposal, np.array([offset.east, offset.north]))
        area = translate(area, offset.east, offset.north)
    roads = clipped(around, area)
    forth, back = matches(proposal, around, within), matches(roads, proposal, within)
    found = portions(proposal, forth, within_m=within, least_m=least)
    known = portions(roads, back, within_m=within, least_m=least)
    missing = used(subnetwork(found.network, found.unmatched))
    matched = [_matched(known, back, roads, proposal)]
    if len(other.lines) and len(missing.lines):
        other = clipped(in_crs(other, str(missing.crs)), area)
        forth, back = matches(missing, other, within), matches(other, missing, within)
        found = portions(missing, forth, within_m=within, least_m=least)
        known_ways = portions(other, back, within_m=within, least_m=least)
        matched.append(_matched(known_ways, back, other, missing))
        missing = used(subnetwork(found.network, found.unmatched))
    joins, nodes = _joins(missing, around)
    frame = _frame(missing).assign(join_from=nodes[:, 0], join_to=nodes[:, 1])
    unconfirmed = _frame(subnetwork(known.network, known.unmatched))
    layers = pd.concat([layer for layer in matched if len(layer)] or matched[:1])
    return RoadChanges(frame, unconfirmed, layers.reset_index(drop=True), joins, offset, missing)


def _frame(network: RoadGraph) -> gpd.GeoDataFrame:
    """Return one row per edge: type of road, length, speed and confidence, and the line."""
    frame = edge_frame(network, rounded=True).drop(
        columns=["from_node", "to_node", "travel_time_s"]
    )
    tags = network.attributes.get("highway", np.full(len(frame), None))
    kinds = [str(tag) if tag else _UNKNOWN for tag in tags]
    frame = frame.drop(columns=[*network.attributes])
    frame.insert(0, "highway", np.array(kinds, object))
    return frame


def _matched(
    known: Portions, back: Matches, roads: RoadGraph, proposal: RoadGraph
) -> gpd.GeoDataFrame:
    frame = _frame(subnetwork(known.network, ~known.unmatched))
    return frame.assign(**_differences(known, back, roads, proposal))


def _differences(
    known: Portions, back: Matches, roads: RoadGraph, proposal: RoadGraph
) -> dict[str, NDArray[np.float64]]:
    """Return the mean distance and difference of speed of the matched portions of a map."""
    near, count = back.edge >= 0, len(known.unmatched)
    run = known.run[near]
    speed = proposal.speed_mph[back.edge[near]] - roads.speed_mph[back.points.edge[near]]
    given = np.isfinite(speed)

    def mean(values: Floats, of: NDArray[np.int64]) -> Floats:
        times = np.bincount(of, minlength=count)
        total = np.bincount(of, weights=values, minlength=count)
        means = np.divide(total, times, out=np.full(count, np.nan), where=times > 0)
        return np.asarray(np.round(means[~known.unmatched], 2), np.float64)

    return {
        "offset_m": mean(back.distance_m[near], run),
        "speed_difference_mph": mean(speed[given], run[given]),
    }


def _joins(missing: RoadGraph, roads: RoadGraph) -> tuple[gpd.GeoDataFrame, Floats]:
    """Return where missing roads would join a map, and the nodes of the map there (road, 2).

    An end that is near a road of the map joins the nearer end of that road if it is hardly farther
    away, else the nearest place on it, which has no node yet.
    """
    import geopandas as gpd

    node, row = np.unique(missing.ends.reshape(-1), return_index=True)
    tips = points(missing.nodes[node])
    (tip, edge), away = shapely.STRtree(roads.lines).query_nearest(
        tips, max_distance=_JOIN_M, return_distance=True, all_matches=False
    )
    ends = points(roads.nodes)[roads.ends[edge]].reshape(-1, 2)
    to_ends = shapely.distance(tips[tip][:, None], ends)
    nearer, rows = to_ends.argmin(axis=1), np.arange(len(tip))
    is_node = to_ends[rows, nearer] <= away + _NODE_M
    on_road = shapely.get_point(shapely.shortest_line(roads.lines[edge], tips[tip]), 0)
    place = np.where(is_node, ends[rows, nearer], on_road)
    number = np.where(is_node, roads.ends[edge, nearer], np.nan)
    of_node = np.full(len(missing.nodes), np.nan)
    of_node[node[tip]] = number
    columns = {"missing": row[tip] // 2, "map_node": number}
    distance = np.round(shapely.distance(tips[tip], place), 2)
    frame = gpd.GeoDataFrame(columns | {"distance_m": distance}, geometry=place, crs=missing.crs)
    return frame, of_node[missing.ends]
