"""Models with known outputs, checkpoints of them, and images to predict."""

import copy
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import rasterio
import torch
from affine import Affine
from torch import nn

from helpers.rasters import write_raster
from training.checkpoint import Checkpoint, ModelInfo, save
from training.prediction.images import inspect_image
from training.prediction.predict_options import PredictOptions
from training.prediction.predictor import Predictor

MPH = (5.5, 15.5, 25.5, 35.5, 45.5, 55.5, 65.5)
GSD = 0.31
UTM = "EPSG:32637"
PLACE = Affine(GSD, 0, 413871.25, 0, -GSD, 6180032.5)

FACTS = ModelInfo(
    model="helpers.predict_cases:pointwise",
    bands=("red", "green", "blue"),
    channels=8,
    targets="bins",
    mean=(100.0, 110.0, 120.0),
    std=(40.0, 50.0, 60.0),
    rescale="none",
    gsd_m=(GSD, GSD),
    level=64,
    class_mph=MPH,
)


def predict_options(**options):
    """Return options of ``training.predict``: all bands, and these changed."""
    whole = {"checkpoint": Path("best.pt"), "images": ("scene.tif",), "outputs": "all"}
    return PredictOptions(**whole | options)


def pointwise(bands, channels):
    """Return a model of single pixels."""
    return nn.Conv2d(bands, channels, 1)


def neighbourly(bands, channels):
    """Return a model of 5 x 5 pixels that is not symmetric."""
    return nn.Conv2d(bands, channels, 5, padding=2)


class _Interrupting(nn.Conv2d):
    """Sends Ctrl-C to all processes of its group in its tenth call."""

    calls = 0

    def forward(self, image):
        self.calls += 1
        if self.calls == 10:
            os.killpg(0, signal.SIGINT)
        return super().forward(image)


def interrupting(bands, channels):
    """As `pointwise`; Ctrl-C arrives while it predicts."""
    return _Interrupting(bands, channels, 1)


def make_checkpoint(path, seed=0, **facts):
    """Save an untrained model; return the path and the model."""
    facts = replace(FACTS, **facts)
    torch.manual_seed(seed)
    network = globals()[facts.model.partition(":")[2]](len(facts.bands), facts.channels)
    save(path, Checkpoint(info=facts, model=network.state_dict()))
    return path, network.eval()


def pixels(height, width, bands=3, seed=0, dtype="uint8", top=255):
    """Return random valid pixels (y, x, band)."""
    return np.random.default_rng(seed).integers(1, top + 1, (height, width, bands)).astype(dtype)


def write_image(path, values, crs=UTM, transform=PLACE, **profile):
    """Write (y, x, band) pixels as a GeoTIFF; return its path."""
    settings = {"tiled": True, "blockxsize": 64, "blockysize": 64, "compress": "deflate"}
    if values.shape[2] == 3:
        settings["photometric"] = "rgb"
    bands = np.moveaxis(values, 2, 0)
    write_raster(Path(path), bands, crs=crs, transform=transform, **settings | profile)
    return path


def probabilities(network, image, mean=FACTS.mean, std=FACTS.std):
    """Return the output of a model for a whole image (y, x, band), float64 (channel, y, x)."""
    values = (image.astype(np.float64) - mean) / std
    with torch.no_grad():
        logits = copy.deepcopy(network).double()(torch.from_numpy(values).permute(2, 0, 1)[None])[0]
    return torch.sigmoid(logits).numpy()


def expected_prediction(probability, valid, threshold=0.5, mph=MPH):
    """Return the correct prediction, uint8 (band, y, x), and where its rounding is certain."""
    scaled = probability * 255
    out = np.minimum(np.floor(scaled + 0.5), 254)
    speed = np.floor(np.array(mph)[probability[:-1].argmax(axis=0)] + 0.5)
    speed[probability[-1] < threshold] = 0
    whole = np.concatenate([out[-1:], speed[None], out[:-1]])
    whole[:, ~valid] = 255
    sure = np.abs(scaled - np.floor(scaled) - 0.5).min(axis=0) > 1e-3
    sure &= np.abs(probability[-1] - threshold) > 1e-5
    first, second = np.sort(probability[:-1], axis=0)[[-1, -2]]
    sure &= first - second > 1e-5
    return whole.astype(np.uint8), sure


def ignore_progress(completed):
    """Do nothing with the progress of a prediction."""


class Bands:
    """A runner whose probabilities are the bands of the image; stops before the call ``end``."""

    identity = MappingProxyType({"runner": "bands"})
    device, fixed_batch, images, at_once = torch.device("cpu"), False, 1, 1

    def __init__(self, end=None):
        self.turns, self.calls, self.end = nullcontext(), 0, end

    def __call__(self, image):
        if self.calls == self.end:
            raise KeyboardInterrupt
        self.calls += 1
        shares = image.float().permute(0, 2, 3, 1) + 0.01
        return shares / shares.sum(axis=-1, keepdim=True)


CLASSES = replace(
    FACTS,
    channels=3,
    targets="classes",
    class_mph=(),
    class_names=("background", "water", "forest"),
    class_colors=((0, 0, 0), (0, 0, 255), (0, 255, 0)),
)
HOUSES = {
    "targets": "classes",
    "channels": 3,
    "class_mph": (),
    "class_names": ("background", "house", "lake"),
    "class_colors": ("#000000", "#FF0000", "#0000FF"),
}
"""Facts of a model of classes, for `make_checkpoint`."""
SMOOTH = np.kron(pixels(50, 8), np.ones((14, 13, 1), np.uint8))  # 700 x 104
SMOOTH[:40, 50:] = 0


def predicted(path, image, factors, runner=None, facts=CLASSES, **options):
    """Return the bands of a prediction, of a model whose pixels are so many of the image's."""
    facts = replace(facts, gsd_m=(GSD * factors[1], GSD * factors[0]))
    usual = {"window": 64, "overlap": 16, "probabilities": True, "outputs": "road,speed"}
    options = predict_options(**usual | options)
    source = inspect_image(str(image), facts, options)
    Predictor(facts, options, 0.5, "none").run(source, path, runner or Bands(), ignore_progress)
    with rasterio.open(path) as file:
        return file.read(), file
