"""Test the clean-up of traced networks: spurs, small components, junctions, vertices."""

import numpy as np
import pytest
import shapely
from helpers.roads import degree_counts, network, traced

from geoprep.roads.tracing.pruning import (
    simplified,
    with_junctions_merged,
    without_small_components,
    without_spurs,
)


def test_spurs_are_removed_and_roads_kept():
    road, spur = [(20, -100), (180, -100)], [(100, -100), (100, -92)]
    assert degree_counts(traced([road, spur], width=4, spur_m=12)) == {1: 2}
    assert degree_counts(traced([road, spur], width=4, spur_m=3)) == {1: 3, 3: 1}
    short = network([(0, 0), (5, 0)])
    assert len(without_spurs(short, 10).lines) == 1


def test_one_branch_of_a_forked_end_is_kept():
    made = without_spurs(
        network([(0, 0), (100, 0)], [(100, 0), (106, 3)], [(100, 0), (105, -3)]), 10
    )
    assert made.length_m.tolist() == [pytest.approx(100 + np.hypot(6, 3))]


def test_small_components_are_removed_by_their_total_length():
    made = network([(0, 0), (8, 0)], [(8, 0), (8, 8)], [(8, 0), (16, 0)], [(50, 0), (59, 0)])
    assert without_small_components(made, 12).length_m.tolist() == [8, 8, 8]
    assert len(without_small_components(made, 30).lines) == 0
    assert len(without_small_components(made, 30).nodes) == 0


def test_junctions_that_touch_become_one():
    made = network(
        [(0, 0), (50, 1)],
        [(50, 1), (52, 0)],
        [(52, 0), (100, 0)],
        [(50, 1), (50, 50)],
        [(52, 0), (52, -50)],
    )
    one = with_junctions_merged(made)
    assert degree_counts(one) == {1: 4, 4: 1}
    assert [51, 0.5] in one.nodes.tolist()


def test_simplified_lines_stay_within_the_tolerance():
    rng = np.random.default_rng(1)
    xy = np.column_stack([np.arange(200.0), np.cumsum(rng.normal(0, 0.2, 200))])
    made = network([tuple(p) for p in xy])
    simple = simplified(made, 0.6)
    assert shapely.hausdorff_distance(made.lines[0], simple.lines[0]) <= 0.6
    assert shapely.get_num_coordinates(simple.lines[0]) < 100
