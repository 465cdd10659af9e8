"""``training.predict`` from checkpoint and images to maps, in this process."""

import fcntl
import itertools
import json
import os
import threading
import time
import tracemalloc
from dataclasses import replace
from types import MappingProxyType
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest
import rasterio
import rasterio.shutil
import torch
from helpers.buckets import client_of, s3_endpoint, use_endpoint
from helpers.items import collection_of, sentinel_item, write_json
from helpers.predict_cases import (
    FACTS,
    GSD,
    MPH,
    PLACE,
    UTM,
    expected_prediction,
    ignore_progress,
    make_checkpoint,
    pixels,
    predict_options,
    probabilities,
    write_image,
)
from helpers.web import served
from PIL import Image

import geoprep
from geoprep.errors import UsageError
from geoprep.executors.threads import stopped
from geoprep.palette import NODATA_GREYS, SPEED_COLOURS
from geoprep.roads.centrelines.opening import open_raster
from geoprep.storage import inputs, places, transfer, versions
from training import predict as command
from training.checkpoint import Checkpoint, save
from training.engine.native import missing_compiler
from training.prediction import job
from training.prediction.images import inspect_image
from training.prediction.journal import folder_of, locked
from training.prediction.predictor import Predictor
from training.prediction.screen import Screen
from training.runners.model_files import open_model
from training.runners.runner import NativeRunner

FP32 = ("--precision", "fp32")
BINS = ("--outputs", "all")
MODEL = "helpers.predict_cases:"


@pytest.fixture
def run(same_process, capsys):
    """Return a function that runs the command, which ends as told, and returns what it prints."""

    def run(*args, network="pointwise", status=0):
        found = command.main([*map(str, args), "--model", f"{MODEL}{network}"])
        text = "".join(capsys.readouterr())
        assert found == status, text
        return text

    return run


@pytest.fixture
def checkpoint(tmp_path):
    return make_checkpoint(tmp_path / "best.pt")


def read(path):
    with rasterio.open(path) as dataset:
        return dataset.read()


