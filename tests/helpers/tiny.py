"""Networks small enough for tests, as a user's own factories: ``--model tiny:build``."""

import os
import signal

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


def normed(bands, channels):
    """With running statistics and dropout: everything that has state."""
    return nn.Sequential(
        nn.Conv2d(bands, 8, 5, padding=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, channels, 3, padding=1),
    )


class _Doomed(nn.Module):
    """Sends a signal to its own process in its n-th training step."""

    def __init__(self, network, number):
        super().__init__()
        self.inner = network
        self.number = number
        self.calls = 0
        self.at = int(os.environ["DOOM_AT"])

    def forward(self, image):
        # What plans memory puts single images through.
        self.calls += self.training and len(image) > 1
        if 0 < self.at == self.calls:
            self.calls += 1
            os.kill(os.getpid(), self.number)
        return self.inner(image)


def killed(bands, channels):
    """As `normed`; the process is killed without a warning at call DOOM_AT."""
    return _Doomed(normed(bands, channels), signal.SIGKILL)


def interrupted(bands, channels):
    """As `normed`; Ctrl-C at call DOOM_AT."""
    return _Doomed(normed(bands, channels), signal.SIGINT)


class _Explosive(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.inner = network
        self.calls = 0

    def forward(self, image):
        self.calls += len(image) > 1  # what plans memory puts single images through
        return self.inner(image) * (torch.nan if self.calls == 5 else 1.0)


def explosive(bands, channels):
    """Returns no numbers in its fifth call."""
    return _Explosive(build(bands, channels))
