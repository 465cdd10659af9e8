"""Test where junctions and dead ends lie: in the road that was drawn."""

import numpy as np
import pytest
import shapely
from helpers.roads import array_raster, drawn
from scipy.ndimage import gaussian_filter
from shapely.affinity import rotate

from geoprep.roads.graph import degrees
from geoprep.roads.tracing.steps import trace

GSDS = [(0.3, 0.3), (1.0, 1.0), (0.68, 1.2)]


def drawn_at(lines, angle_deg, gsd, *, width=6.0, kind="mask", cap="flat"):
    """Return the network of roads, turned about the middle, and the lines."""
    lines = [rotate(shapely.LineString(line), angle_deg, origin=(75.1, -74.8)) for line in lines]
    shape = round(150 / gsd[1]), round(150 / gsd[0])
    values = drawn(lines, shape, width=width, pixel=gsd, cap_style=cap)
    if kind == "probability":
        soft = gaussian_filter(values.astype(float), [1 / gsd[1], 1 / gsd[0]])
        values = (soft * 254).astype(np.uint8)
    made = trace(array_raster(values, pixel_size_m=gsd, kind=kind))
    return made, [shapely.get_coordinates(line) for line in lines]


@pytest.mark.parametrize("kind", ["mask", "probability"])
@pytest.mark.parametrize("gsd", GSDS)
@pytest.mark.parametrize("angle", [0, 27])
@pytest.mark.parametrize("cap", ["flat", "round"])
def test_dead_ends_stop_within_half_a_width_of_the_line(gsd, angle, kind, cap):
    """Thinning ends before a flat end; the pixels of a round one reach beyond the line."""
    made, lines = drawn_at([[(35, -75), (115, -75)]], angle, gsd, kind=kind, cap=cap)
    missed = np.linalg.norm(made.nodes[:, None] - lines[0][None], axis=2).min(axis=0)
    assert missed.max() < 3 + max(gsd)
    assert made.length_m.sum() == pytest.approx(80, abs=6.5)


@pytest.mark.parametrize("kind", ["mask", "probability"])
@pytest.mark.parametrize("gsd", GSDS)
@pytest.mark.parametrize("angle", [0, 33])
@pytest.mark.parametrize("turn", [30, 45, 75, 90])
def test_a_side_road_has_one_junction_before_the_roads_part(turn, angle, gsd, kind):
    """Roads 6 m wide that part at a small angle share pixels for a while."""
    at = np.radians(turn)
    side = [(60, -75), (60 + 75 * np.cos(at), -75 + 75 * np.sin(at))]
    made, lines = drawn_at([[(15, -75), (135, -75)], side], angle, gsd, kind=kind)
    junction = made.nodes[degrees(made) == 3]
    assert len(junction) == 1
    shared = (3 if kind == "mask" else 4) / np.tan(at / 2)  # blurred roads are wider
    assert np.linalg.norm(junction[0] - lines[1][0]) < shared + max(gsd)
    vertices = shapely.points(shapely.get_coordinates(made.lines))
    assert shapely.distance(vertices, shapely.MultiLineString(lines)).max() < 3.5


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
