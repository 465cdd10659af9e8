"""Rules that derive a next step, each on a case made for it."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import shapely

from training.evaluation import standing
from training.evaluation.standing import Standing, km_to_training, unlearned_classes


def scenes(*scores, km=math.nan):
    return [
        {"scene": f"s{number}", "road_iou": score, "km_to_training": km}
        for number, score in enumerate(scores)
    ]


def epochs(losses, validation, scores):
    names = ("loss", "val_loss", "road_iou")
    rows = zip(losses, validation, scores, strict=True)
    return [{"level": 64.0} | dict(zip(names, row, strict=True)) for row in rows]


GOOD = {"score": "road_iou", "scenes": scenes(0.60, 0.62, 0.58, 0.61), "metrics": {}}
FALLING = epochs((0.4, 0.3, 0.2, 0.15), (0.4, 0.3, 0.25, 0.22), (0.2, 0.3, 0.4, 0.5))


BEHIND = {"model": 0.808, "forest": 0.868}


def elsewhere(*scores):
    return {"scenes": [*scenes(0.60, 0.62, 0.58, 0.61, km=0), *scenes(*scores, km=30)]}


@pytest.mark.parametrize(
    ("case", "step"),
    [
        ({}, None),
        ({"unlearned": ("ice",)}, "no training pixel has the class ice"),
        ({"history": FALLING}, "from 0.2 to 0.15 in the last quarter of 4 .*`epochs` 8"),
        ({"history": FALLING[:2]}, None),
        # Training loss falls, but that of validation is unknown or does not, or an earlier epoch is
        # the best.
        ({"history": [row | {"val_loss": math.nan} for row in FALLING]}, None),
        ({"history": [row | {"val_loss": 0.25} for row in FALLING]}, None),
        ({"history": [*FALLING[:-1], FALLING[-1] | {"road_iou": 0.1}]}, None),
        ({"history": epochs((0.4, 0.2, 0.15, 0.149), (0.3,) * 4, (0.2, 0.3, 0.4, 0.5))}, None),
        (elsewhere(0.41, 0.40, 0.43), "0.19 less .*near training scenes 0.60, more than 10 km"),
        (elsewhere(0.41, 0.40, 0.43) | {"rescale": "scene"}, "0.41.: add training scenes"),
        (elsewhere(0.41, 0.40, 0.43) | {"rescale": "none"}, "0.41.: build .*`rescale` scene"),
        (elsewhere(0.41, 0.40, 0.43) | {"split": "test"}, None),
        (elsewhere(0.55, 0.57, 0.56), None),
        (elsewhere(0.1, 0.8), None),  # too unlike to say
        (elsewhere(0.2), None),
        ({"scenes": scenes(0.8, 0.2, 0.7, 0.3)}, None),  # some scenes are harder than others
        ({"baseline": {"model": 0.824, "forest": 0.802}}, "0.82, .* 0.80. It has learned colours"),
        ({"baseline": {"model": 0.743, "forest": 0.617}}, None),
        ({"baseline": {"model": 0.97, "forest": 0.96}}, None),  # colours are enough
        ({"baseline": BEHIND}, "has 0.868, the model 0.808: train longer .*, or take the forest"),
        ({"baseline": BEHIND, "split": "test"}, "a random forest has 0.868, the model 0.808"),
        ({"baseline": BEHIND, "model": "resnet34-unet"}, "use `model` unet-small, .* train longer"),
        (
            {"baseline": BEHIND, "rescale": "scene"},
            r"share .*`rescale` none .*city\), train longer",
        ),
        ({"baseline": {"model": 0.5}}, None),  # without scikit-learn
        ({"scenes": scenes(math.nan)}, None),
    ],
)
def test_a_next_step_is_given_only_with_its_evidence(case, step):
    found = Standing(**GOOD | case).next_steps()
    assert len(found) == (step is not None)
    assert step is None or re.search(step, found[0])


def test_scenes_with_hardly_a_road_are_not_ranked():
    bare = {**scenes(0.0)[0], "road_fraction": 1e-4}
    found = Standing(**GOOD | {"scenes": [*GOOD["scenes"], bare]})
    said = ("road IoU of 4 scenes", "median 0.605, 10 % to 90 %: 0.586 to 0.617")
    assert found.facts()[0] == said
    assert dict(found.facts())["worst"] == "s2 0.580, s0 0.600, s3 0.610"
    assert dict(found.facts())["best"] == "s1 0.620"


def test_distances_to_training_scenes_are_those_on_the_ground(monkeypatch):
    y = 6378137 * math.asinh(math.tan(math.radians(60)))  # lengths there are doubled
    at = [shapely.box(x, y, x + 1, y + 1) for x in (0, 40_001)]
    monkeypatch.setattr(standing, "outlines", lambda *_: (np.array([*at, None], object), ""))
    table = {"store": np.zeros(3, int), "scene": np.arange(3)}
    loader = SimpleNamespace(tiles=SimpleNamespace(stores=[None], table=table))
    assert km_to_training(loader, [[0]]) == pytest.approx([0, 20, math.nan], nan_ok=True, abs=0.01)
    assert all(map(math.isnan, km_to_training(loader, [[2]])))


def test_a_class_of_scenes_outside_the_fold_is_unlearned():
    """The first store has ice in its second scene only, the second has no water."""
    one = SimpleNamespace(
        meta=SimpleNamespace(class_names=("land", "ice", "water")),
        tiles=SimpleNamespace(scene=np.array([0, 1, 1, 2])),
        class_pixels=np.array([[9, 0, 0], [9, 0, 0], [7, 2, 0], [9, 0, 1]], np.uint32),
    )
    two = SimpleNamespace(
        meta=SimpleNamespace(class_names=("ice", "land")),
        tiles=SimpleNamespace(scene=np.array([0, 1])),
        class_pixels=np.array([[0, 9], [1, 8]], np.uint32),
    )
    info = SimpleNamespace(class_names=("land", "ice", "water"))

    def unlearned(*training):
        return unlearned_classes(info, [one, two], [np.array(each, int) for each in training])

    assert unlearned([0, 1], [0]) == ["water"]
    assert unlearned([0, 2], [0]) == ["ice"]
    assert unlearned([0, 2], [1]) == []
    assert unlearned([], []) == []