@pytest.mark.parametrize(
    ("height", "width", "options"),
    [
        (130, 101, ("--window", 64, "--overlap", 16)),
        (130, 101, ("--window", 64, "--overlap", 0, "--batch-size", 3)),
        (40, 700, ("--window", 96, "--overlap", 48, "--tta", "d4")),
        (600, 33, ("--window", 64, "--overlap", 5, "--tta", "flips")),
        (1, 1, ()),
    ],
)
def test_pixels_are_those_of_the_model(run, checkpoint, tmp_path, height, width, options):
    path, network = checkpoint
    values = pixels(height, width)
    values[: height // 3, width // 2 :] = 0
    image = write_image(tmp_path / "scene.tif", values)
    text = run(path, image, "--out", tmp_path / "out", *FP32, *BINS, *options)
    wanted, sure = expected_prediction(probabilities(network, values), values.any(axis=2))
    found = read(tmp_path / "out" / "scene.tif")
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(found[:, sure], wanted[:, sure])
    assert np.abs(found.astype(int) - wanted)[:, ~sure].max(initial=0) <= 66
    with rasterio.open(tmp_path / "out" / "scene.tif") as dataset:
        assert dataset.transform == PLACE
        assert dataset.crs == UTM
        assert dataset.descriptions[:2] == ("road", "speed")
    assert f"predicted {tmp_path / 'out' / 'scene.tif'}: " in text
    assert "Mpx/s" in text
    assert "km2/h" in text


def test_windows_leave_no_seams(run, tmp_path):
    """Away from the image's edge, overlap hides where the windows were."""
    path, network = make_checkpoint(tmp_path / "n.pt", model="helpers.predict_cases:neighbourly")
    values = pixels(300, 260)
    image = write_image(tmp_path / "scene.tif", values)
    options = ("--out", tmp_path / "m", *FP32, "--window", 96, "--overlap", 32)
    run(path, image, *options, *BINS, network="neighbourly")
    wanted, _ = expected_prediction(probabilities(network, values), values.any(axis=2))
    found = read(tmp_path / "m" / "scene.tif")
    inner = np.s_[[0, *range(2, 9)], 4:-4, 4:-4]
    assert np.abs(found[inner].astype(int) - wanted[inner]).max() <= 2


def test_resampled_prediction_has_the_bounds_of_the_image(run, tmp_path):
    path, _ = make_checkpoint(tmp_path / "best.pt", gsd_m=(2 * GSD, 2 * GSD))
    values = pixels(100, 90)
    image = write_image(tmp_path / "scene.tif", values)
    args, target = (path, image, "--out", tmp_path / "m", *FP32), tmp_path / "m" / "scene.tif"
    says = ("resampled from 90 x 100", "predicted at 0.62 x 0.62 m")
    for options, shape, text in zip(
        (("--grid", "model"), ()), ((50, 45), (100, 90)), says, strict=True
    ):
        if not options:
            assert "was made with other options (grid)" in run(*args, status=2)
        assert text in run(*args, *options, "--overwrite")
        assert "already complete" in run(*args, *options)
        with rasterio.open(target) as dataset:
            assert dataset.shape == shape
            assert dataset.bounds == rasterio.open(image).bounds


def test_binary_model_predicts_one_band(run, tmp_path):
    path, network = make_checkpoint(
        tmp_path / "best.pt", channels=1, targets="binary", class_mph=()
    )
    values = pixels(50, 50)
    image = write_image(tmp_path / "scene.tif", values)
    run(path, image, "--out", tmp_path / "m", *FP32, "--overlay")
    found = read(tmp_path / "m" / "scene.tif")
    wanted = np.floor(probabilities(network, values) * 255 + 0.5)
    assert found.shape == (1, 50, 50)
    assert np.abs(found - np.minimum(wanted, 254)).max() <= 1
    assert (tmp_path / "m" / "scene.png").exists()


class Brightness:
    """A runner that is no network: the brighter, the likelier a road, and the faster."""

    identity = MappingProxyType({"runner": "brightness"})
    description, device, fixed_batch, images = "brightness", torch.device("cpu"), True, 2

    def __init__(self, at_once=1):
        self.shapes = set()
        self.at_once, self.most, self.turns = at_once, 0, threading.Semaphore(at_once)
        self._callers, self._counting = 0, threading.Lock()
        self._calls = itertools.count()
        self._meeting = threading.Barrier(at_once, timeout=300)

    def _count(self, more):
        with self._counting:
            self._callers += more
            self.most = max(self.most, self._callers)

    def for_pixels(self, pixels):
        return self, ""

    def __call__(self, image):
        self.shapes.add(tuple(image.shape))
        self._count(1)
        if next(self._calls) < self.at_once:
            self._meeting.wait()
        self._count(-1)
        grey = image.float().mean(dim=1) / 255
        bins = [(grey * 7).floor() == k for k in range(7)]
        return torch.stack([*bins, grey], dim=-1).float()


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_any_function_from_windows_to_probabilities_is_a_runner(tmp_path, at_once):
    """Called by one thread, or by as many as it asks for."""
    grey = np.linspace(1, 254, 150 * 130).astype(np.uint8).reshape(150, 130)
    image = write_image(tmp_path / "scene.tif", np.repeat(grey[..., None], 3, axis=2))
    options = predict_options(window=32, overlap=0, batch_size=2)
    runner, predictor = Brightness(at_once), Predictor(FACTS, options, 0.5, "none")
    target = tmp_path / "map.tif"
    predictor.run(inspect_image(str(image), FACTS, options), target, runner, ignore_progress)
    found = read(target)
    np.testing.assert_array_equal(found[0], grey)
    mph = np.floor(np.array(MPH) + 0.5)[(grey * (7 / 255)).astype(int).clip(0, 6)]
    np.testing.assert_array_equal(found[1], np.where(grey >= 128, mph, 0))
    assert len(runner.shapes) == 1  # batches are filled up
    assert runner.most == at_once
    with rasterio.open(target) as dataset:
        assert json.loads(dataset.tags()["PREDICTION"])["runner"] == "brightness"


def test_error_in_one_of_several_threads_ends_the_prediction(tmp_path):
    image = write_image(tmp_path / "scene.tif", pixels(64, 200))
    options = predict_options(window=32, overlap=0)
    runner, predictor = Brightness(2), Predictor(replace(FACTS, channels=9), options, 0.5, "none")
    source, target = inspect_image(str(image), FACTS, options), tmp_path / "map.tif"
    with pytest.raises(UsageError, match="its factory does not fit the checkpoint"):
        predictor.run(source, target, runner, ignore_progress)
    assert not target.exists()
    assert not [t for t in threading.enumerate() if t.name.startswith("predict-network")]


@pytest.fixture
def work(tmp_path):
    """Return a function that returns a job of a runner for four images."""

    def work(runner, height, out="out"):
        images = [write_image(tmp_path / f"{i}.tif", pixels(height, 32, seed=i)) for i in range(4)]
        read, written = {"images": tuple(map(str, images))}, {"out": tmp_path / out}
        options = predict_options(window=32, overlap=0, **read, **written)
        return job.PredictionJob(Predictor(FACTS, options, 0.5, "none"), runner, ())

    return work


def test_small_images_are_predicted_several_at_a_time(work, monkeypatch):
    together = work(Brightness(2), 32)  # the first two calls wait for each other
    found = together.run(Screen(quiet=True, send=lambda _: None))
    monkeypatch.setattr(job, "_SMALL", 0)
    alone = work(Brightness(1), 32, "alone")
    for one, two in zip(alone.run(Screen(quiet=True)), found, strict=True):
        assert (one.state, two.state) == ("predicted", "predicted")
        np.testing.assert_array_equal(read(one.target), read(two.target))


def test_images_take_turns_if_the_runner_computes_one_batch_at_a_time(work):
    class Alone(Brightness):
        def __call__(self, image):
            assert not self.turns.acquire(blocking=False)
            return super().__call__(image)

    turns = work(Alone(1), 256)
    found = turns.run(Screen(quiet=True, send=lambda _: None))
    assert {one.error for one in found} == {""}


def test_ctrl_c_stops_both_images(work):
    class Interrupted(Screen):
        def begin(self, target, pixels):
            return (lambda _: self.wait()) if target.name == "1.tif" else ignore_progress

        def wait(self):
            while not stopped():
                time.sleep(0.001)

        def say(self, what):
            raise KeyboardInterrupt  # when the first image is finished

    both = work(Brightness(1), 256)
    with pytest.raises(KeyboardInterrupt):
        both.run(Interrupted(quiet=True))
    unfinished = both.predictor.options.out / "1.tif"
    assert folder_of(unfinished).is_dir()
    assert not unfinished.exists()
    found = both.run(Screen(quiet=True, send=lambda _: None))
    assert [one.state for one in found[:2]] == ["complete", "resumed"]
    assert {one.error for one in found} == {""}


def test_leftover_folder_of_a_complete_prediction_is_deleted(run, checkpoint, tmp_path):
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))
    args = (checkpoint[0], image, "--out", tmp_path / "out", *FP32)
    run(*args)
    left = folder_of(tmp_path / "out" / "scene.tif")
    left.mkdir()
    (left / "journal.jsonl").write_text("{}")
    with (left / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(*args)
        assert left.exists()  # somebody is at work in it
    run(*args)
    assert not left.exists()


def test_ctrl_c_says_how_to_resume(run, checkpoint, tmp_path, monkeypatch):
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))

    monkeypatch.setattr(NativeRunner, "__call__", mock.Mock(side_effect=KeyboardInterrupt))
    text = run(checkpoint[0], image, "--out", tmp_path / "out", *FP32, status=130)
    assert "Run the same command again to resume" in text


