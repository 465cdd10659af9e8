"""Windows cover an image and fade into each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.predict_cases import FACTS
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.errors import UsageError
from geoprep.speed import MAX_MPH
from training.evaluation.metrics import speed_mph
from training.prediction.blend import RowBlender, label_bytes, to_bytes
from training.prediction.cog.writer import halve
from training.prediction.windows import (
    WindowGrid,
    WindowRow,
    check_window,
    plan_axis,
    window_grid,
)

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
    facts = replace(FACTS, channels=2, class_mph=())
    with RowBlender(WindowGrid(rows, columns, 1), facts, 0.5, threads=2) as blender:
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


def test_bytes_are_rounded_and_255_is_nodata():
    sums = np.array([[[0.0, 0.4999 / 255], [0.5, 1.0], [0.2, 0.3], [1.0, 1.0]]], np.float32)
    valid = np.array([[1, 1, 1, 0]], np.uint8)
    out = np.zeros((3, 1, 4), np.uint8)
    assert to_bytes(sums, (0, 1, 0, 4), 0, valid, np.array([20], np.float32), 0.5, out) == 0
    assert out[:, 0].T.tolist() == [[0, 0, 0], [254, 20, 128], [77, 0, 51], [255, 255, 255]]


def test_predicted_speed_is_never_the_code_of_an_unknown_one():
    """Also not where a network was trained on speeds that no mask holds."""
    ones = np.ones((1, 1, 2), np.float32)
    out = np.zeros((3, 1, 1), np.uint8)
    valid = np.ones((1, 1), np.uint8)
    assert to_bytes(ones, (0, 1, 0, 1), 0, valid, np.array([300], np.float32), 0.5, out) == 0
    assert out[1, 0, 0] == MAX_MPH


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("channel", [0, 1])
def test_values_that_are_not_finite_are_nodata_in_every_band(bad, channel):
    sums = np.full((1, 3, 2), 0.9, np.float32)
    sums[0, 1:, channel] = bad
    out = np.zeros((3, 1, 3), np.uint8)
    valid = np.array([[1, 1, 0]], np.uint8)  # without imagery, nothing is lost
    assert to_bytes(sums, (0, 1, 0, 3), 0, valid, np.array([20], np.float32), 0.5, out) == 1
    assert out[:, 0].T.tolist() == [[230, 20, 230], [255, 255, 255], [255, 255, 255]]


def test_predictions_are_decoded_as_in_the_metrics():
    random = torch.Generator().manual_seed(1)
    probabilities = torch.rand(2, 8, 40, 50, generator=random)
    mph = (4.4, 14.5, 25.0, 36.2, 44.0, 55.9, 64.5)
    speed = (speed_mph(probabilities, "bins", mph) + 0.5).floor()
    found = label_bytes(probabilities, replace(FACTS, channels=8, class_mph=mph), 0.3)
    assert torch.equal(found, torch.where(probabilities[:, -1] >= 0.3, speed, 0).to(torch.uint8))
    assert set(found.unique().tolist()) == {0, 4, 15, 25, 36, 44, 56, 65}


def test_overviews_average_valid_pixels_and_keep_roads():
    fine = np.array([[1, 2, 255, 255], [0, 4, 255, 9], [0, 30, 0, 0], [0, 0, 0, 255]], np.uint8)
    coarse = np.zeros((2, 2), np.uint8)
    halve(fine, False, coarse)
    assert coarse.tolist() == [[2, 9], [8, 0]]
    halve(fine, True, coarse)
    assert coarse.tolist() == [[2, 9], [30, 0]]
    halve(np.full((4, 4), 255, np.uint8), True, coarse)
    assert (coarse == 255).all()
