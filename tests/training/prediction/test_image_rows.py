"""Predictions lie on the grid of the image, whatever pixels the model gets."""

from dataclasses import replace

import numpy as np
import pytest
from affine import Affine
from helpers.predict_cases import (
    FACTS,
    GSD,
    PLACE,
    SMOOTH,
    predict_options,
    predicted,
    write_image,
)
from PIL import Image

from training.prediction.images import inspect_image


def interpolated(bands, shape, scales):
    """Return probabilities (band, y, x) at the centres of pixels, NaN without imagery."""
    at = [
        np.clip((np.arange(n) + 0.5) / scale - 0.5, 0, side - 1)
        for n, scale, side in zip(shape, scales, bands.shape[1:], strict=True)
    ]
    low = [np.floor(a).astype(int) for a in at]
    known = bands != 255
    total, weight = np.zeros((2, len(bands), *shape))
    for down in (0, 1):
        for right in (0, 1):
            rows, cols = (
                np.minimum(first + more, side - 1)
                for first, more, side in zip(low, (down, right), bands.shape[1:], strict=True)
            )
            share = (
                np.outer(np.abs(1 - down - (at[0] - low[0])), np.abs(1 - right - (at[1] - low[1])))
                * known[:, rows][:, :, cols]
            )
            total += share * bands[:, rows][:, :, cols]
            weight += share
    with np.errstate(invalid="ignore"):
        return total / weight


@pytest.mark.parametrize("factors", [(2, 2), (0.5, 0.5), (1.37, 1.37), (0.4, 3.4), (1, 2)])
def test_probabilities_are_interpolated_at_the_pixels_of_the_image(tmp_path, factors):
    """Classes are those of the largest interpolated probability; nodata is that of the image."""
    image = write_image(tmp_path / "image.tif", SMOOTH)
    found, file = predicted(tmp_path / "image_grid.tif", image, factors)
    assert (file.transform, file.shape, file.crs) == (PLACE, SMOOTH.shape[:2], "EPSG:32637")
    coarse, model = predicted(tmp_path / "model_grid.tif", image, factors, grid="model")
    assert model.shape != file.shape
    scales = [a / b for a, b in zip(file.shape, model.shape, strict=True)]
    scales = [round(s) if abs(s - round(s)) < 0.02 else s for s in scales]
    wanted = interpolated(coarse[1:].astype(float), file.shape, scales)
    np.testing.assert_array_equal(found[0] == 255, ~SMOOTH.any(axis=2) | np.isnan(wanted[0]))
    imagery = found[0] != 255
    assert imagery.mean() > 0.96
    assert np.abs(found[1:] - wanted)[:, imagery].max() < 1.6
    first, second = np.sort(wanted, axis=0)[[-1, -2]]
    sure = imagery & (first - second > 2)
    np.testing.assert_array_equal(found[0][sure], wanted.argmax(axis=0)[sure])


@pytest.mark.filterwarnings("ignore:The given matrix is equal to Affine.identity")
@pytest.mark.parametrize("height", [100, 101, 103])
def test_a_picture_keeps_its_size(tmp_path, height):
    Image.fromarray(SMOOTH[:height]).save(tmp_path / "a.png")
    found, file = predicted(tmp_path / "a.tif", tmp_path / "a.png", (3, 3), pixel_size=GSD)
    assert found.shape[1:] == (height, 104)
    assert (file.crs, file.transform) == (None, Affine.identity())


def test_a_road_is_where_the_interpolated_probability_reaches_the_threshold(tmp_path):
    image = write_image(tmp_path / "image.tif", SMOOTH)
    roads = replace(FACTS, channels=3, class_mph=(10.0, 30.0))
    (road, speed), _ = predicted(tmp_path / "p.tif", image, (2, 2), facts=roads)
    imagery = road != 255
    np.testing.assert_array_equal(speed[imagery] > 0, road[imagery] / 255 >= 0.5)
    assert set(np.unique(speed)) == {0, 10, 30, 255}


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            {"gsd": "image"},
            "gets pixels of 0.31 x 0.31 m, and was trained on pixels of 0.62 x 0.62 m",
        ),
        ({"gsd": "0.93"}, "gets pixels of 0.93 x 0.93 m, and was"),
        ({"gsd": "0.65"}, ""),
        ({}, ""),
    ],
)
def test_other_pixel_sizes_than_the_model_s_are_said(tmp_path, options, note):
    image = write_image(tmp_path / "image.tif", SMOOTH)
    facts = replace(FACTS, gsd_m=(0.62, 0.62))
    (said,) = inspect_image(str(image), facts, predict_options(**options)).notes or ("",)
    assert note in said
    assert bool(note) == bool(said)
