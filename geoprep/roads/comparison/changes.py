"""Roads that a map lacks, and roads of it that nothing confirms: layers, and files for editors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import shapely
from shapely.affinity import translate

from geoprep.outputs import check_outputs, require_suffix
from geoprep.roads.comparison.matching import (
    MOST_OFFSET_M,
    Offset,
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
from geoprep.roads.network import RoadGraph, in_crs
from geoprep.roads.options import CompareOptions
from geoprep.storage.output_files import replaced

if TYPE_CHECKING:
    import geopandas as gpd

    from geoprep.storage.local_files import StrPath


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
    drawn, lacking = portions(proposal, forth, within_m=within, least_m=least)
    known, alone = portions(roads, back, within_m=within, least_m=least)
    missing = used(subnetwork(drawn, lacking))
    matched = [_frame(subnetwork(known, ~alone))]
    if len(other.lines) and len(missing.lines):
        other = clipped(in_crs(other, str(missing.crs)), area)
        forth, back = matches(missing, other, within), matches(other, missing, within)
        drawn, lacking = portions(missing, forth, within_m=within, least_m=least)
        ways, apart = portions(other, back, within_m=within, least_m=least)
        matched.append(_frame(subnetwork(ways, ~apart)))
        missing = used(subnetwork(drawn, lacking))
    unconfirmed = _frame(subnetwork(known, alone))
    layers = pd.concat([layer for layer in matched if len(layer)] or matched[:1])
    layers = layers.reset_index(drop=True)
    return RoadChanges(_frame(missing), unconfirmed, layers, offset, missing)


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
