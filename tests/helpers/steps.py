"""A seeded batch, and training steps over it."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loaders import Batch, DevicePrep, Normalize, SpeedTarget
from training.model.losses import RoadLoss
from training.model.trainable import Trainable

SAMPLES = ("--crop", "32", "--crops-per-tile", "1", "--batch-size", "4")
"""Options of small batches from the store of `training/conftest.py`."""


class NoReads(TorchDispatchMode):
    """Fails where the host would wait for a value of the device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(function), "the host waits for the device"
        return function(*args, **(kwargs or {}))


def batch(n=2, side=32):
    """Return images of noise, uint8 (n, 3, y, x), with two roads in the labels, uint8 (n, y, x)."""
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (n, side, side, 3), dtype=torch.uint8, generator=generator)
    speed = torch.zeros(n, side, side, dtype=torch.uint8)
    speed[:, 4:9], speed[:, :, 20:24], speed[0, :2] = 25, 45, 255
    number = torch.arange(n)
    return Batch(image.permute(0, 3, 1, 2), speed, number, torch.zeros(n, 3).int(), number)


def trainable_of(model, targets="bins", dtype=torch.float32):
    """Return a model with a preparation of images and the loss of roads."""
    prep = DevicePrep(Normalize([100.0] * 3, [50.0] * 3, dtype), SpeedTarget(targets))
    return Trainable(prep, model, RoadLoss())


def losses(engine, module, optimizer, steps, side=32):
    """Return the loss of each step over that batch."""
    found = []
    for _ in range(steps):
        with engine.autocast():
            parts = module(batch(side=side))
        parts.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(parts.total.item())
    return found
