"""``training.predict`` from checkpoint and images to maps, in this process."""

import json
import os
import sys
import tracemalloc

import boto3
import numpy as np
import pytest
import rasterio
from helpers.predict_cases import (
    FACTS,
    GSD,
    PLACE,
    UTM,
    expected_map,
    make_checkpoint,
    pixels,
    probabilities,
    write_image,
)
from moto.server import ThreadedMotoServer

from geoprep.storage import objects as remote
from training import predict as command
from training.engine import host as machine
from training.prediction.journal import folder_of
from training.prediction.network import Predictor
from training.prediction.source import inspect

FP32 = ("--precision", "fp32", "--quiet")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command; return its status and what it printed."""
    # The allocator's settings would stay for all tests after these.
    monkeypatch.setattr(machine, "keep_memory", lambda reserve: "as it is")

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["predict", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            command.main()
        printed = capsys.readouterr()
        return stop.value.code, printed.out + printed.err

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
def test_map_is_the_network_at_every_pixel(run, checkpoint, tmp_path, height, width, options):
    path, network = checkpoint
    values = pixels(height, width)
    values[: height // 3, width // 2 :] = 0
    image = write_image(tmp_path / "scene.tif", values)
    status, text = run(path, image, "--out", tmp_path / "maps", *FP32, *options)
    assert status == 0, text
    wanted, sure = expected_map(probabilities(network, values), values.any(axis=2))
    found = read(tmp_path / "maps" / "scene.tif")
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(found[:, sure], wanted[:, sure])
    assert np.abs(found.astype(int) - wanted)[:, ~sure].max(initial=0) <= 66
    with rasterio.open(tmp_path / "maps" / "scene.tif") as dataset:
        assert dataset.transform == PLACE
        assert dataset.crs == UTM
        assert dataset.descriptions[-1] == "speed"
    assert "Mpx/s" in text
    assert "km2/h" in text


def test_windows_do_not_show_in_the_map(run, tmp_path):
    """Away from the image's edge, overlap hides where the windows were."""
    path, network = make_checkpoint(tmp_path / "n.pt", network="helpers.predict_cases:neighbourly")
    values = pixels(300, 260)
    image = write_image(tmp_path / "scene.tif", values)
    run(path, image, "--out", tmp_path / "m", *FP32, "--window", 96, "--overlap", 32)
    wanted, _ = expected_map(probabilities(network, values), values.any(axis=2))
    found = read(tmp_path / "m" / "scene.tif")
    inner = np.s_[:8, 4:-4, 4:-4]
    assert np.abs(found[inner].astype(int) - wanted[inner]).max() <= 2


def test_resampled_map_lies_where_the_image_does(run, tmp_path):
    path, _ = make_checkpoint(tmp_path / "best.pt", gsd_m=(2 * GSD, 2 * GSD))
    values = pixels(100, 90)
    image = write_image(tmp_path / "scene.tif", values)
    status, text = run(path, image, "--out", tmp_path / "m", *FP32)
    assert status == 0, text
    assert "resampled from 90 x 100" in text
    with rasterio.open(tmp_path / "m" / "scene.tif") as dataset:
        assert dataset.shape == (50, 45)
        assert dataset.bounds == rasterio.open(image).bounds


def test_sixteen_bits_are_rescaled_as_in_training(run, tmp_path):
    path, network = make_checkpoint(tmp_path / "best.pt", rescale="100,1500")
    values = pixels(60, 60, dtype="uint16", top=2000)
    image = write_image(tmp_path / "scene.tif", values)
    assert run(path, image, "--out", tmp_path / "m", *FP32)[0] == 0
    scaled = np.clip(np.floor((values - 100.0) * 255 / 1400 + 0.5), 1, 255).astype(np.uint8)
    wanted, sure = expected_map(probabilities(network, scaled), np.ones((60, 60), bool))
    np.testing.assert_array_equal(read(tmp_path / "m" / "scene.tif")[:, sure], wanted[:, sure])


def test_binary_checkpoint_maps_probability_alone(run, tmp_path):
    path, network = make_checkpoint(
        tmp_path / "best.pt", channels=1, targets="binary", class_mph=()
    )
    values = pixels(50, 50)
    image = write_image(tmp_path / "scene.tif", values)
    assert run(path, image, "--out", tmp_path / "m", *FP32, "--overlay")[0] == 0
    found = read(tmp_path / "m" / "scene.tif")
    wanted = np.floor(probabilities(network, values) * 255 + 0.5)
    assert found.shape == (1, 50, 50)
    assert np.abs(found - np.minimum(wanted, 254)).max() <= 1
    assert (tmp_path / "m" / "scene.png").exists()


