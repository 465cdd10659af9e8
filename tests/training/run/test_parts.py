"""Parts of a run: weights of the loss that favour what is rare, augmentation."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.predict_cases import FACTS
from helpers.steps import batch
from helpers.tiny import darken

from loaders import DeviceAugmentation
from training.run.parts import channel_share, inverse_root, make_prep
from training.settings import SamplingConfig


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


def test_the_augmentation_of_a_user_comes_before_the_built_in_one():
    given, preps = batch(), []
    for rotate in (0.0, 180.0):
        random = SamplingConfig(augmentation="helpers.tiny:darken", rotate=rotate)
        preps.append(make_prep(FACTS, torch.float32, random))
    parts = given.image, given.label, given.key
    dark = darken(*parts)
    turned = DeviceAugmentation(rotate=180.0)(*dark, given.key)
    for prep, wanted in zip(preps, (dark, turned), strict=True):
        assert all(map(torch.equal, prep.augmentation(*parts), wanted))


def test_colours_vary_by_default_where_roads_are_learnt_not_classes():
    facts = {"roads": FACTS, "classes": replace(FACTS, targets="classes", channels=3)}
    made = {
        (kind, jitter): make_prep(info, torch.float32, SamplingConfig(jitter=jitter)).jitter
        for kind, info in facts.items()
        for jitter in ("auto", 0.0, 0.5)
    }
    varied = {key for key, jitter in made.items() if jitter is not None}
    assert varied == {("roads", "auto"), ("roads", 0.5), ("classes", 0.5)}
