"""Random scale, rotation and boxes of other samples on the device."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.errors import UsageError
from geoprep.speed import NODATA
from loaders import (
    BatchLoader,
    ClassTarget,
    DeviceAugmentation,
    DevicePrep,
    Normalize,
    RamTiles,
    SpeedTarget,
)

ALL = {"scale": 1.33, "rotate": 180.0}
KEYS = torch.arange(64) * 0x1234567 - 9_000_000


def pictures(n, bands, rows, columns, seed=0):
    """Return random images, and labels of every byte."""
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (n, rows, columns, bands), np.uint8)
    label = random.integers(0, 256, (n, rows, columns), np.uint8)
    return torch.from_numpy(image).permute(0, 3, 1, 2), torch.from_numpy(label)


def fixed(scale=1.0, degrees=0.0):
    """Return an augmentation that draws one scale and one angle only."""
    module = DeviceAugmentation(scale=4.0, rotate=180.0)
    angle = np.radians(degrees)
    module.turn[:] = torch.tensor([np.cos(angle), np.sin(angle)])
    module.scales[:] = 1 / scale
    return module


@given(st.integers(1, 16), st.integers(1, 33), st.integers(1, 33))
@settings(max_examples=10)
def test_scale_1_and_angle_0_change_nothing(bands, rows, columns):
    image, label = pictures(2, bands, rows, columns)
    for module in (fixed(), DeviceAugmentation()):
        found, known = module(image, label, KEYS[:2])
        assert torch.equal(found, image)
        assert torch.equal(known, label)


@pytest.mark.parametrize("quarters", [1, 2, 3])
@pytest.mark.parametrize("side", [32, 33])
def test_quarter_turns_are_those_of_the_symmetries(quarters, side):
    image, label = pictures(3, 2, side, side)
    found, known = fixed(degrees=90 * quarters)(image, label, KEYS[:3])
    assert torch.equal(found, torch.rot90(image, quarters, (2, 3)))
    assert torch.equal(known, torch.rot90(label, quarters, (1, 2)))


@given(st.floats(0.75, 1.33), st.floats(-180, 180), st.integers(4, 35), st.integers(4, 35))
@settings(max_examples=25)
def test_a_painted_spot_stays_under_its_label(scale, degrees, row, column):
    image = torch.zeros((1, 1, 40, 40), dtype=torch.uint8)
    label = torch.zeros((1, 40, 40), dtype=torch.uint8)
    image[0, 0, row - 2 : row + 3, column - 2 : column + 3] = 200
    label[0, row - 2 : row + 3, column - 2 : column + 3] = 37
    found, known = fixed(scale, degrees)(image, label, KEYS[:1])
    assert set(known.unique().tolist()) <= {0, 37, NODATA}
    spot, inside = known[0] == 37, known[0] != NODATA
    # A pixel is labelled where its nearest source is; the image is a mean of its four sources.
    assert ((found[0, 0] >= 50) | ~spot).all()
    assert ((found[0, 0] <= 150) | spot | ~inside).all()
    at_edge = spot.clone()
    at_edge[1:-1, 1:-1] = False
    if spot.any() and not at_edge.any():  # nothing of it is cut off
        assert spot.sum() == pytest.approx(25 * scale**2, rel=0.5)


def test_scale_magnifies_about_the_centre_and_the_outside_is_unlabelled():
    image, label = pictures(1, 3, 40, 40)
    label %= 200
    found, known = fixed(scale=2.0)(image, label, KEYS[:1])
    source = torch.arange(40).add(20).div(2).long()  # of output pixel i: 10 + i / 2
    assert torch.equal(known[0], label[0][source][:, source])
    found, known = fixed(scale=0.5)(image, label, KEYS[:1])
    outside = known[0] == NODATA
    assert not outside[10:30, 10:30].any()
    assert outside.sum() == 40 * 40 - 20 * 20
    assert found.float().mean() == pytest.approx(float(image.float().mean()), rel=0.05)  # mirrored


@pytest.mark.parametrize("bands", [1, 3, 16])
def test_a_picture_depends_on_its_key_alone(bands):
    image, label = pictures(7, bands, 37, 50)
    module = DeviceAugmentation(**ALL)
    together = module(image, label, KEYS[:7])
    assert together[0].is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(together[0], module(image, label, KEYS[7:14])[0])
    for i in range(7):
        alone = module(image[i : i + 1], label[i : i + 1], KEYS[i : i + 1])
        assert torch.equal(alone[0][0], together[0][i])
        assert torch.equal(alone[1][0], together[1][i])


def numbered(n, rows, columns):
    """Return images whose three bands are sample, row and column, and labels of their sums."""
    where = np.meshgrid(*(np.arange(side) for side in (n, rows, columns)), indexing="ij")
    image = torch.from_numpy(np.stack(where, axis=1).astype(np.uint8))
    return image, image.sum(1).to(torch.uint8)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40), st.floats(0.05, 1))
@settings(max_examples=30)
def test_a_box_is_a_piece_of_the_next_sample_with_its_label(n, rows, columns, cutmix):
    image, label = numbered(n, rows, columns)
    found, known = DeviceAugmentation(cutmix=cutmix)(image, label, KEYS[:n])
    assert torch.equal(known, found.sum(1).to(torch.uint8))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for number, (sample, row, column) in enumerate(found.to(torch.int64)):
        moved = torch.stack([row - image[number, 1], column - image[number, 2]])
        inside = (sample != number) if n > 1 else moved.any(0)
        assert set(sample[inside].tolist()) <= {(number + 1) % n}
        assert not moved[:, ~inside].any()
        if inside.any():
            assert (moved[:, inside] == moved[:, inside][:, :1]).all(), "one piece"
            y, x = (axis.unique() for axis in torch.where(inside))
            assert len(y) * len(x) == inside.sum() <= cutmix * rows * columns, "a rectangle"


def test_boxes_have_all_sizes_and_places_and_differ_by_key():
    image, label = numbered(64, 50, 40)
    found, _ = DeviceAugmentation(cutmix=0.5)(image, label, KEYS)
    boxed = (found[:, 0] != image[:, 0]).float()
    share = boxed.mean((1, 2))
    assert 0.15 < share.mean() < 0.35
    assert share.min() < 0.05
    assert 0.4 < share.max() <= 0.5
    assert boxed.mean(0)[5:-5, 5:-5].min() > 0, "boxes are in all places"
    other, _ = DeviceAugmentation(cutmix=0.5)(image, label, KEYS + 1)
    assert not torch.equal(found, other)


def test_draws_fill_their_bounds():
    module = DeviceAugmentation(scale=1.5, rotate=30)
    angles = torch.rad2deg(torch.atan2(module.turn[:, 1], module.turn[:, 0]))
    assert angles.abs().max() == pytest.approx(30, abs=0.01)
    assert module.scales.max() / module.scales.min() == pytest.approx(2.25, rel=1e-4)


@pytest.mark.parametrize("target", [SpeedTarget("bins"), SpeedTarget("binary"), ClassTarget(5)])
def test_preparation_augments_in_training_only_and_the_outside_is_not_valid(target):
    tiles = RamTiles.from_arrays(
        *(np.full((4, 40, 40, 3), 9, np.uint8), np.full((4, 40, 40), 3, np.uint8)),
        classes=tuple("abcde") if target.targets == "classes" else (),
    )
    batch = next(iter(BatchLoader(tiles, 4, crop=32)))
    plain = DevicePrep(Normalize([0.0] * 3, [1.0] * 3), target)
    prep = DevicePrep(
        *(Normalize([0.0] * 3, [1.0] * 3), target), augmentation=fixed(scale=0.5, degrees=45)
    )
    assert prep.state_dict().keys() == plain.state_dict().keys()
    for one, other in zip(prep.eval()(batch), plain(batch), strict=True):
        assert torch.equal(one, other)
    image, found, valid = prep.train()(batch)
    assert valid[:, 15:17, 15:17].all()
    assert not valid[:, :4].any()
    assert (image == 9).all()  # mirrored, not black
    assert 0.2 < valid.float().mean() < 0.3
    assert found.shape[0] == 4


def test_autocast_does_not_change_the_picture():
    image, label = pictures(2, 3, 64, 64)
    module = DeviceAugmentation(**ALL)
    plain = module(image, label, KEYS[:2])
    with torch.autocast("cpu", torch.bfloat16):
        cast = module(image, label, KEYS[:2])
    assert torch.equal(plain[0], cast[0])
    assert torch.equal(plain[1], cast[1])


@pytest.mark.parametrize("name", [*ALL, "cutmix"])
def test_a_value_out_of_range_is_named(name):
    with pytest.raises(UsageError, match=rf"{name}=-1.* must be within"):
        DeviceAugmentation(**{name: -1.0})
