"""Probabilities become bytes of roads, speeds and classes, as in predictions and metrics."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.predict_cases import FACTS

from geoprep.speed import MAX_MPH
from training.evaluation.metrics import speed_mph
from training.runners.decoding import label_bytes, road_bytes


def test_bytes_are_rounded_and_255_is_nodata():
    sums = np.array([[[0.0, 0.4999 / 255], [0.5, 1.0], [0.2, 0.3], [1.0, 1.0]]], np.float32)
    valid = np.array([[1, 1, 1, 0]], np.uint8)
    out = np.zeros((3, 1, 4), np.uint8)
    assert road_bytes(sums, (0, 1, 0, 4), 0, valid, np.array([20], np.float32), 0.5, out) == 0
    assert out[:, 0].T.tolist() == [[0, 0, 0], [254, 20, 128], [77, 0, 51], [255, 255, 255]]


def test_predicted_speed_is_never_the_code_of_an_unknown_one():
    """Also not where a network was trained on speeds that no mask holds."""
    ones = np.ones((1, 1, 2), np.float32)
    out = np.zeros((3, 1, 1), np.uint8)
    valid = np.ones((1, 1), np.uint8)
    assert road_bytes(ones, (0, 1, 0, 1), 0, valid, np.array([300], np.float32), 0.5, out) == 0
    assert out[1, 0, 0] == MAX_MPH


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("channel", [0, 1])
def test_values_that_are_not_finite_are_nodata_in_every_band(bad, channel):
    sums = np.full((1, 3, 2), 0.9, np.float32)
    sums[0, 1:, channel] = bad
    out = np.zeros((3, 1, 3), np.uint8)
    valid = np.array([[1, 1, 0]], np.uint8)  # without imagery, nothing is lost
    assert road_bytes(sums, (0, 1, 0, 3), 0, valid, np.array([20], np.float32), 0.5, out) == 1
    assert out[:, 0].T.tolist() == [[230, 20, 230], [255, 255, 255], [255, 255, 255]]


def test_predictions_are_decoded_as_in_the_metrics():
    random = torch.Generator().manual_seed(1)
    probabilities = torch.rand(2, 8, 40, 50, generator=random)
    mph = (4.4, 14.5, 25.0, 36.2, 44.0, 55.9, 64.5)
    speed = (speed_mph(probabilities, mph) + 0.5).floor()
    found = label_bytes(probabilities, replace(FACTS, channels=8, class_mph=mph), 0.3)
    assert torch.equal(found, torch.where(probabilities[:, -1] >= 0.3, speed, 0).to(torch.uint8))
    assert set(found.unique().tolist()) == {0, 4, 15, 25, 36, 44, 56, 65}