def test_only_other_predictions_are_replaced_and_only_with_overwrite(run, checkpoint, tmp_path):
    path, _ = checkpoint
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))
    args = (image, "--out", tmp_path / "out", *FP32)
    run(path, *args)
    before = (tmp_path / "out" / "scene.tif").stat().st_mtime_ns
    for same in ((), ("--compile", "off")):  # as chosen for a small image
        assert "already complete" in run(path, *args, *same)
    if missing_compiler(torch.device("cpu")) is None:
        assert "other options (compiled)" in run(path, *args, "--compile", "on", status=2)
    assert (tmp_path / "out" / "scene.tif").stat().st_mtime_ns == before
    assert "other options (threshold)" in run(path, *args, "--threshold", "0.3", status=2)
    other, _ = make_checkpoint(tmp_path / "other.pt", seed=1)
    text = run(other, *args, status=2)
    assert "another checkpoint or model file: use --overwrite" in text
    assert (tmp_path / "out" / "scene.tif").stat().st_mtime_ns == before
    run(other, *args, "--overwrite")
    write_image(image, pixels(40, 40, seed=9), compress=None)
    assert "another version of the image" in run(other, *args, status=2)
    (tmp_path / "out" / "scene.tif").write_bytes(b"mine")
    assert "scene.tif exists: use --overwrite" in run(other, *args, status=2)
    assert (tmp_path / "out" / "scene.tif").read_bytes() == b"mine"


