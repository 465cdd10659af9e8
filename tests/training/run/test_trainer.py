"""Trainers of users: the recipes of the documentation, as they stand there."""

import re
from functools import partial
from pathlib import Path

import pytest
from helpers.runs import KEYWORDS, rows

import training
from training.checkpoint import load

PAGE = (Path(__file__).parents[3] / "docs/how-to/own-model.md").read_text(encoding="utf-8")


@pytest.fixture
def recipe(store_path, short_runs, tmp_path, monkeypatch):
    """Return a function that runs a recipe with a small model and returns rows of metrics.csv."""
    monkeypatch.chdir(tmp_path)
    Path("moscow.zarr").symlink_to(store_path)
    small = KEYWORDS | {"epochs": 2, "lr": 0.02, "progress": False}
    monkeypatch.setattr(training, "train", partial(training.train, **small))

    def run(name):
        (source,) = re.findall(rf"```python own-{name}\n(.*?)```", PAGE, flags=re.DOTALL)
        names = {}
        exec(source, names)
        assert len([line for line in source.splitlines() if line.strip()]) <= 20
        return rows(Path("runs") / source.split('"runs/')[1].split('"')[0])

    return run


def test_another_loss(recipe):
    first, last = recipe("loss")
    assert first["loss"] == first["main"] == first["dice"]
    assert float(last["loss"]) < float(first["loss"]) < 1
    assert "Tversky; adamw" in Path("runs/tversky/log.txt").read_text()


def test_another_schedule(recipe, monkeypatch):
    first, last = recipe("schedule")
    assert [float(first["lr"]), float(last["lr"])] == [0.02, 0.02]
    training.train(["moscow.zarr"], resume="runs/halved", epochs=3)
    resumed = rows(Path("runs/halved"))[-1]
    assert float(resumed["lr"]) < 0.01  # the built-in schedule: its last step
    assert load("runs/halved").progress["epoch"] == 3


def test_a_metric_per_epoch(recipe):
    first, last = (float(row["brier"]) for row in recipe("metric"))
    assert 0 < last < first < 1
