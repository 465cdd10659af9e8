"""TOPO on networks whose marbles can be counted by hand, and on a published pair."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.roads import network

from geoprep.crs import transformer
from geoprep.roads.formats.adjacency import read_adjacency
from geoprep.roads.scoring.topo import TopoScore, Walks, topo

ROAD = [(0, 0), (100, 0)]
CORNERS = [(0, 0), (120, 0), (120, 120), (0, 120), (0, 0)]
BLOCK = network(*pairwise(CORNERS))


def test_a_network_scores_one_against_itself():
    assert topo(BLOCK, BLOCK) == TopoScore(1.0, 1.0, 1.0, 8)
    short = network([(0, 0), (10, 0)])
    assert topo(short, short).f1 == 1


def test_a_false_branch_costs_precision():
    found = topo(network(ROAD), network(ROAD, [(100, 0), (100, 50)]))
    # Two starts. From either 20 holes along the road, and 10 marbles more on the branch.
    assert found.starts == 2
    assert found.precision == pytest.approx(20 / 30)
    assert found.recall == 1
    assert found.f1 == pytest.approx(0.8)


def test_a_missing_branch_costs_recall():
    found = topo(network(ROAD, [(100, 0), (100, 50)]), network(ROAD))
    # The start on the branch has no pair; those on the road fill 20 of 30 holes.
    assert found.starts == 3
    assert found.precision == 1
    assert found.recall == pytest.approx((20 / 30) * 2 / 3)


def test_roads_behind_a_gap_are_missing():
    broken = network([(0, 0), (48, 0)], [(52, 0), (100, 0)])
    found = topo(network(ROAD), broken)
    assert found.precision == 1
    assert found.recall == pytest.approx(0.5, abs=0.05)


def test_starting_points_pair_with_near_parallel_roads_only():
    assert topo(network(ROAD), network([(0, 9.9), (100, 9.9)])).recall == 1
    assert topo(network(ROAD), network([(0, 10.1), (100, 10.1)])).recall == 0
    assert topo(network(ROAD), network([(33.3, -50), (33.3, 50)])).recall == 0


def test_a_hole_matches_one_marble():
    """A road doubled 2 m aside: half of the marbles have no hole of their own."""
    twice = network(ROAD, [(0, 2), (100, 2)], [(100, 0), (100, 2)])
    found = topo(network(ROAD), twice, match_m=3)
    assert found.precision < 0.75
    assert found.recall == 1


def test_a_network_without_roads_scores_zero():
    empty = network()
    for one, two in ((empty, BLOCK), (BLOCK, empty), (empty, empty)):
        assert topo(one, two) == TopoScore(0, 0, 0, 0)


def test_points_along_a_ring_are_reached_once():
    ring = network([(0, 0), (100, 0), (100, 100), (0, 100), (0, 0)])
    left = Walks(ring, radius_m=1000).points_from(0, 33, interval_m=7)
    assert (left.edge == 0).all()
    # 200 m in either direction: 28 points each, and the starting point.
    assert len(left) == 57
    assert len(np.unique(left.along_m.round(6))) == 57


def test_the_far_end_of_an_edge_is_reached_round_the_block():
    lens = network([(0, 0), (30, 0)], [(0, 0), (15, 80), (30, 0)])
    left = Walks(lens, radius_m=1000).points_from(1, 81.0, interval_m=10)
    whole = lens.length_m.sum()
    assert len(left) == 1 + 2 * int(whole / 2 / 10)


def test_points_end_at_the_radius():
    loop = network([(0, 0), (50, 0)], [(50, 0), (90, 0), (90, 40), (50, 0)])
    left = Walks(loop, radius_m=60).points_from(0, 0.0, interval_m=10)
    # Five along the road, its end among them, and the loop entered at both of its ends.
    assert sorted(zip(left.edge.tolist(), left.along_m.round(3).tolist(), strict=True)) == [
        *((0, 10.0 * k) for k in range(6)),
        (1, 10.0),
        (1, pytest.approx(loop.length_m[1] - 10, abs=1e-3)),
    ]


def test_far_outside_the_zone_starts_are_paired_where_they_lie():
    """A hairpin 30 degrees from the meridian, where the plane is stretched by 14 %."""
    x, y = transformer("OGC:CRS84", "EPSG:32637").transform(69, 20)
    bends = [(0, 0), (2000, 0), (2000, 12), (0, 12)]
    road = network([(x + a, y + b) for a, b in bends], crs="EPSG:32637")
    assert road.stretch[0] > 1.1
    found = topo(road, road)
    assert (found.precision, found.recall) == (1, 1)


@pytest.mark.slow
def test_topo_of_a_published_pair(shared_data):
    """Sat2Graph's program gives 0.874 and 0.858, by the rules that docs/explanation describes."""
    pair = shared_data / "sat2graph_pair"
    found = topo(read_adjacency(pair / "gt.json"), read_adjacency(pair / "prop.json"), radius_m=300)
    assert found.precision == pytest.approx(0.84459, abs=1e-4)
    assert found.recall == pytest.approx(0.87196, abs=1e-4)
