"""Windows cover an image and fade into each other."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.errors import UsageError
from training.prediction.host import RowBlender
from training.prediction.window_rows import WindowRow
from training.prediction.windows import WindowGrid, check_window, plan_axis, window_grid
from training.runners.decoding import road_bytes

axes = st.builds(
    lambda length, window, share: plan_axis(length, 32 * window, int(32 * window * share)),
    st.integers(1, 1500),
    st.integers(1, 8),
    st.floats(0, 0.5),
)


@settings(max_examples=200, deadline=None)
@given(axes)
def test_weights_sum_to_one_on_every_pixel(axis):
    total = np.zeros(axis.covered)
    for start, weights in zip(axis.starts, axis.weights, strict=True):
        total[start : start + axis.side] += weights
    np.testing.assert_allclose(total[: axis.length], 1, atol=1e-6)
    assert (axis.weights >= 0).all()


@settings(max_examples=200, deadline=None)
@given(axes)
def test_neighbours_share_the_overlap_and_the_last_ends_with_the_image(axis):
    assert axis.side % 32 == 0
    assert axis.starts[0] == 0
    gaps = np.diff(axis.starts)
    assert (gaps > 0).all()
    assert (axis.side - gaps >= axis.overlap).all()
    if len(axis.starts) > 1:
        assert axis.starts[-1] + axis.side == axis.length
    assert [axis.finished(i) for i in range(len(axis.starts))] == [*axis.starts[1:], axis.length]


@settings(max_examples=100, deadline=None)
@given(axes, st.data())
def test_resume_begins_with_the_first_window_that_matters(axis, data):
    pixel = data.draw(st.integers(0, axis.length - 1))
    first = axis.first_touching(pixel)
    reach = [start + axis.side > pixel for start in axis.starts]
    assert reach.index(True) == first


def test_side_is_fitted_to_the_image_if_that_saves_pixels():
    chip = plan_axis(1300, 512, 64)
    assert (len(chip.starts), chip.side) == (3, 480)
    for chip in (plan_axis(1300, 1024, 32), plan_axis(1312, 1024, 32)):
        assert (chip.starts, chip.side) == ((0,), 1312)
    assert len(plan_axis(1332, 1024, 32).starts) == 2
    assert plan_axis(100_000, 512, 64).side == 512
    assert plan_axis(500, 512, 64).side == 512
    assert plan_axis(40, 512, 64).starts == (0,)


@pytest.mark.parametrize(("window", "overlap"), [(500, 64), (0, 0), (512, 300), (512, -1)])
def test_invalid_windows_are_refused(window, overlap):
    with pytest.raises(UsageError, match=r"`window`|`overlap`"):
        check_window(window, overlap)


def test_batches_leave_few_places_empty():
    for width in range(128, 5000, 160):
        grid = window_grid(500, width, 128, 16, 4)
        windows = len(grid.columns.starts)
        assert 1 <= grid.batch <= 4
        assert -windows % grid.batch <= max(1, windows / 4)


@settings(max_examples=60, deadline=None)
@given(axes, axes, st.integers(0, 99))
def test_blending_by_rows_equals_blending_at_once(rows, columns, seed):
    rng = np.random.default_rng(seed)
    whole = np.zeros((rows.covered, columns.covered, 2))
    valid = (rng.random((rows.covered, columns.length)) < 0.9).astype(np.uint8)
    valid[:, columns.starts[-1] :] *= seed % 2  # windows without imagery are not predicted
    taken = []
    convert = partial(road_bytes, mph=np.zeros(0, np.float32), threshold=0.5)
    out = np.empty((2, rows.side, columns.length), np.uint8)
    with RowBlender(WindowGrid(rows, columns, 1), 2, out, convert, threads=2) as blender:
        for i, top in enumerate(rows.starts):
            shape = len(columns.starts), rows.side, columns.side, 2
            windows = rng.random(shape).astype(np.float32)
            for j, left in enumerate(columns.starts):
                weights = np.outer(rows.weights[i], columns.weights[j])[..., None]
                part = np.s_[top : top + rows.side, left : left + columns.side]
                whole[part] += windows[j] * weights
            row = WindowRow(i, np.empty(0, np.uint8), valid[top : top + rows.side])
            full = [j for j, x in enumerate(columns.starts) if valid[:, x : x + columns.side].any()]
            for j in full:
                blender.add(row, [j], windows[[j]])
            taken.append(blender.take(row).copy())
    found = np.concatenate(taken, axis=1)
    wanted = whole[: rows.length, : columns.length, ::-1] * 255  # any road comes first
    wanted[valid[: rows.length] == 0] = 255
    assert np.abs(found - np.minimum(wanted, 255).transpose(2, 0, 1)).max() < 1.01
    assert ((found == 255) == (valid[: rows.length] == 0)).all()
