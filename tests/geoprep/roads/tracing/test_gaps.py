"""Test gap closing: gaps are closed where a road continues, and only there."""

import numpy as np
import pytest
from helpers.roads import array_raster, degree_counts, drawn, network

from geoprep.roads.options import Tracing
from geoprep.roads.tracing.gaps import with_gaps_closed
from geoprep.roads.tracing.steps import trace

OPTIONS = Tracing(gap_m=7, aligned_gap_m=24, likely_gap_m=50, path_m=0, reach_m=12, hint=0.1)


def closed(made, mean_probability=None):
    """Return a network with its gaps closed, none of its dead ends at a border."""
    inside = np.zeros(len(made.nodes), bool)
    return with_gaps_closed(made, OPTIONS, at_border=inside, mean_probability=mean_probability)


def constant(share):
    """Return a function that gives every line the same mean probability."""
    return lambda start, stop: np.full(len(start), share)


@pytest.mark.parametrize(
    ("gap", "probability", "links"),
    [(20, None, 1), (30, None, 0), (30, 0.2, 1), (30, 0.05, 0), (60, 1, 0)],
)
def test_roads_that_point_at_each_other_are_joined(gap, probability, links):
    made = network([(0, 0), (50, 0)], [(50 + gap, 2), (150, 2)])
    joined = closed(made, None if probability is None else constant(probability))
    assert len(made.lines) - len(joined.lines) == links
    if links:
        assert joined.length_m.sum() == pytest.approx(made.length_m.sum() + np.hypot(gap, 2))


SIDES = [(50, 8), (50, 60)], [(50, -8), (50, -60)]
ARC = np.radians(np.linspace(10, 350, 60))


@pytest.mark.parametrize(
    ("lines", "degrees"),
    [
        *(([[(0, 0), (50, 0)], [(0, apart), (50, apart)]], {1: 4}) for apart in (3, 6, 15)),
        ([[(0, 0), (100, 0)], [(0, 8), (60, 8)]], {1: 4}),
        ([[(0, 0), (50, 0)], [(54, 4), (54, 60)]], {1: 2}),
        ([[(0, 0), (100, 0)], *SIDES], {1: 4, 4: 1}),
        ([np.column_stack([np.cos(ARC), np.sin(ARC)]) * 40], {2: 1}),
    ],
    ids=["parallel, 3 m", "6 m", "15 m", "beside a road", "corner", "on either side", "ring"],
)
def test_dead_ends_nearby_are_joined_unless_they_are_parallel(lines, degrees):
    assert degree_counts(closed(network(*lines))) == degrees


def test_a_dead_end_is_extended_to_the_road_ahead():
    made = network([(0, 0), (100, 0)], [(50, 10), (50, 60)])
    joined = closed(made, constant(0.0))
    assert degree_counts(joined) == {1: 3, 3: 1}
    assert [50, 0] in joined.nodes.tolist()
    away = network([(0, 0), (100, 0)], [(50, 15), (50, 60)])
    assert len(closed(away, constant(0.0)).lines) == 2
    assert degree_counts(closed(away, constant(0.3))) == {1: 3, 3: 1}


def test_masks_without_a_gap_are_complete():
    """A dead end near a road is real, unless roads are interrupted elsewhere."""
    roads = [[(0, 0), (100, 0)], [(50, 10), (50, 60)]]
    assert degree_counts(closed(network(*roads))) == {1: 4}
    gap = [[(200, 0), (250, 0)], [(260, 0), (300, 0)]]
    assert degree_counts(closed(network(*roads, *gap))) == {1: 5, 3: 1}
    complete = [[(1000 * i, 0), (1000 * i + 100, 0)] for i in range(1, 30)]
    assert degree_counts(closed(network(*roads, *gap, *complete))) == {1: 64}


def test_dead_ends_at_the_border_are_kept():
    made = network([(0, 0), (50, 0)], [(60, 0), (150, 0)])
    border = np.isin(made.nodes[:, 0], (50, 60))
    joined = with_gaps_closed(made, OPTIONS, at_border=border, mean_probability=None)
    assert len(joined.lines) == 2


def test_an_edge_cut_in_several_places_keeps_its_speed():
    made = network(
        [(0, 0), (100, 0)], [(20, 10), (20, 60)], [(70, 10), (70, 60)], speeds=[30, 20, 20]
    )
    joined = closed(made, constant(0.0))
    assert degree_counts(joined) == {1: 4, 3: 2}
    assert sorted(joined.speed_mph[joined.length_m <= 50.1].tolist()) == [30, 30, 30]


def test_probabilities_decide_across_a_gap():
    """One raster with a certain, a probable and an improbable stretch of road."""
    values = drawn([[(20, -50), (280, -50)], [(20, -100), (280, -100)]], (150, 300), value=250)
    values[:, 130:170] = np.where(values[:, 130:170] > 0, 40, 0)  # 0.16: below the threshold
    values[90:110, 130:170] = 0
    made = trace(array_raster(values, kind="probability"))
    assert sorted(made.length_m.round(-1).tolist()) == [110, 110, 260]
