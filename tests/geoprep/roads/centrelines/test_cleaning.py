"""Patches and holes go by their size, the insides of squares by their depth."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from geoprep.errors import ImageError
from geoprep.roads.centrelines.cleaning import Sizes, clean, hollow, ranges

EIGHT = np.ones((3, 3))
INSIDE = (False,) * 4
masks = arrays(bool, st.tuples(st.integers(1, 24), st.integers(1, 24)))


def without_small(mask, least, structure, *, spare_border):
    """Say the same by scipy's labels."""
    labels, _ = ndimage.label(mask, structure)
    gone = np.bincount(labels.ravel()) < least
    gone[0] = False
    if spare_border:
        gone[np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])] = False
    return mask & ~gone[labels]


@given(masks, st.integers(2, 12), st.integers(2, 12))
@settings(max_examples=150, deadline=None)
def test_small_patches_and_holes_go(mask, area, hole):
    expected = without_small(mask, area, EIGHT, spare_border=False)
    expected = ~without_small(~expected, hole, None, spare_border=True)
    assume(not expected.all())  # see test_a_mask_without_background_has_no_road
    clean(mask, Sizes(area, hole, 100), INSIDE)
    assert np.array_equal(mask, expected)


def test_a_patch_that_goes_on_beyond_the_block_stays():
    mask = np.zeros((9, 9), bool)
    mask[0, 4] = mask[8, 4] = mask[4, 0] = mask[4, 8] = True
    clean(mask, Sizes(5, 1, 100), (True, False, True, False))
    assert np.argwhere(mask).tolist() == [[0, 4], [4, 0]]


@given(masks, st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_nothing_deeper_than_the_depth_is_left(mask, depth):
    padded = np.pad(mask, 1)
    steps = ndimage.distance_transform_cdt(padded, metric="taxicab")
    mask = padded.copy()
    hollow(mask, depth)
    assert np.array_equal(mask, padded & (steps <= depth))


def test_a_mask_without_background_has_no_road():
    mask = np.ones((40, 40), bool)
    hollow(mask, 5)
    assert not mask.any()


def test_noise_is_refused_before_it_takes_memory(monkeypatch):
    monkeypatch.setattr("geoprep.roads.centrelines.cleaning._MOST_RUNS", 100)
    noise = np.random.default_rng(0).random((100, 100)) < 0.5
    with pytest.raises(ImageError, match="noise"):
        clean(noise, Sizes(5, 5, 5), INSIDE)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_ranges_follow_one_another(pairs):
    first, counts = np.array(pairs, np.int64).reshape(-1, 2).T
    expected = [f + i for f, c in pairs for i in range(c)]
    assert ranges(first, counts).tolist() == expected
