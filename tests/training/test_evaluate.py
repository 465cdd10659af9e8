"""Judging a checkpoint on stores."""

import json

import pytest
from helpers.stores import write_store

from training.assess import assess
from training.evaluate import main


@pytest.fixture
def run_folder(fit, tmp_path):
    out = tmp_path / "run"
    assert fit("--out", out, "--epochs", 1, "--lr", "0.02", "--precision", "fp32") == 0
    return out


def test_it_says_what_training_said(run_folder, store_path, tmp_path, capsys):
    file = tmp_path / "figures.json"
    fp32 = ("--precision", "fp32", "--device", "cpu", "--quiet")
    assert main([str(run_folder), str(store_path), "--json", str(file), *fp32]) == 0
    said = capsys.readouterr().out
    assert "road IoU" in said
    assert "8 val tiles, 64 x 64 pixels" in said
    figures = json.loads(file.read_text())
    assert figures["tiles"] == 8
    last = (run_folder / "metrics.csv").read_text().splitlines()
    row = dict(zip(last[0].split(","), last[1].split(","), strict=True))
    assert figures["metrics"]["road_iou"] == pytest.approx(float(row["road_iou"]))
    assert figures["metrics"]["iou_1-10"] is None  # no such speed there


def test_batches_levels_and_splits(run_folder, store_path):
    options = {"device": "cpu", "precision": "fp32"}
    one = assess(run_folder, [store_path], batch_size=1, **options)
    three = assess(run_folder, [store_path], batch_size=3, **options)
    assert one.metrics["road_iou"] == pytest.approx(three.metrics["road_iou"], abs=1e-3)
    coarse = assess(run_folder, [store_path], "train", level=32, **options)
    assert (coarse.tiles, coarse.facts.level) == (24, 32)
    assert any("pixels of" in note for note in coarse.notes)


def test_a_store_with_other_bands_is_refused(run_folder, tmp_path, capsys):
    other = write_store(tmp_path / "other.zarr", scenes=4, bands=("red", "nir"))
    assert main([str(run_folder), str(other)]) == 2
    assert "trained on bands red, green, blue" in capsys.readouterr().err


def test_bands_in_another_order_are_the_same_bands(run_folder, store_path, tmp_path):
    more = write_store(tmp_path / "more.zarr", bands=("blue", "green", "nir", "red"))
    assert assess(run_folder, [more], device="cpu").tiles == 8
