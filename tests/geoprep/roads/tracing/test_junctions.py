"""Test where junctions and dead ends lie: drawn shapes are traced where they were drawn."""

import numpy as np
import pytest
import shapely
from helpers.roads import array_raster, drawn, network
from scipy.ndimage import gaussian_filter
from shapely.affinity import rotate

from geoprep.roads.graph import degrees
from geoprep.roads.tracing.forks import with_forks_moved
from geoprep.roads.tracing.steps import trace

GSDS = [(0.3, 0.3), (1.0, 1.0), (0.68, 1.2)]


FLAT = {"cap_style": "flat"}


def drawn_at(lines, angle_deg, gsd, *, width=6.0, kind="mask", ends=FLAT):
    """Return the network of roads, turned about the middle, and the lines."""
    lines = [rotate(shapely.LineString(line), angle_deg, origin=(75.1, -74.8)) for line in lines]
    shape = round(150 / gsd[1]), round(150 / gsd[0])
    values = drawn(lines, shape, width=width, pixel=gsd, **ends)
    if kind == "probability":
        soft = gaussian_filter(values.astype(float), [1 / gsd[1], 1 / gsd[0]])
        values = (soft * 254).astype(np.uint8)
    made = trace(array_raster(values, pixel_size_m=gsd, kind=kind))
    return made, [shapely.get_coordinates(line) for line in lines]


@pytest.mark.parametrize(
    ("kind", "ends", "limit"),
    [
        ("mask", FLAT, 0.6),
        ("probability", FLAT, 0.6),
        ("mask", {"quad_segs": 8}, 0.3),  # round
        ("mask", {"quad_segs": 1}, 0.3),  # pointed
    ],
)
@pytest.mark.parametrize("gsd", GSDS)
@pytest.mark.parametrize("angle", [0, 27])
def test_dead_ends_stop_where_the_line_did(gsd, angle, kind, ends, limit):
    """Thinning alone ends 3 m before a flat end; pixels of other ends reach on for 3 m."""
    made, lines = drawn_at([[(35, -75), (115, -75)]], angle, gsd, kind=kind, ends=ends)
    missed = np.linalg.norm(made.nodes[:, None] - lines[0][None], axis=2).min(axis=0)
    assert missed.max() < limit + 1.2 * max(gsd)
    assert made.length_m.sum() == pytest.approx(80, abs=2.1)


def test_short_roads_with_round_ends_do_not_turn_back():
    made, lines = drawn_at([[(70, -75), (82, -75)]], 20, (0.3, 0.3), ends={"quad_segs": 1})
    assert made.length_m.sum() == pytest.approx(12, abs=0.9)
    apart = shapely.hausdorff_distance(made.lines[0], shapely.LineString(lines[0]))
    assert apart < 0.6


def test_coarse_pixels_do_not_tell_the_shape_of_an_end():
    made, _ = drawn_at([[(35, -75), (115, -75)]], 27, (2.0, 2.0), width=5.0, ends={"quad_segs": 8})
    assert made.length_m.sum() == pytest.approx(85, abs=2.5)


@pytest.mark.parametrize(("kind", "width"), [("mask", 6.0), ("probability", 8.0)])
@pytest.mark.parametrize("gsd", GSDS)
@pytest.mark.parametrize("angle", [0, 33])
@pytest.mark.parametrize("fork", [15, 45])
def test_forks_lie_where_the_roads_meet(gsd, angle, fork, width, kind):
    turn = np.radians(fork)
    branch = [(60, -75), (60 + 75 * np.cos(turn), -75 + 75 * np.sin(turn))]
    roads = [(15, -75), (135, -75)], branch
    made, lines = drawn_at(roads, angle, gsd, width=width, kind=kind)
    junction = made.nodes[degrees(made) == 3]
    assert len(junction) == 1
    limit = 1.5 if max(gsd) < 0.5 else 2 if width == 6 and kind == "mask" else 3
    assert np.linalg.norm(junction[0] - lines[1][0]) < limit
    vertices = shapely.points(shapely.get_coordinates(made.lines))
    assert shapely.distance(vertices, shapely.MultiLineString(lines)).max() < 1.6


@pytest.mark.parametrize("kind", ["mask", "probability"])
@pytest.mark.parametrize("gsd", GSDS)
@pytest.mark.parametrize("angle", [0, 33])
@pytest.mark.parametrize("turn", [75, 90])
def test_roads_run_straight_through_the_junctions_of_side_roads(turn, angle, gsd, kind):
    """Thinning alone puts the junction 1 to 4 m off."""
    turn = np.radians(turn)
    side = [(75, -75), (75 + 55 * np.cos(turn), -75 + 55 * np.sin(turn))]
    made, lines = drawn_at([[(15, -75), (135, -75)], side], angle, gsd, kind=kind)
    junction = made.nodes[degrees(made) == 3]
    assert len(junction) == 1
    assert np.linalg.norm(junction[0] - lines[1][0]) < (0.7 if max(gsd) < 0.5 else 1.3)
    through = shapely.points(shapely.get_coordinates(made.lines))
    through = through[shapely.distance(through, shapely.Point(junction[0])) < 10]
    off = shapely.distance(through, shapely.MultiLineString(lines))
    assert off.max() < (0.4 if max(gsd) < 0.5 else 1.3)


def test_branches_along_one_line_stay():
    """No point is where they meet; a road that is drawn twice has such branches."""
    made = network([(-50, 0), (0, 0)], [(0, 0), (50, 0)], [(0, 0), (40, 0)])
    moved = with_forks_moved(made, lambda start, stop: np.ones((len(start), 1), bool))
    assert np.array_equal(moved.nodes, made.nodes)


@pytest.mark.parametrize(("apart", "junctions"), [(0, 1), (4, 2)])
def test_roads_that_meet_another_4_m_apart_have_two_junctions(apart, junctions):
    """On both sides of a road: a crossing with an offset is no crossing."""
    sides = [[(75 + s * apart / 2, -75), (75 + s * apart / 2, -75 + s * 50)] for s in (-1, 1)]
    made, _ = drawn_at([[(15, -75), (135, -75)], *sides], 0, (0.3, 0.3), width=4.0)
    nodes = made.nodes[degrees(made) > 2]
    assert len(nodes) == junctions
    if apart:
        nodes = nodes[np.argsort(nodes[:, 0])]
        assert np.abs(nodes - [(73, -75), (77, -75)]).max() < 0.5
