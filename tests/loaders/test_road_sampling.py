"""Road counts and weights against a plain count of pixels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoprep.errors import UsageError
from geoprep.speed import BIN_TABLE
from loaders import RamTiles
from loaders.road_sampling import CELL, PixelCells, tile_weights


def tiles_of(speed, road_fraction=()):
    """Return tiles with these labels."""
    tiles = RamTiles.from_arrays(np.zeros((*speed.shape, 1), np.uint8), speed.astype(np.uint8))
    if road_fraction:
        tiles.road_fraction = np.array(road_fraction, np.float32)
    return tiles


def random_labels(tiles, side, seed):
    values = np.array([0, 0, 0, 25, 254, 1, 255], np.uint8)
    return np.random.default_rng(seed).choice(values, (tiles, side, side))


def is_road(speed):
    return (speed != 0) & (speed != 255)


@given(st.integers(20, 75), st.data())
def test_fraction_counts_the_cells_wholly_inside(side, data):
    speed = random_labels(3, side, side)
    crop = data.draw(st.integers(1, side))
    y, x = (data.draw(st.integers(0, side - crop)) for _ in range(2))
    cells = PixelCells.count(tiles_of(speed))
    found = cells.fraction(np.array([1]), np.array([y]), np.array([x]), crop)[0] * crop**2

    def edges(first):
        last = first + crop
        return -(-first // CELL) * CELL, last if last == side else last // CELL * CELL

    (top, bottom), (left, right) = edges(y), edges(x)
    expected = is_road(speed[1, top : max(top, bottom), left : max(left, right)]).sum()
    assert found == pytest.approx(expected)
    assert found <= is_road(speed[1, y : y + crop, x : x + crop]).sum()


@pytest.mark.parametrize("side", [32, 40])
def test_total_is_every_road_pixel(side):
    speed = random_labels(5, side, 0)
    assert PixelCells.count(tiles_of(speed)).total().tolist() == is_road(speed).sum((1, 2)).tolist()


def test_road_weights_follow_the_share_of_road_and_leave_no_tile_out():
    weights = tile_weights("road", tiles_of(np.zeros((3, 8, 8)), [0.0, 0.1, 0.3]))
    assert weights[2] == pytest.approx(3 * weights[1])
    assert 0 < weights[0] < weights[1]


def test_speed_weights_meet_every_bin_equally_often():
    speed = np.zeros((8, 10, 10), np.uint8)
    speed[:5, :5], speed[5, :2], speed[6, :3] = 25, 65, 45
    weights = tile_weights("speed", tiles_of(speed))
    pixels = np.stack([np.bincount(BIN_TABLE[tile].ravel(), minlength=8) for tile in speed])
    met = (weights @ pixels)[BIN_TABLE[[25, 45, 65]]]
    assert met == pytest.approx(met.mean(), rel=0.01)
    assert 0 < weights[7] < weights[0]


def test_speed_weights_do_not_overdraw_the_only_fast_road():
    speed = np.zeros((100, 10, 10), np.uint8)
    speed[:, :5], speed[3, 9, 9] = 25, 65
    weights = tile_weights("speed", tiles_of(speed))
    assert weights.argmax() == 3
    assert weights[3] < 6 * weights.mean()
    assert weights.min() > 0.09 * weights.mean()


def test_without_any_road_all_tiles_weigh_the_same():
    weights = tile_weights("speed", tiles_of(np.zeros((3, 8, 8), np.uint8)))
    assert weights.tolist() == [1.0, 1.0, 1.0]


def test_weights_of_the_chosen_tiles_alone_must_not_be_all_zero():
    masks = tiles_of(np.zeros((2, 8, 8), np.uint8))
    with pytest.raises(UsageError, match="not all zero"):
        tile_weights([1.0, 0.0], masks, np.array([1]))
