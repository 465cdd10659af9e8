"""Cutting networks at a border."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import network

from geoprep.roads.graph import clipped
from geoprep.roads.network import check_network, in_crs
from geoprep.roads.scoring.pairs import area_of_roads, pair_scenes

BOX = shapely.box(0, 0, 100, 100)


def lengths(made):
    check_network(made, "the clipped network")
    return sorted(made.length_m.round(6).tolist())


def test_a_road_ends_at_the_border():
    made = clipped(network([(50, 50), (150, 50)], [(50, 50), (50, 80)], speeds=[10, 20]), BOX)
    assert lengths(made) == [30, 50]
    assert made.speed_mph[made.length_m == 50] == 10
    assert sorted(map(tuple, made.nodes.tolist())) == [(50, 50), (50, 80), (100, 50)]


def test_a_road_that_returns_is_two_edges():
    out_and_in = [(50, 20), (150, 20), (150, 80), (50, 80)]
    assert lengths(clipped(network(out_and_in), BOX)) == [50, 50]
    through = [(-50, 40), (150, 40), (150, 60), (-50, 60)]
    assert lengths(clipped(network(through), BOX)) == [100, 100]


def test_roads_outside_are_removed_and_roads_inside_kept():
    made = clipped(
        network([(10, 10), (90, 10)], [(200, 0), (300, 0)], [(101, -5), (101, 105)]), BOX
    )
    assert lengths(made) == [80]
    assert len(made.nodes) == 2
    assert lengths(clipped(network([(200, 0), (300, 0)]), BOX)) == []


def test_a_loop_that_crosses_itself_and_the_border():
    bow = [(50, 50), (150, 90), (150, 10), (20, 62), (50, 50)]
    made = clipped(network(bow), BOX)
    whole = shapely.LineString(bow)
    # The length inside; where the line covers a spot twice, it counts twice.
    inside = sum(shapely.LineString(pair).intersection(BOX).length for pair in pairwise(bow))
    assert sum(lengths(made)) == pytest.approx(inside)
    assert inside < whole.length


def test_a_road_that_touches_the_border_is_not_cut():
    assert lengths(clipped(network([(20, 50), (100, 60), (20, 70)]), BOX)) == [
        pytest.approx(2 * np.hypot(80, 10))
    ]


@pytest.mark.parametrize("crs", ["EPSG:32611", "EPSG:32701"])
def test_the_bounding_box_of_roads_is_one_of_their_plane(crs):
    x = 750_000 if crs == "EPSG:32611" else 180_000  # the second across 180 degrees
    roads = network([(x, 8_000_000), (x + 1000, 8_000_900)], crs=crs)
    assert area_of_roads(roads, crs).bounds == (x, 8_000_000, x + 1000, 8_000_900)
    zone = f"{crs[:-2]}60" if x < 200_000 else f"{crs[:-2]}12"
    moved = in_crs(roads, zone)
    assert clipped(moved, area_of_roads(roads, zone).buffer(0.01)).length_m == pytest.approx(
        moved.length_m
    )


def test_both_sides_are_clipped_to_the_image(tmp_path):
    """Labels of a whole city: what lies outside of the image is no missed road."""
    pixels, grid = np.zeros((1, 100, 100), np.uint8), Affine(2, 0, 5e5, 0, -2, 6e6)
    write_raster(tmp_path / "a.tif", pixels, transform=grid)
    inside = network([(500_000, 5_999_900), (500_200, 5_999_900)], crs="EPSG:32637")
    city = network([(499_000, 5_999_900), (501_000, 5_999_900)], crs="EPSG:32637")
    for truth, proposal in ((city, inside), (inside, city)):
        (pair,) = pair_scenes(truth, proposal, images=tmp_path / "a.tif")
        assert pair.truth.length_m == pytest.approx([200])
        assert pair.proposal.length_m == pytest.approx([200])
        assert (pair.notes != ()) == (truth is city)


def test_a_part_of_a_road_keeps_its_confidence():
    whole = network([(50, 20), (150, 20), (150, 80), (50, 80)], [(10, 50), (20, 50)])
    made = clipped(replace(whole, confidence=np.array([[0.5, 0.1], [0.9, 0.8]])), BOX)
    assert made.confidence[made.length_m == 10].tolist() == [[0.9, 0.8]]
    assert made.confidence[made.length_m == 50].tolist() == [[0.5, 0.1]] * 2
