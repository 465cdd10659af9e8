"""Test speeds: sampled all along an edge."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.roads import array_raster, drawn, network

from geoprep.roads.centrelines.bands import ArrayBands
from geoprep.roads.tracing.speeds import edge_speeds
from geoprep.roads.tracing.steps import trace


def bins(bands, mph):
    """Return a prediction with one band per speed class and one of any road."""
    stack = ArrayBands(np.concatenate([bands, bands.max(axis=0, keepdims=True)]))
    roads = {"road_bands": (len(bands) + 1,), "speed_classes": tuple(enumerate(mph, 1))}
    return replace(array_raster(bands[0], kind="probability"), bands=stack, **roads)


def test_a_road_of_two_speeds_takes_as_long_as_both():
    mask = drawn([[(10, -50), (110, -50)]], (100, 200), value=20)
    mask = np.maximum(mask, drawn([[(112, -50), (190, -50)]], (100, 200), value=60))
    made = trace(array_raster(mask, kind="speed"))
    slow = 112 - made.nodes[:, 0].min()
    fast = made.nodes[:, 0].max() - 112
    assert made.speed_mph == pytest.approx((slow + fast) / (slow / 20 + fast / 60), rel=0.03)


def test_a_faster_road_at_the_junction_is_ignored():
    side, through = [(100, -10), (100, -90)], [(10, -50), (190, -50)]
    mask = np.maximum(drawn([side], (100, 200), value=25), drawn([through], (100, 200), value=55))
    made = trace(array_raster(mask, kind="speed"))
    assert sorted(made.speed_mph.tolist()) == pytest.approx([25, 25, 55, 55])


def test_the_most_likely_class_of_a_stretch_counts():
    rng = np.random.default_rng(0)
    road = drawn([[(5, -50), (195, -50)]], (100, 200)).astype(bool)
    shares = np.stack([np.where(road, 120, 0), np.where(road, 80, 0)]).astype(int)
    shares = np.clip(shares + rng.normal(0, 60, shares.shape) * road, 0, 254).astype(np.uint8)
    assert 0.2 < (shares[1] > shares[0])[road].mean() < 0.5
    made = trace(bins(shares, (25.0, 55.0)))
    assert made.speed_mph == pytest.approx([25], rel=0.02)


def test_nodata_is_ignored():
    shares = np.zeros((2, 20, 100), np.uint8)
    shares[0, 8:12], shares[1, 8:12, 40:] = 200, 255
    raster = bins(shares, (25.0, 55.0))
    known = replace(raster, road_bands=(1,), nodata=255)
    line = network([(5, -10), (95, -10)])
    assert edge_speeds(line, known) == pytest.approx([25])


def test_a_mask_has_no_speed():
    made = trace(array_raster(drawn([[(10, -50), (190, -50)]], (100, 200))))
    assert np.isnan(made.speed_mph).all()
    assert np.isnan(made.travel_time_s).all()


def test_a_closed_gap_gets_the_speed_of_its_neighbours():
    speeds = np.zeros((20, 300), np.uint8)
    speeds[8:12, :100], speeds[8:12, 200:] = 30, 30
    made = network([(0, -10), (100, -10)], [(100, -10), (200, -10)], [(200, -10), (300, -10)])
    raster = array_raster(speeds, kind="speed")
    assert edge_speeds(made, raster) == pytest.approx([30, 30, 30])
