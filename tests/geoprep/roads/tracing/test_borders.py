"""Test roads at the raster's border: up to the outermost pixels, separate where they leave it."""

import numpy as np
import pytest
import shapely
from helpers.roads import degree_counts, traced

from geoprep.roads.centrelines.cover import Cover


@pytest.mark.parametrize("slope", [0.0, 0.2, 0.5, 1.0])
def test_a_road_reaches_the_outermost_pixels(slope):
    made = traced([[(-50, -100 + 50 * slope), (250, -100 - 250 * slope)]], (400, 200), width=6)
    assert degree_counts(made) == {1: 2}
    for x, y in made.nodes.tolist():
        assert x in (0.5, 199.5)
        assert y == pytest.approx(-100 - slope * x, abs=2)


def test_two_roads_that_leave_close_together_are_two():
    made = traced([[(150, -20), (206, -98)], [(150, -180), (206, -102)]], (200, 200), width=5)
    assert degree_counts(made) == {1: 4}


def test_a_bend_near_the_border_is_one_road():
    made = traced([[(150, -20), (197, -100), (150, -180)]], (200, 200), width=5)
    assert degree_counts(made) == {1: 2}
    assert np.allclose(sorted(made.nodes[:, 1]), [-180, -20], atol=4)


def test_a_junction_at_the_border_stays():
    made = traced([[(197, 10), (197, -210)], [(20, -100), (197, -100)]], (200, 200), width=5)
    assert degree_counts(made) == {1: 3, 3: 1}


def test_distances_to_the_border_of_many_rasters_are_exact():
    places = [(9 * i, 9 * j) for i in range(6) for j in range(i % 2, 6, 2)]
    boxes = tuple((top, left, top + 9, left + 9) for top, left in places)
    cover, random = Cover(boxes), np.random.default_rng(0)
    xy = random.uniform(-5, 60, (500, 2)) * [0.5, -0.3]
    wanted = shapely.distance(cover.border((0.5, 0.3)), shapely.points(xy))
    assert (cover.to_border(xy, (0.5, 0.3)) == wanted).all()
