"""Predictions on an accelerator: the same bytes, and no batch waits; by a recording stand-in."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers.predict_cases import (
    ignore_progress,
    make_checkpoint,
    pixels,
    predict_options,
    write_image,
)
from torch.overrides import TorchFunctionMode

from geoprep.errors import UsageError
from training import predict as command
from training.prediction import instances, predictor
from training.prediction.images import inspect_image
from training.prediction.instances import run_instances
from training.prediction.predictor import IN_FLIGHT, Predictor, has_streams
from training.runners import ModelOptions, parse_devices
from training.runners.model_files import chosen_device, open_model
from training.runners.runner import NativeRunner

CPU = torch.device("cpu")


class Recorder(TorchFunctionMode):
    """A device with a stream on the CPU: computes at once, and notes what is queued where."""

    def __init__(self):
        super().__init__()
        self.notes, self.pinned, self.inside = [], set(), False
        self.module = SimpleNamespace(
            Stream=lambda device: SimpleNamespace(wait_stream=self.notes.append),
            Event=self._event,
            stream=self._using,
            current_stream=lambda device: "begins after the current stream",
        )

    def _event(self, enable_timing):
        assert enable_timing
        return SimpleNamespace(
            record=lambda stream: None,
            elapsed_time=lambda other: 1.0,
            synchronize=lambda: self.notes.append("host waits"),
        )

    @contextmanager
    def _using(self, stream):
        self.inside = True
        yield
        self.inside = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.pop("pin_memory", False):
            result = function(*args, **kwargs)
            self.pinned.add(result.data_ptr())
            return result
        # The runner moves its input too, which is on the device already.
        up = function is torch.Tensor.to and args[0].shape[-1] == 3
        if (up or function is torch.Tensor.copy_) and kwargs.get("non_blocking"):
            assert self.inside
            assert args[0].data_ptr() in self.pinned
            self.notes.append("up" if up else "down")
        assert not self.inside or function not in (torch.Tensor.cpu, torch.Tensor.item)
        return function(*args, **kwargs)


@pytest.fixture
def recorded(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(predictor, "has_streams", lambda device: True)
    monkeypatch.setattr(predictor.torch, "get_device_module", lambda device: recorder.module)
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
    """The host waits for the oldest of several batches."""
    source, runner, made = case(tmp_path)
    with recorded:
        found, stats = predicted(tmp_path / "device.tif", source, runner, made)
    first, *notes = recorded.notes
    assert first == "begins after the current stream"
    batches = notes.count("up")
    assert batches > 3 * IN_FLIGHT
    begun, ended = ["up", "down"] * IN_FLIGHT, ["host waits"] * IN_FLIGHT
    assert notes == begun + ["up", "down", "host waits"] * (batches - IN_FLIGHT) + ended
    assert stats.forward_seconds == pytest.approx(batches / 1000)
    monkeypatch.setattr(predictor, "has_streams", has_streams)
    wanted, before = predicted(tmp_path / "cpu.tif", source, runner, made)
    assert found == wanted
    assert stats.image_pixels == before.image_pixels
    assert stats.network_pixels == before.network_pixels


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
        with pytest.raises(UsageError, match=r"`device` .*cuda:0,cuda:1 for several"):
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
