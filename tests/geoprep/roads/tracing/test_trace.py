"""Test tracing: drawn roads are traced as the network that was drawn."""

from dataclasses import replace

import numpy as np
import pyproj
import pytest
import shapely
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import array_raster, degree_counts, drawn, traced
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from geoprep.roads.centrelines.opening import open_raster
from geoprep.roads.centrelines.thinning import Skeleton
from geoprep.roads.options import Tracing
from geoprep.roads.tracing.pixel_graph import pixel_network
from geoprep.roads.tracing.steps import trace


def test_a_crossing_is_one_node():
    lines = [[(20, -100), (180, -100)], [(100, -20), (100, -180)]]
    made = traced(lines)
    assert degree_counts(made) == {1: 4, 4: 1}
    assert np.allclose(made.nodes[np.bincount(made.ends.ravel()) == 4], (100, -100), atol=1.5)
    drawn, found = shapely.MultiLineString(lines), shapely.union_all(made.lines)
    # The drawn ends are round: their pixels end 2 m beyond.
    assert shapely.hausdorff_distance(found, drawn, densify=0.05) < 2.5


def test_a_diagonal_crossing_in_fine_pixels_is_one_node():
    lines = [[(5, -20), (55, -40)], [(30, -5), (28, -55)]]
    assert degree_counts(traced(lines, pixel=0.3)) == {1: 4, 4: 1}


def test_lines_run_through_the_centres_of_pixels():
    mask = np.zeros((41, 60), np.uint8)
    mask[20] = 1
    made = trace(array_raster(mask, pixel_size_m=0.5), Tracing(min_area_m2=0))
    assert (shapely.get_coordinates(made.lines)[:, 1] == -20.5 * 0.5).all()
    assert sorted(made.nodes[:, 0]) == [0.25, 29.75]  # from the first pixel to the last


def test_a_ring_is_one_edge_from_a_node_to_itself():
    ring = shapely.Point(100, -100).buffer(50).exterior
    made = traced([ring.coords])
    assert degree_counts(made) == {2: 1}
    assert made.ends.tolist() == [[0, 0]]
    assert made.lines[0].is_ring
    assert made.length_m[0] == pytest.approx(ring.length, rel=0.02)


def test_a_ring_on_a_road_is_a_loop_at_its_junction():
    ring = shapely.Point(150, -100).buffer(25).exterior
    made = traced([ring.coords, [(20, -100), (125, -100)]])
    assert degree_counts(made) == {1: 1, 3: 1}
    assert sum(a == b for a, b in made.ends.tolist()) == 1


def test_two_roads_between_two_junctions_are_two_edges():
    through = [(20, -100), (60, -100), (100, -60), (140, -100), (180, -100)]
    made = traced([through, [(60, -100), (100, -140), (140, -100)]])
    assert degree_counts(made) == {1: 2, 3: 2}
    assert len({tuple(sorted(pair)) for pair in made.ends.tolist()}) == 3


def test_a_spur_at_the_border_is_kept():
    roads = [[(20, -100), (180, -100)], [(195, -20), (195, -180)], [(180, -100), (205, -100)]]
    made = traced(roads)
    assert (made.nodes[:, 0] == 199.5).sum() == 1


def test_a_component_below_the_high_threshold_is_dropped():
    values = np.zeros((60, 100), np.uint8)
    values[18:22] = 100  # 0.39
    values[38:42] = 100
    values[38:42, 50:54] = 200
    raster = array_raster(values, kind="probability")
    made = trace(raster, Tracing(threshold=0.3, high_threshold=0.5))
    assert np.round(made.nodes[:, 1]).tolist() == [-40, -40]
    assert len(trace(raster, Tracing(threshold=0.5, high_threshold=0.5)).lines) == 0


@given(st.integers(0, 10_000), st.floats(0.02, 0.6))
def test_random_pixels_make_a_valid_network(seed, share):
    """Edges end at their nodes, no node has degree 2 except on a ring, none is isolated."""
    rng = np.random.default_rng(seed)
    mask = rng.random((25, 30)) < share
    row, col = (places.astype(np.int32) for places in np.nonzero(mask))
    reach = np.zeros(len(row), np.float32)
    pixels = Skeleton(row, col, mask[mask], reach, mask.shape, (1.0, 1.0))
    made = pixel_network(pixels)
    for line, (a, b) in zip(made.lines, made.ends, strict=True):
        assert np.array_equal(line.coords[0], made.nodes[a])
        assert np.array_equal(line.coords[-1], made.nodes[b])
    loop = made.ends[:, 0] == made.ends[:, 1]
    degree = np.bincount(made.ends.ravel(), minlength=len(made.nodes))
    rings = np.bincount(made.ends[loop].ravel(), minlength=len(made.nodes))
    assert ((degree != 2) | (rings == 2)).all()
    assert np.isin(np.arange(len(made.nodes)), made.ends).all()


