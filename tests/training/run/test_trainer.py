"""The length of a run, and trainers of users: the recipes of the documentation."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from helpers.runs import KEYWORDS, STATEFUL, assert_same_run, rows

import training
from training.checkpoint import load
from training.run import trainer
from training.run.timing import StepTimer, epochs_within

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


def test_the_last_epoch_may_be_a_part_of_one(fit, tmp_path, monkeypatch):
    monkeypatch.setenv("DOOM_AT", "0")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    doomed = ("--model", "helpers.tiny:interrupted", *STATEFUL[2:])
    said = fit("--out", whole, "--epochs", 1.5, network=doomed).out
    assert "1.5 epochs; seed" in said
    steps = [int(row["step"]) for row in rows(whole)]
    assert steps == [steps[0], steps[0] * 1.5]
    assert "epoch 2/2" in said
    assert float(rows(whole)[-1]["lr"]) < 1e-6, "the schedule ends with the run"
    monkeypatch.setenv("DOOM_AT", str(steps[0] + 1))
    fit("--out", parts, "--epochs", 1.5, network=doomed, status=130)
    monkeypatch.setenv("DOOM_AT", "0")
    fit("--resume", parts, *doomed[:2], store=None, network=())
    assert_same_run(whole, parts)
    assert (
        "is finished, with 2 epochs"
        in fit("--resume", parts, *doomed[:2], store=None, network=()).out
    )


def test_a_run_with_a_time_fixes_its_epochs_once(fit, out, monkeypatch):
    """The steps are timed for real; what follows from them is given here."""
    asked = []

    def within(seconds, step, *_):
        asked.append((seconds, step))
        return 1.0

    monkeypatch.setattr(trainer, "epochs_within", within)
    monkeypatch.setattr(StepTimer, "TIMED", 1)
    monkeypatch.setenv("DOOM_AT", "8")
    doomed = ("--model", "helpers.tiny:interrupted", *STATEFUL[2:])
    said = fit("--out", out, "--time", "2h", "--epochs", 20, network=doomed, status=130).out
    assert "2h, at most 20 epochs" in said
    assert "1.83 epochs, the end in 2 h 0 min" in said, "five of six steps were done"
    ((seconds, step),) = asked
    assert 7100 < seconds < 7200
    assert 0 < step < 60
    assert (load(out).config["epochs"], load(out).config["time"]) == (1.833, None)
    monkeypatch.setenv("DOOM_AT", "0")
    fit("--resume", out, *doomed[:2], store=None, network=())
    assert len(asked) == 1
    assert load(out).progress["step"] == 6 + 4


def test_no_more_epochs_than_asked_for(fit, out, monkeypatch):
    monkeypatch.setattr(trainer, "epochs_within", lambda *_: 100.0)
    monkeypatch.setattr(StepTimer, "TIMED", 1)
    said = fit("--out", out, "--time", "2h", "--epochs", 2).out
    assert "2 epochs, the end in " in said
    assert len(rows(out)) == 2


def test_epochs_that_a_time_allows():
    """60 steps of 8 x 32 x 32; validation tiles have 4 times the pixels of the crops of 4 steps."""
    of = SimpleNamespace
    loader = MagicMock(sampling=of(crop=32), tiles=of(side=64), schedule=of(batch_size=8))
    loader.__len__.return_value = 60
    tiles = MagicMock(side=64)
    tiles.__len__.return_value = 32
    validation = of(tiles=tiles)  # 16 steps' pixels: 5.33 steps' time
    assert epochs_within(60, 1.0, loader, None, 1) == 1
    assert epochs_within(150, 1.0, loader, None, 2) == 5
    assert epochs_within(2 * 65 + 1 / 3 + 1 / 3, 1.0, loader, validation, 1) == pytest.approx(2)
    assert epochs_within(35.0 + 1 / 3, 1.0, loader, validation, 1) == pytest.approx(0.5)
    assert epochs_within(-100, 1.0, loader, validation, 1) == pytest.approx(1 / 60), "one step"


@pytest.mark.parametrize("text", ["3", "0s", "soon", "-1m"])
def test_a_time_that_is_none(fit, out, text):
    said = fit("--out", out, f"--time={text}", status=2).err
    assert f"--time '{text}': write a time such as 90s, 10m or 2h" in said


def test_a_time_and_stages_are_refused(fit, out):
    said = fit("--out", out, "--time", "3m", "--stages", "32@32:1", status=2).err
    assert "--time fixes the number of --epochs: leave out --stages" in said
