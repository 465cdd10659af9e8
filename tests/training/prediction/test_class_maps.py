"""Predictions of classes: bands, palette, names, blending, and a class named road."""

import json
from pathlib import Path

import geopandas
import numpy as np
import pytest
import rasterio
import torch
from helpers.predict_cases import UTM, make_checkpoint, pixels, write_image

import geoprep
from geoprep.roads.centrelines.opening import open_raster
from training.predict import main

NAMES = ("background", "road", "water & ice", "wood")
COLOURS = ("#14171E", "#FF0080", "#0040FF", "#20A020")
CLASSES = {
    "targets": "classes",
    "channels": 4,
    "class_mph": (),
    "class_names": NAMES,
    "class_colors": COLOURS,
}
USUAL = ("--device", "cpu", "--precision", "fp32", "--model", "helpers.predict_cases:pointwise")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Return a checkpoint, an image and the probabilities of its classes, float32 (class, y, x)."""
    folder = tmp_path_factory.mktemp("classes")
    checkpoint, model = make_checkpoint(folder / "best.pt", **CLASSES)
    values = pixels(150, 170)
    values[:30, :40] = 0  # no imagery
    image = write_image(folder / "scene.tif", values, nodata=0)
    mean, std = np.array([100.0, 110, 120]), np.array([40.0, 50, 60])
    normal = torch.from_numpy(((values - mean) / std).astype(np.float32)).permute(2, 0, 1)
    with torch.no_grad():
        return checkpoint, image, model(normal[None])[0].softmax(0).numpy()


def predict(case, out, *options):
    checkpoint, image, _ = case
    windows = ("--window", "64", "--overlap", "16")
    assert main([str(checkpoint), str(image), "--out", str(out), *USUAL, *windows, *options]) == 0
    return Path(out) / "scene.tif"


def test_a_prediction_has_classes_with_palette_and_names(case, tmp_path):
    path = predict(case, tmp_path, "--overlay", "--tta", "flips")
    expected = case[2].argmax(0).astype(np.uint8)
    expected[:30, :40] = 255
    with rasterio.open(path) as dataset:
        assert (dataset.count, dataset.nodata, dataset.crs) == (1, 255, UTM)
        assert (dataset.read(1) == expected).mean() > 0.999  # ties after rounding
        palette = dataset.colormap(1)
        assert [bytes(palette[i][:3]).hex() for i in range(4)] == [c[1:].lower() for c in COLOURS]
        assert json.loads(dataset.tags()["CLASS_NAMES"]) == list(NAMES)
    aux = path.with_name("scene.tif.aux.xml").read_text()
    assert "<Category>water &amp; ice</Category>" in aux
    style = path.with_suffix(".qml").read_text()
    assert 'label="water &amp; ice" color="#0040ff"' in style
    assert path.with_suffix(".png").stat().st_size > 1000


def test_confidence_and_probabilities_are_bands_on_request(case, tmp_path):
    path = predict(case, tmp_path, "--confidence", "--probabilities")
    with rasterio.open(path) as dataset:
        assert dataset.descriptions == ("class", "confidence", *NAMES)
        found = dataset.read()
    seen = found[0] != 255
    assert seen.sum() == 150 * 170 - 30 * 40
    assert (found[:, ~seen] == 255).all()
    ordered = np.sort(case[2], axis=0)[::-1]
    expected = (ordered[0] - ordered[1]) * 255
    assert np.abs(found[1].astype(float) - expected)[seen].max() <= 0.51 + 1
    assert np.abs(found[2:].astype(float) - case[2] * 255)[:, seen].max() <= 1.01
    assert (found[2:].argmax(0) == found[0])[seen].mean() > 0.95  # of bytes: more ties


def test_a_class_named_road_is_a_mask_of_roads(case, tmp_path):
    path = predict(case, tmp_path)
    raster = open_raster(path)
    assert raster.kind == "mask"
    road = raster.probability(0, 0, *raster.shape)
    with rasterio.open(path) as dataset:
        assert ((road == 255) == (dataset.read(1) == 1)).all()


def test_another_request_says_what_differs(case, command, tmp_path):
    path = predict(case, tmp_path)
    before = path.read_bytes()
    checkpoint, image, _ = case
    given = (main, checkpoint, image, "--out", tmp_path, *USUAL)
    said = command(*given, "--window", 64, "--overlap", 16, "--probabilities", status=2).err
    assert "made with other options (probabilities)" in said
    assert path.read_bytes() == before
    said = command(*given, "--threshold", "0.5", status=2).err
    assert "--threshold is for models of roads" in said
    said = command(*given, "--outputs", "all", status=2).err
    assert "--outputs is for models of roads" in said


def test_polygons_are_those_of_polygonize(case, tmp_path):
    options = ("--square", "--min-area", "1", "--simplify", "0.5")
    file = tmp_path / "areas.gpkg"
    path = predict(case, tmp_path / "out", "--polygons", str(file), *options)
    expected = geoprep.polygonize(path, square=True, min_area_m2=1, simplify_m=0.5)
    written = geopandas.read_file(file, layer="areas")
    assert len(written) == len(expected) > 0
    assert written.geometry.geom_equals_exact(expected.geometry, 1e-6).all()
    assert written["area_m2"].min() >= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--square",), "--square is for --polygons: name their file too"),
        (("--polygons", "a.shp"), "a.shp"),
    ],
)
def test_options_of_polygons_need_a_file_of_a_known_format(case, tmp_path, command, options, words):
    checkpoint, image, _ = case
    given = [str(checkpoint), str(image), "--out", str(tmp_path / "out"), *USUAL, *options]
    assert words in command(main, *given, status=2).err
    assert not (tmp_path / "out").exists()
