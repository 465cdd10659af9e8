"""Test thinning against scikit-image."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from skimage.morphology import thin as reference

from geoprep.roads.centrelines.kernels import thinned


def blobs(seed, shape, share, smooth):
    noise = np.random.default_rng(seed).normal(size=shape)
    field = ndimage.gaussian_filter(noise, smooth)
    return field > np.quantile(field, 1 - share)


masks = st.builds(
    blobs,
    st.integers(0, 100_000),
    st.tuples(st.integers(1, 80), st.integers(1, 200)),
    st.floats(0.1, 0.9),
    st.sampled_from([0.0, 1.0, 3.0]),
)


@given(masks)
@settings(max_examples=50, deadline=None)
def test_thin_equals_scikit_image(mask):
    before = mask.copy()
    assert np.array_equal(thinned(mask), reference(mask))
    assert np.array_equal(mask, before)
