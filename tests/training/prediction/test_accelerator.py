"""Predictions on an accelerator: the same bytes, and no batch waits; by a recording stand-in."""

import itertools
import os
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
import torch
from helpers import predict_cases
from helpers.predict_cases import (
    FACTS,
    PLACE,
    UTM,
    ignore_progress,
    make_checkpoint,
    pixels,
    predict_options,
    write_image,
)
from rasterio.warp import transform_bounds
from torch.overrides import TorchFunctionMode

from geoprep.errors import UsageError
from training import predict as command
from training.prediction import device, instances, job, predictor
from training.prediction.device import IN_FLIGHT, Device
from training.prediction.host import Host
from training.prediction.images import inspect_image, look
from training.prediction.instances import run_instances
from training.prediction.job import open_job
from training.prediction.predictor import Predictor
from training.prediction.screen import Screen
from training.runners.model_files import chosen_device, open_model
from training.runners.model_options import ModelOptions, parse_devices
from training.runners.runner import NativeRunner

CPU = torch.device("cpu")


class Recorder(TorchFunctionMode):
    """A device with two streams on the CPU: computes at once, and notes what is queued where."""

    def __init__(self):
        super().__init__()
        self.notes, self.pinned, self.stream = [], set(), "compute"
        self.module = SimpleNamespace(
            Stream=lambda device: "copies",
            Event=self._event,
            stream=self._using,
            current_stream=lambda device: self.stream,
        )

    def _event(self, enable_timing=False):
        return SimpleNamespace(
            record=lambda stream="compute": None,
            wait=lambda stream: self.notes.append(f"{stream} waits for the row"),
            elapsed_time=lambda other: 1.0,
            synchronize=lambda: self.notes.append("host waits"),
        )

    @contextmanager
    def _using(self, stream):
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        pin = kwargs.pop("pin_memory", False) or function is torch.Tensor.pin_memory
        result = (
            args[0].clone() if function is torch.Tensor.pin_memory else function(*args, **kwargs)
        )
        if pin:
            self.pinned.add(result.data_ptr())
        # The runner moves its input too, (n, band, y, x), which is on the device already.
        up = function is torch.Tensor.to and args[0].ndim < 4
        if (up or function is torch.Tensor.copy_) and kwargs.get("non_blocking"):
            assert args[0].data_ptr() in self.pinned
            self.notes += ["down"] * (not up)
        reads = torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.__bool__
        assert self.stream == "copies" or function not in reads
        return result


@pytest.fixture
def recorded(monkeypatch):
    recorder = Recorder()
    for module in (predictor, device):
        monkeypatch.setattr(module, "has_streams", lambda where: True)
    keep = "record_stream", lambda memory, stream: recorder.notes.append(f"kept for {stream}")
    monkeypatch.setattr(torch.Tensor, *keep)
    # In this thread, for which alone the mode holds.
    monkeypatch.setattr(predictor, "prefetched", lambda rows: (row for row in list(rows)))
    monkeypatch.setattr(device.torch, "get_device_module", lambda where: recorder.module)
    return recorder


def case(tmp_path, shape=(300, 250), **options):
    """Return what predicts an image with nodata, 6 x 5 windows in batches of two."""
    path, _ = make_checkpoint(tmp_path / "n.pt", model="helpers.predict_cases:neighbourly")
    values = pixels(*shape)
    values[40:150, 100:240] = 0
    image = write_image(tmp_path / "scene.tif", values, nodata=0)
    given = {"window": 96, "overlap": 40, "batch_size": 2, "device": "cpu", "precision": "fp32"}
    given |= {"checkpoint": path, "model": "helpers.predict_cases:neighbourly"}
    made = predict_options(**given | options)
    runner, info = open_model(made)
    return inspect_image(str(image), info, made), runner, Predictor(info, made, 0.5, "none")


def predicted(target, source, runner, made):
    stats = made.run(source, target, runner, ignore_progress)
    return target.read_bytes(), stats


def test_an_accelerator_gives_the_bytes_of_the_cpu_without_waiting(tmp_path, recorded, monkeypatch):
    """The host waits for the third last row, and a stream keeps the memory that it uses."""
    source, runner, made = case(tmp_path)
    with recorded:
        found, stats = predicted(tmp_path / "device.tif", source, runner, made)
    row = ["compute waits for the row", "kept for compute", "kept for compute"]
    notes = recorded.notes
    rows = notes.count("down")
    assert rows == notes.count(row[0]) == len(made.grid(source).rows.starts) > 3
    begun, ended = [*row, "down"] * IN_FLIGHT, ["host waits"] * IN_FLIGHT
    assert notes == begun + [*row, "down", "host waits"] * (rows - IN_FLIGHT) + ended
    assert stats.forward_seconds == pytest.approx(
        len(made.grid(source).columns.starts) * rows / 2000
    )
    monkeypatch.undo()
    wanted, before = predicted(tmp_path / "cpu.tif", source, runner, made)
    assert found == wanted
    assert stats.image_pixels == before.image_pixels
    assert stats.network_pixels == before.network_pixels


