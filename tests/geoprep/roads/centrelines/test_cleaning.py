"""Test the clean-up of masks: patches and holes by their size, wide areas by their depth."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from geoprep.errors import ImageError
from geoprep.roads.centrelines.thinning import CleaningLimits, clean, hollow

EIGHT = np.ones((3, 3))
INSIDE = (False,) * 4
masks = arrays(bool, st.tuples(st.integers(1, 24), st.integers(1, 24)))


def without_small(mask, least, structure, *, keep_border):
    """Return the mask that scipy's labels give."""
    labels, _ = ndimage.label(mask, structure)
    gone = np.bincount(labels.ravel()) < least
    gone[0] = False
    if keep_border:
        gone[np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])] = False
    return mask & ~gone[labels]


@given(masks, st.integers(2, 12), st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_small_patches_and_holes_are_removed(mask, area, hole):
    expected = without_small(mask, area, EIGHT, keep_border=False)
    expected = ~without_small(~expected, hole, None, keep_border=True)
    assume(not expected.all())  # see test_a_mask_without_background_has_no_road
    clean(mask, CleaningLimits(area, hole, 100), INSIDE)
    assert np.array_equal(mask, expected)


def test_a_patch_that_continues_outside_the_block_is_kept():
    mask = np.zeros((9, 9), bool)
    mask[0, 4] = mask[8, 4] = mask[4, 0] = mask[4, 8] = True
    clean(mask, CleaningLimits(5, 1, 100), (True, False, True, False))
    assert np.argwhere(mask).tolist() == [[0, 4], [4, 0]]


@given(masks, st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_no_pixel_deeper_than_the_depth_is_left(mask, depth):
    padded = np.pad(mask, 1)
    steps = ndimage.distance_transform_cdt(padded, metric="taxicab")
    mask = padded.copy()
    hollow(mask, depth)
    assert np.array_equal(mask, padded & (steps <= depth))


def test_a_mask_without_background_has_no_road():
    mask = np.ones((40, 40), bool)
    hollow(mask, 5)
    assert not mask.any()


def test_noise_is_refused_before_it_exhausts_memory(monkeypatch):
    monkeypatch.setattr("geoprep.roads.centrelines.thinning._MOST_RUNS", 100)
    noise = np.random.default_rng(0).random((100, 100)) < 0.5
    with pytest.raises(ImageError, match="noise"):
        clean(noise, CleaningLimits(5, 5, 5), INSIDE)
