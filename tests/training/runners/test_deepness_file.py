"""Files for Deepness, a plugin of QGIS: its rules, applied with NumPy, give what predict gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rasterio
from helpers.predict_cases import GSD, HOUSES, make_checkpoint, pixels, write_image
from helpers.rasters import write_raster

from training.export import main as export_model
from training.predict import main as predict

MODEL = ("--model", "helpers.predict_cases:pointwise")


def as_the_plugin(path, image):
    """Return the classes of an image, uint8 (y, x, band), and metadata, by the plugin's rules."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,), (output,) = session.get_inputs(), session.get_outputs()
    texts = session.get_modelmeta().custom_metadata_map
    metadata = {key: json.loads(text) for key, text in texts.items()}
    count, bands, height, width = given.shape
    assert (given.type, count, height, width) == ("tensor(float)", 1, 512, 512)
    assert output.shape[-2:] == [512, 512]
    assert len(output.shape) == 4
    mean, std = (
        np.array(metadata[f"standardization_{name}"], np.float32) for name in ("mean", "std")
    )
    tiles = np.float32(image[None, :, :, :bands] * 1.0 / 255.0)
    tiles = ((tiles - mean) / std).transpose(0, 3, 1, 2)
    (result,) = session.run(None, {given.name: tiles})
    result[result < metadata["seg_thresh"]] = 0
    classes = (result != 0)[:, 0] if result.shape[1] == 1 else result.argmax(axis=1)
    channels = max(output.shape[1], 2)
    assert list(metadata["class_names"]) == [str(number) for number in range(channels)]
    assert (metadata["model_type"], metadata["tile_size"]) == ("Segmentor", 512)
    assert 0 <= metadata["tiles_overlap"] < 100
    return classes[0], metadata


@pytest.mark.parametrize(
    ("facts", "names"),
    [(HOUSES, ["background", "house", "lake"]), ({"threshold": 0.3}, ["background", "road"])],
)
def test_the_plugin_finds_the_classes_of_predict(tmp_path, command, facts, names):
    pytest.importorskip("onnxscript")
    checkpoint, _ = make_checkpoint(tmp_path / "best.pt", **facts)
    image = pixels(512, 512)
    scene = write_image(tmp_path / "scene.tif", image, nodata=None)
    out = tmp_path / "qgis.onnx"
    said = command(
        export_model, *(checkpoint, *MODEL, "--format", "onnx", "--for", "deepness", "--out", out)
    ).out
    assert "open it with Deepness in QGIS; it takes red, green, blue" in said
    classes, metadata = as_the_plugin(out, image)
    assert [*metadata["class_names"].values()] == names
    assert metadata["resolution"] == pytest.approx(100 * GSD)
    options = ("--device", "cpu", "--precision", "fp32", "--nodata", "none")
    command(predict, checkpoint, scene, *MODEL, *options, "--out", tmp_path / "predicted")
    with rasterio.open(tmp_path / "predicted" / "scene.tif") as dataset:
        band = dataset.read(1)
    expected = band if facts is HOUSES else band >= round(255 * 0.3)
    assert (classes == expected).mean() > 0.995  # bytes are rounded
    assert 0.05 < np.mean(classes == 1) < 0.95


def test_another_format_or_reader_is_refused(tmp_path, command):
    image = write_raster(tmp_path / "image.tif", np.ones((3, 32, 32), np.uint8))
    pytest.importorskip("onnxscript")
    checkpoint, _ = make_checkpoint(tmp_path / "best.pt", **HOUSES)
    words = (checkpoint, *MODEL, "--for", "deepness", "--out", tmp_path / "a.pt2")
    assert "deepness runs .onnx files" in command(export_model, *words, status=2).err
    out = tmp_path / "a.onnx"
    command(export_model, *words[:-2], "--format", "onnx", "--out", out)
    refused = command(predict, out, image, "--out", tmp_path / "out", status=1).err
    assert "no record of what it was trained for" in refused


def test_stretched_images_are_named_with_their_command_or_refused(tmp_path, command):
    pytest.importorskip("onnxscript")
    words = (*MODEL, "--format", "onnx", "--for", "deepness", "--out", tmp_path / "a.onnx")
    limits = ((10.0, 200.0), (0.0, 90.5), (5.0, 60.0))
    known, _ = make_checkpoint(tmp_path / "city.pt", rescale="city", limits=limits, **HOUSES)
    said = command(export_model, known, *words).out
    assert "gdal_translate -ot Byte -scale_1 10 200 0 255 -scale_2 0 90.5 0 255 -scale_3" in said
    assert "state a scale or offset, take the result of gdal_translate -ot Float32 -unscale" in said
    each, _ = make_checkpoint(tmp_path / "scene.pt", rescale="scene", **HOUSES)
    refused = command(export_model, each, *words, "--overwrite", status=2).err
    assert "rescaled by the rule scene" in refused
