"""The record and the images of tests of model files."""

from dataclasses import replace

import torch

from helpers import predict_cases
from helpers.stores import draw_tiles

FACTS = replace(
    predict_cases.FACTS,
    model="helpers.tiny:normed",
    mean=(60.0, 70.0, 80.0),
    std=(30.0, 25.0, 20.0),
    gsd_m=(0.5, 0.5),
    class_mph=(5.5, 15.5, 25.0, 35.0, 45.0, 55.0, 65.0),
    limits=((0.0, 10.0), (1.0, 11.0), (2.0, 12.0)),
    threshold=0.4,
    stores=("/home/someone/secret.zarr",),
)
IMAGE = torch.from_numpy(draw_tiles(3, 64, 3, seed=9)[0][:, :, :32]).permute(0, 3, 1, 2)
