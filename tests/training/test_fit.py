"""Runs of training.fit in this process: results, interruption and resume, errors."""

import csv
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import tiny
from helpers.steps import SAMPLES
from helpers.stores import write_store
from torch.utils._python_dispatch import TorchDispatchMode

from geoprep.errors import UsageError
from geoprep.store import StoreReader
from loaders import DeviceTiles, Folds, StreamTiles, select
from loaders.memory import Available
from training import loop
from training.checkpoint import load, load_model
from training.data import stores
from training.data.loading import tiles_of
from training.data.stores import model_info, open_data
from training.fit import main
from training.monitor import callbacks
from training.run import start, state
from training.run.folder import RunLock
from training.run.state import copy_weights
from training.settings import Config

SMALL = ("--model", "helpers.tiny:build")
STATEFUL = ("--model", "helpers.tiny:normed", *SAMPLES)


def rows(folder):
    """Return the rows of metrics.csv without columns of time."""
    with (folder / "metrics.csv").open(newline="") as file:
        timing = ("images_per_s", "data_wait", "seconds")
        return [{k: v for k, v in row.items() if k not in timing} for row in csv.DictReader(file)]


def same(a, b):
    """Return whether nested plain values and tensors are bit-equal."""
    if isinstance(a, torch.Tensor):
        return (
            torch.equal(a, b)
            if not a.is_floating_point()
            else torch.equal(a.nan_to_num(), b.nan_to_num())
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def assert_same_run(one, other):
    a, b = load(one), load(other)
    assert same(a.model, b.model)
    assert same(a.ema, b.ema)
    assert same(a.optimizer, b.optimizer)
    assert same(a.rng, b.rng)
    assert a.scaler == b.scaler
    assert same(a.loader, b.loader)
    assert a.progress["step"] == b.progress["step"]
    assert rows(one) == rows(other)
    assert same(load(one / "best.pt").model, load(other / "best.pt").model)


def test_a_run_learns_and_writes_its_files(fit, tmp_path, store):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 6, "--lr", "0.02", "--ema", "0.9", "--jitter", 0) == 0
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
    for said in (
        "helpers.tiny:build",
        "threads",
        "24 tiles",
        "allocator",
        "engine",
        "6 steps per epoch",
    ):
        assert said in header, said
    network, facts = load_model(out, model="helpers.tiny:build")
    assert facts.bands == store.meta.bands
    assert facts.level == 64
    assert facts.gsd_m == (0.5, 0.5)
    assert facts.class_mph[6] == 65
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 8, 32, 32)


@pytest.mark.parametrize(
    "options",
    [
        (
            *("--optimizer", "sgd", "--schedule", "cosine", "--weights", "road"),
            *("--precision", "fp32", "--scale", "1.3", "--rotate", "180", "--noise", "4"),
        ),
        ("--precision", "fp16", "--ema", "0.9", "--accumulate", "2"),
    ],
)
def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(
    fit, tmp_path, monkeypatch, capfd, options
):
    monkeypatch.setenv("DOOM_AT", "0")
    doomed = ("--model", "helpers.tiny:interrupted", *STATEFUL[2:])
    common = ("--epochs", "2", "--log-every", "4", *options)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert fit("--out", whole, *common, network=doomed) == 0
    # In mid-epoch, then in the second epoch's first step.
    monkeypatch.setenv("DOOM_AT", "3")
    assert fit("--out", parts, *common, network=doomed) == 130
    assert f"--resume {parts}" in capfd.readouterr().out
    assert 0 < load(parts).progress["step"] < 6
    monkeypatch.setenv("DOOM_AT", "4")
    assert fit("--resume", parts, *doomed[:2], store=None, network=()) == 130
    monkeypatch.setenv("DOOM_AT", "0")
    assert fit("--resume", parts, *doomed[:2], store=None, network=()) == 0
    assert_same_run(whole, parts)


