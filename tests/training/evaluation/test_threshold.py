"""Choice of the threshold from scores that are made for scenes with a known best threshold."""

import numpy as np
import pytest

from training.evaluation.metrics import STEPS
from training.evaluation.threshold import choose_threshold


def scene(best, roads=20_000, width=0.12, worst=0.0):
    """Scores of a scene whose IoU is highest at about ``best``: (2, steps) counts of pixels."""
    centre = (np.arange(STEPS) + 0.5) / STEPS

    def spread(middle, count):
        shape = np.exp(-(((centre - middle) / width) ** 2) / 2)
        return np.round(count * shape / shape.sum()).astype(np.int64)

    return np.stack([spread(best - 0.15 - worst, 5 * roads), spread(best + 0.15, roads)])


def iou(scores, threshold):
    above = scores[:, round(threshold * STEPS) :].sum(axis=1)
    return above[1] / (scores[1].sum() + above[0])


def chosen(*scenes, default=0.5):
    return choose_threshold(np.stack(scenes), default)


def test_many_alike_scenes_set_the_threshold():
    random = np.random.default_rng(0)
    scenes = [scene(best) for best in random.normal(0.3, 0.02, 60)]
    found, whole = chosen(*scenes), np.sum(scenes, axis=0)
    curve = [iou(whole, k / STEPS) for k in range(1, STEPS)]
    best = (np.argmax(curve) + 1) / STEPS
    assert found.low <= best <= found.high
    assert found.threshold == pytest.approx(best, abs=0.03)
    assert iou(whole, found.threshold) > max(curve) - 0.01
    assert found.high - found.low < 0.1


def test_one_unlike_scene_of_five_does_not_set_the_threshold():
    """Its pixels outweigh the others: the best threshold of all pixels is low."""
    scenes = [scene(0.2, roads=400_000), *[scene(0.5) for _ in range(4)]]
    whole = np.sum(scenes, axis=0)
    curve = [iou(whole, k / STEPS) for k in range(1, STEPS)]
    assert np.argmax(curve) / STEPS < 0.35
    found = chosen(*scenes)
    assert found.threshold == 0.5
    assert found.low < 0.35 < 0.5 <= found.high


def test_five_scenes_that_agree_move_the_threshold_half_way():
    """Test scenes may be unlike these, and lose less by it."""
    found = chosen(*[scene(best) for best in (0.18, 0.2, 0.2, 0.22, 0.21)])
    assert 0.27 < found.threshold < 0.4
    other = scene(0.5)
    assert iou(other, found.threshold) > iou(other, 0.2) + 0.15


def test_more_scenes_move_it_further():
    few, more, many = (chosen(*[scene(0.3)] * count).threshold for count in (2, 6, 60))
    assert 0.5 > few > more > many


@pytest.mark.parametrize(
    "scenes",
    [
        [scene(0.2)],
        [scene(0.2), np.zeros((2, STEPS), np.int64)],
        [scene(0.2, roads=0), scene(0.2, roads=0)],
    ],
    ids=["one scene", "one scene with labels", "no roads"],
)
def test_the_default_is_kept_where_scenes_cannot_tell(scenes):
    assert chosen(*scenes) == (0.5, 0.0, 1.0)
    assert chosen(*scenes, default=0.115).threshold == 0.115


def test_a_perfect_model_keeps_the_default():
    perfect = np.zeros((2, STEPS), np.int64)
    perfect[0, 0], perfect[1, -1] = 900, 100
    found = chosen(perfect, perfect, perfect)
    assert found.threshold == 0.5
    assert found.low <= 1 / STEPS
    assert found.high == 255 / STEPS
