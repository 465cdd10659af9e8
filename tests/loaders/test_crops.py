"""Image and mask stay aligned under every crop and symmetry, and the affine follows them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.painted import paint, painted_speed
from hypothesis import given
from hypothesis import strategies as st

from loaders.crops import as_items, copy_crop, crop_affine, gather, symmetry
from loaders.sampling import Sampling


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    side = draw(st.integers(1, 60))
    crop = draw(st.integers(1, side))
    y, x = (draw(st.integers(0, side - crop)) for _ in range(2))
    return side, crop, y, x, draw(st.integers(0, 7))


@given(windows(), st.integers(3, 9))
def test_image_and_mask_share_one_geometry(window: tuple[int, int, int, int, int], bands: int):
    side, crop, y, x, op = window
    image, speed = paint(2, side, bands)
    image_out, speed_out = np.zeros((crop, crop, bands), np.uint8), np.zeros((crop, crop), np.uint8)
    copy_crop(as_items(image[1]), y, x, op, as_items(image_out))
    copy_crop(speed[1], y, x, op, speed_out)
    # What the image says about its rows and columns is what the mask must be painted with.
    row, column = image_out[..., 0].astype(int) - 1, image_out[..., 1].astype(int) - 1
    assert (image_out[..., 2] == 2).all()
    assert (speed_out == painted_speed(1, row, column)).all()
    assert (row.min(), column.min(), row.max(), column.max()) == (y, x, y + crop - 1, x + crop - 1)


@given(windows(), st.sampled_from([1, 2, 3, 4, 5, 8, 12]))
def test_windows_are_those_of_plain_indexing(window: tuple[int, int, int, int, int], bands: int):
    side, crop, y, x, op = window
    tile = np.random.default_rng(side).integers(0, 256, (side, side, bands), np.uint8)
    out = np.zeros((crop, crop, bands), np.uint8)
    copy_crop(as_items(tile), y, x, op, as_items(out))
    assert (out == symmetry(tile[y : y + crop, x : x + crop], op)).all()


@pytest.mark.parametrize("bands", [1, 3, 8])
def test_whole_tile_goes_into_any_rows(bands: int):
    tile = np.random.default_rng(0).integers(0, 256, (40, 40, bands), np.uint8)
    wide = as_items(np.zeros((40, 44, bands), np.uint8))
    copy_crop(as_items(tile), 0, 0, 0, wide[:, :40])
    assert (wide[:, :40] == as_items(tile)).all()
    assert not wide[:, 40:].view(np.uint8).any()


def test_the_eight_symmetries_are_eight():
    corner = np.arange(9).reshape(3, 3)
    seen = {symmetry(corner, op).tobytes() for op in range(8)}
    expected = {np.rot90(m, k).tobytes() for m in (corner, corner.T) for k in range(4)}
    assert seen == expected
    assert len(seen) == 8


@given(windows())
def test_affine_of_a_window_takes_each_pixel_to_where_it_was(
    window: tuple[int, int, int, int, int],
):
    side, crop, y, x, op = window
    tile = (0.31, 0.07, 413871.25, 0.05, -0.29, 6180032.5)
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    was_row, was_column = (symmetry(a[y : y + crop, x : x + crop], op) for a in (rows, columns))
    a, b, c, d, e, f = crop_affine(tile, y, x, op, crop)
    i, j = np.meshgrid(np.arange(crop) + 0.5, np.arange(crop) + 0.5, indexing="ij")
    found = a * j + b * i + c, d * j + e * i + f
    u, v = was_column + 0.5, was_row + 0.5
    expected = 0.31 * u + 0.07 * v + tile[2], 0.05 * u - 0.29 * v + tile[5]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bands", [1, 3, 8])
def test_threads_do_not_disturb_each_other(bands: int):
    image = np.random.default_rng(0).integers(0, 256, (16, 64, 64, bands), np.uint8)
    sampling = Sampling(16, 64, 33, "d4", 4)
    parts = [sampling.crops(0, np.arange(i, i + 16)) for i in range(0, 64, 16)]

    def run(part: int) -> np.ndarray:
        out = np.zeros((16, 33, 33, bands), np.uint8)
        gather(as_items(image), parts[part], as_items(out))
        return out

    alone = [run(part) for part in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for part, out in enumerate(pool.map(run, [0, 1, 2, 3] * 8)):
            assert (out == alone[part % 4]).all()
