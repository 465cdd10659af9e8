"""Which black is nodata, against a labelling by SciPy; validity from strips of an image."""

import numpy as np
import pytest
from helpers.black import black_nodata
from hypothesis import example, given
from hypothesis import strategies as st

from geoprep.imagery import validity
from geoprep.imagery.validity import decide, has_bits, read_bits, strip_validity, write_bits


@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.integers(1, 40),
    st.floats(0, 1),
    st.integers(1, 2000),
)
@example(0, 1, 1, 1.0, 1)
@example(0, 9, 17, 1.0, 20)
@example(3, 30, 31, 0.4, 31)
def test_black_that_reaches_the_edge_is_that_of_scipy(seed, height, width, share, strip):
    black = np.random.default_rng(seed).random((height, width)) < share
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validity, "_STRIP_PIXELS", strip)
        found = validity.edge_black(black)
    assert np.array_equal(found, black_nodata(black))


@pytest.mark.parametrize("rows", [1, 7, 60])
def test_strips_decide_as_the_whole_image(tmp_path, rows):
    rng = np.random.default_rng(rows)
    black = rng.random((60, 45)) < 0.35
    unusable = ~black & (rng.random((60, 45)) < 0.01)
    valid = (~black & ~unusable).astype(np.uint8)
    strips = {
        top: strip_validity(valid[top : top + rows], black[top : top + rows])
        for top in range(0, 60, rows)
    }
    bits, nodata = decide(strips, 60, 45)
    outer = black_nodata(black)
    assert nodata == outer.sum()
    file = str(tmp_path / "valid.bits")
    assert not has_bits(file)
    write_bits(file, bits)
    assert has_bits(file)
    window = slice(3, 50), slice(11, 44)
    expected = ~(outer | unusable)[window]
    assert np.array_equal(read_bits(file, 45, *window), expected)


def test_an_image_without_nodata_has_no_mask():
    inner = np.zeros((9, 9), bool)
    inner[4, 4] = True
    strips = {0: strip_validity((~inner).astype(np.uint8), inner)}
    assert decide(strips, 9, 9) == (None, 0)
    assert decide({0: strip_validity(None, None)}, 9, 9) == (None, 0)
