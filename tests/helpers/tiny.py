"""Small models for tests, as user-defined factories: ``--model tiny:build``."""

import os
import random
import signal
from collections import OrderedDict

import numpy as np
import torch
from torch import nn


def build(bands, channels):
    """Three convolutions, no running statistics."""
    return nn.Sequential(
        nn.Conv2d(bands, 8, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, channels, 1),
    )


def normed(bands, channels, dropped=0.2):
    """A model with all kinds of state: running statistics and dropout."""
    return nn.Sequential(
        nn.Conv2d(bands, 8, 5, padding=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout2d(dropped),
        nn.Conv2d(8, channels, 3, padding=1),
    )


def undropped(bands, channels):
    """As `normed`, without dropout, which draws other numbers on another device."""
    return normed(bands, channels, dropped=0.0)


class _Doomed(nn.Module):
    """Sends a signal to its own process in its n-th training step."""

    def __init__(self, network, number):
        super().__init__()
        self.inner = network
        self.number = number
        self.calls = 0
        self.at = int(os.environ["DOOM_AT"])
        self.in_validation = self.validated = 0

    def forward(self, image):
        # The memory planner, and the check of the output, pass single images.
        self.calls += self.training and len(image) > 1
        self.validated += not self.training and len(image) > 1
        if 0 < self.at == self.calls:
            self.calls += 1
            os.kill(os.getpid(), self.number)
        if 0 < self.in_validation == self.validated:
            self.validated += 1
            os.kill(os.getpid(), signal.SIGTERM)
        return self.inner(image)


def killed(bands, channels):
    """As `normed`; the process is killed by SIGKILL at call DOOM_AT."""
    return _Doomed(normed(bands, channels), signal.SIGKILL)


def interrupted(bands, channels):
    """As `normed`; Ctrl-C at call DOOM_AT."""
    return _Doomed(normed(bands, channels), signal.SIGINT)


def hung_up(bands, channels):
    """As `normed`; the terminal is closed at call DOOM_AT."""
    return _Doomed(normed(bands, channels), signal.SIGHUP)


def one_rank_interrupted(bands, channels):
    """As `normed`; Ctrl-C reaches the last of the ranks alone, SIGTERM the first in a validation.

    At call DOOM_AT, and at call DOOM_IN_VALIDATION of validations; 0 for never.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank < ranks - 1:
        os.environ["DOOM_AT"] = "0"
    model = _Doomed(normed(bands, channels), signal.SIGINT)
    model.in_validation = 0 if rank else int(os.environ["DOOM_IN_VALIDATION"])
    return model


def pooled(bands, channels):
    """A global pooling with BatchNorm behind it, as in DeepLab and PSPNet."""
    return _Pooled(bands, channels)


class _Pooled(nn.Module):
    def __init__(self, bands, channels):
        super().__init__()
        self.first = nn.Conv2d(bands, 8, 3, padding=1)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
        self.head = nn.Conv2d(8, channels, 1)

    def forward(self, image):
        features = self.first(image)
        return self.head(features + self.pool(features))


def dropping(bands, channels):
    """With running statistics and dropout in an encoder of its own."""
    parts = {"encoder": normed(bands, 8), "head": nn.Conv2d(8, channels, 1)}
    return nn.Sequential(OrderedDict(parts))


class _Steep(torch.autograd.Function):
    """The value itself; its gradient is infinite."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.inf


class _FailsAtFive(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.inner = network
        self.calls = 0

    def fails(self, image):
        """Count a call, except of single images, which only checks of the model pass."""
        self.calls += len(image) > 1
        return self.calls == 5


class _SteepAtFive(_FailsAtFive):
    def forward(self, image):
        fails = self.fails(image)
        logits = self.inner(image)
        return _Steep.apply(logits) if fails else logits


def steep(bands, channels):
    """Finite results, and an infinite gradient in the fifth call."""
    return _SteepAtFive(build(bands, channels))


def steep_normed(bands, channels):
    """As `steep`, with running statistics and dropout."""
    return _SteepAtFive(normed(bands, channels))


class _PoisonedAtFive(_FailsAtFive):
    def forward(self, image):
        return self.inner(image * torch.nan if self.fails(image) else image)


class _ExplosiveAtFive(_FailsAtFive):
    def forward(self, image):
        return self.inner(image) * (torch.nan if self.fails(image) else 1.0)


def poisoned(bands, channels):
    """As `normed`; in its fifth call loss, gradients and running statistics become NaN."""
    return _PoisonedAtFive(normed(bands, channels))


def half_size(bands, channels):
    """Logits of half the image's size."""
    return nn.Conv2d(bands, channels, 3, stride=2, padding=1)


def broken(bands, channels):
    """A factory that fails."""
    raise RuntimeError("out of ideas")


DARKENED = []
"""Shape and dtype of the images that `darken` saw."""


def darken(image, speed, key):
    """A user-defined augmentation."""
    assert speed.dtype == torch.uint8
    assert key.dtype == torch.int64
    DARKENED.append((tuple(image.shape), image.dtype))
    return image // 2, speed


def random_shift(image, label, key):
    """A user-defined augmentation that draws from Python's generator and from NumPy's."""
    shift = random.randrange(64) + int(np.random.randint(64))  # noqa: NPY002 - as users may
    return image + shift, label


def two_arguments(image, label):
    """An augmentation with a wrong signature."""
    return image, label


def image_only(image, label, key):
    """An augmentation that returns something else."""
    return image


def encoded(bands, channels):
    """With an encoder of its own."""
    parts = {"encoder": nn.Conv2d(bands, 8, 3, padding=1), "head": nn.Conv2d(8, channels, 1)}
    return nn.Sequential(OrderedDict(parts))


def explosive(bands, channels):
    """Returns no numbers in its fifth call."""
    return _ExplosiveAtFive(build(bands, channels))
