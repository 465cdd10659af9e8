"""Runs of training.fit in this process: results and errors."""

import random
import re
import sys
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest
import torch
from helpers import tiny
from helpers.runs import SMALL, STAGED, assert_same_run, rows, same
from helpers.steps import NoReads
from helpers.stores import write_store

from geoprep.errors import OutputError
from training.checkpoint import load, load_model
from training.model.trainable import copy_weights
from training.run import parts, start, trainer
from training.settings import Config


def test_a_run_learns_and_writes_its_files(fit, out, store):
    fit("--out", out, "--epochs", 6, "--lr", "0.02", "--ema", "0.9", "--jitter", 0)
    made = {path.name for path in out.iterdir()}
    assert made >= {"last.pt", "best.pt", "log.txt", "metrics.csv", "config.yaml", "curves.png"}
    assert len(list((out / "pictures").iterdir())) == 6
    assert list((out / "tensorboard").iterdir())
    history = rows(out)
    assert len(history) == 6
    assert float(history[-1]["loss"]) < float(history[0]["loss"])
    assert max(float(row["road_iou"]) for row in history) > 0.5
    log = (out / "log.txt").read_text()
    header = log[: log.index("epoch 1/6")]
    said = ("helpers.tiny:build", "random weights", "threads", "24 tiles", "allocator", "engine")
    assert all(words in header for words in (*said, "6 steps per epoch")), header
    end = log[log.index("best road IoU") :]
    assert re.search(r"road IoU of 2 scenes: median 0\.\d+.*; worst: AOI_0_Test_chip\d 0\.", end)
    assert f"more: geoprep evaluate {out} {store.location} --model helpers" in end
    assert len(end.splitlines()) <= 5
    network, facts = load_model(out, model="helpers.tiny:build")
    assert facts.bands == store.meta.bands
    assert facts.level == 64
    assert facts.gsd_m == (0.5, 0.5)
    assert facts.class_mph[6] == 65
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 8, 32, 32)


def test_a_loss_of_nan_stops_the_run(fit, out):
    said = fit("--out", out, "--epochs", 1, "--log-every", 3, model="explosive", status=1).err
    assert "the loss is not a number (step 5, epoch 1, seed 0); no checkpoint was written" in said
    assert "start again with a smaller --lr" in said
    assert not (out / "last.pt").exists()


def test_an_infinite_gradient_stops_the_run_before_its_step(fit, out):
    """With a finite loss and an infinite gradient, one step would make all weights NaN."""
    said = fit("--out", out, "--epochs", 1, "--save-every", 1, model="steep", status=1).err
    assert "the gradient is not finite, though the loss is (step 5, epoch 1" in said
    assert f"the last checkpoint is of step 4: --resume {out}" in said
    kept = load(out)
    assert kept.progress["step"] == 4
    assert all(value.isfinite().all() for value in kept.model.values())


def test_an_accelerator_skips_a_loss_of_nan_and_stops_at_the_next_look(fit, out, monkeypatch):
    """The steps of a device, computed on the CPU: the fifth changes nothing at all."""
    states = []
    choose, step = start.choose_engine, trainer.train_step

    def choose_engine(*settings, **options):
        engine = choose(*settings, **options)
        object.__setattr__(engine, "skips_steps", True)  # the class is frozen
        return engine

    def train_step(module, batches, state, count):
        with NoReads():
            result = step(module, batches, state, count)
        weights = copy_weights(state.model)
        averaged = {f"averaged {name}": value.clone() for name, value in state.averaged.items()}
        optimizer = state.optimizer.state_dict()["state"]
        moments = {f"{n} {k}": v.clone() for n in optimizer for k, v in optimizer[n].items()}
        states.append(weights | averaged | moments)
        return result

    monkeypatch.setattr(start, "choose_engine", choose_engine)
    monkeypatch.setattr(trainer, "train_step", train_step)
    options = ("--epochs", 1, "--log-every", 6, "--save-every", 3, "--ema", 0.9)
    said = fit("--out", out, *options, model="poisoned", status=1).err
    assert "the loss is not a number (step 5, epoch 1, seed 0)" in said
    assert f"the last checkpoint is of step 3: --resume {out}" in said
    before, bad, after = states[3:6]
    changes = {name for name in before if not torch.equal(before[name], bad[name])}
    assert all(name.endswith("num_batches_tracked") for name in changes), changes
    for name in ("inner.0.weight", "inner.1.running_mean", "averaged inner.0.weight"):
        assert not torch.equal(bad[name], after[name])
    assert all(value.isfinite().all() for value in after.values())


