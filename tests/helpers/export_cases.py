"""The record and the images of tests of model files."""

import torch

from helpers.stores import draw_tiles
from training.checkpoint import ModelInfo

FACTS = ModelInfo(
    model="helpers.tiny:normed",
    bands=("red", "green", "blue"),
    channels=8,
    targets="bins",
    mean=(60.0, 70.0, 80.0),
    std=(30.0, 25.0, 20.0),
    rescale="none",
    gsd_m=(0.5, 0.5),
    level=64,
    class_mph=(5.5, 15.5, 25.0, 35.0, 45.0, 55.0, 65.0),
    limits=((0.0, 10.0), (1.0, 11.0), (2.0, 12.0)),
    threshold=0.4,
    stores=("/home/someone/secret.zarr",),
)
IMAGE = torch.from_numpy(draw_tiles(3, 64, 3, seed=9)[0][:, :, :32]).permute(0, 3, 1, 2)
