"""Pictures show what they should."""

import numpy as np
from PIL import Image

from geoprep.palette import GROUND, SPEED_COLOURS
from training.monitor.pictures import Example, choose_tiles, draw_curves, draw_examples


def test_speeds_have_the_colours_of_all_our_pictures(tmp_path):
    image = np.full((64, 64, 4), 90, np.uint8)
    truth, prediction = np.zeros((64, 64), np.uint8), np.full((64, 64), 65, np.uint8)
    path = tmp_path / "epoch_001.png"
    bands = ("nir", "red", "green", "blue")
    draw_examples(path, [Example(image, truth, prediction)] * 2, bands, "epoch 1")
    sheet = np.asarray(Image.open(path))
    middle = sheet[44 + 120]
    assert tuple(middle[120]) == (90, 90, 90)
    assert tuple(middle[246 + 120]) == GROUND
    assert tuple(middle[2 * 246 + 120]) == SPEED_COLOURS[6]
    assert [p.name for p in tmp_path.iterdir()] == ["epoch_001.png"]


def test_the_same_tiles_are_chosen_and_they_have_roads():
    road = np.array([0, 0.5, 0.1, 0.4, 0, 0.3], np.float32)
    assert choose_tiles(road, 2) == [1, 5]
    assert set(choose_tiles(road, 99)) == set(range(6))
    assert choose_tiles(road[:1], 4) == [0]


def test_curves_of_any_history(tmp_path):
    history = [{"epoch": 1, "loss": 0.5, "lr": 1e-3}, {"epoch": 2, "loss": 0.4, "road_iou": 0.1}]
    draw_curves(tmp_path / "curves.png", history)
    assert Image.open(tmp_path / "curves.png").size[0] > 600
