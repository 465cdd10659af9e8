"""Test centre lines, the same in blocks as in one piece, and the clean-up of masks."""

from unittest.mock import patch

import numpy as np
import pytest
import shapely
from helpers.roads import array_raster, drawn
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage
from skimage.morphology import skeletonize

from geoprep.errors import ImageError
from geoprep.roads.centrelines import rasters
from geoprep.roads.centrelines.thinning import CleaningLimits, cleaned, skeleton
from geoprep.roads.options import Tracing
from geoprep.roads.tracing.pixel_graph import pixel_network
from geoprep.roads.tracing.steps import trace


def blobs(seed, shape, share):
    """Return a random mask with patches a few pixels wide."""
    rng = np.random.default_rng(seed)
    field = ndimage.gaussian_filter(rng.normal(size=shape), rng.uniform(1, 5))
    return (field > np.quantile(field, 1 - share)).astype(np.uint8)


@given(
    seed=st.integers(0, 10_000),
    shape=st.tuples(st.integers(12, 220), st.integers(12, 220)),
    share=st.floats(0.2, 0.7),
    width=st.sampled_from([4.0, 8.0, 20.0]),
    area=st.sampled_from([0.0, 5.0, 20.0]),
    block=st.integers(20, 90),
    cell=st.sampled_from([1, 2, 3]),
)
def test_blocks_join_without_seams(seed, shape, share, width, area, block, cell):
    raster = array_raster(blobs(seed, shape, share), pixel_size_m=0.6 / cell)
    options = Tracing(max_width_m=width, min_area_m2=area, min_hole_m2=area)
    with patch.object(rasters, "_MANY_PIXELS", 0):
        whole = skeleton(raster, options)
        parts = skeleton(raster, options, block=block)
    assert whole.cell_m == (0.6, 0.6)
    assert np.array_equal(parts.row, whole.row)
    assert np.array_equal(parts.col, whole.col)
    assert np.array_equal(parts.reach_m, whole.reach_m)


@pytest.mark.parametrize("pixel", [0.3, 1.0, 3.0])
def test_a_road_is_not_interrupted_at_the_borders_of_blocks_and_of_the_raster(pixel):
    """The skeleton of an array ends 3 to 4 pixels before its border."""
    mask = np.zeros((60, 240), np.uint8)
    mask[26:35] = 1
    assert np.nonzero(skeletonize(mask))[1].min() == 3
    found = skeleton(array_raster(mask, pixel_size_m=pixel), Tracing(), block=80)
    assert np.array_equal(np.sort(found.col), np.arange(240))


@pytest.mark.parametrize(
    "line", [[(50, 10), (50, -110)], [(-10, -20), (110, -75)], [(-10, 20), (110, -120)]]
)
def test_a_road_that_crosses_the_border_reaches_it(line):
    raster = array_raster(drawn([line], (100, 100), width=6))
    found = skeleton(raster, Tracing())
    on_border = (found.row % 99 == 0) | (found.col % 99 == 0)
    network = pixel_network(found)
    assert on_border.sum() >= 2
    assert len(network.ends) == 1
    assert network.length_m[0] > 95


def test_a_road_along_the_border_is_kept():
    raster = array_raster(drawn([[(10, -1), (90, -1)]], (100, 100), width=4))
    found = skeleton(raster, Tracing())
    assert set(range(15, 85)) <= set(found.col.tolist())
    assert (found.row <= 2).all()


def test_a_square_is_traced_along_its_edge():
    mask = np.zeros((200, 200), np.uint8)
    mask[50:150, 50:150] = 1
    mask[97:103] = 1
    raster = array_raster(mask)
    found = skeleton(raster, Tracing(max_width_m=30))
    inside = (abs(found.row - 100) < 20) & (abs(found.col - 100) < 20)
    assert not inside.any()
    assert len(np.unique(found.row)) > 70


def test_noise_is_refused(monkeypatch):
    monkeypatch.setattr("geoprep.roads.centrelines.thinning._FEW", 1000)
    noise = (np.random.default_rng(0).random((300, 300)) < 0.42).astype(np.uint8)
    raster = array_raster(noise, name="noise.png")
    with pytest.raises(ImageError, match=r"noise.png: noise, not roads.*`threshold`"):
        skeleton(raster, Tracing(min_hole_m2=0))


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (3, 3), (300, 300)])
@pytest.mark.parametrize("value", [0, 1])
def test_rasters_that_are_road_nowhere_or_everywhere(shape, value):
    raster = array_raster(np.full(shape, value, np.uint8), pixel_size_m=0.3)
    if value:
        with pytest.raises(ImageError, match=r"road everywhere.*inverted"):
            skeleton(raster, Tracing())
    else:
        assert not len(skeleton(raster, Tracing()).row)


masks = arrays(bool, st.tuples(st.integers(1, 24), st.integers(1, 24)))


def without_small(mask, least, structure, *, keep_border):
    """Return the mask that scipy's labels give."""
    labels, _ = ndimage.label(mask, structure)
    gone = np.bincount(labels.ravel()) < least
    gone[0] = False
    if keep_border:
        gone[np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])] = False
    return mask & ~gone[labels]


@given(masks, st.integers(0, 12), st.integers(0, 12))
def test_small_patches_and_holes_are_removed(mask, area, hole):
    expected = without_small(mask, area, np.ones((3, 3)), keep_border=False)
    expected = ~without_small(~expected, hole, None, keep_border=True)
    assume(not expected.all())  # see test_a_mask_without_background_has_no_road
    assert np.array_equal(cleaned(mask, CleaningLimits(area, hole, 100)), expected)


@given(masks, st.integers(1, 5))
def test_no_pixel_deeper_than_the_depth_is_left(mask, depth):
    padded = np.pad(mask, 1)
    steps = ndimage.distance_transform_cdt(padded, metric="taxicab")
    assert np.array_equal(cleaned(padded, CleaningLimits(1, 1, depth)), padded & (steps <= depth))


def test_a_mask_without_background_has_no_road():
    """Its distance transform is negative everywhere."""
    assert not cleaned(np.ones((40, 40), bool), CleaningLimits(1, 1, 5)).any()


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_narrow_diagonal_keeps_its_length(width, mirrored):
    """scikit-image alone takes half of a diagonal two pixels wide that leads down to the right."""
    mask = sum(np.eye(120, k=k, dtype=np.uint8) for k in range(width))
    lines = skeleton(array_raster(mask[:, ::-1] if mirrored else mask), Tracing(min_area_m2=0))
    assert len(np.unique(lines.row)) >= 116
    grid = np.zeros(lines.shape, bool)
    grid[lines.row, lines.col] = True
    assert ndimage.label(grid, np.ones((3, 3)))[1] == 1


@pytest.mark.parametrize("line", [[(20, -30), (50, -34)], [(-5, -10), (70, -50)]])
@pytest.mark.parametrize("pixel", [0.3, 0.2])
def test_a_large_raster_of_fine_pixels_has_the_same_lines(monkeypatch, line, pixel):
    raster = array_raster(drawn([line], (201, 205), width=8, pixel=pixel), pixel_size_m=pixel)
    small = trace(raster)
    monkeypatch.setattr(rasters, "_MANY_PIXELS", 200 * 200)
    large = trace(raster)
    assert raster.cell == round(0.6 / pixel)
    assert len(small.lines) == len(large.lines) == 1
    assert shapely.hausdorff_distance(small.lines[0], large.lines[0]) < 0.9
    assert large.length_m[0] == pytest.approx(small.length_m[0], abs=0.7)
