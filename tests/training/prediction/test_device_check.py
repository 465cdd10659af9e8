"""A device that computes something else than the host is found, and images are predicted there."""

from dataclasses import replace

import pytest
import rasterio
from helpers.predict_cases import make_checkpoint, pixels, predict_options, write_image

from training.prediction import job, predictor
from training.prediction.device import Device, DeviceBlender
from training.prediction.job import open_job
from training.prediction.screen import Screen
from training.runners.runner import NativeRunner

MODEL = "helpers.predict_cases:neighbourly"


class OfDevice(NativeRunner):
    """Computes in bf16 on the CPU, which stands for a device."""

    def __call__(self, image):
        return self.wrong(super().__call__(image).bfloat16().float())

    @staticmethod
    def wrong(probabilities):
        return probabilities


@pytest.fixture
def images(tmp_path):
    """Two images; the first has no imagery in its middle, where windows are compared."""
    (tmp_path / "images").mkdir()
    for number in range(2):
        values = pixels(700, 300, seed=number)
        if number == 0:
            values[200:500] = 0
        write_image(tmp_path / "images" / f"{number}.tif", values, nodata=0)
    return tmp_path / "images"


@pytest.fixture
def predict(tmp_path, images, monkeypatch):
    """Return what predicts the images on a device or the host: bytes, warnings, comparisons."""
    path, _ = make_checkpoint(tmp_path / "n.pt", model=MODEL)

    def predict(name, on_device):
        given = {"checkpoint": path, "model": MODEL, "images": (str(images),), "batch_size": 2}
        given |= {"window": 96, "overlap": 32, "device": "cpu", "precision": "fp32"}
        made, _ = open_job(predict_options(out=tmp_path / name, **given))
        opened, said, host = [], [], made.runner
        if on_device:
            made.runner = OfDevice.__new__(OfDevice)
            vars(made.runner).update(vars(host))
            made.predictor = replace(made.predictor, on_host=lambda: opened.append(name) or host)
            for module in (predictor, job):
                streams = "has_streams", lambda where: isinstance(made.runner, OfDevice)
                monkeypatch.setattr(module, *streams)
        with Screen(quiet=True, send=lambda what: said.append(str(what))) as screen:
            outcomes = made.run(screen)
        assert not any(outcome.error for outcome in outcomes)
        files = [rasterio.open(outcome.target) for outcome in outcomes]
        warnings = [line for line in said if "warning" in line]
        return [file.read().astype(int) for file in files], warnings, len(opened)

    return predict


def test_a_device_that_is_right_is_compared_once(predict):
    found, said, compared = predict("device", on_device=True)
    assert not said
    assert compared in (1, 2)  # if the first image comes first, there is nothing to compare
    right, _, none = predict("host", on_device=False)
    assert none == 0
    for ours, theirs in zip(found, right, strict=True):
        assert 0 < abs(ours - theirs)[[0, *range(2, 9)]].max() <= 2  # bf16


def _darker(self, pixels, *rest, render=Device.render):
    image, valid = render(self, pixels, *rest)
    return image // 2, valid


def _unweighted(self, row, columns, probabilities, add=DeviceBlender.add):
    add(self, row, columns, probabilities * 0.9)


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "reason"),
    [
        (OfDevice, "wrong", staticmethod(lambda p: p - 0.2), "probabilities that differ by 0.2 on"),
        (OfDevice, "wrong", staticmethod(lambda p: p * float("nan")), "differ by nan on average"),
        (Device, "render", _darker, "computes probabilities that differ"),
        (DeviceBlender, "add", _unweighted, "cpu makes other bytes of"),
    ],
)
def test_a_device_that_is_wrong_is_left(predict, monkeypatch, owner, name, wrong, reason):
    monkeypatch.setattr(owner, name, wrong)
    found, said, _ = predict("device", on_device=True)
    (line,) = [line for line in said if line.endswith(": images are predicted on the host")]
    assert line.startswith("warning: cpu ")
    assert reason in line
    right, _, _ = predict("host", on_device=False)
    assert (found[1] == right[1]).all()