def test_other_bytes_of_the_same_size_and_time_are_another_image(run, checkpoint, tmp_path):
    image = write_image(tmp_path / "scene.tif", pixels(40, 40), compress=None)
    args = (checkpoint[0], image, "--out", tmp_path / "out", *FP32)
    run(*args)
    before = image.stat()
    write_image(image, pixels(40, 40, seed=9), compress=None)
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert image.stat().st_size == before.st_size
    assert "another version of the image" in run(*args, status=2)


def test_an_image_that_changes_while_it_is_predicted_fails(run, checkpoint, tmp_path, monkeypatch):
    image, call = write_image(tmp_path / "scene.tif", pixels(40, 40)), NativeRunner.__call__

    def changing(runner, windows):
        write_image(image, pixels(40, 40, seed=9))
        return call(runner, windows)

    monkeypatch.setattr(NativeRunner, "__call__", changing)
    text = run(checkpoint[0], image, "--out", tmp_path / "out", *FP32, status=1)
    assert "scene.tif: changed while it was predicted" in text
    assert not [*(tmp_path / "out").rglob("*.tif")]


def test_one_bad_image_does_not_stop_the_others(run, checkpoint, tmp_path):
    path, _ = checkpoint
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    write_image(scenes / "good.tif", pixels(200, 80))
    cut = write_image(scenes / "cut.tif", pixels(200, 80), compress=None)
    cut.write_bytes(cut.read_bytes()[:30000])
    write_image(scenes / "nowhere.tif", pixels(30, 30), crs=None)
    write_image(scenes / "u16.tif", pixels(60, 60, dtype="uint16", top=2000))
    (scenes / "text.tif").write_text("not an image")
    text = run(path, str(scenes / "*.tif"), "--out", tmp_path / "out", *FP32, status=1)
    assert "1 predicted, 0 already complete, 4 failed" in text
    assert "--allow-no-crs" in text
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "good.qml",
        "good.tif",
    ]
    run(path, scenes / "nowhere.tif", "--allow-no-crs", "--out", tmp_path / "out", *FP32)
    assert rasterio.open(tmp_path / "out" / "nowhere.tif").crs is None


def test_quiet_names_only_images_that_failed(run, checkpoint, tmp_path):
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    for name in ("a", "b"):
        write_image(scenes / f"{name}.tif", pixels(40, 40))
    (scenes / "text.tif").write_text("not an image")
    options = ("--out", tmp_path / "out", *FP32, "--quiet")
    run(checkpoint[0], scenes / "a.tif", *options)
    text = run(checkpoint[0], scenes, *options, status=1)
    lines = [line for line in text.splitlines() if ".tif" in line]
    assert [line.partition("scenes/")[2].partition(":")[0] for line in lines] == ["text.tif"]
    assert "1 predicted, 1 already complete, 1 failed" in text


def test_invalid_options_are_refused(run, checkpoint, tmp_path):
    path, _ = checkpoint
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))
    out = ("--out", tmp_path / "out")
    for args, message in [
        ((path, str(tmp_path / "none*.tif"), *out), f"Error: {tmp_path / 'none*.tif'}: matches"),
        ((path, image, "--out", tmp_path), "would replace an input"),
        ((path, image, *out, "--window", "100"), "--window 100"),
        ((path, image, *out, "--bands", "1,0"), "--bands 1,0"),
        ((path, image, *out, "--bands", "1,2"), "needs 3"),
        ((path, image, *out, "--gsd", "-3"), "--gsd"),
        ((path, image, *out, "--rescale", "much"), "--rescale"),
        ((path, image), "--out"),
        ((path, image, *out, "--treshold", "0.4"), "'--threshold'"),
        ((path, image, *out, "--threshold", "nan"), "--threshold"),
        ((path, image, *out, "--device", "xpu"), "--device xpu"),
        ((path, image, *out, "--confidence"), "--confidence is for models of classes"),
        ((tmp_path / "no.pt", image, *out, "--device", "xpu"), "--device xpu"),
    ]:
        assert message in run(*args, status=2)
    for args, message in [
        ((tmp_path / "no.pt", image, *out), "no such checkpoint"),
        ((image, image, *out), "scene.tif"),
    ]:
        assert message in run(*args, status=1)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_overlay_shows_roads_and_nodata_over_the_image(run, checkpoint, tmp_path):
    import matplotlib.image

    values = pixels(64, 80)
    values[:, :10] = 0
    image = write_image(tmp_path / "scene.tif", values)
    args = (checkpoint[0], image, "--out", tmp_path / "out", "--overlay", *FP32)
    run(*args)
    picture = tmp_path / "out" / "scene.png"
    shown = matplotlib.image.imread(picture)
    assert np.ptp(shown[:64, :10, :3], axis=(0, 1)).max() == 0
    legend = {tuple(pixel) for pixel in (shown[64:, :, :3] * 255).round().reshape(-1, 3)}
    assert set(SPEED_COLOURS) | {NODATA_GREYS[0]} <= legend
    picture.unlink()
    run(*args)  # of a map that is already complete
    assert picture.exists()


