"""Crops: image and label stay aligned under every symmetry, and the affine follows them."""

import ctypes
import mmap

import numpy as np
import pytest
from helpers.painted import paint, symmetry
from hypothesis import given
from hypothesis import strategies as st

from loaders.batch import Crops, crop_affine
from loaders.copying import copy_crops, crop_kernel


@st.composite
def places(draw):
    side = draw(st.integers(1, 150))
    crop = draw(st.integers(1, side))
    y, x = (draw(st.integers(0, side - crop)) for _ in range(2))
    return side, crop, y, x, draw(st.integers(0, 7))


def test_the_eight_symmetries_are_eight():
    corner = np.arange(9).reshape(3, 3)
    seen = {symmetry(corner, op).tobytes() for op in range(8)}
    expected = {np.rot90(m, k).tobytes() for m in (corner, corner.T) for k in range(4)}
    assert seen == expected
    assert len(seen) == 8


@given(places())
def test_affine_of_a_crop_keeps_the_place_of_each_pixel(place):
    side, crop, y, x, op = place
    tile = (0.31, 0.07, 413871.25, 0.05, -0.29, 6180032.5)
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    was_row, was_column = (symmetry(a[y : y + crop, x : x + crop], op) for a in (rows, columns))
    a, b, c, d, e, f = crop_affine(tile, y, x, op, crop)
    i, j = np.meshgrid(np.arange(crop) + 0.5, np.arange(crop) + 0.5, indexing="ij")
    found = a * j + b * i + c, d * j + e * i + f
    u, v = was_column + 0.5, was_row + 0.5
    expected = 0.31 * u + 0.07 * v + tile[2], 0.05 * u - 0.29 * v + tile[5]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def assert_copied(crops, tiles, found):
    crop = found.shape[1]
    for one, (tile, y, x, op, *_) in zip(found, zip(*crops, strict=True), strict=True):
        assert (one == symmetry(tiles[tile, y : y + crop, x : x + crop], op)).all()


@given(places(), st.sampled_from([1, 3, 8]), st.data())
def test_a_batch_in_one_call_is_that_of_plain_indexing(place, bands, data):
    side, crop, *_ = place
    n, rng = data.draw(st.integers(1, 6)), np.random.default_rng(side * bands)
    images = rng.integers(0, 256, (3, side, side, bands), np.uint8)
    labels = rng.integers(0, 256, (3, side, side), np.uint8)
    corner = st.integers(0, side - crop)
    ends = (st.integers(0, 2), corner, corner, st.integers(0, 7), st.just(0), st.just(0))
    rows = [[data.draw(end) for end in ends] for _ in range(n)]
    crops = Crops(*np.array(rows, np.int64).T)
    around = np.full((n + 2, crop, crop, bands), 77, np.uint8)  # to see what is written beyond
    image, label = around[1:-1], np.zeros((n, crop, crop), np.uint8)
    copy_crops(images, labels, crops, image, label)
    assert_copied(crops, images, image)
    assert_copied(crops, labels, label)
    assert (around[[0, -1]] == 77).all()


@pytest.mark.parametrize(("column", "value"), [("tile", 3), ("y", 5), ("x", -1), ("op", 8)])
def test_a_crop_outside_of_its_tile_is_refused(column, value):
    images, labels = paint(3, 12, 3)
    crops = Crops(*np.zeros((6, 2), np.int64))._replace(**{column: np.array([0, value])})
    out = np.zeros((2, 8, 8, 3), np.uint8), np.zeros((2, 8, 8), np.uint8)
    with pytest.raises(IndexError, match="outside of its tile"):
        copy_crops(images, labels, crops, *out)


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("bands", [1, 3, 8])
def test_nothing_beyond_the_tiles_is_read(bands, end):
    """The tiles begin after, or end before, a page that must not be read."""
    page, side = mmap.PAGESIZE, 16
    memory = mmap.mmap(-1, 4 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    closed = ctypes.c_void_p(start + (3 * page if end else 0))
    assert ctypes.CDLL(None).mprotect(closed, page, 0) == 0
    nbytes = side * side * bands
    images = np.frombuffer(memory, np.uint8, nbytes, 3 * page - nbytes if end else page)
    images = images.reshape(1, side, side, bands)
    labels = np.zeros((1, side, side), np.uint8)
    for crop in (1, 3, 8, 15, 16):
        corner = np.full(8, (side - crop) * end)
        zero = np.zeros(8, np.int64)
        crops = Crops(zero, corner, corner, np.arange(8), zero, zero)
        out = np.ones((8, crop, crop, bands), np.uint8), np.ones((8, crop, crop), np.uint8)
        copy_crops(images, labels, crops, *out)
        assert not out[0].any()


def test_the_copy_of_crops_is_compiled_once_for_all_processes():
    """A second compilation with the same number of bands finds the first in the cache on disk."""
    crop_kernel.__wrapped__(2)
    (hits,) = crop_kernel.__wrapped__(2).stats.cache_hits.values()
    assert hits == 1
