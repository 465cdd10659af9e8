"""Drawn roads come back as the network that was drawn."""

import numpy as np
import pyproj
import pytest
import shapely
from affine import Affine
from helpers.roads import degree_counts, drawn, network, traced, write_raster
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.roads.centrelines import Tracing, array_raster, open_raster
from geoprep.roads.centrelines.thinning import Skeleton
from geoprep.roads.tracing import trace
from geoprep.roads.chains import with_chains_joined, pixel_network
from geoprep.roads.tracing.pruning import simplified, without_crumbs, without_spurs


def off(made, lines):
    """Return how far a network lies from lines, either way, in metres."""
    return shapely.hausdorff_distance(
        shapely.union_all(made.lines), shapely.MultiLineString(lines), densify=0.05
    )


def test_a_crossing_is_one_node():
    lines = [[(20, -100), (180, -100)], [(100, -20), (100, -180)]]
    made = traced(lines)
    assert degree_counts(made) == {1: 4, 4: 1}
    assert np.allclose(made.nodes[np.bincount(made.ends.ravel()) == 4], (100, -100), atol=1.5)
    assert off(made, lines) < 2


def test_a_slanting_crossing_in_fine_pixels_is_one_node():
    lines = [[(5, -20), (55, -40)], [(30, -5), (28, -55)]]
    assert degree_counts(traced(lines, pixel=0.3)) == {1: 4, 4: 1}


def test_the_centre_of_a_pixel_is_where_its_line_runs():
    mask = np.zeros((41, 60), np.uint8)
    mask[20] = 1
    made = trace(array_raster(mask, pixel_size_m=0.5, kind="mask"), Tracing(min_area_m2=0))
    assert (shapely.get_coordinates(made.lines)[:, 1] == -20.5 * 0.5).all()
    assert sorted(made.nodes[:, 0]) == [0, 30]  # from border to border


def test_a_ring_is_one_edge_back_to_itself():
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
    made = traced(
        [
            [(20, -100), (60, -100), (100, -60), (140, -100), (180, -100)],
            [(60, -100), (100, -140), (140, -100)],
        ]
    )
    assert degree_counts(made) == {1: 2, 3: 2}
    assert len({tuple(sorted(pair)) for pair in made.ends.tolist()}) == 3


def test_spurs_go_and_roads_stay():
    road, spur = [(20, -100), (180, -100)], [(100, -100), (100, -92)]
    assert degree_counts(traced([road, spur], width=4, spur_m=12)) == {1: 2}
    assert degree_counts(traced([road, spur], width=4, spur_m=3)) == {1: 3, 3: 1}
    short = network([(0, 0), (5, 0)])
    assert len(without_spurs(short, 10).lines) == 1


def test_of_a_forked_end_one_branch_stays():
    made = without_spurs(
        network([(0, 0), (100, 0)], [(100, 0), (106, 3)], [(100, 0), (105, -3)]), 10
    )
    assert made.length_m.tolist() == [pytest.approx(100 + np.hypot(6, 3))]


def test_a_spur_at_the_border_is_a_road_that_goes_on():
    made = traced(
        [[(20, -100), (180, -100)], [(195, -20), (195, -180)], [(180, -100), (205, -100)]]
    )
    assert (made.nodes[:, 0] == 199.5).sum() == 1


def test_crumbs_go_by_the_length_of_all_that_is_connected():
    made = network([(0, 0), (8, 0)], [(8, 0), (8, 8)], [(8, 0), (16, 0)], [(50, 0), (59, 0)])
    assert without_crumbs(made, 12).length_m.tolist() == [8, 8, 8]
    assert len(without_crumbs(made, 30).lines) == 0
    assert len(without_crumbs(made, 30).nodes) == 0


def test_a_weak_part_stays_only_with_a_strong_one():
    values = np.zeros((60, 100), np.uint8)
    values[18:22] = 100  # 0.39
    values[38:42] = 100
    values[38:42, 50:54] = 200
    raster = array_raster(values, pixel_size_m=1.0, kind="probability")
    made = trace(raster, Tracing(threshold=0.3, certain=0.5))
    assert np.round(made.nodes[:, 1]).tolist() == [-40, -40]
    assert len(trace(raster, Tracing(threshold=0.5, certain=0.5)).lines) == 0