def test_overlay_shows_the_colours_of_a_palette(run, checkpoint, tmp_path):
    indexes = np.repeat(np.repeat(np.array([[1, 0]], np.uint8), 40, axis=1), 64, axis=0)
    image = write_image(tmp_path / "scene.tif", indexes[..., None])
    with rasterio.open(image, "r+") as dataset:
        dataset.write_colormap(1, {0: (250, 10, 10), 1: (10, 10, 250)})
    run(checkpoint[0], image, "--out", tmp_path / "out", "--overlay", *FP32)
    shown = np.asarray(Image.open(tmp_path / "out" / "scene.png"))[:512:8, :640:8]
    assert (shown[:, :40, 2] > shown[:, :40, 0]).mean() > 0.9
    assert (shown[:, 40:, 0] > shown[:, 40:, 2]).mean() > 0.9


def test_overlay_shows_values_that_are_nodata_in_another_band_only(run, checkpoint, tmp_path):
    values = pixels(64, 80).astype(np.float32) + 20
    values[:, :40, 1] = 7
    image, vrt = write_image(tmp_path / "a.tif", values), tmp_path / "b.vrt"
    rasterio.shutil.copy(image, vrt, driver="VRT")
    text = vrt.read_text()
    for band in range(1, 4):
        at = text.index(">", text.index(f'<VRTRasterBand dataType="Float32" band="{band}"')) + 1
        text = f"{text[:at]}<NoDataValue>{6 + band}</NoDataValue>{text[at:]}"
    vrt.write_text(text)
    args = ("--out", tmp_path / "out", "--overlay", *FP32, "--rescale", "0,300")
    run(checkpoint[0], image, vrt, *args)
    plain, tagged = (np.asarray(Image.open(tmp_path / "out" / f"{name}.png")) for name in "ab")
    assert np.array_equal(plain, tagged)


def test_memory_does_not_grow_with_the_height(tmp_path):
    """Twice as high an image, of as many overviews, holds no more pixels at a time."""
    path, _ = make_checkpoint(tmp_path / "best.pt")
    peaks = []
    for height in (4200, 8100):
        tall = np.resize(pixels(64, 64), (height, 64, 3))
        image = write_image(tmp_path / f"{height}.tif", tall)
        options = predict_options(checkpoint=path, model=FACTS.model, window=256, device="cpu")
        runner, info = open_model(options)
        predictor = Predictor(info, options, 0.5, "none")
        source = inspect_image(str(image), info, options)
        tracemalloc.start()
        predictor.run(source, tmp_path / f"{height}_map.tif", runner, ignore_progress)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0], peaks


def test_bands_of_bins_are_written_on_request(run, checkpoint, tmp_path):
    image = write_image(tmp_path / "scene.tif", pixels(90, 70))
    two = (checkpoint[0], image, *FP32, "--out", tmp_path / "two")
    run(*two)
    run(checkpoint[0], image, *FP32, "--out", tmp_path / "all", *BINS)
    found = read(tmp_path / "two" / "scene.tif")
    np.testing.assert_array_equal(found, read(tmp_path / "all" / "scene.tif")[:2])
    raster = open_raster(tmp_path / "two" / "scene.tif")
    assert (raster.road_bands, raster.speed_band, raster.speed_classes) == ((1,), 2, ())
    assert "other options (bins)" in run(*two, *BINS, status=2)
    assert "already complete" in run(*two[:-1], tmp_path / "all")  # with more bands than asked for


@pytest.fixture
def bucket(monkeypatch):
    """A bucket of a server on this machine: a function that puts a file there."""
    with s3_endpoint("own") as address:
        use_endpoint(monkeypatch, address)

        def put(key, path):
            body = path.read_bytes()
            client_of(address).put_object(Bucket="own", Key=key, Body=body)
            return f"s3://own/{key}"

        yield put