def test_parameters_without_a_gradient_on_several_ranks_name_the_option(fit, out, monkeypatch):
    def fail(*_):
        raise RuntimeError("Expected ... by passing the keyword `find_unused_parameters=True`")

    monkeypatch.setattr(trainer, "train_step", fail)
    said = fit("--out", out, status=1).err
    assert "of the model, which several ranks have to know: add --find-unused-parameters" in said


def test_fp16_skips_an_overflowing_gradient_and_goes_on(fit, out):
    options = ("--precision", "fp16", "--epochs", 2, "--ema", 0.9)
    said = fit("--out", out, *options, model="steep_normed").out
    assert "fp16, loss scaled" in said
    assert "1 step before step 7 skipped, with an overflow of fp16 in the gradient" in said
    assert [row["skipped"] for row in rows(out)] == ["1", "1"]
    kept = load(out)
    assert kept.scaler["scale"] == 32768
    assert kept.progress["skipped"] == 1
    assert all(v.isfinite().all() for values in (kept.model, kept.ema) for v in values.values())


def test_patience_counts_validations_and_needs_some(fit, out, tmp_path):
    history = [{"val_loss": 1.0} if epoch % 3 == 2 else {} for epoch in range(9)]
    assert not Config(patience=2, epochs=20).lost_patience(history[:8], 2)
    assert Config(patience=2, epochs=20).lost_patience(history, 2)
    bare = write_store(tmp_path / "bare.zarr", splits=(0,))
    assert "--patience counts" in fit("--out", out, "--patience", 2, store=bare, status=2).err


def test_a_validation_split_without_roads_is_noted_and_judged_by_its_loss(fit, out, tmp_path):
    bare = write_store(tmp_path / "bare.zarr", roads=(1, 1, 1, 0))
    said = fit("--out", out, "--epochs", 2, store=bare).out
    assert "note: no validation tile has a road" in said
    assert "road IoU nan" not in said
    assert re.search(r"best validation loss 0\.\d+ after epoch \d", said)


def test_boxes_are_mixed_by_default_where_few_pixels_have_classes(
    fit, out, store_path, tmp_path, monkeypatch
):
    land = write_store(tmp_path / "land.zarr", classes=("background", "slow", "fast"))

    def mixed(*options, store=land):
        said = fit("--out", out, "--epochs", 0.3, "--overwrite", *options, store=store).out
        return re.findall(r"boxes of others up to (\d+)%", said)

    assert mixed() == ["50"]
    assert mixed("--cutmix", 0) == []
    assert mixed("--cutmix", 0.25) == ["25"]
    assert mixed("--cutmix", 0.25, "--augmentation", "helpers.tiny:darken") == ["25"]
    assert mixed(store=store_path) == []
    assert mixed("--cutmix", 0.25, store=store_path) == ["25"]
    counted = parts.class_pixels
    monkeypatch.setattr(parts, "class_pixels", lambda *given: counted(*given) + 2e6)
    assert mixed() == [], "six million pixels"


def test_patience_ends_a_run_early(fit, out):
    said = fit("--out", out, "--epochs", 9, "--lr", "1e-9", "--patience", 2, "--jitter", 0).out
    assert "stopped early" in said
    history = rows(out)
    ious = [float(row["road_iou"]) for row in history]
    assert len(history) < 9
    assert max(ious[-2:]) <= max(ious[:-2])


def test_a_run_asks_for_no_other_device(fit, out, monkeypatch):
    for module in (torch.cuda, torch.xpu, torch.accelerator):
        monkeypatch.setattr(module, "device_count", lambda: pytest.fail("counts devices"))
    fit("--out", out, "--epochs", 1, "--residency", "device")


