"""Test rasters anywhere on Earth: exact lengths in distant regions, joined where they touch."""

import numpy as np
import pyproj
import pytest
import shapely
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import degree_counts, drawn

from geoprep.crs import LONLAT, reproject, transformer
from geoprep.roads.formats.files import read_network, write_network
from geoprep.roads.graph import edge_components
from geoprep.roads.options import RasterOptions
from geoprep.roads.tracing.vectorization import vectorize

MOSCOW, MUMBAI, VEGAS = (37.6, 55.75), (72.9, 19.1), (-115.2, 36.2)
FIJI = (179.999, -17.8)
ROAD = [[(-10, -50), (1010, -50)]]


def at(folder, name, place, zone=None):
    """Write a raster of 1000 m with a road from its western to its eastern border."""
    crs = zone or f"EPSG:{(32601 if place[1] > 0 else 32701) + int((place[0] + 180) // 6)}"
    x, y = transformer(LONLAT, crs).transform(*place)
    place = Affine(1, 0, round(x), 0, -1, round(y))
    mask = drawn(ROAD, (100, 1000), width=6, value=30)
    return write_raster(folder / f"{name}.tif", mask, crs=crs, transform=place)


def lonlat(network):
    return reproject(network.lines, network.crs, LONLAT)


def test_roads_of_distant_rasters_have_their_own_lengths(tmp_path):
    places = (MOSCOW, MUMBAI, VEGAS)
    paths = [at(tmp_path, str(i), place) for i, place in enumerate(places)]
    made = vectorize(paths, reading=RasterOptions(kind="speed"))
    assert made.length_m.tolist() == pytest.approx([1000] * len(places), abs=1.5)
    geodesic = [pyproj.Geod(ellps="WGS84").geometry_length(line) for line in lonlat(made)]
    assert made.length_m == pytest.approx(geodesic, rel=1e-3)
    assert made.travel_time_s == pytest.approx(made.length_m / (30 * 0.44704))
    middles = shapely.get_coordinates(shapely.centroid(lonlat(made)))
    assert np.abs(np.sort(middles, axis=0) - np.sort(places, axis=0)).max() < 0.02
    for suffix in (".gpkg", ".geojson", ".parquet"):
        write_network(made, tmp_path / f"city{suffix}")
        again = read_network(tmp_path / f"city{suffix}")
        assert sorted(again.length_m) == pytest.approx(sorted(made.length_m), rel=1e-3)


def across_fiji(folder):
    """Write two neighbours on either side of the antimeridian."""
    x, y = transformer(LONLAT, "EPSG:32701").transform(*FIJI)
    back = transformer("EPSG:32701", LONLAT)
    return [at(folder, str(i), back.transform(x + 1000 * i, y), "EPSG:32701") for i in range(2)]


@pytest.mark.parametrize("zone", ["EPSG:32637", "EPSG:32638"])
def test_neighbours_across_a_zone_border_are_joined_among_distant_rasters(tmp_path, zone):
    """Zones 37 and 38 meet at 42 degrees east; the second raster continues the first."""
    x, y = transformer(LONLAT, "EPSG:32637").transform(42, 50)
    back = transformer("EPSG:32637", LONLAT)
    paths = [at(tmp_path, "west", back.transform(x - 1000, y), "EPSG:32637")]
    x, y = transformer(LONLAT, zone).transform(*back.transform(x, y - 50))
    east = transformer(zone, LONLAT).transform(x, y + 50)
    paths += [at(tmp_path, "east", east, zone)]
    paths += [at(tmp_path, "far", MUMBAI)]
    made = vectorize(paths, reading=RasterOptions(kind="speed"))
    assert sorted(made.length_m) == pytest.approx([1000, 2000], rel=2e-3)


def test_neighbours_across_the_antimeridian_are_joined(tmp_path):
    made = vectorize(
        [*across_fiji(tmp_path), at(tmp_path, "far", MUMBAI)], reading=RasterOptions(kind="speed")
    )
    assert degree_counts(made) == {1: 4}
    assert len(np.unique(edge_components(made))) == 2
    assert sorted(made.length_m) == pytest.approx([1000, 2000], rel=2e-3)


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".parquet"])
def test_roads_across_the_antimeridian_are_read_into_their_zone(tmp_path, suffix):
    made = vectorize(across_fiji(tmp_path), reading=RasterOptions(kind="speed"))
    assert made.crs == "EPSG:32701"
    assert len(np.unique(np.sign(shapely.get_coordinates(lonlat(made))[:, 0]))) == 2
    write_network(made, tmp_path / f"fiji{suffix}")
    again = read_network(tmp_path / f"fiji{suffix}")
    assert again.crs == "EPSG:32701"
    assert again.length_m.sum() == pytest.approx(2000, rel=1e-3)