def test_copy_of_a_remote_image_is_deleted(run, checkpoint, tmp_path, bucket, monkeypatch):
    image = write_image(tmp_path / "scene.tif", pixels(170, 150))
    address = bucket("scenes/scene.tif", image)
    monkeypatch.setattr(transfer, "PIECE", 10_000)  # several requests

    for module in (places, inputs, versions):
        monkeypatch.setattr(module, "read_object", None)  # it is never read whole
    args = (checkpoint[0], address, *FP32)
    run(*args, "--out", tmp_path / "far", "--overlay")
    assert "already complete" in run(*args, "--out", tmp_path / "far")
    there = sorted(p.name for p in (tmp_path / "far").iterdir())
    assert there == ["scene.png", "scene.qml", "scene.tif"]
    run(checkpoint[0], image, "--out", tmp_path / "near", *FP32)
    near, far = read(tmp_path / "near" / "scene.tif"), read(tmp_path / "far" / "scene.tif")
    np.testing.assert_array_equal(near, far)


def test_images_of_stac_items(run, checkpoint, tmp_path):
    image = write_image(tmp_path / "www" / "TCI.tif", pixels(96, 96))
    with served(tmp_path / "www") as (address, _):
        found = write_json(tmp_path / "search.json", sentinel_item("S2A_1", address))
        args = (checkpoint[0], found, *FP32, "--out", tmp_path / "out")
        assert "has not one raster asset" in run(*args, status=2)
        run(*args, "--asset", "visual")
    run(checkpoint[0], image, *FP32, "--out", tmp_path / "near")
    found = read(tmp_path / "out" / "S2A_1.tif")
    np.testing.assert_array_equal(found, read(tmp_path / "near" / "TCI.tif"))


@pytest.mark.parametrize("kind", ["server", "disk"])
def test_several_assets_are_the_bands_of_an_image(run, checkpoint, tmp_path, kind):
    values = pixels(96, 96)
    image = write_image(tmp_path / "whole.tif", values)
    for number, band in enumerate(("B04", "B03", "SCL")):
        write_image(tmp_path / "www" / f"{band}.tif", values[..., [number]])
    with served(tmp_path / "www") as (address, _):
        item = sentinel_item("S2A_1", address if kind == "server" else str(tmp_path / "www"))
        found = write_json(tmp_path / "item.json", item | {"links": []})
        args = (checkpoint[0], found, *FP32, "--asset", "red,green,scl", "--out", tmp_path / "out")
        assert "No band is called blue" in run(*args, status=1)
        args = (*args, "--bands", "1,2,3")
        run(*args)
        assert "already complete" in run(*args)
        write_image(tmp_path / "www" / "B03.tif", values[..., [0]])  # the second asset counts
        assert "another version of the image" in run(*args, status=2)
        write_image(tmp_path / "www" / "B03.tif", values)
        said = run(*args, "--overwrite", status=1)
        assert "B04.tif and" in said
        assert "cannot be stacked" in said
        assert "\0" not in said
    run(checkpoint[0], image, *FP32, "--out", tmp_path / "near")
    np.testing.assert_array_equal(
        read(tmp_path / "out" / "S2A_1.tif"), read(tmp_path / "near" / "whole.tif")
    )


@pytest.mark.parametrize("names", ["keys", "eo:bands", "bands"])
def test_assets_are_read_by_their_names_with_the_nodata_of_their_item(
    run, checkpoint, tmp_path, names
):
    """And that an item is the first of a longer result is said."""
    values = pixels(64, 64)
    values[:20] = 9
    order = {"blue": 2, "green": 1, "red": 0}
    item = sentinel_item("S2A_1", str(tmp_path)) | {"links": []}
    item["assets"] = {}
    for name, number in order.items():
        write_image(tmp_path / f"{name}.tif", values[..., [number]])
        key = name if names == "keys" else f"B{number}"
        item["assets"][key] = {
            "href": str(tmp_path / f"{name}.tif"),
            "raster:bands": [{"nodata": 9}],
        }
        if names == "eo:bands":
            item["assets"][key]["eo:bands"] = [{"name": key, "common_name": name}]
        if names == "bands":
            item["assets"][key]["bands"] = [{"eo:common_name": name, "nodata": 9}]
    page = collection_of(item) | {"links": [{"rel": "next", "href": "more"}]}
    found = write_json(tmp_path / "items.json", page)
    keys = ",".join(item["assets"])
    out = tmp_path / "out"
    said = run(checkpoint[0], found, *FP32, "--out", out, "--asset", keys)
    assert "note: " in said
    assert "the first 1 items of a longer result" in said
    whole = write_image(tmp_path / "whole.tif", values, nodata=9)
    run(checkpoint[0], whole, *FP32, "--out", tmp_path / "near")
    wanted = read(tmp_path / "near" / "whole.tif")
    assert (wanted[:, :20] == 255).all()
    np.testing.assert_array_equal(read(out / "S2A_1.tif"), wanted)


