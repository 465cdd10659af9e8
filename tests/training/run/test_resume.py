"""Runs that are stopped, resumed, locked or replaced."""

import csv
import os
import shutil
import signal

import pytest
from helpers.runs import SMALL, STAGED, STATEFUL, assert_same_run, rows, same, signal_self
from helpers.stores import write_store

from training.checkpoint import load
from training.fit import main
from training.run import trainer


@pytest.mark.parametrize(
    "options",
    [
        (
            *("--optimizer", "sgd", "--schedule", "constant", "--weights", "road"),
            *("--precision", "fp32", "--scale", "1.3", "--rotate", "180"),
        ),
        ("--precision", "fp16", "--ema", "0.9", "--accumulate", "2"),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(stoppable, tmp_path, options):
    common = ("--epochs", "2", "--log-every", "4", *options)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    stoppable("--out", whole, *common)
    # In mid-epoch, then in the second epoch's first step.
    assert f"--resume {parts}" in stoppable("--out", parts, *common, at=3).out
    assert 0 < load(parts).progress["step"] < 6
    stoppable("--resume", parts, at=4)
    stoppable("--resume", parts)
    assert_same_run(whole, parts)


@pytest.mark.parametrize("averaged", [0, 0.9])
def test_a_run_interrupted_in_validation_resumes_with_it(fit, tmp_path, monkeypatch, averaged):
    """It resumes with the model's own weights, though averaged ones were being validated."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    common = ("--epochs", 2, "--ema", averaged)
    fit("--out", whole, *common, network=STATEFUL)
    validate = trainer.validate

    def interrupted(*args, on_batch, **options):
        signal_self()
        return validate(*args, on_batch=on_batch, **options)

    monkeypatch.setattr(trainer, "validate", interrupted)
    fit("--out", parts, *common, network=STATEFUL, status=130)
    monkeypatch.setattr(trainer, "validate", validate)
    fit("--resume", parts, store=None, network=STATEFUL[:2])
    assert_same_run(whole, parts)
    with (parts / "metrics.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["images_per_s"] == "nan"  # no step was left


def test_a_folder_with_a_run_is_not_overwritten(fit, out, tmp_path):
    fit("--out", out, "--epochs", 1)
    assert f"--resume {out}" in fit("--out", out, "--epochs", 1, status=2).err
    elsewhere = ("--resume", out, "--epochs", 2, "--out", tmp_path / "other")
    said = fit(*elsewhere, store=None, network=SMALL[:2], status=2).err
    assert "--resume and --out both name a folder" in said
    fit("--out", out, "--epochs", 1, "--overwrite", "--pictures", 0)
    assert not (out / "pictures").exists()


def test_settings_that_do_not_fit_a_run_are_refused_on_resume(fit, out, tmp_path):
    fit("--out", out, "--epochs", 1)
    said = fit("--resume", out, store=None, network=(), status=2).err
    assert "--model helpers.tiny:build" in said
    network = SMALL[:2]
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    said = fit("--resume", out, store=None, network=network).out
    assert f"{out} is finished, with 1 epoch: nothing to do. To train longer" in said
    assert "--epochs 2" in said
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    said = fit("--resume", out, "--targets", "binary", store=None, network=network, status=2).err
    assert "--targets was bins and cannot become binary" in said
    other = write_store(tmp_path / "other.zarr", scenes=4, bands=("pan",))
    said = fit("--resume", out, "--epochs", "2", store=other, network=network, status=2).err
    assert "trained on bands red, green, blue" in said
    assert "other.zarr has pan" in said
    (out / "last.pt").write_bytes(b"nothing")
    assert "last.pt is truncated" in fit("--resume", out, store=None, network=(), status=1).err


def test_resuming_from_weights_only_is_noted(fit, out):
    fit("--out", out, "--epochs", 1)
    (out / "best.pt").replace(out / "last.pt")
    said = fit("--resume", out, "--epochs", 2, store=None, network=SMALL).out
    assert "note: this checkpoint holds weights only" in said


def test_the_command_that_resumes_with_a_moved_store_is_named(fit, store_path, out, tmp_path):
    before, after = tmp_path / "before.zarr", tmp_path / "after.zarr"
    before.symlink_to(store_path)
    run, resume = out, ("--epochs", 2, "--resume", out, *SMALL)
    fit("--out", run, "--epochs", 1, store=before)
    before.rename(after)
    said = fit(*resume, store=None, network=(), status=1).err
    command = f"geoprep fit NEW.zarr --resume {run} --model helpers.tiny:build"
    assert "before.zarr: no such store. Check the path" in said
    assert f"If it was moved, give its new path: {command}" in said
    fit(*resume, store=after, network=())


def test_changes_on_resume_are_noted(fit, out):
    fit("--out", out, "--epochs", 1)
    more = ("--resume", out, "--threads", 2, "--epochs", 2, "--weight-decay", 0.5)
    said = fit(*more, store=None, network=SMALL[:2]).out
    assert "threads was 1, is 2" in said
    assert "--epochs was 1, is 2" in said
    assert "--weight-decay was 0.01, is 0.5" in said
    groups = load(out).optimizer["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert len(rows(out)) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ("--level", "99"),
        ("--stages", "64@32:1,99@32:1"),
        ("--targets", "binary", "--class-weights", "auto"),
        ("--crop", "33", "--min-road", "0.99"),
        ("--batch-size", "100"),
        ("--device", "cuda:99"),
    ],
)
def test_an_invalid_request_does_not_delete_a_finished_run(fit, finished, wrong):
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    said = fit("--out", finished, "--overwrite", *wrong, status=2).err
    assert len(said.splitlines()) == 1
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory, store_path, short_runs):
    """Return the folder of a finished run. Read only."""
    out = tmp_path_factory.mktemp("finished") / "run"
    options = ("--crop", "32", "--crops-per-tile", "1", "--compile", "off", "--threads", "1")
    assert main([str(store_path), *SMALL, *options, "--epochs", "1", "--out", str(out)]) == 0
    return out


def test_bands_in_another_order_are_read_by_name_on_resume(fit, tmp_path):
    """The same pixels with another order of bands give a bit-equal run."""
    given, swapped = tmp_path / "given.zarr", tmp_path / "swapped.zarr"
    write_store(given)
    write_store(swapped, order=(2, 1, 0))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    constant = ("--schedule", "constant", "--warmup", 0)
    fit("--out", whole, "--epochs", 2, *constant, store=given)
    fit("--out", parts, "--epochs", 1, *constant, store=given)
    more = ("--resume", parts, "--epochs", 2)
    said = fit(*more, store=swapped, network=SMALL).out
    assert "swapped.zarr has the bands in the order blue, green, red: they are read by name" in said
    a, b = load(whole), load(parts)
    assert same(a.model, b.model)
    assert b.info.bands == ("red", "green", "blue")


def test_sighup_saves_the_run(fit, out, monkeypatch):
    monkeypatch.setenv("DOOM_AT", "3")
    said = fit("--out", out, "--epochs", 1, model="hung_up", status=129).out
    assert "stopped by SIGHUP, saved in" in said
    assert load(out).progress["step"] == 3


def test_a_second_run_in_the_same_folder_is_refused(fit, tmp_path, monkeypatch):
    """The first one holds the lock while it trains; its files are not touched."""
    out, printed = tmp_path / "run", []
    step = trainer.train_step

    def during_training(*given):
        if not printed:
            printed.append(fit("--out", out, "--epochs", 1, "--overwrite", status=2).err)
        return step(*given)

    monkeypatch.setattr(trainer, "train_step", during_training)
    fit("--out", out, "--epochs", 1)
    assert f"{out}: process {os.getpid()} on " in printed[0]
    assert "is training in this folder: wait for it, or choose another --out" in printed[0]
    assert len(rows(out)) == 1
    assert not (out / ".lock").exists()


def test_the_lock_of_a_killed_run_does_not_block_the_next(fit, out):
    out.mkdir()
    (out / ".lock").write_text("process 1 on another")
    fit("--out", out, "--epochs", 1)


def test_resuming_a_run_without_a_checkpoint_says_how_to_start_again(fit, out):
    for _ in range(2):
        printed = fit("--resume", out, store=None, network=(), status=2).err
        assert f"--resume {out}: there is no checkpoint (last.pt) in this folder" in printed
        assert "again with its first command" in printed
        out.mkdir(exist_ok=True)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_signal_while_tiles_are_loaded_stops_at_once(fit, tmp_path, monkeypatch, stage):
    """In a later stage it says how to resume; the resumed run equals one without interruption."""
    whole, out, loads = tmp_path / "whole", tmp_path / "run", []
    options = ("--stages", "32@32:1,64@32:1", "--pictures", 0)
    fit("--out", whole, *options, network=STAGED)
    load_stage = trainer.load_stage

    def interrupted(*args):
        loads.append(args)
        if len(loads) == stage:
            os.kill(os.getpid(), signal.SIGTERM)
        return load_stage(*args)

    monkeypatch.setattr(trainer, "load_stage", interrupted)
    printed = fit("--out", out, *options, network=STAGED, status=143).out
    monkeypatch.setattr(trainer, "load_stage", load_stage)
    if stage == 1:
        assert "stopped by SIGTERM before the first checkpoint: start again" in printed
        fit("--out", out, *options, network=STAGED)
    else:
        assert "stopped by SIGTERM; the last checkpoint is kept. To resume: " in printed
        assert f"--resume {out} --model helpers.tiny:build" in printed
        fit("--resume", out, store=None, network=SMALL)
    assert_same_run(whole, out)


def test_labels_that_were_corrected_are_noted_and_their_best_score_is_forgotten(
    fit, stoppable, tmp_path
):
    store, out = write_store(tmp_path / "a.zarr"), tmp_path / "run"
    fit("--out", out, "--epochs", 2, store=store)
    shutil.rmtree(store)
    write_store(store, roads=(1, 0))
    again = ("--resume", out, "--epochs", 3)
    assert "note: the stores hold other labels" in fit(*again, store=None).out
    assert load(out).progress["best_epoch"] == 2
    assert "other labels" not in fit("--resume", out, "--epochs", 4, store=None).out
    stoppable("--out", tmp_path / "b", "--epochs", 2, store=store, at=3)
    shutil.rmtree(store)
    write_store(store)
    refused = stoppable("--resume", tmp_path / "b", status=2).err
    assert "stopped within an epoch" in refused


def test_another_crop_within_an_epoch_is_refused_in_words_of_the_command(stoppable, out):
    stoppable("--out", out, "--epochs", 2, at=3)
    said = stoppable("--resume", out, "--crop", 16, status=2).err
    assert "stopped within an epoch" in said
    assert "crop was 32, is 16" in said
    assert "create the loader" not in said


def test_a_batch_of_one_is_refused_where_batchnorm_cannot_use_it(fit, out):
    network = ("--model", "helpers.tiny:pooled", "--crop", "32", "--batch-size", "1")
    assert "use a larger --batch-size" in fit("--out", out, network=network, status=2).err
