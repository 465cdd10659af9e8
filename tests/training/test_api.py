"""Test training and models as notebooks use them."""

import doctest
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from helpers import tiny
from helpers.predict_cases import make_checkpoint, pixels, write_image
from helpers.runs import KEYWORDS

import geoprep
import training
from geoprep.errors import UsageError
from loaders import DevicePrep
from training import evaluate, export, fit
from training.model.build import build_model


def bands_first(height, width, bands=3):
    """Return uint8 (band, y, x)."""
    return np.ascontiguousarray(pixels(height, width, bands=bands).transpose(2, 0, 1))


@pytest.fixture(scope="module")
def run(store_path, tmp_path_factory, short_runs):
    out = tmp_path_factory.mktemp("runs") / "tiny"
    return training.train(geoprep.open_store(store_path), out=str(out), progress=False, **KEYWORDS)


@pytest.fixture(scope="module")
def model(run):
    return run.model(model=KEYWORDS["model"])


def test_train_returns_the_run_with_its_metrics(run):
    assert run.best.exists()
    assert len(run.metrics) == 1
    assert "road_iou" in " ".join(run.metrics.columns)
    assert str(run.folder) in repr(run)


PUBLIC = (training.load_model, training.Model.predict, training.evaluate_model)


@pytest.mark.parametrize("function", [*PUBLIC, training.export_model], ids=lambda f: f.__name__)
def test_the_example_of_a_function_runs(function, run, store_path, tmp_path, monkeypatch):
    """In a folder that has what it names; its model may be one outside this package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("training.checkpoint.trusted", lambda named, model, where: named)
    shutil.copytree(run.folder, "runs/moscow")
    Path("moscow.zarr").symlink_to(store_path)
    write_image(tmp_path / "scene.tif", pixels(64, 64))
    (example,) = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs={})
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


def test_wrong_settings_are_named_as_keywords(store_path):
    with pytest.raises(UsageError, match=r"unknown setting 'epoch'.*epochs"):
        training.train(store_path, epoch=3)
    with pytest.raises(UsageError, match=r"`batch_size`"):
        training.train(store_path, batch_size=0)


def test_a_model_takes_uint8_and_returns_probabilities(model):
    image = bands_first(70, 90)
    found = model(image)
    channels = len(model.info.class_mph) + 1
    assert found.shape == (channels, 70, 90)
    assert found.dtype == np.float32
    assert 0 <= found.min() <= found.max() <= 1
    np.testing.assert_array_equal(model(image[None])[0], found)
    assert "red" in repr(model)


@pytest.mark.parametrize("tta", ["none", "d4"])
def test_a_model_continues_an_image_as_predictions_do(tmp_path, tta):
    """By reflection: zeros beyond the edge would change the probabilities along it."""
    factory = "helpers.predict_cases:neighbourly"
    path, _ = make_checkpoint(tmp_path / "n.pt", model=factory)
    options = {"device": "cpu", "precision": "fp32", "tta": tta}
    model = training.load_model(path, model=factory, **options)
    values = pixels(70, 90)
    image = write_image(tmp_path / "scene.tif", values)
    (made,) = model.predict(image, tmp_path / "out", window=96, overlap=32, progress=False)
    with rasterio.open(made) as prediction:
        road = prediction.read(1)
    found = model(np.moveaxis(values[::-1].copy(), 2, 0)[:, ::-1])[-1]  # with negative strides
    assert (np.minimum(found * 255 + np.float32(0.5), 254).astype(np.uint8) == road).all()


def test_images_of_another_kind_are_refused(model):
    with pytest.raises(UsageError, match=r"`image` is torch\.float32"):
        model(bands_first(64, 64).astype(np.float32))
    with pytest.raises(UsageError, match="bands red, green, blue"):
        model(bands_first(64, 64, bands=4))


def test_evaluation_and_export_use_the_factory_of_the_model(run, model, store_path, tmp_path):
    found = training.evaluate_model(model, store_path, progress=False)
    assert 0 <= found["metrics"]["road_iou"] <= 1
    by_path = training.evaluate_model(run.best, store_path, model=KEYWORDS["model"], progress=False)
    assert by_path["metrics"]["road_iou"] == found["metrics"]["road_iou"]
    assert training.export_model(model, tmp_path / "tiny.pt2", format="fp32").exists()
    with pytest.raises(UsageError, match="`model`"):
        training.evaluate_model(run.best, store_path, progress=False)


def test_options_that_only_the_command_has_are_refused(run, model, store_path, tmp_path):
    with pytest.raises(UsageError, match=r"`scenes` is an option of geoprep evaluate only"):
        training.evaluate_model(run.best, store_path, scenes=True)
    with pytest.raises(UsageError, match=r"`instances` is an option of geoprep pred"):
        model.predict(tmp_path / "scene.tif", tmp_path / "out", instances=2)


def export_to(model, *, out, **options):
    training.export_model(model, out, **options)


@pytest.mark.parametrize(
    ("module", "function", "shared", "options"),
    [
        (evaluate, training.evaluate_model, "evaluate.evaluated", {"tta": "d4", "threads": 1}),
        (export, export_to, "export.export", {"out": "x.pt2", "format": "fp32"}),
        (fit, training.train, "run.start.start_run", {"out": "run", "epochs": 2}),
    ],
    ids=["evaluate", "export", "fit"],
)
def test_a_command_and_its_function_do_the_same(
    run, store_path, monkeypatch, command, module, function, shared, options
):
    received = []
    places = [str(run.best)] * (module in (evaluate, export))
    places += [str(store_path)] * (module is not export)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]

    def record(options, *_, **__):
        given = options if isinstance(options, dict) else vars(options)
        received.append({name: value for name, value in given.items() if name != "quiet"})
        raise UsageError("recorded")

    monkeypatch.setattr(f"training.{shared}", record)
    command(module.main, *places, *words, status=2)
    with pytest.raises(UsageError, match="recorded"):
        function(*places, **options)
    assert received[0] == received[1] != {}


def probabilities(network, store_path, image):
    """Return the output of a module for the images that the loop of a user normalises."""
    prep = DevicePrep.from_store(store_path, targets="binary")
    with torch.inference_mode():
        return network.eval()(prep.normalize(torch.tensor(image)[None])).sigmoid()[0].numpy()


def test_a_model_of_a_users_own_loop_is_saved_with_its_factory(store_path, tmp_path):
    network, factory = tiny.normed(bands=3, channels=1), "helpers.tiny:normed"
    store, image, state = geoprep.open_store(store_path), bands_first(64, 96), torch.get_rng_state()
    options = {"targets": "binary", "factory": factory, "level": 32, "bands": "red,green,blue"}
    path = training.save_model(torch.compile(network), tmp_path / "own.pt", store=store, **options)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(UsageError, match=f"own.pt imports {factory}.*add `model` {factory}"):
        training.load_model(path)
    model = training.load_model(path, model=factory, precision="fp32")
    expected = probabilities(network, store_path, image)
    np.testing.assert_allclose(model(image), expected, atol=1e-6)
    assert (model.info.targets, model.info.level, model.info.gsd_m) == ("binary", 32, (1.0, 1.0))
    assert "road_iou" in training.evaluate_model(model, store, progress=False)["metrics"]
    exported = training.export_model(model, tmp_path / "own.pt2", format="fp32")
    np.testing.assert_allclose(training.load_model(exported)(image), expected, atol=1e-5)


def test_a_built_in_model_of_a_users_own_loop_opens_without_a_factory(store_path, tmp_path):
    network, image = build_model(bands=3, channels=1), bands_first(64, 64)
    path = training.save_model(network, tmp_path / "own.pt", store=store_path, targets="binary")
    found = training.load_model(path, precision="fp32")(image)
    np.testing.assert_allclose(found, probabilities(network, store_path, image), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`factory` is missing: the model is a Sequential"),
        ({"factory": "helpers.tiny:build"}, "helpers.tiny:build.*channels=1.*another model"),
        ({"factory": "helpers.tiny:normed", "targets": "bins"}, "channels=8.*check .*`targets`"),
        (
            {"factory": "helpers.tiny:normed", "targets": "bin_index"},
            "`targets` 'bin_index' is unknown",
        ),
        ({"factory": "helpers.tiny:normed", "bands": ["nir"]}, "nir"),
    ],
)
def test_a_model_that_cannot_be_reopened_is_not_saved(store_path, tmp_path, options, message):
    network, options = tiny.normed(bands=3, channels=1), {"targets": "binary"} | options
    with pytest.raises(UsageError, match=message):
        training.save_model(network, tmp_path / "own.pt", store=store_path, **options)
    assert not list(tmp_path.iterdir())