class Killed(BaseException):
    """Stands in for a signal."""


def test_killed_and_run_again_gives_the_same_bytes(run, tmp_path, monkeypatch):
    path, _ = make_checkpoint(tmp_path / "n.pt", network="helpers.predict_cases:neighbourly")
    image = write_image(tmp_path / "scene.tif", pixels(1700, 70))
    args = (path, image, *FP32, "--window", 96, "--overlap", 32)
    assert run(*args, "--out", tmp_path / "whole")[0] == 0
    call = Predictor.__call__
    calls = []

    def dies(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 21:
            raise Killed
        return call(self, *args, **kwargs)

    monkeypatch.setattr(Predictor, "__call__", dies)
    with pytest.raises(Killed):
        run(*args, "--out", tmp_path / "maps")
    target = tmp_path / "maps" / "scene.tif"
    assert not target.exists()
    assert folder_of(target).exists()
    until_death, calls[:] = len(calls), [1] * 100
    status, text = run(*args, "--out", tmp_path / "maps")
    assert status == 0
    assert "continued" in text
    assert target.read_bytes() == (tmp_path / "whole" / "scene.tif").read_bytes()
    assert not folder_of(target).exists()
    whole = 1 + len(range(0, 1700 - 96, 64))
    assert until_death + len(calls) - 100 < whole + 12  # what was safe was not done again


def test_ctrl_c_says_how_to_go_on(run, checkpoint, tmp_path, monkeypatch):
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))

    def interrupted(self, *args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Predictor, "__call__", interrupted)
    status, text = run(checkpoint[0], image, "--out", tmp_path / "maps", *FP32)
    assert status == 130
    assert "run the same command again" in text


def test_complete_maps_are_kept_and_others_not_replaced_unasked(run, checkpoint, tmp_path):
    path, _ = checkpoint
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))
    args = (image, "--out", tmp_path / "maps", *FP32)
    assert run(path, *args)[0] == 0
    before = (tmp_path / "maps" / "scene.tif").stat().st_mtime_ns
    status, text = run(path, *args)
    assert (status, "complete already" in text) == (0, True)
    assert (tmp_path / "maps" / "scene.tif").stat().st_mtime_ns == before
    status, text = run(path, *args, "--threshold", "0.3")
    assert status == 2
    assert "other options (threshold)" in text
    other, _ = make_checkpoint(tmp_path / "other.pt", seed=1)
    status, text = run(other, *args)
    assert status == 2
    assert "another checkpoint: --overwrite" in text
    assert (tmp_path / "maps" / "scene.tif").stat().st_mtime_ns == before
    assert run(other, *args, "--overwrite")[0] == 0
    write_image(image, pixels(40, 40, seed=9), compress=None)
    status, text = run(other, *args)
    assert status == 2
    assert "another version of the image" in text
    (tmp_path / "maps" / "scene.tif").write_bytes(b"mine")
    status, text = run(other, *args)
    assert status == 2
    assert "not made by training.predict" in text


def test_one_bad_image_does_not_stop_the_others(run, checkpoint, tmp_path):
    path, _ = checkpoint
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    write_image(scenes / "good.tif", pixels(200, 80))
    cut = write_image(scenes / "cut.tif", pixels(200, 80), compress=None)
    cut.write_bytes(cut.read_bytes()[:30000])
    write_image(scenes / "nowhere.tif", pixels(30, 30), crs=None)
    (scenes / "text.tif").write_text("not an image")
    status, text = run(path, str(scenes / "*.tif"), "--out", tmp_path / "maps", *FP32)
    assert status == 1
    assert "1 mapped, 0 complete already, 3 failed" in text
    assert "--allow-no-crs" in text
    assert sorted(p.name for p in (tmp_path / "maps").iterdir()) == ["good.tif"]
    status, text = run(
        path, scenes / "nowhere.tif", "--allow-no-crs", "--out", tmp_path / "maps", *FP32
    )
    assert status == 0, text
    assert rasterio.open(tmp_path / "maps" / "nowhere.tif").crs is None


