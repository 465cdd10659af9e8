"""Which black is nodata, against a labelling by SciPy."""

import numpy as np
from helpers.black import black_nodata
from hypothesis import example, given
from hypothesis import strategies as st

from geoprep.imagery import black as rules


@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.integers(1, 40),
    st.floats(0, 1),
    st.integers(1, 60),
)
@example(0, 1, 1, 1.0, 5)
@example(0, 9, 17, 1.0, 5)
@example(3, 30, 31, 0.4, 9)
def test_groups_are_those_of_scipy(seed, height, width, share, large):
    black = np.random.default_rng(seed).random((height, width)) < share
    bits = np.packbits(black, axis=1)
    first = rules._count_runs(bits, width)
    runs = np.empty((first[-1], 2), np.int32)
    rules._find_runs(bits, width, first, runs)
    kept = rules._clear_specks(bits, width, first, runs, large)
    expected = black_nodata(black, large)
    assert np.array_equal(np.unpackbits(bits, axis=1, count=width), expected)
    assert kept == expected.sum()
