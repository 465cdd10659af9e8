"""Pictures of tiles and curves."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from geoprep.palette import BACKGROUND_COLOUR, NODATA_GREYS, SPEED_COLOURS
from geoprep.store.classes import ClassTable
from training.pictures import FALSE, HIT, MISSED, Example, choose_tiles, draw_curves, draw_examples

SIDE = 246
"""Distance of two panels in pixels."""


def sheet_of(tmp_path, *args, **kwargs):
    path = tmp_path / "epoch_001.png"
    bands = ("nir", "red", "green", "blue")
    draw_examples(path, [Example(*args, **kwargs)] * 2, bands, "epoch 1")
    assert [p.name for p in tmp_path.iterdir()] == ["epoch_001.png"]
    return np.asarray(Image.open(path))


def test_speeds_have_the_colours_of_all_pictures(tmp_path):
    image = np.full((64, 64, 4), 90, np.uint8)
    truth, prediction = np.zeros((64, 64), np.uint8), np.full((64, 64), 65, np.uint8)
    sheet = sheet_of(tmp_path, image, truth, prediction)
    middle = sheet[44 + 120]
    assert tuple(middle[120]) == (90, 90, 90)
    assert tuple(middle[SIDE + 120]) == BACKGROUND_COLOUR
    assert tuple(middle[2 * SIDE + 120]) == SPEED_COLOURS[6]
    assert tuple(middle[3 * SIDE + 120]) == FALSE


def test_errors_have_different_colours(tmp_path):
    image = np.zeros((64, 64, 4), np.uint8)
    truth, prediction = np.zeros((64, 64), np.uint8), np.zeros((64, 64), np.uint8)
    truth[:32], prediction[:, :32], truth[48:, 48:] = 25, 45, 255
    errors = sheet_of(tmp_path, image, truth, prediction)[44:, 3 * SIDE :]
    top, bottom = 60, 180
    assert [tuple(errors[top, x]) for x in (60, 180)] == [HIT, MISSED]
    assert tuple(errors[bottom - 40, 60]) == FALSE
    assert tuple(errors[bottom - 40, 150]) == BACKGROUND_COLOUR
    assert tuple(errors[230, 230]) == NODATA_GREYS[1]  # not labelled


def test_roads_without_speeds_have_one_colour(tmp_path):
    image = np.zeros((64, 64, 4), np.uint8)
    truth, prediction = np.zeros((64, 64), np.uint8), np.zeros((64, 64), np.uint8)
    truth[:16], truth[16:32], prediction[:32] = 15, 65, 45
    sheet = sheet_of(tmp_path, image, truth, prediction, has_speed=False)
    colours = {tuple(sheet[44 + y, x + 120]) for y in (30, 90) for x in (SIDE, 2 * SIDE)}
    assert len(colours) == 1
    legend = {tuple(pixel) for pixel in sheet[-22:].reshape(-1, 3)}
    assert len(legend & set(SPEED_COLOURS)) == 1


@pytest.mark.parametrize(
    ("names", "missed"), [(("background", "house"), MISSED), (("a", "b"), FALSE)]
)
def test_errors_of_a_single_class_are_missed_or_false(tmp_path, names, missed):
    label, prediction = np.zeros((64, 64), np.uint8), np.zeros((64, 64), np.uint8)
    label[:32], prediction[16:48] = 1, 1
    image = np.full((64, 64, 4), 100, np.uint8)
    classes = ClassTable(names, ("#000000", "#D55E00"))
    errors = sheet_of(tmp_path, image, label, prediction, classes=classes)[44:, 3 * SIDE :]
    rows = [tuple(errors[y, 100]) for y in (30, 90, 150, 230)]
    right = tuple(errors[230, 100])
    assert rows == [missed, HIT if names[0] == "background" else right, FALSE, right]


def test_chosen_tiles_have_roads_and_do_not_change():
    road, valid = np.array([0, 0.5, 0.1, 0.4, 0, 0.3], np.float32), np.ones(6, np.float32)
    assert choose_tiles(road, valid, 2) == [1, 5]
    assert set(choose_tiles(road, valid, 99)) == set(range(6))
    assert choose_tiles(road[:1], valid[:1], 4) == [0]


def test_chosen_tiles_have_little_nodata():
    road, valid = np.full(6, 0.5, np.float32), np.array([1, 0.2, 0.95, 0.5, 1, 0], np.float32)
    assert choose_tiles(road, valid, 3) == [0, 2, 4]
    assert choose_tiles(road, np.zeros(6, np.float32), 2) == [0, 2]


def test_curves_of_any_history(tmp_path):
    history = [{"epoch": 1, "loss": 0.5, "lr": 1e-3}, {"epoch": 2, "loss": 0.4, "road_iou": 0.1}]
    draw_curves(tmp_path / "curves.png", history)
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 600


def test_one_large_loss_does_not_flatten_the_curve(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path: shown.append(path.touch() or figure)
    )
    losses = [0.9, 23.8, 0.5, 0.4, 0.3]
    draw_curves(tmp_path / "a.png", [{"epoch": i, "loss": x} for i, x in enumerate(losses)])
    draw_curves(tmp_path / "a.png", [{"epoch": i, "loss": x} for i, x in enumerate(losses[2:])])
    limited, whole = (figure.axes[0] for figure in shown)
    assert limited.get_title() == "loss (1 higher, not shown)"
    assert 0.9 < limited.get_ylim()[1] < 1
    assert whole.get_title() == "loss"


def test_rare_validations_are_joined_and_shown_though_far_above_training(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path: shown.append(path.touch() or figure)
    )
    history = [{"epoch": i, "loss": 0.01} for i in range(1, 100)]
    for epoch in (1, 40, 80):
        history[epoch - 1] |= {"val_loss": 0.8, "mean_iou": 0.5}
    draw_curves(tmp_path / "a.png", history)
    losses, scores = (figure.lines for figure in shown[0].axes[:2])
    assert losses[1].get_xdata().tolist() == scores[0].get_xdata().tolist() == [1, 40, 80]
    assert shown[0].axes[0].get_title() == "loss"
    assert shown[0].axes[0].get_ylim()[1] > 0.8


@pytest.mark.parametrize(
    ("scores", "drawn"),
    [
        ({}, []),
        ({"road_iou": 0.1}, ["road"]),
        ({"mean_iou": 0.1, "worst_iou": 0.0}, ["mean", "worst class"]),
    ],
)
def test_curves_are_those_of_what_was_measured(tmp_path, monkeypatch, scores, drawn):
    """Also in a run whose first epochs are not validated."""
    shown = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path: shown.append(path.touch() or figure)
    )
    draw_curves(
        tmp_path / "a.png", [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.4, **scores}]
    )
    assert [line.get_label() for line in shown[0].axes[1].lines] == drawn