@pytest.mark.parametrize("averaged", [0, 0.9])
def test_a_run_interrupted_in_validation_resumes_with_it(fit, tmp_path, monkeypatch, averaged):
    """It resumes with the model's own weights, though averaged ones were being validated."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    common = ("--epochs", 2, "--ema", averaged)
    assert fit("--out", whole, *common, network=STATEFUL) == 0
    validate = callbacks.validate

    def interrupted(*args, on_batch, **options):
        signal_self()
        return validate(*args, on_batch=on_batch, **options)

    monkeypatch.setattr(callbacks, "validate", interrupted)
    assert fit("--out", parts, *common, network=STATEFUL) == 130
    monkeypatch.setattr(callbacks, "validate", validate)
    assert fit("--resume", parts, store=None, network=STATEFUL[:2]) == 0
    assert_same_run(whole, parts)


def signal_self():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_batch_larger_than_an_epoch_is_refused_with_the_largest_size(fit, tmp_path, capfd):
    out = tmp_path / "run"
    small = ("--model", "helpers.tiny:build", "--crop", "32", "--crops-per-tile", "2")
    assert fit("--out", out, "--batch-size", 10000, network=small) == 2
    said = capfd.readouterr().err
    assert "48 samples, 2 per tile of 24" in said
    assert "drop_last" not in said
    fits = re.search(r"use at most --batch-size (\d+)", said)[1]
    assert fit("--out", out, "--epochs", 1, "--batch-size", fits, network=small) == 0
    assert "1 step per epoch" in capfd.readouterr().out
    # Other errors are not replaced.
    assert fit("--out", out, "--overwrite", "--min-road", 0.99) == 2
    assert "--batch-size" not in capfd.readouterr().err


def test_batches_too_large_for_the_memory_limit_are_not_called_larger_than_an_epoch(
    fit, tmp_path, capfd
):
    large = ("--model", "helpers.tiny:build", "--crop", "64", "--crops-per-tile", "1")
    limited = ("--residency", "stream", "--ram-limit", "1MB", "--batch-size", 24)
    assert fit("--out", tmp_path / "run", *limited, network=large) == 2
    said = capfd.readouterr().err
    assert "--ram-limit of 1 MB is too small" in said
    assert "less than one batch" not in said


def test_stages_change_level_and_crop(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--stages", "32@32:1,64@32:1", "--pictures", 0) == 0
    assert [row["level"] for row in rows(out)] == ["32", "64"]
    facts = load(out / "best.pt").info
    assert (facts.level, facts.gsd_m) == (64, (0.5, 0.5))
    assert not (out / "pictures").exists()
    assert f"in {out}: curves.png, metrics.csv, tensorboard\n" in capfd.readouterr().out


def test_a_loss_of_nan_stops_the_run(fit, tmp_path, capfd):
    out = tmp_path / "run"
    network = ("--model", "helpers.tiny:explosive", *STATEFUL[2:])
    assert fit("--out", out, "--epochs", 1, "--log-every", 3, network=network) == 1
    said = capfd.readouterr().err
    assert "the loss is not a number (step 5, epoch 1, seed 0); no checkpoint was written" in said
    assert "start again with a smaller --lr" in said
    assert not (out / "last.pt").exists()


def test_an_infinite_gradient_stops_the_run_before_its_step(fit, tmp_path, capfd):
    """With a finite loss and an infinite gradient, one step would make all weights NaN."""
    out = tmp_path / "run"
    network = ("--model", "helpers.tiny:steep", *STATEFUL[2:])
    assert fit("--out", out, "--epochs", 1, "--save-every", 1, network=network) == 1
    said = capfd.readouterr().err
    assert "the gradient is not finite, though the loss is (step 5, epoch 1" in said
    assert f"the last checkpoint is of step 4: --resume {out}" in said
    kept = load(out)
    assert kept.progress["step"] == 4
    assert all(value.isfinite().all() for value in kept.model.values())


class _NoReads(TorchDispatchMode):
    """Fails where the host would wait for a value of the device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(function), "the host waits for the device"
        return function(*args, **(kwargs or {}))


def test_an_accelerator_skips_a_loss_of_nan_without_waiting_and_stops_at_the_next_look(
    fit, tmp_path, monkeypatch, capfd
):
    """The steps of a device, computed on the CPU: the fifth changes nothing at all."""
    states = []
    choose, step = start.choose_engine, loop.training_step

    def choose_engine(*settings):
        engine = choose(*settings)
        object.__setattr__(engine, "skips_steps", True)  # the class is frozen
        return engine

    def training_step(run, batches, group):
        with _NoReads():
            result = step(run, batches, group)
        weights = copy_weights(run.trainable.model)
        averaged = {f"averaged {name}": value.clone() for name, value in run.averaged.items()}
        state = run.optimizer.state_dict()["state"]
        moments = {f"{n} {k}": v.clone() for n in state for k, v in state[n].items()}
        states.append(weights | averaged | moments)
        return result

    monkeypatch.setattr(start, "choose_engine", choose_engine)
    monkeypatch.setattr(loop, "training_step", training_step)
    out = tmp_path / "run"
    network = ("--model", "helpers.tiny:poisoned", *STATEFUL[2:])
    options = ("--epochs", 1, "--log-every", 6, "--save-every", 3, "--ema", 0.9)
    assert fit("--out", out, *options, network=network) == 1
    said = capfd.readouterr().err
    assert "the loss is not a number (step 5, epoch 1, seed 0)" in said
    assert f"the last checkpoint is of step 3: --resume {out}" in said
    before, bad, after = states[3:6]
    changes = {name for name in before if not torch.equal(before[name], bad[name])}
    assert all(name.endswith("num_batches_tracked") for name in changes), changes
    assert not torch.equal(bad["inner.0.weight"], after["inner.0.weight"])
    assert all(value.isfinite().all() for value in after.values())