def test_profile_prints_a_time_breakdown_and_writes_nothing(fit, out):
    said = fit("--out", out, "--profile", "--accumulate", 2, "--ema", "0.9").out
    # The step of training: as many batches, averaged weights, and what is compiled.
    assert "a step of 8 images" in said
    assert "averaged weights" in said
    assert "compiled: nothing" in said
    for phase in ("wait for the batch", "model forward", "backward", "images/s"):
        assert phase in said
    assert not out.exists()


def test_a_plan_tells_memory_steps_and_time_and_writes_nothing(fit, out, monkeypatch):
    """Two epochs of crops and one of whole tiles, with four times the pixels; two validations."""
    monkeypatch.setattr("training.run.plan.time_step", lambda _: 10.0)
    staged = ("--stages", "64@32:2,64:1", "--val-every", 3)
    said = fit("--out", out, "--plan", *staged, network=STAGED).out
    taken, left = re.search(
        r"plan +(\S+) GiB of memory are taken; (\S+) GiB are left", said
    ).groups()
    here = psutil.Process().memory_info().rss / 2**30
    assert 0.5 * here < float(taken) < 2 * here
    assert float(left) > 0
    assert "a step of 4 images takes 10 s: 0.4 images/s" in said
    assert "an epoch takes 60 s, its validation 27 s" in said
    assert "3 epochs: 18 steps in 7 min" in said
    said = fit("--out", out, "--plan", "--time", "3m", "--accumulate", 2).out
    assert "5.33 epochs: 16 steps in 3 min" in said
    assert not out.exists()


def test_a_plan_tells_what_a_smaller_model_would_see(fit, out, monkeypatch):
    monkeypatch.setattr("training.run.plan.time_step", lambda _: 1000.0)
    large = ("--model", "resnet34-unet", "--crop", 32, "--epochs", 3)
    said = fit("--out", out, "--plan", network=large).out
    times, now = re.search(
        r"--model unet-small, would see each tile (\d+) times in.* (\d+)", said
    ).groups()
    assert int(now) == 12  # four crops of a tile in each epoch
    assert int(times) > 100 * int(now)
    small = ("--model", "unet-small", "--crop", 32, "--epochs", 3)
    assert "a smaller model" not in fit("--out", out, "--plan", network=small).out


def test_auto_is_the_small_model_on_a_cpu_and_stays_it(fit, out):
    network = ("--crop", 32, "--crops-per-tile", 1, "--batch-size", 4)
    said = fit("--out", out, "--epochs", 1, network=network).out
    assert re.search(r"model +unet-small, 2.1 M parameters", said)
    assert "--model auto, for a cpu device" in said
    assert load(out).config["model"] == load(out).info.model == "unet-small"
    assert load_model(out)[0](torch.zeros(1, 3, 32, 32)).shape == (1, 8, 32, 32)
    resumed = ("--resume", out, "--epochs", 2, "--model", "auto")
    said = fit(*resumed, store=None, network=()).out
    assert "was unet-small" not in said
    assert load(out).info.model == "unet-small"


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("half_size", "returns (1, 8, 64, 64) for an image of (1, 3, 128, 128)"),
        ("broken", "RuntimeError: out of ideas"),
    ],
)
def test_an_unsuitable_factory_is_a_one_line_error(fit, out, factory, says):
    said = fit("--out", out, model=factory, status=2).err
    assert says in said
    assert len(said.splitlines()) == 1
    assert not (out).exists()


def test_a_pooled_batch_norm_trains(fit, out):
    fit("--out", out, "--epochs", 1, model="pooled")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_one_line_error(fit, out):
    out.mkdir()
    (out / "config.yaml").write_text("# Settings of this run: `--config` takes this file.")
    (out / "log.txt").symlink_to("/dev/full")
    said = fit("--out", out, "--epochs", 1, status=1).err
    assert "No space left on device" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OutputError("full")])
def test_training_goes_on_without_pictures_and_tables_of_a_full_disk(fit, out, monkeypatch, error):
    for name in ("draw_examples", "draw_curves", "replaced"):
        monkeypatch.setattr(f"training.run.report.{name}", mock.Mock(side_effect=error))
    said = fit("--out", out, "--epochs", 1).out
    for name in ("epoch_001.png", "metrics.csv", "curves.png"):
        assert f"warning: {name} is missing ({error})" in said
    assert load(out).progress["epoch"] == 1


