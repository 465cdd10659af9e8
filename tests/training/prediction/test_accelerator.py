"""Predictions on an accelerator: the same bytes, and no batch waits; by a recording stand-in."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
import torch
from helpers.predict_cases import (
    FACTS,
    ignore_progress,
    make_checkpoint,
    pixels,
    predict_options,
    write_image,
)
from torch.overrides import TorchFunctionMode

from geoprep.errors import UsageError
from training import predict as command
from training.inference import parse_devices
from training.inference.model_files import chosen_device, open_model
from training.inference.runner import NativeRunner, Runner
from training.prediction import accelerator, instances, predictor
from training.prediction.accelerator import IN_FLIGHT, DeviceStreams, device_streams
from training.prediction.images import inspect_image
from training.prediction.instances import run_instances
from training.prediction.predictor import Predictor

CPU = torch.device("cpu")


class Recorder(TorchFunctionMode):
    """A device of streams on the CPU: computes at once, and notes what is queued where."""

    def __init__(self):
        super().__init__()
        self.notes, self.pinned = [], set()
        self.running, self.streams, self.most = [], 0, 0
        module = SimpleNamespace(
            Stream=self._stream, Event=self._event, stream=self._using, current_stream=lambda _: -1
        )
        self.module = DeviceStreams(CPU, module)
        keep = lambda _, stream: self.notes.append(("kept", stream.number))  # noqa: E731
        self.module.keep = keep  # torch takes its own streams only

    def _stream(self, device):
        assert device == CPU
        number, self.streams = self.streams, self.streams + 1
        waits = lambda event: self.notes.append(("waits", number, event.at))  # noqa: E731
        after = lambda other: self.notes.append(("after", number, other))  # noqa: E731
        return SimpleNamespace(number=number, wait_event=waits, wait_stream=after)

    def _event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(at=None, elapsed_time=lambda other: 1.0)

        def record(stream):
            event.at = stream.number
            self.notes.append(("event", stream.number))

        event.record, event.synchronize = record, lambda: self.notes.append(("host", event.at))
        return event

    @contextmanager
    def _using(self, stream):
        self.running.append(stream.number)
        yield
        self.running.pop()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.pop("pin_memory", False):
            result = function(*args, **kwargs)
            self.pinned.add(result.data_ptr())
            return result
        where = self.running[-1] if self.running else None
        # The runner moves its input too, which is on the device already.
        staged = function is torch.Tensor.to and args[0].shape[-1] == 3
        if staged and kwargs.get("non_blocking"):
            self.notes.append(("up", where, args[0].data_ptr() in self.pinned))
        if function is torch.Tensor.copy_ and kwargs.get("non_blocking"):
            self.notes.append(("down", where, args[0].data_ptr() in self.pinned))
        assert function not in (torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.tolist)
        return function(*args, **kwargs)


@pytest.fixture
def recorded(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(predictor, "device_streams", lambda device: recorder.module)
    return recorder


def case(tmp_path, shape=(300, 250), **options):
    """Return what predicts an image with nodata, 6 x 5 windows in batches of two."""
    path, _ = make_checkpoint(tmp_path / "n.pt", model="helpers.predict_cases:neighbourly")
    values = pixels(*shape)
    values[40:150, 100:240] = 0
    image = write_image(tmp_path / "scene.tif", values, nodata=0)
    given = {"window": 96, "overlap": 40, "batch_size": 2, "device": "cpu", "precision": "fp32"}
    made = predict_options(
        checkpoint=path, model="helpers.predict_cases:neighbourly", **given | options
    )
    runner, info = open_model(made)
    return inspect_image(str(image), info, made), runner, Predictor(info, made, 0.5, "none")


def predicted(target, source, runner, made):
    stats = made.run(source, target, runner, ignore_progress)
    return target.read_bytes(), stats


@pytest.mark.parametrize(
    "options",
    [{}, {"overlap": 0}, {"overlap": 48, "tta": "flips"}, {"window": 512}],
    ids=["usual", "without overlap", "all shared, flips", "one window"],
)
def test_an_accelerator_gives_the_bytes_of_the_cpu(tmp_path, monkeypatch, options):
    source, runner, made = case(tmp_path, **options)
    wanted, before = predicted(tmp_path / "cpu.tif", source, runner, made)
    recorder = Recorder()
    monkeypatch.setattr(predictor, "device_streams", lambda device: recorder.module)
    with recorder:
        found, stats = predicted(tmp_path / "device.tif", source, runner, made)
    assert found == wanted
    assert (stats.image_pixels, stats.network_pixels) == (
        before.image_pixels,
        before.network_pixels,
    )


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_predictions_of_an_accelerator_are_close_to_those_of_the_cpu(tmp_path):
    """Within one level where no speed or nodata is in the way: sums differ in their last bits."""
    source, runner, made = case(tmp_path)
    made.run(source, tmp_path / "cpu.tif", runner, ignore_progress)
    device = torch.accelerator.current_accelerator().type
    source, runner, made = case(tmp_path, device=device)
    made.run(source, tmp_path / "device.tif", runner, ignore_progress)
    with (
        rasterio.open(tmp_path / "cpu.tif") as one,
        rasterio.open(tmp_path / "device.tif") as other,
    ):
        wanted, found = one.read().astype(int), other.read().astype(int)
    probabilities = [0, *range(2, len(wanted))]
    assert np.abs(wanted - found)[probabilities].max() <= 2
    assert (wanted[1] != found[1]).mean() < 0.01


def test_nothing_waits_for_a_batch_while_others_can_begin(tmp_path, recorded):
    source, runner, made = case(tmp_path)
    with recorded:
        _, stats = predicted(tmp_path / "device.tif", source, runner, made)
    notes = recorded.notes
    ups = [note for note in notes if note[0] == "up"]
    downs = [note for note in notes if note[0] == "down"]
    blending = 0
    lanes = list(range(1, 1 + IN_FLIGHT))
    # Copies both ways are pinned and do not block; batches take turns in their streams.
    assert [note[1] for note in ups] == [lanes[i % IN_FLIGHT] for i in range(len(ups))]
    assert len(ups) > 3 * IN_FLIGHT
    assert all(note[2] for note in ups + downs)
    assert {note[1] for note in downs} == {blending}
    assert len(downs) == len(made.grid(source).rows.starts)
    # Streams begin after the weights were copied; blending waits for the model by an event, and
    # keeps its output.
    assert [note for note in notes if note[0] == "after"] == [("after", i, -1) for i in range(4)]
    assert [n[2] for n in notes if n[0] == "waits"] == [note[1] for note in ups]
    assert notes.count(("kept", blending)) == len(ups)
    # The host waits for the oldest batch only when all streams are in use.
    main = [note for note in notes if note[0] == "up" or (note[0] == "host" and note[1] in lanes)]
    kinds = [note[0] for note in main]
    assert kinds[:IN_FLIGHT] == ["up"] * IN_FLIGHT
    assert kinds[IN_FLIGHT : IN_FLIGHT + 4] == ["host", "up", "host", "up"]
    assert kinds.count("host") == len(ups)
    assert stats.forward_seconds == pytest.approx(len(ups) / 1000)


@pytest.mark.parametrize("bands", [1, 8])
def test_lost_pixels_are_counted_and_hidden(tmp_path, monkeypatch, recorded, bands):
    class Breaks(Runner):
        def __call__(self, image):
            found = image[:, :1].permute(0, 2, 3, 1).float().div(255).repeat(1, 1, 1, bands)
            found[found < 0.1] = float("nan")
            found[found > 0.95] = float("inf")
            return found

    facts = replace(FACTS, channels=bands, class_mph=FACTS.class_mph if bands > 1 else ())
    facts = replace(facts, targets="bins" if bands > 1 else "road")
    source, _, made = case(tmp_path, overlap=0, window=64)
    made = replace(made, info=facts)
    with recorded:
        found, stats = predicted(tmp_path / "device.tif", source, Breaks("float32"), made)
    monkeypatch.setattr(predictor, "device_streams", device_streams)
    wanted, before = predicted(tmp_path / "cpu.tif", source, Breaks("float32"), made)
    assert stats.lost == before.lost > 1000
    assert found == wanted


def test_class_maps_have_the_bytes_of_the_cpu(tmp_path, recorded, monkeypatch):
    class Classes(Runner):
        def __call__(self, image):
            return image.permute(0, 2, 3, 1).float().softmax(-1)

    names = ("water", "forest", "field")
    facts = replace(FACTS, targets="classes", channels=3, class_mph=(), class_names=names)
    source, _, made = case(tmp_path, confidence=True, probabilities=True)
    made = replace(made, info=facts)
    with recorded:
        found, _ = predicted(tmp_path / "device.tif", source, Classes("float32"), made)
    monkeypatch.setattr(predictor, "device_streams", device_streams)
    assert found == predicted(tmp_path / "cpu.tif", source, Classes("float32"), made)[0]


def test_a_batch_too_large_for_the_device_names_the_options(tmp_path, monkeypatch):
    def full(self, image):
        raise torch.OutOfMemoryError("CUDA out of memory")

    source, runner, made = case(tmp_path)
    monkeypatch.setattr(NativeRunner, "__call__", full)
    with pytest.raises(UsageError, match="too little memory for batches of 2 windows of 96 x 96"):
        made.run(source, tmp_path / "out.tif", runner, ignore_progress)


def test_only_devices_with_streams_have_them(monkeypatch):
    assert device_streams(CPU) is None
    assert device_streams(torch.device("mps")) is None
    monkeypatch.setattr(accelerator.torch, "get_device_module", lambda device: torch.cuda)
    assert device_streams(torch.device("cuda:1")).device == torch.device("cuda:1")


def test_devices_are_named_by_number():
    assert parse_devices("auto") == ["auto"]
    assert parse_devices("cuda:1") == ["cuda:1"]
    assert parse_devices("cuda:0,cuda:1") == parse_devices("cuda:0,1") == ["cuda:0", "cuda:1"]
    for text in ("tpu", "cuda,1", "cuda:0,0", "cpu:1", "cpu,cuda:0", "cuda:", ""):
        with pytest.raises(UsageError, match=r"`device` .*cuda:0,cuda:1 for several"):
            parse_devices(text)


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="names 2 devices"):
        chosen_device("cuda:0,1")
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

        def Process(self, target, args):  # noqa: N802
            work, cores, _ = args
            started.append((work.args[0].device, work.args[1], cores))
            return SimpleNamespace(start=lambda: None, pid=None)

    monkeypatch.setattr(instances.multiprocessing, "get_context", lambda kind: Context())
    monkeypatch.setattr(instances, "_watch", lambda *args: 0)
    made = predict_options(out=tmp_path, device="cuda:0,1")
    assert command.predict(made) == 0
    assert started == [("cuda:0", (0, 2), [0, 1]), ("cuda:1", (1, 2), [2, 3])]
    with pytest.raises(UsageError, match="`instances` 2 divide cores"):
        run_instances(replace(made, instances=2), command._instance)
