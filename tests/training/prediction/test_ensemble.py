"""Several models: the mean of their probabilities in one pass, and their spread as a band."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rasterio
import torch
from helpers.predict_cases import HOUSES, MPH, make_checkpoint, pixels, write_image
from helpers.stores import write_store

from geoprep.roads.centrelines.opening import open_raster
from training.checkpoint import load_model
from training.evaluate import main as evaluate
from training.predict import main

USUAL = ("--device", "cpu", "--model", "helpers.predict_cases:pointwise")
FP32 = ("--precision", "fp32", "--window", "64", "--overlap", "16")


def models_of(folder, **facts):
    """Return three checkpoints with different weights and thresholds."""
    return [
        make_checkpoint(
            folder / f"fold{seed}" / "best.pt",
            seed,
            **{"threshold": threshold, "class_mph": tuple(mph + seed for mph in MPH)} | facts,
        )[0]
        for seed, threshold in enumerate((0.4, 0.5, 0.6))
    ]


def predicted(models, values):
    """Return the probabilities of each model, float32 (model, channel, y, x)."""
    outputs = []
    for path in models:
        network, info = load_model(path, device="cpu", model="helpers.predict_cases:pointwise")
        mean, std = np.array(info.mean), np.array(info.std)
        normal = torch.from_numpy(((values - mean) / std).astype(np.float32)).permute(2, 0, 1)
        with torch.no_grad():
            logits = network(normal[None])[0]
        outputs.append((logits.softmax(0) if info.has_classes else logits.sigmoid()).numpy())
    return np.stack(outputs)


def test_bands_are_the_mean_of_runs_and_files_and_their_spread(tmp_path, command):
    models = models_of(tmp_path)
    values = pixels(100, 150)
    values[:20, :30] = 0  # no imagery
    image = write_image(tmp_path / "scene.tif", values, nodata=0)
    words = (models[0].parent, models[1], models[2].parent, image)
    said = command(main, *words, "--out", tmp_path / "out", *USUAL, *FP32).out
    assert "mean of 3 models, float32 on cpu" in said
    assert "threshold 0.5 " in said
    outputs = predicted(models, values)[:, -1]
    seen = values.any(axis=2)
    with rasterio.open(tmp_path / "out" / "scene.tif") as dataset:
        assert dataset.descriptions == ("road", "speed", "spread")
        assert dataset.scales[2] == pytest.approx(1 / 255)
        assert json.loads(dataset.tags()["CLASSES"]) == []
        road, speed, spread = dataset.read().astype(float)
    assert np.abs(road - outputs.mean(0) * 255)[seen].max() < 1
    assert np.abs(spread - outputs.std(0) * 255)[seen].max() < 1
    assert spread[seen].max() > 10
    assert (road[~seen] == 255).all()
    assert (spread[~seen] == 255).all()
    assert set(np.unique(speed[speed != 255])) <= {0, *(np.floor(np.array(MPH) + 1.5))}
    assert ((speed > 0) == (outputs.mean(0) >= 0.5))[seen].mean() > 0.999
    again = command(main, *words, "--out", tmp_path / "out", *USUAL, *FP32).out
    assert "1 already complete" in again
    fewer = command(main, *words[1:], "--out", tmp_path / "out", *USUAL, *FP32, status=2).err
    assert "was made with another checkpoint" in fewer
    assert open_raster(tmp_path / "out" / "scene.tif") is not None


def test_classes_and_resampled_images_have_the_band_too(tmp_path, command):
    models = models_of(tmp_path, **HOUSES)
    values = pixels(100, 150)
    image = write_image(tmp_path / "scene.tif", values, nodata=None)
    options = (*USUAL, *FP32, "--nodata", "none", "--probabilities")
    command(main, *models, image, "--out", tmp_path / "out", *options)
    command(main, *models, image, "--out", tmp_path / "coarse", *options, "--gsd", "0.6")
    outputs = predicted(models, values)
    names = ("class", "background", "house", "lake", "spread")
    with rasterio.open(tmp_path / "out" / "scene.tif") as dataset:
        assert dataset.descriptions == names
        bands = dataset.read()
    assert (bands[0] == outputs.mean(0).argmax(0)).mean() > 0.999
    assert np.abs(bands[1:4] - outputs.mean(0) * 255).max() < 1
    assert np.abs(bands[4] - outputs.std(0).max(0) * 255).max() < 1
    with rasterio.open(tmp_path / "coarse" / "scene.tif") as dataset:
        assert (dataset.descriptions, dataset.shape) == (names, (100, 150))
        assert 0 < dataset.read(5).mean() < bands[4].mean()


def test_models_for_other_tasks_and_lacking_images_are_refused(tmp_path, command):
    first, second, _ = models_of(tmp_path)
    other, _ = make_checkpoint(tmp_path / "other.pt", gsd_m=(0.5, 0.5), level=32)
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))
    out = ("--out", tmp_path / "out", *USUAL)
    assert "differ in gsd_m" in command(main, first, other, image, *out, status=2).err
    for name, value in (("nodata", 255.0), ("limits_of", "integers")):
        odd, _ = make_checkpoint(tmp_path / f"{name}.pt", **{name: value})
        assert f"differ in {name}: " in command(main, first, odd, image, *out, status=2).err
    assert "name images after them" in command(main, first, second, *out, status=2).err


def test_the_mean_of_models_is_evaluated(tmp_path, command):
    store = write_store(tmp_path / "city.zarr")
    models = models_of(tmp_path)
    given = (*USUAL, "--json", "--quiet", "--split", "all")
    single = json.loads(command(evaluate, models[0], store, *given).out)
    several = json.loads(command(evaluate, *models, store, *given).out)
    same = json.loads(command(evaluate, models[0], models[0], store, *given).out)
    assert several["checkpoint"].count("best.pt") == 3
    assert several["metrics"]["road_iou"] != single["metrics"]["road_iou"]
    assert same["metrics"]["road_iou"] == pytest.approx(single["metrics"]["road_iou"])
    folds = models_of(tmp_path / "folds", folds=3, fold=0)
    refused = command(evaluate, *folds, store, *USUAL, status=2).err
    assert "use --split test" in refused
