"""A run, from its first step to its pictures; stopped, taken up again, refused."""

import csv
import json
import math
import os
import re
import signal

import pytest
import torch
from helpers.stores import write_store

from loaders.limits import Available
from training.checkpoint import load, load_network
from training.monitor import callbacks as lookout

STATEFUL = (
    "--model",
    "helpers.tiny:normed",
    "--crop",
    "32",
    "--crops-per-tile",
    "1",
    "--batch-size",
    "4",
)


def rows(folder):
    """Return metrics.csv without the columns that are of time."""
    with (folder / "metrics.csv").open(newline="") as file:
        timing = ("images_per_s", "data_wait", "seconds")
        return [{k: v for k, v in row.items() if k not in timing} for row in csv.DictReader(file)]


def same(a, b):
    """Whether two nests of plain values and tensors are equal to the bit."""
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
    assert same(a.network, b.network)
    assert same(a.ema, b.ema)
    assert same(a.optimizer, b.optimizer)
    assert same(a.rng, b.rng)
    assert same(a.loader, b.loader)
    assert a.progress["step"] == b.progress["step"]
    assert rows(one) == rows(other)
    assert same(load(one / "best.pt").network, load(other / "best.pt").network)


def test_a_run_learns_and_leaves_what_it_says(fit, tmp_path, store):
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
        "6 steps an epoch",
    ):
        assert said in header, said
    network, facts = load_network(out)
    assert facts.bands == store.meta.bands
    assert facts.level == 64
    assert facts.gsd_m == (0.5, 0.5)
    assert facts.class_mph[6] == 65
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 8, 32, 32)


