"""Test bridges: motorways have no level crossings, other roads do."""

import numpy as np
import pytest
from helpers.roads import array_raster, degree_counts, drawn, network

from geoprep.roads.tracing.bridges import with_bridges
from geoprep.roads.tracing.steps import trace

ACROSS = [[(0, 0), (100, 0)], [(100, 0), (200, 0)]]
ALONG = [[(100, -90), (100, 0)], [(100, 0), (100, 90)]]


def test_a_road_across_a_motorway_gets_no_junction():
    made = with_bridges(network(*ACROSS, *ALONG, speeds=[65, 65, 30, 25]), 60)
    assert degree_counts(made) == {1: 4}
    assert sorted(made.length_m.round(1).tolist()) == [180, 200]
    slow = made.length_m.argmin()
    assert made.speed_mph[1 - slow] == pytest.approx(65)
    assert 25 < made.speed_mph[slow] < 30
    vertices = [set(map(tuple, line.coords)) for line in made.lines]
    assert not vertices[0] & vertices[1]  # software that joins equal vertices keeps them apart


@pytest.mark.parametrize(
    "speeds", [[55, 55, 30, 30], [65, 65, 65, 65], [65, 30, 65, 30], [65, 65, np.nan, np.nan]]
)
def test_other_crossings_are_junctions(speeds):
    made = with_bridges(network(*ACROSS, *ALONG, speeds=speeds), 60)
    assert degree_counts(made) == {1: 4, 4: 1}


def test_ramps_are_connected():
    made = with_bridges(network(*ACROSS, [(0, -40), (100, 0)], speeds=[65, 65, 55]), 60)
    assert degree_counts(made) == {1: 3, 3: 1}


def test_a_diagonal_crossing_that_was_thinned_to_two_forks():
    along = [[(0, 0), (100, 0)], [(100, 0), (112, 0)], [(112, 0), (200, 0)]]
    lines = [*along, [(20, -60), (100, 0)], [(112, 0), (190, 60)]]
    made = with_bridges(network(*lines, speeds=[65, 65, 65, 30, 30]), 60)
    assert degree_counts(made) == {1: 4}
    assert sorted(made.length_m.round()) == [200, 210]


def test_a_motorway_in_a_raster_of_speeds():
    streets = [[(40, 10), (40, -210)], [(160, 10), (160, -210)], [(-10, -180), (210, -180)]]
    mask = np.maximum(
        drawn(streets, (200, 200), value=30),
        drawn([[(-10, -60), (210, -80)]], (200, 200), value=65),
    )
    made = trace(array_raster(mask, kind="speed"))
    assert degree_counts(made) == {1: 8, 4: 2}
    assert np.abs(made.speed_mph - np.round(made.speed_mph)).max() < 1e-9