def test_nothing_is_no_network():
    made = trace(array_raster(np.zeros((50, 50), np.uint8), pixel_size_m=1.0, kind="mask"))
    assert made.nodes.shape == (0, 2)
    assert made.ends.shape == (0, 2)
    assert made.lines.shape == made.speed_mph.shape == (0,)


@given(st.integers(0, 10_000), st.floats(0.02, 0.6))
@settings(max_examples=60, deadline=None)
def test_random_pixels_make_a_valid_network(seed, share):
    """Every pixel is on a line or a node, edges end at their nodes, none passes through."""
    rng = np.random.default_rng(seed)
    mask = rng.random((25, 30)) < share
    row, col = np.nonzero(mask)
    pixels = Skeleton(
        row.astype(np.int32), col.astype(np.int32), mask[mask].view(np.uint8), mask.shape
    )
    made = pixel_network(pixels, (1.0, 1.0))
    for line, (a, b) in zip(made.lines, made.ends, strict=True):
        assert np.array_equal(line.coords[0], made.nodes[a])
        assert np.array_equal(line.coords[-1], made.nodes[b])
    loop = made.ends[:, 0] == made.ends[:, 1]
    degree = np.bincount(made.ends.ravel(), minlength=len(made.nodes))
    rings = np.bincount(made.ends[loop].ravel(), minlength=len(made.nodes))
    assert ((degree != 2) | (rings == 2)).all()
    assert np.isin(np.arange(len(made.nodes)), made.ends).all()


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_assembled_keeps_length_and_time(seed):
    rng = np.random.default_rng(seed)
    points = rng.permutation(30)[: rng.integers(3, 20)] * 10.0
    lines = [
        [(points[a], points[a] % 7), (points[b], points[b] % 7)]
        for a, b in rng.integers(0, len(points), (20, 2))
        if a != b
    ]
    made = network(*lines, speeds=rng.choice([20, 25, 65], len(lines)))
    joined = assembled(made)
    assert joined.length_m.sum() == pytest.approx(made.length_m.sum())
    assert joined.travel_time_s.sum() == pytest.approx(made.travel_time_s.sum())


def test_simplified_lines_stay_within_the_tolerance():
    rng = np.random.default_rng(1)
    xy = np.column_stack([np.arange(200.0), np.cumsum(rng.normal(0, 0.2, 200))])
    made = network([tuple(p) for p in xy])
    simple = simplified(made, 0.6)
    assert shapely.hausdorff_distance(made.lines[0], simple.lines[0]) <= 0.6
    assert shapely.get_num_coordinates(simple.lines[0]) < 100


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
def test_networks_lie_where_their_pixels_do(tmp_path, crs, transform, utm):
    mask = np.zeros((300, 300), np.uint8)
    mask[150, 40:261] = 1
    path = write_raster(tmp_path / "mask.tif", mask, crs=crs, transform=transform)
    with open_raster(path, pixel_size_m=None) as raster:
        made = trace(raster, Tracing(min_area_m2=0))
    assert made.crs == utm
    back = pyproj.Transformer.from_crs(utm, crs, always_xy=True)
    xy = shapely.get_coordinates(made.lines)
    col, row = ~transform * back.transform(*xy.T)
    assert np.allclose(row, 150.5, atol=1e-3)
    assert [col.min(), col.max()] == pytest.approx([40.5, 260.5], abs=1e-3)
    ends = pyproj.Transformer.from_crs(crs, utm, always_xy=True).transform(
        *(transform * np.array([[col.min(), col.max()], [150.5, 150.5]]))
    )
    assert made.length_m.sum() == pytest.approx(np.hypot(*np.diff(ends).ravel()), rel=1e-3)
    if utm == "EPSG:32737":
        assert 9_000_000 < xy[:, 1].min() < 10_000_000


def test_a_network_is_the_same_in_blocks():
    rng = np.random.default_rng(3)
    lines = [rng.uniform(0, 600, (3, 2)) * [1, -1] for _ in range(14)]
    raster = array_raster(drawn(lines, (600, 600), width=6), pixel_size_m=1.0, kind="mask")
    whole, parts = trace(raster), trace(raster, block=150)
    assert np.array_equal(whole.nodes, parts.nodes)
    assert shapely.equals_exact(whole.lines, parts.lines).all()