@pytest.mark.parametrize(
    "options",
    [
        ("--ema", "0.9", "--accumulate", "2"),
        ("--optimizer", "sgd", "--schedule", "cosine", "--weights", "road", "--precision", "fp32"),
    ],
)
def test_interrupted_anywhere_and_resumed_is_never_interrupted(
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
    assert fit("--resume", parts, store=None, network=()) == 130
    monkeypatch.setenv("DOOM_AT", "0")
    assert fit("--resume", parts, store=None, network=()) == 0
    assert_same_run(whole, parts)


def test_interrupted_while_judging_goes_on_with_judging(fit, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert fit("--out", whole, "--epochs", 2, network=STATEFUL) == 0
    evaluate = lookout.evaluate

    def interrupted(*args, on_batch, **options):
        signal_self()
        return evaluate(*args, on_batch=on_batch, **options)

    monkeypatch.setattr(lookout, "evaluate", interrupted)
    assert fit("--out", parts, "--epochs", 2, network=STATEFUL) == 130
    monkeypatch.setattr(lookout, "evaluate", evaluate)
    assert fit("--resume", parts, store=None, network=()) == 0
    assert_same_run(whole, parts)


def signal_self():
    os.kill(os.getpid(), signal.SIGINT)


def test_stages_change_resolution_and_windows(fit, tmp_path):
    out = tmp_path / "run"
    assert fit("--out", out, "--stages", "32@32:1,64@32:1", "--pictures", 0) == 0
    assert [row["level"] for row in rows(out)] == ["32", "64"]
    facts = load(out / "best.pt").facts
    assert (facts.level, facts.gsd_m) == (64, (0.5, 0.5))
    assert not (out / "pictures").exists()


def test_a_loss_that_is_no_number_stops_the_run(fit, tmp_path, capfd):
    out = tmp_path / "run"
    network = ("--model", "helpers.tiny:explosive", *STATEFUL[2:])
    assert fit("--out", out, "--epochs", 1, "--log-every", 3, network=network) == 1
    said = capfd.readouterr().err
    assert "the loss is not a number (step 5" in said
    bad = json.loads((out / "bad_batch.json").read_text())
    assert len(bad["tile"]) == 4
    assert bad["step"] == 5
    assert not (out / "last.pt").exists()


def test_a_folder_that_holds_a_run_is_not_written_over(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1) == 0
    assert fit("--out", out, "--epochs", 1) == 2
    said = capfd.readouterr().err
    assert f"--resume {out}" in said
    assert fit("--out", out, "--epochs", 1, "--overwrite", "--pictures", 0) == 0
    assert not (out / "pictures").exists()


def test_what_does_not_fit_a_run_is_refused_on_resume(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1) == 0
    assert fit("--resume", out, store=None, network=()) == 2
    assert "all 1 epochs of this run are done" in capfd.readouterr().err
    assert fit("--resume", out, "--targets", "binary", store=None, network=()) == 2
    assert "--targets was bins and cannot become binary" in capfd.readouterr().err
    other = write_store(tmp_path / "other.zarr", scenes=4, bands=("pan",))
    assert fit("--resume", out, "--epochs", "2", store=other, network=()) == 2
    said = capfd.readouterr().err
    assert "trained on bands red, green, blue" in said
    assert "other.zarr has pan" in said
    (out / "last.pt").write_bytes(b"nothing")
    assert fit("--resume", out, store=None, network=()) == 1
    assert "last.pt is truncated" in capfd.readouterr().err


def test_a_damaged_last_checkpoint_falls_back_on_the_one_before(fit, tmp_path, capfd):
    whole, out = tmp_path / "whole", tmp_path / "run"
    for folder in (whole, out):
        assert fit("--out", folder, "--epochs", 2) == 0
    (out / "last.pt").write_bytes((out / "last.pt").read_bytes()[:1000])
    assert fit("--resume", out, store=None, network=()) == 0
    said = capfd.readouterr().out
    assert "note:" in said
    assert "going on from" in said
    assert_same_run(whole, out)


def test_a_change_of_threads_is_announced(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1) == 0
    assert fit("--resume", out, "--threads", 2, "--epochs", 2, store=None, network=()) == 0
    said = capfd.readouterr().out
    assert "threads was 1, is 2" in said
    assert "--epochs was 1, is 2" in said
    assert len(rows(out)) == 2


def test_patience_ends_a_run_early(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 9, "--lr", "1e-9", "--patience", 2, "--jitter", 0) == 0
    assert "stopped early" in capfd.readouterr().out
    history = rows(out)
    ious = [float(row["road_iou"]) for row in history]
    assert len(history) < 9
    assert max(ious[-2:]) <= max(ious[:-2])


def test_a_store_without_validation_tiles_trains_all_the_same(fit, tmp_path):
    out = tmp_path / "run"
    only = write_store(tmp_path / "only.zarr", scenes=2, splits=(0,))
    assert fit("--out", out, "--epochs", 1, store=only) == 0
    assert (out / "best.pt").exists()


@pytest.mark.parametrize("targets", ["binary", "continuous"])
def test_other_targets_train(fit, tmp_path, targets):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, "--targets", targets) == 0
    assert load(out / "best.pt").facts.channels == 1


@pytest.mark.parametrize(
    "options", [("--residency", "stream", "--ram-limit", "64MB"), ("--folds", "3")]
)
def test_other_ways_to_the_tiles(fit, tmp_path, options):
    assert fit("--out", tmp_path / "run", "--epochs", 1, *options) == 0


def test_profile_says_where_a_step_goes_and_writes_nothing(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--profile") == 0
    said = capfd.readouterr().out
    for phase in ("wait for the batch", "network forward", "backward", "images/s", "operator"):
        assert phase in said
    assert not out.exists()


def test_the_fastest_batch_size_is_found_and_kept(fit, tmp_path, capfd):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, "--batch-size", "auto") == 0
    size = load(out).config["batch_size"]
    assert f"batch size {size} is the fastest here" in capfd.readouterr().out
    assert 2 <= size <= 24


def test_a_batch_beyond_memory_is_refused_naming_one_that_fits(fit, tmp_path, monkeypatch, capfd):
    small = Available(2_000_000, "the machine")
    monkeypatch.setattr("training.engine.memory.available_memory", lambda: small)
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, "--batch-size", 24) == 2
    found = re.search(r"--batch-size (\d+) fits", capfd.readouterr().err)
    assert found
    assert fit("--out", out, "--epochs", 1, "--batch-size", found[1]) == 0