def test_predictions_are_no_images_of_the_next_run(run, checkpoint, tmp_path):
    for name in ("a", "b"):
        write_image(tmp_path / f"{name}.tif", pixels(32, 32))
    out = tmp_path / "p"
    args = (checkpoint[0], str(tmp_path / "**"), *FP32, "--out", out, "--overlay")
    run(*args)
    there = sorted(path.name for path in out.iterdir())
    assert {"a.tif", "a.png", "b.tif"} <= {*there}
    said = run(*args)
    assert "0 predicted, 2 already complete" in said
    assert sorted(path.name for path in out.iterdir()) == there


def test_an_outdated_copy_is_not_used(run, checkpoint, tmp_path, bucket, monkeypatch):
    first = write_image(tmp_path / "first.tif", pixels(60, 60))
    second = write_image(tmp_path / "second.tif", pixels(60, 60, seed=7))
    args = (checkpoint[0], bucket("scene.tif", first), *FP32, "--out", tmp_path / "out")

    with monkeypatch.context() as patch:
        patch.setattr(NativeRunner, "__call__", mock.Mock(side_effect=KeyboardInterrupt))
        run(*args, status=130)
    assert list((tmp_path / "out").glob(".scene.tif.image/scene.tif"))
    bucket("scene.tif", second)
    run(*args)
    run(checkpoint[0], second, *FP32, "--out", tmp_path / "near")
    mapped = read(tmp_path / "out" / "scene.tif")
    np.testing.assert_array_equal(mapped, read(tmp_path / "near" / "second.tif"))
    bucket("scene.tif", first)
    assert "another version of the image" in run(*args, status=2)


def test_a_remote_image_of_another_process_keeps_its_copy(run, checkpoint, tmp_path, bucket):
    image = write_image(tmp_path / "scene.tif", pixels(60, 60))
    args = (checkpoint[0], bucket("scene.tif", image), *FP32, "--out", tmp_path / "out")
    part = tmp_path / "out" / ".scene.tif.image" / ".scene.tif.part"
    with locked(part.parent):  # as a process that downloads it
        part.write_bytes(b"begun")
        assert "1 by another process" in run(*args)
        assert part.read_bytes() == b"begun"
    run(*args)
    assert not part.parent.exists()


def test_output_that_is_not_finite_is_nodata_and_reported(run, checkpoint, tmp_path):
    path, network = checkpoint
    with torch.no_grad():
        network.weight[3] = torch.nan  # one bin of seven
    values = pixels(70, 50)
    save(path, Checkpoint(info=FACTS, model=network.state_dict()))
    image = write_image(tmp_path / "scene.tif", values)
    text = run(path, image, "--out", tmp_path / "out", *FP32)
    assert "not finite at 3,500 pixels" in text
    assert (read(tmp_path / "out" / "scene.tif") == 255).all()


@pytest.mark.parametrize("rescale", ["100,1500", "city"])
def test_limits_and_threshold_come_from_the_checkpoint_not_the_store(run, tmp_path, rescale):
    limits = ((100.0, 1500.0), (150.0, 1400.0), (90.0, 1600.0))
    limits = limits if rescale == "city" else limits[:1] * 3
    values = pixels(60, 60, dtype="uint16", top=2000)
    image = write_image(tmp_path / "scene.tif", values)
    facts = {"rescale": rescale, "limits": limits, "stores": ("gone.zarr",), "threshold": 0.3125}
    path, network = make_checkpoint(tmp_path / "best.pt", **facts)
    text = run(path, image, "--out", tmp_path / "out", *FP32, *BINS)
    assert "threshold 0.312 (chosen on validation scenes)" in text
    low, high = np.array(limits).T
    scaled = np.clip(np.floor((values - low) * 255 / (high - low) + 0.5), 1, 255).astype(np.uint8)
    everywhere = np.ones((60, 60), bool)
    wanted, sure = expected_prediction(probabilities(network, scaled), everywhere, 0.3125)
    found = read(tmp_path / "out" / "scene.tif")
    np.testing.assert_array_equal(found[:, sure], wanted[:, sure])
    with rasterio.open(tmp_path / "out" / "scene.tif") as dataset:
        tags = dataset.tags()
    made = json.loads(tags["PREDICTION"])
    assert (made["limits"], made["precision"]) == ([list(p) for p in limits], "float32")
    assert (tags["SOURCE"], tags["SOURCE_SIZE"]) == ("scene.tif", "60 60")
    assert tags["ROAD_THRESHOLD"] == "0.3125"
    assert json.loads(tags["CLASSES"])[0] == {"band": 3, "name": "road, ≤ 10 mph", "mph": 5.5}


