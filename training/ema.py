"""Exponential moving average of a network's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError


class Ema:
    """Averaged weights of a network, and of its running statistics.

    The decay rises from 0.1 over the first steps as ``(1 + step) / (10 + step)``, so that the
    average does not remember the random weights of the start.

    Parameters
    ----------
    network
        Whose weights these are; they start as its own.
    decay
        Within 0..1; 0.999 averages over the last thousand steps.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise UsageError(f"--ema {decay} must lie between 0 and 1, such as 0.999")
        self.network = network
        self.decay = decay
        self.weights = _copy(network)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the network's weights after optimizer step ``step``, which counts from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        now = self.network.state_dict()
        floats = [name for name, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.weights[n] for n in floats], [now[n] for n in floats], 1 - decay)
        for name in now.keys() - set(floats):
            self.weights[name].copy_(now[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the network have the averaged weights for a while."""
        own = _copy(self.network)
        self.network.load_state_dict(self.weights)
        try:
            yield
        finally:
            self.network.load_state_dict(own)

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        """Go on with averaged weights of a checkpoint."""
        for name, value in weights.items():
            self.weights[name].copy_(value)


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
