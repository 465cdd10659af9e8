"""Test the clean-up of traced networks: spurs, small components, junctions, vertices."""

import numpy as np
import pytest
import shapely
from helpers.roads import array_raster, degree_counts, drawn, network, traced
from scipy.ndimage import gaussian_filter
from shapely.ops import substring

from geoprep.roads.graph import subnetwork
from geoprep.roads.tracing import pruning
from geoprep.roads.tracing.crossings import with_junctions_merged
from geoprep.roads.tracing.pruning import (
    begun_forward,
    smoothed,
    without_small_components,
    without_spurs,
)
from geoprep.roads.tracing.steps import trace


def test_spurs_are_removed_and_roads_kept():
    road, spur = [(20, -100), (180, -100)], [(100, -100), (100, -92)]
    assert degree_counts(traced([road, spur], width=4, spur_m=12)) == {1: 2}
    assert degree_counts(traced([road, spur], width=4, spur_m=3)) == {1: 3, 3: 1}
    short = network([(0, 0), (5, 0)])
    assert len(without_spurs(short, 10).lines) == 1


def test_one_branch_of_a_forked_end_is_kept():
    forked = network([(0, 0), (100, 0)], [(100, 0), (106, 3)], [(100, 0), (105, -3)])
    made = without_spurs(forked, 10)
    assert made.length_m.tolist() == [pytest.approx(100 + np.hypot(6, 3))]


def test_small_components_are_removed_by_their_total_length():
    made = network([(0, 0), (8, 0)], [(8, 0), (8, 8)], [(8, 0), (16, 0)], [(50, 0), (59, 0)])
    assert without_small_components(made, 12).length_m.tolist() == [8, 8, 8]
    assert len(without_small_components(made, 30).lines) == 0
    assert len(without_small_components(made, 30).nodes) == 0


def test_junctions_that_touch_become_one():
    road = [[(0, 0), (50, 1)], [(50, 1), (52, 0)], [(52, 0), (100, 0)]]
    one = with_junctions_merged(network(*road, [(50, 1), (50, 50)], [(52, 0), (52, -50)]))
    assert degree_counts(one) == {1: 4, 4: 1}
    assert [51, 0.5] in one.nodes.tolist()


def test_simplified_lines_stay_within_the_tolerance():
    rng = np.random.default_rng(1)
    xy = np.column_stack([np.arange(200.0), np.cumsum(rng.normal(0, 0.2, 200))])
    made = network([tuple(p) for p in xy])
    simple = pruning.simplified(made, 0.6)
    assert shapely.hausdorff_distance(made.lines[0], simple.lines[0]) <= 0.6
    assert shapely.get_num_coordinates(simple.lines[0]) < 100


def staircase(angle_deg, gsd):
    """Return the traced network of a straight road, 6 m wide, and the road's line."""
    angle, middle = np.radians(angle_deg), np.array([150.3, -149.6])
    step = 120 * np.array([np.cos(angle), np.sin(angle)])
    line = shapely.LineString([middle - step, middle + step])
    mask = drawn([line], (round(300 / gsd[1]), round(300 / gsd[0])), width=6, pixel=gsd)
    return trace(array_raster(mask, pixel_size_m=gsd)), line


@pytest.mark.parametrize("gsd", [(0.3, 0.3), (1.0, 1.0), (0.68, 1.2)])
@pytest.mark.parametrize("angle", [8, 45, 63, 152])
def test_straight_roads_are_traced_straight(gsd, angle):
    """Excess length below 0.5 % and heading error below 3 degrees, in any direction."""
    made, road = staircase(angle, gsd)
    assert len(made.lines) == 1
    inner = substring(made.lines[0], 12, made.length_m[0] - 12)  # dead ends are rounded
    steps = np.diff(shapely.get_coordinates(inner), axis=0)
    length = np.linalg.norm(steps, axis=1)
    assert length.sum() / np.linalg.norm(steps.sum(axis=0)) < 1.005
    turn = np.degrees(np.arctan2(steps[:, 1], steps[:, 0])) - angle
    error = np.abs((turn + 90) % 180 - 90)
    assert (error * length).sum() / length.sum() < 3
    vertices = shapely.points(shapely.get_coordinates(inner))
    assert shapely.distance(vertices, road).max() < 1


def test_smoothing_keeps_nodes_and_the_length_of_curves():
    ring = [tuple(xy) for xy in shapely.Point(0, 0).buffer(40, quad_segs=64).exterior.coords]
    made = network([(40, 0), (100, 0)], ring, [(100, 0), (100.4, 0.3)])
    smooth = smoothed(made, 2.0, 0.5)
    assert np.array_equal(smooth.nodes, made.nodes)
    for line, (a, b) in zip(smooth.lines, smooth.ends, strict=True):
        assert (line.coords[0], line.coords[-1]) == (tuple(made.nodes[a]), tuple(made.nodes[b]))
    assert smooth.length_m == pytest.approx(made.length_m, rel=0.005)
    assert smoothed(made, 0, 0.5) is made
    assert not len(smoothed(subnetwork(made, np.zeros(3, bool)), 2.0, 0.5).lines)


def test_smoothing_has_the_width_of_its_gaussian():
    """A corner of 90 degrees is rounded by 0.56 standard deviations."""
    made = network([(0, 0), (100, 0), (100, 100)])
    rounded = shapely.distance(smoothed(made, 3.0, 0.5).lines[0], shapely.Point(100, 0))
    assert rounded == pytest.approx(3 * 2 * 0.3989 * np.sqrt(0.5), rel=0.05)


def runs_back(line):
    """Return whether a line turns by more than 120 degrees within 5 m of an end of it."""
    for xy in (np.array(line.coords), np.array(line.coords)[::-1]):
        steps = np.diff(xy, axis=0)[:2]
        size = np.linalg.norm(steps, axis=1)
        if len(steps) == 2 and size[0] < 5 and steps[0] @ steps[1] < -0.5 * size.prod():
            return True
    return False


def test_edges_do_not_begin_by_running_back():
    """Roads of noise, of which one does so where its junction has moved."""
    random = np.random.default_rng(0)
    away = np.abs(gaussian_filter(random.normal(size=(400, 400)), 6))
    odds = 12 * (away / away.std() * 0.6 - 0.25)
    odds += 10 * gaussian_filter(random.normal(size=away.shape), 2)
    share = (255 / (1 + np.exp(odds))).clip(0, 254).astype(np.uint8)
    made = trace(array_raster(share, kind="probability"))
    assert len(made.lines) > 100
    assert not any(map(runs_back, made.lines))
    line = [(0, 0), (-0.6, 0.1), (-0.2, 0.1), (50, 0), (98, 1), (101, 0.3), (100, 0)]
    (found,) = begun_forward(network(line)).lines
    assert list(found.coords) == [(0, 0), (50, 0), (98, 1), (100, 0)]
    ring = [(0, 0), (3, 0), (0, 0.5), (0, 0)]
    assert begun_forward(network(ring)).lines[0].is_ring