def test_parameters_without_a_gradient_on_several_ranks_name_the_option(
    fit, tmp_path, monkeypatch, capfd
):
    def fail(*_):
        raise RuntimeError("Expected ... by passing the keyword `find_unused_parameters=True`")

    monkeypatch.setattr(loop, "training_step", fail)
    assert fit("--out", tmp_path / "run") == 1
    assert "of the model, which several ranks have to know: add --find-unused-parameters" in (
        capfd.readouterr().err
    )


def test_fp16_skips_an_overflowing_gradient_and_goes_on(fit, tmp_path, capfd):
    out = tmp_path / "run"
    network = ("--model", "helpers.tiny:steep_normed", *STATEFUL[2:])
    options = ("--precision", "fp16", "--epochs", 2, "--ema", 0.9)
    assert fit("--out", out, *options, network=network) == 0
    said = capfd.readouterr().out
    assert "fp16, loss scaled" in said
    assert "1 step before step 7 skipped, with an overflow of fp16 in the gradient" in said
    assert [row["skipped"] for row in rows(out)] == ["1", "1"]
    kept = load(out)
    assert kept.scaler["scale"] == 32768
    assert kept.progress["skipped"] == 1
    assert all(v.isfinite().all() for values in (kept.model, kept.ema) for v in values.values())


def test_a_folder_with_a_run_is_not_overwritten(fit, tmp_path, capfd):
    out, other = tmp_path / "run", tmp_path / "other"
    assert fit("--out", out, "--epochs", 1) == 0
    assert fit("--out", out, "--epochs", 1) == 2
    said = capfd.readouterr().err
    assert f"--resume {out}" in said
    # Nor by a run that is resumed elsewhere.
    before = (out / "last.pt").read_bytes()
    assert fit("--out", other, "--epochs", 1, "--seed", 1) == 0
    goes_on = ("--resume", other, "--epochs", 2)
    assert fit(*goes_on, "--out", out, store=None, network=SMALL[:2]) == 2
    assert f"{out} holds a run" in capfd.readouterr().err
    assert (out / "last.pt").read_bytes() == before
    third = tmp_path / "third"
    assert fit(*goes_on, "--out", third, store=None, network=SMALL[:2]) == 0
    assert len(rows(third)) == 2
    assert (third / "best.pt").exists()
    assert len(rows(other)) == 1
    assert fit("--out", out, "--epochs", 1, "--overwrite", "--pictures", 0) == 0
    assert not (out / "pictures").exists()


def test_settings_that_do_not_fit_a_run_are_refused_on_resume(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1) == 0
    assert fit("--resume", out, store=None, network=()) == 2
    assert "--model helpers.tiny:build" in capfd.readouterr().err
    network = SMALL[:2]
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert fit("--resume", out, store=None, network=network) == 0
    said = capfd.readouterr().out
    assert f"{out} is finished, with 1 epoch: nothing to do. To train longer" in said
    assert "--epochs 2" in said
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    assert fit("--resume", out, "--targets", "binary", store=None, network=network) == 2
    assert "--targets was bins and cannot become binary" in capfd.readouterr().err
    other = write_store(tmp_path / "other.zarr", scenes=4, bands=("pan",))
    assert fit("--resume", out, "--epochs", "2", store=other, network=network) == 2
    said = capfd.readouterr().err
    assert "trained on bands red, green, blue" in said
    assert "other.zarr has pan" in said
    (out / "last.pt").write_bytes(b"nothing")
    assert fit("--resume", out, store=None, network=()) == 1
    assert "last.pt is truncated" in capfd.readouterr().err


def test_resuming_from_weights_only_is_noted(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1) == 0
    assert fit("--resume", out / "best.pt", "--epochs", 2, store=None, network=SMALL) == 0
    assert "note: this checkpoint holds weights only" in capfd.readouterr().out


