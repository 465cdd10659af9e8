"""Gaps close where a road goes on, and only there."""

import numpy as np
import pytest
from helpers.roads import degree_counts, drawn, network

from geoprep.roads.centrelines import Tracing, array_raster
from geoprep.roads.tracing import trace
from geoprep.roads.tracing.repair import merged_junctions, repaired
from geoprep.roads.tracing.splitting import with_joins

OPTIONS = Tracing(gap_m=7, aligned_gap_m=24, likely_gap_m=50, reach_m=12, hint=0.1)


def mend(made, likelihood=None, options=OPTIONS):
    nowhere = np.zeros(len(made.nodes), bool)
    return repaired(made, options, at_border=nowhere, likelihood=likelihood)


def says(share):
    return lambda start, stop: np.full(len(start), share)


@pytest.mark.parametrize(
    ("gap", "likely", "closed"),
    [(20, None, 1), (30, None, 0), (30, 0.2, 1), (30, 0.05, 0), (60, 1, 0)],
)
def test_roads_that_point_at_each_other_are_joined(gap, likely, closed):
    made = network([(0, 0), (50, 0)], [(50 + gap, 2), (150, 2)])
    joined = mend(made, None if likely is None else says(likely))
    assert len(made.lines) - len(joined.lines) == closed
    if closed:
        assert joined.length_m.sum() == pytest.approx(made.length_m.sum() + np.hypot(gap, 2))


def test_roads_side_by_side_are_not_joined():
    made = network([(0, 0), (50, 0)], [(0, 15), (50, 15)])
    assert len(mend(made).lines) == 2


def test_near_ends_are_joined_round_a_corner():
    made = network([(0, 0), (50, 0)], [(54, 4), (54, 60)])
    assert degree_counts(mend(made)) == {1: 2}


def test_a_road_is_drawn_on_to_the_one_it_points_at():
    made = network([(0, 0), (100, 0)], [(50, 10), (50, 60)])
    joined = mend(made)
    assert degree_counts(joined) == {1: 3, 3: 1}
    assert [50, 0] in joined.nodes.tolist()
    away = network([(0, 0), (100, 0)], [(50, 15), (50, 60)])
    assert len(mend(away).lines) == 2
    assert degree_counts(mend(away, says(0.3))) == {1: 3, 3: 1}


def test_a_dead_end_that_runs_past_a_road_stays():
    made = network([(0, 0), (100, 0)], [(0, 8), (60, 8)])
    assert len(mend(made).lines) == 2


def test_two_dead_ends_either_side_of_a_road_meet_on_it():
    made = network([(0, 0), (100, 0)], [(50, 8), (50, 60)], [(50, -8), (50, -60)])
    assert degree_counts(mend(made)) == {1: 4, 4: 1}


def test_a_ring_with_a_gap_is_closed():
    angle = np.radians(np.linspace(10, 350, 60))
    made = network([tuple(p) for p in np.column_stack([np.cos(angle), np.sin(angle)]) * 40])
    assert degree_counts(mend(made)) == {2: 1}


def test_dead_ends_at_the_border_are_left_alone():
    made = network([(0, 0), (50, 0)], [(60, 0), (150, 0)])
    border = np.isin(made.nodes[:, 0], (50, 60))
    assert len(repaired(made, OPTIONS, at_border=border, likelihood=None).lines) == 2


def test_an_edge_cut_in_several_places_keeps_its_speed():
    made = network(
        [(0, 0), (100, 0)], [(20, 10), (20, 60)], [(70, 10), (70, 60)], speeds=[30, 20, 20]
    )
    joined = mend(made)
    assert degree_counts(joined) == {1: 4, 3: 2}
    assert sorted(joined.speed_mph[joined.length_m <= 50.1].tolist()) == [30, 30, 30]


def test_a_join_at_the_end_of_an_edge_is_its_node():
    made = network(
        [(0, 0), (100, 0)], [(100, 0), (100, 50)], [(100, 0), (150, 0)], [(90, -9), (50, -60)]
    )
    end = int(np.flatnonzero((made.nodes == (90, -9)).all(axis=1))[0])
    joined = with_joins(made, np.array([end]), np.array([0]), np.array([99.99]))
    assert degree_counts(joined) == {1: 4, 4: 1}


def test_junctions_that_touch_become_one():
    made = network(
        [(0, 0), (50, 1)],
        [(50, 1), (52, 0)],
        [(52, 0), (100, 0)],
        [(50, 1), (50, 50)],
        [(52, 0), (52, -50)],
    )
    one = merged_junctions(made)
    assert degree_counts(one) == {1: 4, 4: 1}
    assert [51, 0.5] in one.nodes.tolist()


def test_the_map_decides_across_a_gap():
    """What is certain, what is likely and what is not, in one raster."""
    values = drawn([[(20, -50), (280, -50)], [(20, -100), (280, -100)]], (150, 300), value=250)
    values[:, 130:170] = np.where(values[:, 130:170] > 0, 40, 0)  # 0.16: below the threshold
    values[90:110, 130:170] = 0
    made = trace(array_raster(values, pixel_size_m=1.0, kind="probability"))
    assert sorted(made.length_m.round(-1).tolist()) == [110, 110, 260]
