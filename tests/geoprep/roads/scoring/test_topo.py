"""TOPO on networks whose marbles can be counted by hand, and on a published pair."""

import json
from itertools import pairwise

import numpy as np
import pytest
import shapely
from helpers.roads import network

from geoprep.crs import transformer
from geoprep.roads.paths.points import EdgePoints, Propagation
from geoprep.roads.reading.line_network import network_from_lines
from geoprep.roads.scoring.topo import TopoScore, topo

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


def test_a_hole_matches_one_marble_and_in_the_variant_of_sat2graph_two():
    """A road doubled 2 m aside: half of the marbles have no hole of their own by default."""
    twice = network(ROAD, [(0, 2), (100, 2)], [(100, 0), (100, 2)])
    found = topo(network(ROAD), twice, match_m=3)
    assert found.precision < 0.75
    published = topo(network(ROAD), twice, match_m=3, variant="sat2graph")
    assert published.precision > 0.9
    assert found.recall == published.recall == 1


def test_the_seed_chooses_the_starting_points():
    truth = network(*([(0, y), (100, y)] for y in range(0, 200, 20)))
    proposal = network(*([(0, y), (20 + y / 2, y)] for y in range(0, 200, 20)))
    drawn = [topo(truth, proposal, starts=5, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0].starts == 5
    assert topo(truth, proposal, starts=10_000) == topo(truth, proposal)


def test_a_network_without_roads_scores_zero():
    empty = network()
    for one, two in ((empty, BLOCK), (BLOCK, empty), (empty, empty)):
        assert topo(one, two) == TopoScore(0, 0, 0, 0)


def test_points_along_a_ring_are_reached_once():
    ring = network([(0, 0), (100, 0), (100, 100), (0, 100), (0, 0)])
    left = Propagation.of(ring, radius_m=1000, interval_m=7).points_from(0, 33)
    assert (left.edge == 0).all()
    # 200 m in either direction: 28 points each, and the starting point.
    assert len(left) == 57
    assert len(np.unique(left.along_m.round(6))) == 57


def test_the_far_end_of_an_edge_is_reached_round_the_block():
    lens = network([(0, 0), (30, 0)], [(0, 0), (15, 80), (30, 0)])
    left = Propagation.of(lens, radius_m=1000, interval_m=10).points_from(1, 81.0)
    whole = lens.length_m.sum()
    assert len(left) == 1 + 2 * int(whole / 2 / 10)


def test_points_end_at_the_radius():
    loop = network([(0, 0), (50, 0)], [(50, 0), (90, 0), (90, 40), (50, 0)])
    left = Propagation.of(loop, radius_m=60, interval_m=10).points_from(0, 0.0)
    # Five along the road, its end among them, and the loop entered at both of its ends.
    assert sorted(zip(left.edge.tolist(), left.along_m.round(3).tolist(), strict=True)) == [
        *((0, 10.0 * k) for k in range(6)),
        (1, 10.0),
        (1, pytest.approx(loop.length_m[1] - 10, abs=1e-3)),
    ]


def test_in_the_variant_of_sat2graph_distances_are_longer():
    """10 m are written as 0.0001 degrees there, which is 11.1 m."""
    aside = network([(0, 11), (200, 11)])
    road = network([(0, 0), (200, 0)])
    assert topo(road, aside).recall == 0
    assert topo(road, aside, variant="sat2graph").recall == 1


def test_in_the_variant_of_sat2graph_one_of_several_starts_on_a_shared_road_counts():
    """Three roads side by side, of which the proposal has one, and continues it far too long."""
    roads = network([(0, 0), (60, 0)], [(0, 8), (60, 8)], [(0, -8), (60, -8)])
    one = network([(0, 0), (60, 0)], [(60, 0), (60, 140)])
    default, published = topo(roads, one), topo(roads, one, variant="sat2graph")
    assert default.recall == pytest.approx(1)
    assert published.recall == pytest.approx(1 / 3)


def test_far_outside_the_zone_starts_are_paired_where_they_lie():
    """A hairpin 30 degrees from the meridian, where the plane is stretched by 14 %."""
    x, y = transformer("OGC:CRS84", "EPSG:32637").transform(69, 20)
    bends = [(0, 0), (2000, 0), (2000, 12), (0, 12)]
    road = network([(x + a, y + b) for a, b in bends], crs="EPSG:32637")
    assert road.stretch(np.array([0]))[0] > 1.1
    found = topo(road, road)
    assert (found.precision, found.recall) == (1, 1)


def test_distances_by_road_from_a_point():
    made = network([(0, 0), (100, 0)], [(100, 0), (100, 50)], [(0, 90), (9, 90)])
    near = Propagation.of(made, radius_m=120, interval_m=5)
    points = EdgePoints(np.array([0, 1, 1, 2]), np.array([30.0, 20.0, 50.0, 3.0]))
    assert near.distances(0, 20.0, points).tolist() == [10, 100, 130, np.inf]


@pytest.mark.slow
def test_published_topo_of_a_real_pair(shared_data):
    """Within 0.01, as starting points that fall on vertices differ by rounding there."""

    def read(name):
        graph = json.loads((shared_data / "sat2graph_pair" / name).read_text())
        xy = np.array(graph["nodes"], float)[:, ::-1] * [1, -1]
        lines = np.asarray(shapely.linestrings(xy[np.array(graph["edges"])]), object)
        return network_from_lines(lines, np.full(len(lines), np.nan), None, min_path=0)

    found = topo(read("gt.json"), read("prop.json"), radius_m=300, variant="sat2graph")
    assert found.precision == pytest.approx(0.874146307487, abs=0.01)
    assert found.recall == pytest.approx(0.857869123474, abs=0.01)