def test_changes_on_resume_are_noted(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1) == 0
    more = ("--resume", out, "--threads", 2, "--epochs", 2, "--weight-decay", 0.5)
    assert fit(*more, store=None, network=SMALL[:2]) == 0
    said = capfd.readouterr().out
    assert "threads was 1, is 2" in said
    assert "--epochs was 1, is 2" in said
    assert "--weight-decay was 0.01, is 0.5" in said
    groups = load(out).optimizer["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert len(rows(out)) == 2


def test_patience_ends_a_run_early(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 9, "--lr", "1e-9", "--patience", 2, "--jitter", 0) == 0
    assert "stopped early" in capfd.readouterr().out
    history = rows(out)
    ious = [float(row["road_iou"]) for row in history]
    assert len(history) < 9
    assert max(ious[-2:]) <= max(ious[:-2])


def test_a_store_without_validation_tiles_trains(fit, tmp_path, capfd):
    out = tmp_path / "run"
    only = write_store(tmp_path / "only.zarr", scenes=2, splits=(0,))
    assert fit("--out", out, "--epochs", 1, store=only) == 0
    assert (out / "best.pt").exists()
    said = capfd.readouterr().out
    assert said.count("none for validation (best.pt is that of the last epoch)") == 1
    assert "nan" not in said
    assert not said.split("epoch 1/")[1].splitlines()[0].endswith("best")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Return a store whose roads have no speeds."""
    return write_store(tmp_path_factory.mktemp("masked") / "m.zarr", scenes=4, speed_unit="none")


def test_a_store_without_speeds_trains_binary_targets_with_a_note(fit, tmp_path, masked):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, store=masked) == 0
    assert load(out / "best.pt").info.targets == "binary"
    assert "(binary: the roads of a store have no speeds)" in (out / "log.txt").read_text()
    assert fit("--resume", out, "--epochs", 2, store=masked) == 0


@pytest.mark.parametrize("targets", ["bins", "continuous"])
def test_speed_targets_are_refused_for_a_store_without_speeds(
    fit, tmp_path, masked, targets, capfd
):
    assert fit("--out", tmp_path / "run", "--targets", targets, store=masked) == 2
    assert "m.zarr have no speeds" in (said := capfd.readouterr().err)
    assert "use binary" in said


@pytest.mark.parametrize(
    "options",
    [("--residency", "compressed"), ("--targets", "continuous")],
)
def test_other_residencies_and_targets_train(fit, tmp_path, options):
    assert fit("--out", tmp_path / "run", "--epochs", 1, *options) == 0


@pytest.mark.parametrize("fits", [False, True])
def test_validation_streams_where_it_does_not_fit_on_the_device(
    fit, tmp_path, monkeypatch, capfd, fits
):
    room = (24 + 8 * fits) * 64 * 64 * 4
    monkeypatch.setattr(DeviceTiles, "room", staticmethod(lambda device: room))
    assert fit("--out", tmp_path / "run", "--epochs", 1, "--residency", "device") == 0
    beside = "streamed: they do not fit on cpu beside those for training"
    said = f"8 for validation{'' if fits else f' ({beside})'};"
    assert said in " ".join(capfd.readouterr().out.split())
    monkeypatch.setattr(DeviceTiles, "room", staticmethod(lambda device: 24 * 64 * 64 * 4 - 1))
    assert fit("--out", tmp_path / "other", "--epochs", 1, "--residency", "device") == 2
    error = " ".join(capfd.readouterr().err.split())
    assert "24 tiles of level 64 take 0.393 MB; cpu has 0.786 MB free" in error
    assert "--residency ram" in error


def test_interleaved_memory_is_advised_on_machines_with_several_nodes(monkeypatch):
    monkeypatch.setattr(start, "touched_nodes", lambda: 2)
    for residency, advised in (("ram", 1), ("compressed", 1), ("stream", 0), ("device", 0)):
        notes = [*start._nodes(Config(residency=residency))]
        assert len(notes) == advised
        assert all("2 memory nodes" in n and "numactl --interleave=all" in n for n in notes)
    monkeypatch.setattr(start, "touched_nodes", lambda: 1)
    assert not [*start._nodes(Config())]


def test_a_run_asks_for_no_other_device(fit, tmp_path, monkeypatch):
    for module in (torch.cuda, torch.xpu, torch.accelerator):
        monkeypatch.setattr(module, "device_count", lambda: pytest.fail("counts devices"))
    assert fit("--out", tmp_path / "run", "--epochs", 1, "--residency", "device") == 0


def test_compressed_tiles_stay_compressed(store):
    facts = model_info(Config(), (store,))
    assert "MB compressed" in repr(tiles_of(facts, (store,), "val", residency="compressed"))


def test_profile_prints_a_time_breakdown_and_writes_nothing(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--profile", "--accumulate", 2, "--ema", "0.9") == 0
    said = capfd.readouterr().out
    # The step of training: as many batches, averaged weights, and what is compiled.
    assert "a step of 8 images" in said
    assert "averaged weights" in said
    assert "compiled: nothing" in said
    for phase in ("wait for the batch", "model forward", "backward", "images/s", "operator"):
        assert phase in said
    assert not out.exists()


def test_the_fastest_batch_size_is_measured_and_saved(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, "--batch-size", "auto") == 0
    size = load(out).config["batch_size"]
    said = capfd.readouterr().out
    assert f"batch size {size} is the fastest on this machine" in said
    # 24 samples give 16 steps with no batch size, so the smallest is used.
    assert size == 2
    assert "more than 1 would give fewer than 16 steps per epoch of 24 samples" in said


def test_a_batch_larger_than_memory_gives_a_warning_and_is_tried(fit, tmp_path, monkeypatch, capfd):
    small = Available(2_000_000, "the machine")
    monkeypatch.setattr("training.run.capacity.available_memory", lambda: small)
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, "--batch-size", 24) == 0
    said = capfd.readouterr().out
    found = re.search(r"note: a batch of 24 x 32 x 32 needs.*--batch-size (\d+) should fit", said)
    assert found
    again = ("--out", out, "--epochs", 1, "--overwrite", "--batch-size", found[1])
    assert fit(*again) == 0
    assert "should fit" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ("--level", "99"),
        ("--stages", "64@32:1,99@32:1"),
        ("--targets", "binary", "--channel-weights", "auto"),
        ("--crop", "33", "--min-road", "0.99"),
        ("--batch-size", "100"),
        pytest.param(
            ("--device", "cuda"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_an_invalid_request_does_not_delete_a_finished_run(fit, finished, capfd, wrong):
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    assert fit("--out", finished, "--overwrite", *wrong) in (1, 2)
    assert len(capfd.readouterr().err.splitlines()) == 1
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory, store_path):
    """Return the folder of a finished run. Read only."""
    out = tmp_path_factory.mktemp("finished") / "run"
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.run.start.keep_memory", lambda: "as it is")
        options = ("--crop", "32", "--crops-per-tile", "1", "--compile", "off", "--threads", "1")
        assert main([str(store_path), *SMALL, *options, "--epochs", "1", "--out", str(out)]) == 0
    torch.set_rng_state(random)
    torch.set_num_threads(threads)
    return out


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("half_size", "returns (1, 8, 64, 64) for an image of (1, 3, 128, 128)"),
        ("broken", "RuntimeError: out of ideas"),
    ],
)
def test_an_unsuitable_factory_is_a_one_line_error(fit, tmp_path, capfd, factory, says):
    network = ("--model", f"helpers.tiny:{factory}", "--crop", "32")
    assert fit("--out", tmp_path / "run", network=network) == 2
    said = capfd.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_pooled_batch_norm_trains(fit, tmp_path):
    network = ("--model", "helpers.tiny:pooled", *STATEFUL[2:])
    assert fit("--out", tmp_path / "run", "--epochs", 1, network=network) == 0


def test_statistics_of_a_fold_leave_out_its_validation_scenes(fit, tmp_path, capfd):
    """ModelInfo of a fold are those of a store that has these scenes alone to train on."""
    store = write_store(tmp_path / "folded.zarr", scenes=6, splits=(0, 0, 0, 0, 0, 1))
    folded = StoreReader.open(store)
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, "--folds", 3, "--fold", 1, store=store) == 0
    assert "fold 1 of 3 for validation" in capfd.readouterr().out
    facts = load(out).info
    assert (facts.folds, facts.fold) == (3, 1)
    tiles = select(folded, "train", Folds(3, 1)).tiles
    pixels = folded.image()[:][tiles].reshape(-1, 3).astype(float)
    valid = [band[band > 0] for band in pixels.T]
    assert facts.mean == pytest.approx([band.mean() for band in valid])
    assert facts.std == pytest.approx([band.std() for band in valid])
    speed = folded.speed()[:][tiles]
    fast = speed[(speed > 60) & (speed < 255)]
    assert facts.class_mph[6] == pytest.approx(fast.mean() if len(fast) else 65.5)
    whole = tmp_path / "whole"
    assert fit("--out", whole, "--epochs", 1, store=store) == 0
    assert load(whole).info.mean != facts.mean
    assert load(whole).info.folds is None


def test_bands_in_another_order_are_read_by_name_on_resume(fit, tmp_path, capfd):
    """The same pixels with another order of bands give a bit-equal run."""
    given, swapped = tmp_path / "given.zarr", tmp_path / "swapped.zarr"
    write_store(given)
    write_store(swapped, order=(2, 1, 0))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    constant = ("--schedule", "constant", "--warmup", 0)
    assert fit("--out", whole, "--epochs", 2, *constant, store=given) == 0
    assert fit("--out", parts, "--epochs", 1, *constant, store=given) == 0
    more = ("--resume", parts, "--epochs", 2)
    assert fit(*more, store=swapped, network=SMALL) == 0
    said = capfd.readouterr().out
    assert "swapped.zarr has the bands in the order blue, green, red: they are read by name" in said
    a, b = load(whole), load(parts)
    assert same(a.model, b.model)
    assert b.info.bands == ("red", "green", "blue")


def test_differences_between_stores_are_noted(fit, tmp_path, capfd):
    one = write_store(tmp_path / "one.zarr", scenes=4)
    other = write_store(tmp_path / "other.zarr", scenes=4, rescale="city", gsd_m=(1.0, 1.0))
    assert fit(str(other), "--out", tmp_path / "run", "--epochs", 1, store=one) == 0
    said = capfd.readouterr().out
    assert "other.zarr was rescaled by the rule 'city', the model's data by 'none'" in said
    assert "pixels of" in said
    assert "are 1 m wide, those of the model 0.5 m" in said


def test_limits_of_a_city_are_in_the_checkpoint(fit, tmp_path):
    store = write_store(tmp_path / "city.zarr", scenes=4, rescale="city", limits=(20.0, 900.0))
    assert fit("--out", tmp_path / "run", "--epochs", 1, store=store) == 0
    assert load(tmp_path / "run").info.limits == ((20.0, 900.0),) * 3


def test_streams_share_one_limit(fit, tmp_path, monkeypatch):
    opened = []
    stream = StreamTiles.open

    def spied(*args, **options):
        opened.append((stream(*args, **options), args))
        return opened[-1][0]

    monkeypatch.setattr(StreamTiles, "open", spied)
    limited = ("--residency", "stream", "--ram-limit", "64MB")
    assert fit("--out", tmp_path / "run", "--epochs", 1, *limited) == 0
    (train, _), (_, args) = opened
    assert args[1] == "val"
    assert args[3] is train


def test_the_header_counts_samples_and_steps_of_an_epoch(fit, tmp_path, capfd):
    whole = ("--model", "helpers.tiny:build", "--crop", "64", "--batch-size", "4")
    assert fit("--out", tmp_path / "a", "--epochs", 1, network=whole) == 0
    said = capfd.readouterr().out
    assert "24 per epoch, 1 per tile (crops are not smaller" in said
    assert re.search(r"training .* 1 epoch; seed 0", said)
    few = ("--min-road", "0.178", "--crop", "64", "--batch-size", "1")
    assert fit("--out", tmp_path / "b", "--epochs", 1, *few, network=SMALL) == 0
    found = re.search(r"(\d+) per epoch, 1 per tile of (\d+) tiles with", capfd.readouterr().out)
    assert found
    assert 0 < int(found[1]) == int(found[2]) < 24


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_one_line_error(fit, tmp_path, capfd):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").symlink_to("/dev/full")
    assert fit("--out", tmp_path / "run", "--epochs", 1) == 1
    said = capfd.readouterr().err
    assert "No space left on device" in said
    assert len(said.splitlines()) == 1


def test_sighup_saves_the_run(fit, tmp_path, monkeypatch, capfd, request):
    monkeypatch.setenv("DOOM_AT", "3")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored in what nohup started
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    network = ("--model", "helpers.tiny:hung_up", *STATEFUL[2:])
    assert fit("--out", tmp_path / "run", "--epochs", 1, network=network) == 129
    assert "stopped by SIGHUP, saved in" in capfd.readouterr().out
    assert load(tmp_path / "run").progress["step"] == 3


def test_the_encoder_can_have_a_lower_rate_or_be_frozen(fit, tmp_path, capfd):
    network = ("--model", "helpers.tiny:encoded", *STATEFUL[2:])
    start = {}
    for factor in (0, 0.1, 1):
        out = tmp_path / f"run{factor}"
        options = ("--epochs", 1, "--encoder-lr", factor, "--optimizer", "sgd", "--clip", "none")
        assert fit("--out", out, *options, network=network) == 0
        start[factor] = load(out).model["encoder.weight"]
    torch.manual_seed(0)
    untrained = tiny.encoded(3, 8).state_dict()["encoder.weight"]
    moved = {factor: (weight - untrained).abs().max() for factor, weight in start.items()}
    assert moved[0] == 0
    assert 0 < moved[0.1] < 0.5 * moved[1]
    assert fit("--out", tmp_path / "no", "--encoder-lr", 0, network=SMALL) == 2
    assert "no part named encoder" in capfd.readouterr().err


def test_a_custom_augmentation_gets_bytes_in_training_only(fit, tmp_path, capfd):
    own = ("--augmentation", "helpers.tiny:darken")
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, *own) == 0
    tiny = sys.modules["helpers.tiny"]
    assert {seen[:2] for seen in tiny.DARKENED} == {((4, 3, 32, 32), torch.uint8)}
    assert len(tiny.DARKENED) == 6  # steps; validation does not use it
    plain = tmp_path / "plain"
    assert fit("--out", plain, "--epochs", 1) == 0
    assert not same(load(out).model, load(plain).model)
    assert fit("--resume", out, "--epochs", 2, store=None, network=SMALL) == 2
    assert "--augmentation helpers.tiny:darken" in capfd.readouterr().err


def test_augmentations_that_draw_from_python_and_numpy_repeat_with_the_seed(fit, tmp_path):
    own = ("--augmentation", "helpers.tiny:random_shift", "--epochs", 1)
    for number in range(2):
        assert fit("--out", tmp_path / f"run{number}", *own) == 0
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
def test_an_augmentation_of_another_form_is_a_one_line_error(
    fit, tmp_path, capfd, name, says, header
):
    assert fit("--out", tmp_path / "run", "--augmentation", f"helpers.tiny:{name}") == 2
    printed = capfd.readouterr()
    assert f"--augmentation helpers.tiny:{name}" in printed.err
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1
    assert bool(printed.out) == header


def test_a_stream_too_small_for_a_batch_is_not_reported_as_too_few_samples(fit, tmp_path, capfd):
    large = ("--residency", "stream", "--ram-limit", "0.6MB", "--batch-size", "24")
    assert fit("--out", tmp_path / "run", *large) == 2
    said = capfd.readouterr().err
    assert "less than one batch" not in said
    assert "--ram-limit" in said


def test_training_works_outside_the_main_thread(fit, tmp_path):
    status = []
    worker = threading.Thread(target=lambda: status.append(fit("--out", tmp_path / "run")))
    worker.start()
    worker.join()
    assert status == [0]


def test_an_epoch_that_resumes_after_its_last_step_has_no_rate(fit, tmp_path, monkeypatch, capfd):
    validate = callbacks.validate

    def interrupted(*args, on_batch, **options):
        signal_self()
        return validate(*args, on_batch=on_batch, **options)

    monkeypatch.setattr(callbacks, "validate", interrupted)
    assert fit("--out", tmp_path / "run", "--epochs", 1) == 130
    monkeypatch.setattr(callbacks, "validate", validate)
    assert fit("--resume", tmp_path / "run", store=None, network=SMALL[:2]) == 0
    said = capfd.readouterr().out
    assert "images/s" not in said[said.index("epoch 1/") :]
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["images_per_s"] == "nan"


# Locks, and runs that are stopped early


def test_a_second_run_in_the_same_folder_is_refused(fit, tmp_path, monkeypatch, capfd):
    """The first one holds the lock while it trains; its files are not touched."""
    out, statuses = tmp_path / "run", []
    step = loop.training_step

    def during_training(run, batches, group):
        if not statuses:
            statuses.append(fit("--out", out, "--epochs", 1, "--overwrite"))
        return step(run, batches, group)

    monkeypatch.setattr(loop, "training_step", during_training)
    assert fit("--out", out, "--epochs", 1) == 0
    assert statuses == [2]
    printed = capfd.readouterr().err
    assert f"{out}: process {os.getpid()} on " in printed
    assert "is training in this folder: wait for it, or choose another --out" in printed
    assert len(rows(out)) == 1
    assert not (out / ".lock").exists()


def test_the_lock_of_a_killed_run_does_not_block_the_next(fit, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").write_text("process 1 on another")
    assert fit("--out", out, "--epochs", 1) == 0


def test_two_processes_cannot_lock_one_folder(tmp_path):
    code = (
        "import sys; from pathlib import Path; from training.run.folder import RunLock\n"
        "with RunLock(Path(sys.argv[1])) as lock:\n"
        "    lock.take(); print('locked', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == "locked\n"
        with RunLock(tmp_path) as lock:
            for attempt in (lock.check, lock.take):
                with pytest.raises(UsageError, match=f"process {other.pid} on .* is training"):
                    attempt()
        other.stdin.close()
        assert other.wait(timeout=600) == 0
    with RunLock(tmp_path) as lock:
        lock.take()
    assert not list(tmp_path.iterdir())


def test_resuming_a_run_without_a_checkpoint_says_how_to_start_again(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--resume", out, store=None, network=()) == 2
    printed = capfd.readouterr().err
    assert f"--resume {out}: no such folder" in printed
    assert "start it again with its first command" in printed
    assert "best.pt" not in printed
    out.mkdir()
    assert fit("--resume", out, store=None, network=()) == 2
    assert "this folder holds no run (last.pt)" in capfd.readouterr().err
    (out / "config.yaml").write_text("epochs: 2\n")
    assert fit("--resume", out, store=None, network=()) == 2
    printed = capfd.readouterr().err
    assert "stopped before its first checkpoint" in printed
    assert f"--config {out / 'config.yaml'} and --out {out}" in printed


@pytest.mark.parametrize("stage", [1, 2])
def test_a_signal_while_tiles_are_loaded_stops_at_once(fit, tmp_path, monkeypatch, capfd, stage):
    """In a later stage it says how to resume; the resumed run equals one without interruption."""
    whole, out, loads = tmp_path / "whole", tmp_path / "run", []
    options = ("--stages", "32@32:1,64@32:1", "--pictures", 0)
    assert fit("--out", whole, *options) == 0
    load_stage = state.load_stage

    def interrupted(*args):
        loads.append(args)
        if len(loads) == stage:
            os.kill(os.getpid(), signal.SIGTERM)
        return load_stage(*args)

    monkeypatch.setattr(state, "load_stage", interrupted)
    capfd.readouterr()
    assert fit("--out", out, *options) == 143
    printed = capfd.readouterr().out
    monkeypatch.setattr(state, "load_stage", load_stage)
    if stage == 1:
        assert "stopped by SIGTERM before the first checkpoint: start again" in printed
        assert fit("--out", out, *options) == 0
    else:
        assert "stopped by SIGTERM; the last checkpoint is kept. To resume: " in printed
        assert f"--resume {out} --model helpers.tiny:build" in printed
        assert fit("--resume", out, store=None, network=SMALL) == 0
    assert_same_run(whole, out)


def test_smp_names_the_package_that_is_missing(fit, tmp_path, monkeypatch, capfd):
    """Its own dependencies may be missing as well."""
    package = tmp_path / "packages" / "segmentation_models_pytorch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import nowhere_vision.ops\n")
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    assert fit("--out", tmp_path / "run", network=("--model", "smp:Unet:resnet18")) == 2
    assert "pip install segmentation-models-pytorch" in capfd.readouterr().err
    monkeypatch.delitem(sys.modules, "segmentation_models_pytorch")
    monkeypatch.syspath_prepend(str(package.parent))
    assert fit("--out", tmp_path / "run", network=("--model", "smp:Unet:resnet18")) == 2
    printed = capfd.readouterr().err
    assert "--model smp:Unet:resnet18 needs nowhere_vision" in printed
    assert "pip install nowhere_vision" in printed


def test_ranks_above_zero_read_no_pixels_of_folds(store, monkeypatch):
    """They get the histograms that rank 0 counted."""
    counted = {}
    config = Config(stores=(str(store.location),), folds=3, fold=1)
    monkeypatch.setattr(stores, "on_rank_zero", lambda make: counted.setdefault("zero", make()))
    (first,) = open_data(config)
    monkeypatch.setattr(stores, "on_rank_zero", lambda make: counted["zero"])
    monkeypatch.setattr(StoreReader, "image", lambda *_: pytest.fail("pixels are read again"))
    (second,) = open_data(config)
    assert (first.histogram_band == second.histogram_band).all()
    assert (first.histogram_speed == second.histogram_speed).all()


def test_a_fold_without_the_number_of_folds_is_refused(fit, tmp_path, capfd):
    assert fit("--out", tmp_path / "run", "--fold", 1) == 2
    assert "--fold 1 needs --folds" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_begins_with_the_weights_of_another(fit, tmp_path, capfd):
    """With other targets and one band; the encoder learns at its own rate, here not at all."""
    encoded = ("--model", "helpers.tiny:encoded", *SMALL[2:])
    first, second = tmp_path / "first", tmp_path / "second"
    assert fit("--out", first, "--epochs", 1, network=encoded) == 0
    options = ("--init-from", first, "--targets", "binary", "--encoder-lr", 0, "--ema", 0)
    assert fit("--out", second, "--epochs", 1, *options, network=encoded) == 0
    assert "2 of 4 weights from" in capfd.readouterr().out
    before, after = load(first / "best.pt"), load(second / "best.pt")
    weights = before.ema or before.model
    assert torch.equal(after.model["encoder.weight"], weights["encoder.weight"])
    assert fit("--resume", second, "--init-from", first, store=None, network=encoded) == 2
    assert "--init-from and --resume both set the weights" in capfd.readouterr().err
    assert fit("--out", tmp_path / "x", "--init-from", tmp_path / "no", network=encoded) == 1
    assert "no such checkpoint" in capfd.readouterr().err
