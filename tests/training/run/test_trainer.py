"""The length of a run, and trainers of users: the recipes of the documentation."""

import math
import re
import weakref
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from helpers.runs import KEYWORDS, STATEFUL, assert_same_run, rows
from helpers.stores import write_store

import training
from training.checkpoint import load
from training.run import start, timing, trainer
from training.run.timing import epochs_within

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


def test_another_loss_of_classes(recipe, tmp_path):
    write_store(tmp_path / "land.zarr", classes=("background", "slow", "fast"))
    first, last = recipe("class-loss")
    assert first["loss"] == first["main"] == first["dice"]
    assert float(last["loss"]) < float(first["loss"]) < 1
    assert "Jaccard; adamw" in Path("runs/jaccard/log.txt").read_text()


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


def test_the_last_epoch_may_be_a_part_of_one(stoppable, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    said = stoppable("--out", whole, "--epochs", 1.5).out
    assert "1.5 epochs; seed" in said
    steps = [int(row["step"]) for row in rows(whole)]
    assert steps == [steps[0], steps[0] * 1.5]
    assert "epoch 2/2" in said
    assert float(rows(whole)[-1]["lr"]) < 1e-6, "the schedule ends with the run"
    stoppable("--out", parts, "--epochs", 1.5, at=steps[0] + 1)
    stoppable("--resume", parts)
    assert_same_run(whole, parts)
    assert "is finished, with 2 epochs" in stoppable("--resume", parts).out


@pytest.fixture
def clock(monkeypatch):
    """A clock that steps and validations move by given seconds; all else takes no time."""
    seconds = {"now": 100.0, "step": lambda number: 1.0, "validation": 3.0, "taken": 0}
    step, validate = trainer.train_step, trainer.validate

    def timed_step(*given):
        seconds["taken"] += 1
        seconds["now"] += seconds["step"](seconds["taken"])
        return step(*given)

    def timed_validation(*given, **options):
        seconds["now"] += seconds["validation"]
        return validate(*given, **options)

    monkeypatch.setattr(timing, "_now", lambda: seconds["now"])
    monkeypatch.setattr(trainer, "train_step", timed_step)
    monkeypatch.setattr(trainer, "validate", timed_validation)
    return seconds


@pytest.mark.parametrize(
    ("step", "validation", "every"),
    [
        (lambda number: 1.0, 3.0, 1),
        (lambda number: 20.0 if number == 1 else 1.0, 3.0, 1),  # compiles first
        (lambda number: 0.5 if number < 30 else 2.0, 3.0, 1),  # the machine gets busy
        (lambda number: 2.0 if number < 15 else 0.5, 3.0, 3),  # and idle
        (lambda number: 0.3, 25.0, 1),  # a validation takes longer than epochs
    ],
)
def test_a_run_with_a_time_ends_with_it_validated(fit, out, clock, step, validation, every):
    clock |= {"step": step, "validation": validation}
    options = ("--lr", 0.01, "--val-every", every)
    said = fit("--out", out, "--time", "100s", *options, network=STATEFUL).out
    assert 95 < clock["now"] - 100 <= 105
    last = rows(out)[-1]
    assert last["val_loss"]
    assert int(last["step"]) == clock["taken"]
    assert float(last["lr"]) < 2e-4, "the schedule ends with the time"
    assert "onecycle up to 0.01, 100s; seed 0" in said
    assert "100s of crops of 32 at the finest level" in said
    kept = load(out)
    assert kept.progress["time_over"] == 100
    assert kept.progress["seconds"] == clock["now"] - 100
    again = ("--resume", out, *STATEFUL[:2])
    assert "is finished, with " in fit(*again, store=None, network=()).out
    assert load(out).progress["step"] == clock["taken"]


def test_validations_and_checkpoints_take_a_tenth_of_a_time(fit, out, clock, monkeypatch):
    """A validation takes as long as three steps, with checkpoints five; an epoch has six."""
    saves, save = [], trainer.Checkpoints.save

    def timed_save(*given):
        saves.append(clock["taken"])
        clock["now"] += 2.0
        save(*given)

    monkeypatch.setattr(trainer.Checkpoints, "save", timed_save)
    said = fit("--out", out, "--time", "600s", network=STATEFUL).out
    assert 590 < clock["now"] - 100 <= 605
    history = rows(out)
    validated = [int(row["step"]) for row in history if row["val_loss"]]
    assert 530 < clock["taken"] < 560
    assert 9 <= len(validated) <= 13
    assert saves == validated, "what is not validated is not saved"
    assert len(re.findall(r"^epoch \d+  loss", said, re.MULTILINE)) == len(validated)
    assert [int(row["epoch"]) for row in history] == list(range(1, len(history) + 1))


def test_the_rate_follows_the_clock_not_the_steps(fit, out, clock):
    """A step that stalls takes 40 of 100 s, before the peak at 30 s; epochs have six steps."""
    clock["step"] = lambda number: 40.0 if number == 18 else 1.0
    fit("--out", out, "--time", "100s", "--lr", 0.01, "--val-every", 1, network=STATEFUL)
    rates = [float(row["lr"]) for row in rows(out)]
    assert rates[0] < rates[1] < rates[2] < 0.01
    used, steps = 3 * (6 + 3) + 39 + 6, 100 - 3  # seconds: after the fourth epoch, and for steps
    fallen = (used / steps - 0.3) / 0.7
    assert rates[3] == pytest.approx(0.01 * 0.5 * (1 + math.cos(math.pi * fallen)), rel=0.01)


def test_a_resumed_run_with_a_time_takes_what_is_left(stoppable, tmp_path, clock):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    stoppable("--out", whole, "--time", "1m")
    stoppable("--out", parts, "--time", "1m", at=20)
    stopped, now = load(parts).progress, clock["now"]
    clock["now"] += 5000  # between the two starts
    stoppable("--resume", parts)
    assert clock["now"] - now - 5000 == pytest.approx(60 - stopped["seconds"], abs=2)
    one, other = rows(whole), rows(parts)
    assert [row["step"] for row in one] == [row["step"] for row in other]
    assert float(one[-1]["lr"]) == pytest.approx(float(other[-1]["lr"]), abs=1e-6)
    stoppable("--resume", parts, "--time", "2m")
    assert 115 < load(parts).progress["seconds"] <= 121
    stoppable("--resume", parts, "--epochs", len(rows(parts)) + 1)
    assert load(parts).config["time"] is None
    assert len(rows(parts)) == load(parts).config["epochs"]


@pytest.mark.parametrize(
    ("text", "first", "says"), [("6s", 28.0, "1 step took 28 s"), ("6s", 3.0, "2 steps took 4 s")]
)
def test_a_time_too_short_for_two_steps_is_refused(fit, out, clock, text, first, says):
    clock |= {"step": lambda number: first if number == 1 else 1.0}
    said = fit("--out", out, "--time", text, network=STATEFUL, status=2).err
    assert f"--time 6s is too short: {says}" in said
    assert not (out / "last.pt").exists()


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


@pytest.mark.parametrize("other", [("--stages", "32@32:1"), ("--epochs", 3)])
def test_a_time_beside_another_length_is_refused(fit, out, other):
    said = fit("--out", out, "--time", "3m", *other, status=2).err
    assert f"--time and {other[0]} both say how long to train: give one of them" in said


def test_no_model_is_left_when_the_process_group_ends(store_path, tmp_path, monkeypatch):
    """On several ranks torch would wait for Gloo's threads, and they for Python."""
    made, left = [], []

    class Watched(trainer.Trainer):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            made.append(weakref.ref(self.module))

    @contextmanager
    def group(*_):
        yield
        left.extend(one() for one in made)

    monkeypatch.setattr(start, "process_group", group)
    given = {"stores": (str(store_path),), "out": str(tmp_path / "run"), "quiet": True}
    assert start.start_run(given | KEYWORDS | {"epochs": 1}, trainer=Watched) == 0
    assert len(made) == 1
    assert left == [None]