def test_requests_that_cannot_be_carried_out(run, checkpoint, tmp_path):
    path, _ = checkpoint
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))
    out = ("--out", tmp_path / "maps")
    for args, message in [
        ((path, str(tmp_path / "none*.tif"), *out), "matches no file"),
        ((tmp_path / "no.pt", image, *out), "no such checkpoint"),
        ((image, image, *out), "scene.tif"),
        ((path, image, "--out", tmp_path), "would replace an image"),
        ((path, image, *out, "--window", "100"), "--window 100"),
        ((path, image, *out, "--bands", "1,x"), "--bands 1,x"),
        ((path, image, *out, "--bands", "1,2"), "needs 3"),
        ((path, image, *out, "--gsd", "-3"), "--gsd"),
        ((path, image, *out, "--rescale", "much"), "--rescale"),
        ((path, image), "--out"),
    ]:
        status, text = run(*args)
        assert status == 2, text
        assert message in text
    assert not (tmp_path / "maps").exists() or not list((tmp_path / "maps").iterdir())


def test_overlay_shows_roads_and_nodata_over_the_image(run, checkpoint, tmp_path):
    import matplotlib.image

    values = pixels(64, 80)
    values[:, :10] = 0
    image = write_image(tmp_path / "scene.tif", values)
    args = (checkpoint[0], image, "--out", tmp_path / "maps", "--overlay", *FP32)
    assert run(*args)[0] == 0
    picture = tmp_path / "maps" / "scene.png"
    shown = matplotlib.image.imread(picture)
    assert shown.shape[:2] == (64, 80)
    assert np.ptp(shown[:, :10, :3], axis=(0, 1)).max() == 0
    picture.unlink()
    assert run(*args)[0] == 0  # of a map that is complete already
    assert picture.exists()


def test_memory_does_not_grow_with_the_height(tmp_path):
    """Twice as high an image, of as many overviews, holds no more pixels at a time."""
    path, _ = make_checkpoint(tmp_path / "best.pt")
    peaks = []
    for height in (4200, 8100):
        tall = np.resize(pixels(64, 64), (height, 64, 3))
        image = write_image(tmp_path / f"{height}.tif", tall)
        arguments = [path, image, "--out", tmp_path / "maps", *FP32, "--window", 256]
        options = command.predict.make_context("predict", [*map(str, arguments)]).params
        options.pop("images")
        mapper = command.make_job(**options)[0].mapper
        source = inspect(str(image), FACTS, mapper.recipe.wishes)
        tracemalloc.start()
        mapper.run(source, tmp_path / f"{height}_map.tif", False, lambda done: None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0], peaks


def test_tags_tell_how_the_map_was_made(run, checkpoint, tmp_path):
    image = write_image(tmp_path / "scene.tif", pixels(40, 40))
    run(checkpoint[0], image, "--out", tmp_path / "maps", *FP32, "--threshold", "0.25")
    with rasterio.open(tmp_path / "maps" / "scene.tif") as dataset:
        tags = dataset.tags()
    assert tags["ROAD_THRESHOLD"] == "0.25"
    assert tags["SOURCE"] == "scene.tif"
    assert json.loads(tags["CLASSES"])[0] == {"band": 1, "name": "road, ≤ 10 mph", "mph": 5.5}
    assert json.loads(tags["PREDICTION"])["precision"] == "float32"


def test_image_on_a_server_is_fetched_once_and_left_nowhere(run, checkpoint, tmp_path, monkeypatch):
    image = write_image(tmp_path / "scene.tif", pixels(70, 50))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        who = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **who)
        client.create_bucket(Bucket="own")
        client.put_object(
            Bucket="own", Key="scenes/scene.tif", Body=image.read_bytes(), ACL="public-read"
        )
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        remote._client.cache_clear()
        args = (checkpoint[0], "s3://own/scenes/scene.tif", *FP32)
        first = run(*args, "--out", tmp_path / "far", "--overlay")
        again = run(*args, "--out", tmp_path / "far")
    finally:
        remote._client.cache_clear()
        server.stop()
    assert first[0] == 0, first[1]
    assert (again[0], "complete already" in again[1]) == (0, True)
    assert sorted(p.name for p in (tmp_path / "far").iterdir()) == ["scene.png", "scene.tif"]
    run(checkpoint[0], image, "--out", tmp_path / "near", *FP32)
    near, far = read(tmp_path / "near" / "scene.tif"), read(tmp_path / "far" / "scene.tif")
    np.testing.assert_array_equal(near, far)
