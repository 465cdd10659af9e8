"""Whether edges exist as often as their confidence says."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.roads import network

from geoprep.roads.scoring.scenes import reliability


def proposal(*lines, mean):
    made = network(*lines)
    return replace(made, confidence=np.column_stack([mean, mean]))


TRUTH = network([(0, 0), (100, 0)])
ALONG, ASIDE = [(0, 3), (90, 3)], [(0, 5), (90, 5)]


def shares(found):
    return {(one.low, one.high): (one.edges, one.exist) for one in found.bins if one.edges}


def test_edges_exist_if_half_of_them_is_near_the_ground_truth():
    mostly, hardly = [(60, 1), (60, 0), (135, 0)], [(60, -1), (60, -2), (180, -2)]
    made = proposal(ALONG, ASIDE, mostly, hardly, mean=[0.85, 0.85, 0.95, 1.0])
    found = reliability([(TRUTH, made)])
    assert shares(found) == {(0.8, 0.9): (2, 0.5), (0.9, 1.0): (2, 0.5)}
    assert shares(reliability([(TRUTH, made)], 6.0))[0.8, 0.9] == (2, 1.0)


def test_the_calibration_error_is_the_mean_difference_over_edges():
    lines = [[(x, 3), (x + 9, 3)] for x in range(0, 80, 20)]
    right = proposal(*lines[:3], [(0, 9), (9, 9)], mean=[0.75] * 4)
    assert reliability([(TRUTH, right)]).expected_calibration_error == pytest.approx(0)
    surer = reliability([(TRUTH, replace(right, confidence=np.full((4, 2), 0.95)))])
    assert surer.expected_calibration_error == pytest.approx(0.2)


def test_scenes_without_roads_or_confidence_are_left_out():
    """An edge that somebody has drawn into a network has none."""
    drawn = proposal(ALONG, ASIDE, mean=[0.65, np.nan])
    empty = network()
    found = reliability([(TRUTH, drawn), (empty, drawn), (TRUTH, network(ALONG))])
    assert found.edges == 1
    assert reliability([(TRUTH, network(ALONG)), (TRUTH, empty)]) is None