def test_the_encoder_can_have_a_lower_rate_or_be_frozen(fit, tmp_path):
    start = {}
    for factor in (0, 0.1, 1):
        out = tmp_path / f"run{factor}"
        options = ("--epochs", 1, "--encoder-lr", factor, "--optimizer", "sgd", "--clip", "none")
        fit("--out", out, *options, model="encoded")
        start[factor] = load(out).model["encoder.weight"]
    torch.manual_seed(0)
    untrained = tiny.encoded(3, 8).state_dict()["encoder.weight"]
    moved = {factor: (weight - untrained).abs().max() for factor, weight in start.items()}
    assert moved[0] == 0
    assert 0 < moved[0.1] < 0.5 * moved[1]
    said = fit("--out", tmp_path / "no", "--encoder-lr", 0, network=SMALL, status=2).err
    assert "no part named encoder" in said


def test_a_custom_augmentation_gets_bytes_in_training_only(fit, out, tmp_path):
    own = ("--augmentation", "helpers.tiny:darken")
    fit("--out", out, "--epochs", 1, *own)
    tiny = sys.modules["helpers.tiny"]
    assert {seen[:2] for seen in tiny.DARKENED} == {((4, 3, 32, 32), torch.uint8)}
    assert len(tiny.DARKENED) == 6  # steps; validation does not use it
    plain = tmp_path / "plain"
    fit("--out", plain, "--epochs", 1)
    assert not same(load(out).model, load(plain).model)
    said = fit("--resume", out, "--epochs", 2, store=None, network=SMALL, status=2).err
    assert "--augmentation helpers.tiny:darken" in said


def test_augmentations_that_draw_from_python_and_numpy_repeat_with_the_seed(fit, tmp_path):
    own = ("--augmentation", "helpers.tiny:random_shift", "--epochs", 1)
    for number in range(2):
        fit("--out", tmp_path / f"run{number}", *own)
        random.random(), np.random.rand(3)  # noqa: NPY002 - another state than at the start
    assert_same_run(tmp_path / "run0", tmp_path / "run1")


@pytest.mark.parametrize(
    ("name", "says", "header"),
    [
        (
            "two_arguments",
            "too many positional arguments: write function(image, label, key)",
            False,
        ),
        ("image_only", "returned uint8 (4, 3, 32, 32) for uint8 (4, 3, 32, 32) and uint8", True),
    ],
)
def test_an_augmentation_of_another_form_is_a_one_line_error(fit, out, name, says, header):
    printed = fit("--out", out, "--augmentation", f"helpers.tiny:{name}", status=2)
    assert f"--augmentation helpers.tiny:{name}" in printed.err
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1
    assert bool(printed.out) == header


def test_training_works_outside_the_main_thread(fit, out):
    done, options = [], ("--out", out, "--epochs", 1, "--pictures", 0)
    worker = threading.Thread(target=lambda: done.append(fit(*options)))
    worker.start()
    worker.join()
    assert len(done) == 1


def test_the_only_store_in_the_folder_is_trained_on(fit, store_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = fit(store=None, status=2).err
    assert all(command in said for command in ("geoprep synth", "geoprep build-zarr", "--resume"))
    (tmp_path / "one.zarr").symlink_to(store_path)
    said = fit("--epochs", 1, "--pictures", 0, store=None).out
    assert "training on one.zarr, the only store in this folder" in said
    assert Path("runs/one/best.pt").exists()
    (tmp_path / "two").symlink_to(store_path)
    assert "the stores one.zarr, two: name those to train on" in fit(store=None, status=2).err


def test_a_run_replaces_no_file_of_others(fit, out):
    fit("--out", out, "--epochs", 1)
    (out / "pictures" / "mine.png").write_text("mine")
    fit("--out", out, "--epochs", 1, "--overwrite")
    assert (out / "pictures" / "mine.png").read_text() == "mine"
    (out / "config.yaml").write_text("mine: 1")
    said = fit("--out", out, "--epochs", 1, "--overwrite", status=2).err
    assert "exists and is not of a run of geoprep fit: move it" in said
    assert (out / "config.yaml").read_text() == "mine: 1"
