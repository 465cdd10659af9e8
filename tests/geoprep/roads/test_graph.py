"""Test operations on road networks, and lengths far outside their UTM zone."""

import numpy as np
import pyproj
import pytest
import shapely
from helpers.roads import degree_counts, network
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.crs import LONLAT, transformer
from geoprep.errors import GeoprepError
from geoprep.roads.graph import with_chains_joined, with_links
from geoprep.roads.network import in_crs

MOSCOW, MUMBAI, VEGAS = (37.6, 55.75), (72.9, 19.1), (-115.2, 36.2)


def test_a_link_to_the_end_of_an_edge_leads_to_its_node():
    made = network(
        [(0, 0), (100, 0)], [(100, 0), (100, 50)], [(100, 0), (150, 0)], [(90, -9), (50, -60)]
    )
    end = int(np.flatnonzero((made.nodes == (90, -9)).all(axis=1))[0])
    joined = with_links(made, np.array([end]), np.array([0]), np.array([99.99]))
    assert degree_counts(joined) == {1: 4, 4: 1}


@pytest.mark.parametrize("place", [MOSCOW, MUMBAI, VEGAS])
def test_lengths_are_right_in_any_utm_zone(place):
    lon, lat = place
    here = [(lon, lat), (lon + 0.01, lat + 0.01)]
    metres = pyproj.Geod(ellps="WGS84").line_length(*zip(*here, strict=True))
    for crs in ("EPSG:32611", "EPSG:32637", "EPSG:32640", "EPSG:32643"):
        x, y = transformer(LONLAT, crs).transform(*zip(*here, strict=True))
        made = network(list(zip(x, y, strict=True)), speeds=[30], crs=crs)
        assert made.length_m == pytest.approx([metres], rel=1.1e-3)
        assert made.travel_time_s == pytest.approx([metres / (30 * 0.44704)], rel=1.1e-3)


def test_lengths_within_a_zone_are_those_of_the_plane():
    made = network([(200_000, 6e6), (200_100, 6e6)], crs="EPSG:32637")
    assert made.length_m.tolist() == shapely.length(made.lines).tolist() == [100]


def test_coordinates_that_a_crs_does_not_reach_are_refused():
    made = network([(400_000, 6e6), (1e9, 1e9)], crs="EPSG:32637")
    with pytest.raises(GeoprepError, match="no coordinates in EPSG:32638"):
        in_crs(made, "EPSG:32638")


@given(st.integers(0, 10_000))
@settings(max_examples=15)
def test_joined_chains_keep_length_and_time(seed):
    rng = np.random.default_rng(seed)
    points = rng.permutation(30)[: rng.integers(3, 20)] * 10.0
    corners = np.column_stack([points, points % 7])
    pairs = rng.integers(0, len(points), (20, 2))
    lines = [corners[pair] for pair in pairs if pair[0] != pair[1]]
    made = network(*lines, speeds=rng.choice([20, 25, 65], len(lines)))
    joined = with_chains_joined(made)
    assert joined.length_m.sum() == pytest.approx(made.length_m.sum())
    assert joined.travel_time_s.sum() == pytest.approx(made.travel_time_s.sum())
