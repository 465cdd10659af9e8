"""Weights of the loss that favour what is rare in the labels."""

from types import SimpleNamespace

import numpy as np
import pytest

from training.run.parts import channel_share, inverse_root


def _store(**pixels_by_mph):
    histogram = np.zeros(256, np.uint64)
    for mph, pixels in pixels_by_mph.items():
        histogram[int(mph[1:])] = pixels
    return SimpleNamespace(histogram_speed=histogram)


def test_shares_leave_out_nodata_and_sum_over_stores():
    share = channel_share([_store(_0=80, _25=10, _255=500), _store(_0=80, _45=30)])
    assert share.tolist() == pytest.approx([0, 0, 0.05, 0, 0.15, 0, 0, 0.2])


def test_rare_speeds_weigh_more_within_bounds():
    weights = inverse_root(channel_share([_store(_0=8000, _25=1600, _35=400, _65=1)]))
    assert weights.mean().item() == pytest.approx(1)
    ratio = weights / weights[7]
    assert ratio[2].item() == pytest.approx((2001 / 1600) ** 0.5)
    assert ratio[3].item() == pytest.approx((2001 / 400) ** 0.5)
    assert ratio[6].item() == pytest.approx(5)  # 45 by the root, but at most five times
    assert ratio[0].item() == pytest.approx(1)  # never seen


def test_channel_weights_without_labels_are_equal():
    assert inverse_root(channel_share([_store(_255=100)])).tolist() == [1] * 8