AREA = PLACE.c + 5, PLACE.f - 140, PLACE.c + 23, PLACE.f - 9
CLASSES = {"facts": predict_cases.CLASSES, "confidence": True}
ROADS = {"facts": replace(FACTS, channels=3, class_mph=(10.0, 30.0)), "probabilities": False}
CORNER = {"area": ",".join(map(str, transform_bounds(UTM, "EPSG:4326", *AREA)))}


@pytest.mark.parametrize(
    ("factors", "given"),
    [
        ((1, 1), CLASSES),
        ((1.5, 2), CLASSES),
        ((0.7, 1), ROADS | {"outputs": "all"}),
        ((2, 2), ROADS | {"grid": "model"}),
        ((1, 1), CLASSES | CORNER),
        ((1.5, 2), ROADS | CORNER),
    ],
)
def test_torch_blends_as_numba_does(tmp_path, monkeypatch, factors, given):
    image = write_image(tmp_path / "scene.tif", predict_cases.SMOOTH, nodata=0)
    host, on_device = (
        both(tmp_path / f"{name}.tif", image, factors, monkeypatch, name == "device", given)
        for name in ("host", "device")
    )
    assert host.shape == on_device.shape
    assert ((host == 255) == (on_device == 255)).all()
    assert 0.1 < (host != 255).mean() < 1
    exact = int(given["facts"].targets == "bins")  # a speed or a class, not a level
    levels = [band for band in range(len(host)) if band != exact]
    assert np.abs(host - on_device)[levels].max() <= 1
    assert (host != on_device).mean() < 0.01


def both(path, image, factors, monkeypatch, on_device, given):
    monkeypatch.setattr(predictor, "has_streams", lambda where: on_device)
    return predict_cases.predicted(path, image, factors, **given)[0].astype(int)


def test_the_spread_of_models_is_that_of_numba():
    values = torch.rand(30, 20, 9)
    values[13, 4, 2] = torch.nan
    valid = torch.ones(30, 20, dtype=torch.uint8)
    valid[:9, :7] = 0
    given = FACTS, predict_options(), 0.4, True
    found, lost = Device(CPU).to_bytes(*given)(values, valid)
    wanted = np.empty((10, 30, 20), np.uint8)
    whole = 0, 30, 0, 20
    assert lost == Host().to_bytes(*given)(values.numpy(), whole, 0, valid.numpy(), out=wanted) == 1
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("by_mode", [True, False])
def test_overviews_of_torch_are_those_of_numba(by_mode):
    fine = np.random.default_rng(0).choice([0, 3, 4, 254, 255], (64, 80)).astype(np.uint8)
    found, wanted = np.empty((2, 32, 40), np.uint8)
    Device(CPU).halve(fine, found, by_mode)
    Host().halve(fine, wanted, by_mode)
    np.testing.assert_array_equal(found, wanted)


def test_a_prediction_is_resumed_by_the_blender_that_began_it(tmp_path, monkeypatch):
    source, runner, made = case(tmp_path, shape=(1300, 250))
    monkeypatch.setattr(predictor, "has_streams", lambda where: True)
    fresh, _ = predicted(tmp_path / "whole.tif", source, runner, made)
    call = NativeRunner.__call__
    for resumes in (False, True):
        calls = itertools.count()

        def stops(self, image, calls=calls):
            if next(calls) == 30:
                raise KeyboardInterrupt
            return call(self, image)

        monkeypatch.setattr(NativeRunner, "__call__", stops)
        monkeypatch.setattr(predictor, "has_streams", lambda where, there=resumes: there)
        with pytest.raises(KeyboardInterrupt):
            predicted(tmp_path / "out.tif", source, runner, made)
        monkeypatch.setattr(NativeRunner, "__call__", call)
        monkeypatch.setattr(predictor, "has_streams", lambda where: True)
        found, stats = predicted(tmp_path / "out.tif", source, runner, made)
        assert (stats.continued, stats.discarded) == (resumes, not resumes)
        assert found == fresh


def test_a_prediction_on_a_device_imports_no_numba(tmp_path, python):
    make_checkpoint(tmp_path / "n.pt", model="helpers.predict_cases:neighbourly")
    write_image(tmp_path / "scene.tif", pixels(700, 150), nodata=0)
    words = ["n.pt", "scene.tif", "--out", "out", "--model", "helpers.predict_cases:neighbourly"]
    code = (
        "import sys; from training import predict; from training.prediction import job, predictor\n"
        "job.has_streams = predictor.has_streams = lambda where: True\n"
        f"done = predict.main({[*words, '--window', '64', '--overlap', '16']})\n"
        "print(done, 'numba' in sys.modules)"
    )
    helpers = {"PYTHONPATH": str(Path(predict_cases.__file__).parents[1])}
    done = python("-c", code, cwd=tmp_path, env=os.environ | helpers)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