@pytest.mark.parametrize(("targets", "band"), [("bins", 2), ("binary", 1)])
def test_qgis_style_has_the_colours_of_all_pictures(run, tmp_path, targets, band):
    told = {} if targets == "bins" else {"channels": 1, "class_mph": ()}
    path, _ = make_checkpoint(tmp_path / "best.pt", targets=targets, **told)
    image = write_image(tmp_path / "scene.tif", pixels(50, 50))
    run(path, image, "--out", tmp_path / "out", *FP32, "--threshold", 0.4)
    style = ElementTree.parse(tmp_path / "out" / "scene.qml")
    assert style.find("pipe/rasterrenderer").get("band") == str(band)
    items = [item.attrib for item in style.iter("item")]
    assert [int(item["alpha"]) for item in items] == [0] + [255] * (len(items) - 1)
    if targets == "bins":
        colours = [f"#{bytes(colour).hex()}" for colour in SPEED_COLOURS]
        assert [item["color"] for item in items[1:]] == colours
        assert [item["value"] for item in items] == ["0", "10", "20", "30", "40", "50", "60", "254"]
    else:
        with rasterio.open(tmp_path / "out" / "scene.tif") as dataset:
            seen = np.arange(255) * dataset.scales[0] + dataset.offsets[0]  # as QGIS has them
        drawn = np.searchsorted([float(item["value"]) for item in items], seen)
        np.testing.assert_array_equal(drawn, np.arange(255) >= 102)  # 0.4 x 255


def test_a_split_of_a_store_is_predicted_from_images_or_from_its_pixels(run, checkpoint, tmp_path):
    for i in range(3):
        write_image(tmp_path / "images" / f"s{i}.tif", pixels(96, 96, seed=i))
    (tmp_path / "splits.csv").write_text("scene,split\ns1,test\n*,train\n")
    store = geoprep.build_zarr(
        images=f"{tmp_path}/images/*.tif", split_file=tmp_path / "splits.csv", levels=1,
        out=tmp_path / "a.zarr", progress=False,
    ).location  # fmt: skip
    of = ("--of", store, "--split", "test")
    run(checkpoint[0], tmp_path / "images", *FP32, *of, "--out", tmp_path / "near")
    run(checkpoint[0], *FP32, *of, "--out", tmp_path / "stored")
    for folder in ("near", "stored"):
        assert [path.name for path in (tmp_path / folder).glob("*.tif")] == ["s1.tif"]
    np.testing.assert_array_equal(
        read(tmp_path / "stored" / "s1.tif"), read(tmp_path / "near" / "s1.tif")
    )
    wrong = (checkpoint[0], tmp_path / "images", *FP32, "--out", tmp_path / "x")
    assert "--of names a store and --split one of its splits" in run(*wrong, *of[:2], status=2)
    assert "name the store as --of" in run(*wrong, *of[2:], status=2)
    assert "no scene whose tiles are all val" in run(*wrong, *of[:3], "val", status=2)
    (tmp_path / "images" / "s1.tif").unlink()
    assert "no image is of a test scene of --of" in run(*wrong, *of, status=2)


def test_bands_in_files_of_their_own_are_an_image(run, checkpoint, tmp_path):
    values = pixels(96, 96)
    write_image(tmp_path / "whole.tif", values)
    for number, band in enumerate(("red", "green", "blue")):
        write_image(tmp_path / "in" / f"a_{band}.tif", values[..., [number]])
    pattern = tmp_path / "in" / "*_{blue,green,red}.tif"
    run(checkpoint[0], pattern, *FP32, "--out", tmp_path / "out")
    run(checkpoint[0], tmp_path / "whole.tif", *FP32, "--out", tmp_path / "near")
    found = read(tmp_path / "out" / "a.tif")
    np.testing.assert_array_equal(found, read(tmp_path / "near" / "whole.tif"))
    assert "already complete" in run(checkpoint[0], pattern, *FP32, "--out", tmp_path / "out")