@pytest.mark.parametrize(
    ("crs", "transform", "utm"),
    [
        ("EPSG:4326", Affine(2.7e-6, 0, -115.17, 0, -2.7e-6, 36.24), "EPSG:32611"),
        ("EPSG:4326", Affine(2.7e-6, 0, 39.28, 0, -2.7e-6, -6.8), "EPSG:32737"),
        ("EPSG:32637", Affine(0.3, 0, 412_000, 0, -0.3, 6_176_000), "EPSG:32637"),
        ("EPSG:32637", Affine(0.2, 0.2, 412_000, 0.2, -0.2, 6_176_000), "EPSG:32637"),
        ("EPSG:3857", Affine(0.5, 0, 4_186_000, 0, -0.5, 7_510_000), "EPSG:32637"),
    ],
)
def test_networks_are_georeferenced_like_their_pixels(tmp_path, crs, transform, utm):
    mask = np.zeros((300, 300), np.uint8)
    mask[150, 40:261] = 1
    path = write_raster(tmp_path / "mask.tif", mask, crs=crs, transform=transform)
    raster = open_raster(path)
    made = trace(raster, Tracing(min_area_m2=0))
    assert made.crs == utm
    back = pyproj.Transformer.from_crs(utm, crs, always_xy=True)
    xy = shapely.get_coordinates(made.lines)
    col, row = ~transform * back.transform(*xy.T)
    assert np.allclose(row, 150.5, atol=1e-3)
    assert [col.min(), col.max()] == pytest.approx([40.5, 260.5], abs=0.3)
    ends = back.transform(
        *(transform * np.array([[col.min(), col.max()], [150.5, 150.5]])), direction="INVERSE"
    )
    assert made.length_m.sum() == pytest.approx(np.hypot(*np.diff(ends).ravel()), rel=1e-3)
    if utm == "EPSG:32737":
        assert 9_000_000 < xy[:, 1].min() < 10_000_000


def test_edges_have_the_probabilities_along_them():
    """One road of 0.9, one of 0.6 with a gap of 0.2 that is closed."""
    values = np.zeros((160, 300), np.uint8)
    values[38:42, 20:280] = 230
    values[98:102, 20:280] = 153
    values[98:102, 140:160] = 51
    raster = array_raster(values, kind="probability")
    options = Tracing(threshold=0.3, high_threshold=0.5)
    made = trace(raster, options)
    upper, lower = made.confidence[np.argsort(-made.nodes[made.ends[:, 0], 1])]
    assert upper == pytest.approx([0.9, 0.9], abs=0.01)
    assert lower == pytest.approx([0.57, 0.2], abs=0.01)
    kept = trace(raster, replace(options, min_confidence=0.7))
    assert len(kept.lines) == 1
    assert kept.confidence[:, 0] == pytest.approx(0.9, abs=0.01)
    mask = array_raster(values)
    assert trace(mask, Tracing(min_confidence=1.0)).confidence is None
    assert len(trace(mask, Tracing(min_confidence=1.0)).lines) == 2


def test_a_dual_carriageway_with_a_faint_median_is_one_road():
    """Its centre line lies on pixels below the high threshold; the component reaches it."""
    image = np.zeros((60, 440), np.float32)
    image[20:40, 20:420] = 0.9
    image[29:31, 20:420] = 0.4
    made = trace(
        array_raster(image, kind="probability"), Tracing(threshold=0.3, high_threshold=0.5)
    )
    assert made.length_m.sum() == pytest.approx(400, abs=20)
    image[image > 0.4] = 0.4
    assert not len(trace(array_raster(image, kind="probability")).lines)


ARMS = {"crossing": (0, 90, 180, 270), "T": (0, 90, 180), "road": (0, 180)}


@pytest.mark.parametrize("pixel", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("width", [18.0, 30.0])
@pytest.mark.parametrize("kind", ARMS)
def test_wide_roads_have_one_junction_and_no_forked_ends(kind, width, pixel):
    for turn, blur in ((0, 0.0), (30, 2.0), (45, 2.0)):
        angles = np.radians(np.add(ARMS[kind], turn))
        arms = [[(150, -150), (150 + 108 * np.cos(a), 108 * np.sin(a) - 150)] for a in angles]
        shape = (round(300 / pixel), round(300 / pixel))
        mask = drawn(arms, shape, width=width, pixel=pixel, cap_style="flat")
        middle = drawn([[(150, -150), (150, -150.01)]], shape, width=width, pixel=pixel)
        image = np.maximum(mask, middle).astype(float)
        image = gaussian_filter(image, blur / pixel).clip(0, 1).astype(np.float32)
        made = trace(array_raster(image, pixel_size_m=pixel, kind="probability"))
        junction = {} if kind == "road" else {len(angles): 1}
        assert degree_counts(made) == {1: len(angles)} | junction