def test_batches_on_a_device_have_eight_windows(tmp_path, monkeypatch):
    path, _ = make_checkpoint(tmp_path / "n.pt", model="helpers.predict_cases:neighbourly")
    given = predict_options(
        checkpoint=path, out=tmp_path, model="helpers.predict_cases:neighbourly"
    )
    assert open_job(given)[0].predictor.options.batch_size == 1
    monkeypatch.setattr(job, "has_streams", lambda where: True)
    assert open_job(given)[0].predictor.options.batch_size == 8
    assert open_job(replace(given, batch_size=3))[0].predictor.options.batch_size == 3


def test_a_device_predicts_one_image_while_the_next_is_prepared(tmp_path, monkeypatch):
    path, _ = make_checkpoint(tmp_path / "n.pt", model="helpers.predict_cases:neighbourly")
    (tmp_path / "in").mkdir()
    for number in range(3):
        write_image(tmp_path / "in" / f"{number}.tif", pixels(130, 150, seed=number))
    seconds = threading.Semaphore(0)
    write, inside = Predictor._write_rows, threading.Lock()

    def look_and_count(*args):
        limits = look(*args)
        seconds.release()
        return limits

    def write_rows(self, reading, *rest):
        assert inside.acquire(blocking=False), "two images are on the device"
        if not reading.source.name.startswith("2"):  # the last one that is taken
            assert seconds.acquire(timeout=60), "this one"
            assert seconds.acquire(timeout=60), "the next one"
            seconds.release()
        with closing(SimpleNamespace(close=inside.release)):
            return write(self, reading, *rest)

    def predict(out):
        given = {"images": (str(tmp_path / "in"),), "window": 64, "overlap": 16, "device": "cpu"}
        given |= {"checkpoint": path, "model": "helpers.predict_cases:neighbourly"}
        with Screen(quiet=True, spell=str) as screen:
            outcomes = open_job(predict_options(out=out, batch_size=2, **given))[0].run(screen)
        assert not any(outcome.error for outcome in outcomes)
        files = [rasterio.open(out / f"{number}.tif") for number in range(3)]
        return [file.read().astype(int) for file in files]

    expected = predict(tmp_path / "host")
    for module in (predictor, job):
        monkeypatch.setattr(module, "has_streams", lambda where: True)
    monkeypatch.setattr(predictor, "look", look_and_count)
    monkeypatch.setattr(Predictor, "_write_rows", write_rows)
    for found, of_host in zip(predict(tmp_path / "device"), expected, strict=True):
        assert abs(found - of_host).max() <= 1


def test_a_batch_too_large_for_the_device_names_the_options(tmp_path, monkeypatch):
    def full(self, image):
        raise torch.OutOfMemoryError("CUDA out of memory")

    source, runner, made = case(tmp_path)
    monkeypatch.setattr(NativeRunner, "__call__", full)
    with pytest.raises(UsageError, match="too little memory for batches of 2 windows of 96 x 96"):
        made.run(source, tmp_path / "out.tif", runner, ignore_progress)


def test_devices_are_named_by_number():
    assert parse_devices("auto") == ["auto"]
    assert parse_devices("cuda:1") == ["cuda:1"]
    assert parse_devices("cuda:0,cuda:1") == parse_devices("cuda:0,1") == ["cuda:0", "cuda:1"]
    for text in ("tpu", "cuda,1", "cuda:0,0", "cpu:1", "cpu,cuda:0", "cuda:", ""):
        with pytest.raises(UsageError, match=r"`device`.*cuda:0,cuda:1 for several"):
            parse_devices(text)


def test_a_device_that_is_not_there_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="names 2 devices"):
        open_model(ModelOptions(checkpoint=tmp_path / "x.pt", device="cuda:0,1"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UsageError, match="`device` cuda:2: this machine has 2, counted from"):
        chosen_device("cuda:2")


def test_every_device_has_a_process(tmp_path, monkeypatch):
    monkeypatch.setattr(instances, "chosen_device", torch.device)
    monkeypatch.setattr(instances.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    started = []

    class Context:
        def Queue(self):  # noqa: N802 - as in multiprocessing
            return None

        Value = staticmethod(lambda kind: None)

        def Process(self, target, args):  # noqa: N802
            work, cores, _ = args
            started.append((work.args[0].device, work.keywords["first"], cores))
            return SimpleNamespace(start=lambda: None, pid=None)

    monkeypatch.setattr(instances.multiprocessing, "get_context", lambda kind: Context())
    monkeypatch.setattr(instances, "_watch", lambda *args: True)
    made = predict_options(out=tmp_path, device="cuda:0,1")
    assert command.predict(made) == 0
    assert started == [("cuda:0", True, [0, 1]), ("cuda:1", False, [2, 3])]
    with pytest.raises(UsageError, match="`instances` 2 divide cores"):
        run_instances(replace(made, instances=2))
