"""Offsets between labels and predictions, on painted predictions of known shift."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.predict_cases import FACTS
from helpers.stores import write_store
from torch.nn import functional

from training.evaluate import main
from training.evaluation.offsets import OffsetSums
from training.evaluation.validation import evaluate_runner

SIDE = 96
BINARY = replace(FACTS, channels=1, targets="binary", gsd_m=(0.5, 2.0), class_mph=())


def streets(shift=(0.0, 0.0), side=SIDE, blur=1.0, seed=0):
    """Return curved roads (n, y, x), 0 to 1, moved by a shift (y, x) of any fraction of a pixel."""
    y, x = np.mgrid[:side, :side] - np.reshape(shift, (2, 1, 1))
    found = np.zeros((2, side, side))
    for tile, start in enumerate((0.2, 0.5)):
        for distance in (
            np.abs(y - side * (start + 0.1 * np.sin(x / 15 + seed))),
            np.abs(x - side * (start + 0.2) - 8 * np.cos(y / 20)),
            np.abs(np.hypot(y - side / 2, x - side / 2) - side * 0.3),
        ):
            found[tile] = np.maximum(
                found[tile], 1 / (1 + np.exp(np.clip((distance - 3) / blur, -50, 50)))
            )
    return torch.from_numpy(found).float()


def offset(probability, label, valid=None):
    """Return the offset of tiles of one scene."""
    sums = OffsetSums(1)
    speed = (label > 0.5).to(torch.uint8) * 25
    if valid is not None:
        speed[~valid] = 255
    sums.update(probability[:, None], speed, torch.zeros(len(label), dtype=torch.int64))
    return sums.compute()[0]


@pytest.mark.parametrize(
    ("down", "right"), [(0, 0), (3, -2), (-7, 5), (2.4, 0.3), (-0.5, 1.5), (14, -14)]
)
def test_a_known_shift_is_recovered_within_a_fraction_of_a_pixel(down, right):
    label = streets((down, right), blur=0.05)
    found = offset(streets(blur=1.5) * 0.8 + 0.05, label)
    assert (found.x, found.y) == (pytest.approx(right, abs=0.3), pytest.approx(down, abs=0.3))
    assert found.far == (math.hypot(down, right) > 2)
    assert found.correlation > 0.7
    assert found.unmoved <= found.correlation
    assert math.hypot(found.x - right, found.y - down) <= found.interval + 0.1
    assert found.interval < 0.7
    move = found.move((0.5, 2.0))
    assert move["certain"] == ("yes" if down or right else "no")
    assert (move["dx"], move["dy"]) == (-found.x * 0.5, -found.y * 2)
    assert (move["interval"], move["unit"]) == (found.interval * 2, "metres")


def test_unlabelled_pixels_and_predictions_that_are_not_numbers_have_no_influence():
    label, probability = streets((4, 3)), streets()
    valid = torch.ones_like(label, dtype=torch.bool)
    valid[:, 30:60, 20:50] = False
    probability[:, 70:80, 70:] = math.nan
    found = offset(probability, label, valid)
    assert (found.x, found.y) == (pytest.approx(3, abs=0.2), pytest.approx(4, abs=0.2))


def test_every_scene_has_its_own_offset_summed_over_its_tiles():
    sums = OffsetSums(2)
    truth = torch.cat([streets((4, 0), seed=1)[:1], streets((0, -3))[:1], streets((4, 0))[1:]])
    guess = torch.cat([streets(seed=1)[:1], streets()[:1], streets()[1:]])
    group = torch.tensor([0, 1, 0])
    sums.update(guess[:, None], (truth > 0.5).to(torch.uint8), group)
    one, two = sums.compute()
    assert (one.x, one.y) == (pytest.approx(0, abs=0.2), pytest.approx(4, abs=0.2))
    assert (two.x, two.y) == (pytest.approx(-3, abs=0.2), pytest.approx(0, abs=0.2))


def test_along_a_straight_road_the_shortest_offset_counts():
    label = torch.zeros(1, SIDE, SIDE)
    label[:, 43:49] = 1
    probability = torch.zeros(1, SIDE, SIDE)
    probability[:, 40:46] = 0.9
    probability += 0.01 * torch.rand(1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    found = offset(probability, label)
    assert (found.x, found.y) == (pytest.approx(0, abs=0.6), pytest.approx(3, abs=0.2))


def test_without_roads_or_likeness_the_offset_is_unknown():
    label = streets()
    for probability in (
        torch.full_like(label, 0.3),
        torch.rand(label.shape, generator=torch.Generator().manual_seed(0)),
    ):
        found = offset(probability, label)
        assert math.isnan(found.x)
        assert not found.far
    assert math.isnan(offset(label, torch.zeros_like(label)).correlation)


def test_classes_are_correlated_together():
    label = torch.zeros(2, SIDE, SIDE, dtype=torch.uint8)
    label[streets((0, 5)) > 0.5] = 2
    label[:, :30, :30] = 1
    guess = torch.zeros(2, SIDE, SIDE, dtype=torch.int64)
    guess[streets() > 0.5] = 2
    guess[:, :30, :25] = 1
    sums = OffsetSums(1, 3)
    probability = functional.one_hot(guess, 3).movedim(3, 1).float()
    sums.update(probability, label, torch.zeros(2, dtype=torch.int64))
    (found,) = sums.compute()
    assert (found.x, found.y) == (pytest.approx(5, abs=0.3), pytest.approx(0, abs=0.3))


class Shifted:
    """A runner that finds bright roads, but moves them."""

    device = torch.device("cpu")
    fixed_batch = False

    def __call__(self, image):
        roads = (image[:, :1] > 75).float().roll((-4, 3), dims=(2, 3))
        return roads.permute(0, 2, 3, 1)


def test_evaluation_reports_the_scenes_whose_labels_lie_off(tmp_path):
    store = write_store(tmp_path / "off.zarr", gsd_m=(0.5, 2.0))
    found = evaluate_runner(Shifted(), BINARY, [store], "all", offsets=True)
    assert len(found.offsets) == 8
    for row in found.offsets:
        assert (row["x"], row["y"]) == (pytest.approx(-3, abs=1), pytest.approx(4, abs=1))
        assert row["metres"] == pytest.approx(math.hypot(row["x"] * 0.5, row["y"] * 2))
    assert any("8 of 8 scenes lie more than 2 pixels off" in note for note in found.notes)
    assert not evaluate_runner(Shifted(), BINARY, [store], "all").offsets


def test_comparisons_of_models_have_no_offsets(capsys):
    assert main(["a.pt", "b.pt", "--compare", "--on", "s.zarr", "--offsets"]) == 2
    assert "--offsets is for one model" in capsys.readouterr().err


# Intervals: what a model does not clearly see moves no label


def speckled(seed, share=0.5, side=SIDE):
    """Return noise of two tiles."""
    random = torch.rand((2, side, side), generator=torch.Generator().manual_seed(seed))
    return random * share


@pytest.mark.parametrize("seed", range(12))
def test_a_model_that_sees_nothing_moves_no_label(seed):
    """Predictions of blobs at random places may resemble the label somewhere by chance."""
    noise = functional.avg_pool2d(speckled(seed, 1.0)[:, None], 9, 1, 4)[:, 0]
    found = offset(((noise - noise.mean()) * 8 + 0.3).clamp(0, 1), streets(seed=seed))
    assert found.move((1, 1))["certain"] == "no"


def test_a_label_in_place_is_not_moved_by_a_noisy_model():
    for seed in range(6):
        truth = streets(seed=seed)
        seen = (truth * 0.5 + speckled(seed, 0.5)).clamp(0, 1)
        found = offset(seen, (truth > 0.5).float())
        assert math.hypot(found.x, found.y) < 0.3


def test_quarters_that_lie_off_in_different_directions_have_no_certain_offset():
    label = streets()
    guess = label.clone()
    half = SIDE // 2
    guess[:, :half] = streets((0, 5))[:, :half]
    guess[:, half:] = streets((0, -4))[:, half:]
    found = offset(guess, (label > 0.5).float())
    assert found.interval > abs(found.x)
    assert found.move((1, 1))["certain"] == "no"


def test_an_offset_of_a_single_quarter_has_no_interval():
    label, guess = torch.zeros(1, SIDE, SIDE), torch.zeros(1, SIDE, SIDE)
    label[:, 10:30, 12:30], guess[:, 6:26, 12:30] = 1, 1
    found = offset(guess, label)
    assert found.y == pytest.approx(4, abs=0.3)
    assert math.isnan(found.interval)
    assert found.move((1, 1))["certain"] == "no"


def test_quarters_add_up_to_the_sums_of_whole_tiles_of_any_size():
    """Every pixel is compared with those around it, also beyond the border of its quarter."""
    for height, width in ((37, 50), (64, 33)):
        label = (streets()[:, :height, :width] > 0.5).to(torch.uint8)
        guess = streets((2, 1))[:, :height, :width]
        sums = OffsetSums(1)
        sums.update(guess[:, None], label, torch.zeros(2, dtype=torch.int64))
        products = sums.sums[0].sum(dim=0)[0, 5]
        for down, right in ((0, 0), (-16, 9), (3, 16)):
            rows = slice(max(0, -down), min(height, height - down))
            cols = slice(max(0, -right), min(width, width - right))
            moved = label[:, max(0, down) :, max(0, right) :][
                :, : rows.stop - rows.start, : cols.stop - cols.start
            ]
            expected = (guess[:, rows, cols] * moved).sum()
            assert products[down + 16, right + 16] == pytest.approx(float(expected), abs=0.01)
